//! The rules of `docs/reference/provider-contract.md` that need a real API server, for KAITO with the upstream simulator and for the
//! example provider. The others are in `runway_provider::conformance`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use deployment_provider::{DEPLOYMENT, DeploymentProvider, SERVICE};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::{Phase, ProviderStatus};
use runway_api::{InferenceProviderConfigSpec, InferenceProviderConfigStatus, ModelDeployment, labels};
use runway_manifests::{self as manifests, Identity};
use runway_operator::plan::Finalizer;
use runway_product_testbed::{Bed, LONG, NAMESPACE, PATIENCE, Upstream, gemma, gemma_simulated};
use runway_provider::{ChildRef, Installed, Provider, Reading, Refusal, Request, Translation, upstream};
use runway_provider_kaito::{INFERENCE_SET, Kaito};
use runway_testbed::{audit, crds, eventually};
use serde_json::{Value, json};

#[tokio::test]
async fn r2_it_registers_itself_and_again_when_it_was_deleted() -> Result<()> {
    let bed = Bed::start().await?;
    let _kaito = bed.kaito().await?;
    let _deployment = bed.provider(DeploymentProvider).await?;
    for (name, spec) in [
        ("kaito", Kaito::default().registration()),
        ("deployment", DeploymentProvider.registration()),
    ] {
        ensure!(
            bed.configs().get(name).await?.spec == spec,
            "{name} registered something else"
        );
        let status = config_status(&bed, name).await?;
        ensure!(
            status.ready == Some(true) && status.version.is_some(),
            "{name}: {status:?}"
        );
        bed.configs().delete(name, &DeleteParams::default()).await?;
    }
    for name in ["kaito", "deployment"] {
        eventually(PATIENCE, async || {
            ensure!(config_status(&bed, name).await?.ready == Some(true));
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn r3_what_the_admin_has_edited_survives_a_restart() -> Result<()> {
    let bed = Bed::start().await?;
    let kaito = bed.kaito().await?;
    let deployment = bed.provider(DeploymentProvider).await?;
    let rules = json!([{ "condition": "spec.engine.type == 'vllm'", "priority": 7 }]);
    edit_config(&bed, "kaito", json!({ "selectionRules": rules })).await?;
    edit_config(
        &bed,
        "deployment",
        json!({ "selectionPolicy": "Automatic", "documentation": null }),
    )
    .await?;

    kaito.stop().await;
    drop(deployment);
    let _kaito = bed.kaito().await?;
    let _deployment = bed.provider(DeploymentProvider).await?;
    ready(&bed, "kaito").await?;
    let spec = serde_json::to_value(bed.configs().get("kaito").await?.spec)?;
    ensure!(spec["selectionRules"] == rules, "{spec}");
    let registered = serde_json::to_value(Kaito::default().registration())?;
    ensure!(
        spec["capabilities"] == registered["capabilities"],
        "fields without another manager stay as registered"
    );
    let spec = serde_json::to_value(bed.configs().get("deployment").await?.spec)?;
    ensure!(spec["selectionPolicy"] == "Automatic", "{spec}");
    Ok(())
}

async fn edit_config(bed: &Bed, name: &str, spec: Value) -> Result<()> {
    let admin = PatchParams {
        field_manager: Some("kubectl-edit".to_owned()),
        ..PatchParams::default()
    };
    bed.configs()
        .patch(name, &admin, &Patch::Merge(json!({ "spec": spec })))
        .await?;
    Ok(())
}

#[tokio::test]
async fn r4_a_heartbeat_every_minute_and_without_it_no_choice() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let kaito = bed.kaito().await?;
    bed.admission_is_up().await?;
    let first = config_status(&bed, "kaito")
        .await?
        .last_heartbeat
        .context("no heartbeat")?;
    let next = eventually(PATIENCE, async || {
        let beat = config_status(&bed, "kaito")
            .await?
            .last_heartbeat
            .context("no heartbeat")?;
        ensure!(beat != first);
        Ok(beat)
    })
    .await?;
    let between = next.0.duration_since(first.0).as_secs();
    ensure!((1..=65).contains(&between), "{between} seconds between two heartbeats");

    // Killed, and its last word is four minutes old.
    drop(kaito);
    let long_ago = Time(next.0 - SignedDuration::from_mins(4));
    let patch = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig",
        "status": { "ready": true, "lastHeartbeat": long_ago },
    });
    bed.configs()
        .patch_status("kaito", &PatchParams::apply("kaito-provider"), &Patch::Apply(patch))
        .await?;
    bed.create(gemma("late")).await?;
    bed.status("late", "waiting for a provider", |s| {
        s.message.as_deref() == Some("No healthy providers available")
    })
    .await?;
    let _kaito = bed.kaito().await?;
    bed.status("late", "handed over", |s| {
        s.provider.as_ref().is_some_and(|p| p.name.is_some())
    })
    .await?;
    Ok(())
}

/// A Deployment of the operator that has no pod: no kubelet runs here.
#[tokio::test]
async fn r4_a_provider_without_its_operator_is_not_selected() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    bed.admission_is_up().await?;
    ready(&bed, "kaito").await?;
    bed.create(gemma("waits")).await?;
    bed.status("waits", "Deploying", |s| s.phase == Some(Phase::Deploying))
        .await?;

    let labels = json!({"app.kubernetes.io/name": "workspace"});
    bed.apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "kaito-workspace", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "manager", "image": "kaito:1"}]},
            },
        },
    }))
    .await?;
    let operators: Api<Deployment> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    eventually(PATIENCE, async || {
        // The controller of Deployments keeps the time of a condition that does not change.
        let since = json!({"status": {"conditions": [{
            "type": "Available", "status": "False", "reason": "MinimumReplicasUnavailable",
            "message": "Deployment does not have minimum availability.", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        operators
            .patch_status("kaito-workspace", &PatchParams::default(), &Patch::Strategic(&since))
            .await?;
        let status = config_status(&bed, "kaito").await?;
        let upstream = status.conditions.when_false(condition::UPSTREAM_READY);
        ensure!(
            status.ready == Some(false) && upstream.is_some_and(|c| c.reason == "OperatorUnavailable"),
            "{status:?}"
        );
        Ok(())
    })
    .await?;
    bed.status("waits", "stale", |s| {
        let stale = s.conditions.when_true(condition::STALE_STATUS);
        stale.is_some_and(|c| c.reason == "OperatorUnavailable" && c.message.contains("kaito-workspace"))
    })
    .await?;
    bed.create(gemma("later")).await?;
    bed.status("later", "not selected", |s| {
        s.conditions.when_false(condition::PROVIDER_SELECTED).is_some()
    })
    .await?;

    operators.delete("kaito-workspace", &DeleteParams::default()).await?;
    ready(&bed, "kaito").await?;
    for name in ["waits", "later"] {
        bed.status(name, "served", |s| {
            s.phase == Some(Phase::Deploying) && s.conditions.when_true(condition::STALE_STATUS).is_none()
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn r5_not_ready_after_an_orderly_stop() -> Result<()> {
    let bed = Bed::start().await?;
    let kaito = bed.kaito().await?;
    let deployment = bed.provider(DeploymentProvider).await?;
    kaito.stop().await;
    deployment.stop().await;
    for name in ["kaito", "deployment"] {
        let status = config_status(&bed, name).await?;
        let said = status
            .conditions
            .get_condition(condition::UPSTREAM_READY)
            .map(|c| c.reason.clone());
        ensure!(
            status.ready == Some(false) && said.as_deref() == Some("ShutDown"),
            "{name}: {status:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn r6_unknown_schema_is_reported_until_a_known_one_is_installed() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("before")).await?;
    bed.running("before").await?;

    let real = crds::upstream_crds(&[crds::KAITO_WORKSPACES])?;
    for mut crd in real.clone() {
        forget_a_field(&mut crd, "inference", "config");
        crds::install_crd(&bed.admin, crd).await?;
    }
    let md = bed
        .status("before", "Failed", |s| s.phase == Some(Phase::Failed))
        .await?;
    let compatible = md
        .conditions()
        .get_condition(condition::PROVIDER_COMPATIBLE)
        .cloned()
        .context("no condition")?;
    ensure!(
        (compatible.status.as_str(), compatible.reason.as_str()) == ("False", "UnknownUpstreamSchema")
            && compatible.message.contains("inference.config does not exist"),
        "{compatible:?}"
    );
    eventually(PATIENCE, async || {
        let status = config_status(&bed, "kaito").await?;
        let said = status
            .conditions
            .get_condition(condition::UPSTREAM_READY)
            .map(|c| c.reason.clone());
        ensure!(
            status.ready == Some(false) && said.as_deref() == Some("UnknownUpstreamSchema"),
            "{status:?}"
        );
        ensure!(
            status.upstream_crd_version.is_none() && status.upstream_schema_hash.is_none(),
            "{status:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(
        bed.inference_sets().get_opt("before").await?.is_some(),
        "a running model keeps serving"
    );

    // New objects wait, and deletion continues.
    bed.create(gemma("meanwhile")).await?;
    bed.status("meanwhile", "waiting", |s| {
        s.message.as_deref() == Some("No healthy providers available")
    })
    .await?;
    bed.create(gemma("short-lived")).await?;
    bed.delete("short-lived").await?;
    bed.gone("short-lived").await?;

    for crd in real {
        crds::install_crd(&bed.admin, crd).await?;
    }
    bed.running("before").await?;
    bed.running("meanwhile").await?;
    let status = config_status(&bed, "kaito").await?;
    ensure!(
        status.upstream_crd_version.as_deref() == Some("kaito.sh/v1beta1"),
        "{status:?}"
    );
    ensure!(status.upstream_schema_hash.is_some(), "{status:?}");
    Ok(())
}

/// An upstream release that dropped a field.
fn forget_a_field(crd: &mut CustomResourceDefinition, parent: &str, field: &str) {
    for version in &mut crd.spec.versions {
        let schema = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut());
        let properties = schema.and_then(|s| s.properties.as_mut());
        if let Some(fields) = properties
            .and_then(|p| p.get_mut(parent))
            .and_then(|p| p.properties.as_mut())
        {
            fields.remove(field);
        }
    }
}

#[tokio::test]
async fn r25_a_stuck_deletion_is_blocked_and_says_so() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let kaito = bed.kaito().await?;
    let _deployment = bed.provider(DeploymentProvider).await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;

    bed.create(gemma_simulated("stuck", "stuck-delete")).await?;
    bed.running("stuck").await?;
    bed.create(echo("stuck-too", 0)).await?;
    bed.running("stuck-too").await?;
    let hold = json!({ "metadata": { "finalizers": ["tests.example/hold"] } });
    let deployments = bed.upstream(DEPLOYMENT, "v1");
    deployments
        .patch("stuck-too", &PatchParams::default(), &Patch::Merge(&hold))
        .await?;
    for (name, object) in [
        ("stuck", "InferenceSet 'stuck'"),
        ("stuck-too", "Deployment 'stuck-too'"),
    ] {
        bed.delete(name).await?;
        bed.status(name, "waiting for its object", |s| {
            s.phase == Some(Phase::Terminating) && s.message.as_deref().is_some_and(|m| m.contains(object))
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        ensure!(
            bed.deployments().get(name).await?.has_finalizer(),
            "{name} is held until its object is gone"
        );
    }
    let release = json!({ "metadata": { "finalizers": null } });
    deployments
        .patch("stuck-too", &PatchParams::default(), &Patch::Merge(&release))
        .await?;
    bed.gone("stuck-too").await?;

    // The provider is dead: the core waits for it, too.
    bed.create(gemma("orphan")).await?;
    bed.running("orphan").await?;
    drop(kaito);
    bed.delete("orphan").await?;
    tokio::time::sleep(Duration::from_secs(3)).await;
    ensure!(
        bed.deployments().get("orphan").await?.has_finalizer(),
        "held until the provider is back or the time is up"
    );
    let _kaito = bed.kaito().await?;
    bed.gone("orphan").await
}

/// The same timeout for a provider that is dead, and a little more, so that one that lives goes first.
#[test]
fn r25_the_core_gives_up_on_a_dead_provider_after_five_minutes() -> Result<()> {
    let deleted: Timestamp = "2026-01-01T00:00:00Z".parse()?;
    let mut md: ModelDeployment = serde_json::from_value(gemma("orphan"))?;
    md.metadata.finalizers = Some(vec![labels::FINALIZER.to_owned()]);
    md.metadata.deletion_timestamp = Some(Time(deleted));
    md.status = Some(runway_api::ModelDeploymentStatus {
        provider: Some(ProviderStatus {
            name: Some("kaito".to_owned()),
            resource_kind: Some("Workspace".to_owned()),
            resource_name: Some("orphan".to_owned()),
            ..ProviderStatus::default()
        }),
        ..runway_api::ModelDeploymentStatus::default()
    });
    let md = Arc::new(md);
    let plan_after = |seconds: i64| {
        runway_core::plan::plan(&runway_core::observe::Observed {
            md: md.clone(),
            providers: Arc::default(),
            selector_enabled: true,
            autoscalers: runway_core::autoscalers::Autoscalers::default(),
            now: deleted + SignedDuration::from_secs(seconds),
        })
    };
    let waiting = plan_after(300);
    ensure!(
        waiting.finalizer == Finalizer::Keep && waiting.look_again.is_some_and(|wait| wait < Duration::from_mins(1))
    );
    let over = plan_after(330);
    ensure!(over.finalizer == Finalizer::Remove, "{over:?}");
    ensure!(
        over.events
            .iter()
            .any(|e| e.reason == "FinalizerTimeout" && e.message.contains("Workspace 'orphan'")),
        "{:?}",
        over.events
    );
    Ok(())
}

#[tokio::test]
async fn r27_defaults_of_the_server_are_not_drift() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _deployment = bed.provider(DeploymentProvider).await?;
    bed.admission_is_up().await?;
    bed.create(echo("quiet", 0)).await?;
    bed.running("quiet").await?;
    bed.foreign_labels_are_no_drift("quiet", [DEPLOYMENT, SERVICE], "deployment-provider")
        .await
}

#[tokio::test]
async fn r30_the_endpoint_exists() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _deployment = bed.provider(DeploymentProvider).await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    let mut several = gemma("several");
    several["spec"]["scaling"]["replicas"] = json!(2);
    let services: Api<Service> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    for object in [gemma("one"), several, echo("echo", 0)] {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        bed.create(object).await?;
        let md = bed.running(&name).await?;
        let endpoint = md
            .status
            .and_then(|s| s.endpoint)
            .with_context(|| format!("{name} has no endpoint"))?;
        let service = services
            .get(endpoint.service.as_deref().unwrap_or_default())
            .await
            .context(name.clone())?;
        let ports = service.spec.and_then(|s| s.ports).unwrap_or_default();
        ensure!(
            ports.iter().any(|p| Some(p.port) == endpoint.port),
            "{name}: {endpoint:?} is none of {ports:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn r33_unknown_field_is_reported_and_nothing_is_half_created() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let broken_main = Altered {
        name: "broken-main",
        alter: |translation| translation.objects[1].body["spec"]["template"]["spec"]["wheels"] = json!(4),
    };
    let broken_side = Altered {
        name: "broken-side",
        alter: |translation| translation.objects[0].body["spec"]["wheels"] = json!(4),
    };
    let good = Altered {
        name: "good",
        alter: |_| {},
    };
    let mut running = Vec::new();
    for provider in [broken_main, broken_side, good] {
        for role in manifests::provider_roles(&provider, Identity::User) {
            bed.apply(&serde_json::to_value(&role)?).await?;
        }
        running.push(bed.provider(provider).await?);
    }
    bed.admission_is_up().await?;
    for name in ["broken-main", "broken-side"] {
        bed.create(by(echo(name, 0), name)).await?;
        let md = bed.status(name, "Failed", |s| s.phase == Some(Phase::Failed)).await?;
        let status = md.status.clone().unwrap_or_default();
        let created = md
            .conditions()
            .get_condition(condition::RESOURCE_CREATED)
            .cloned()
            .context("no condition")?;
        ensure!(
            (created.status.as_str(), created.reason.as_str()) == ("False", "ResourceRejected"),
            "{created:?}"
        );
        ensure!(
            status.message.as_deref().is_some_and(|m| m.contains("wheels")),
            "the field is not named: {status:?}"
        );
        for kind in [SERVICE, DEPLOYMENT] {
            ensure!(
                bed.upstream(kind, "v1").get_opt(name).await?.is_none(),
                "{name}: a {} was half made",
                kind.kind
            );
        }
        bed.delete(name).await?;
        bed.gone(name).await?;
    }
    bed.create(by(echo("good", 0), "good")).await?;
    bed.running("good").await?;
    Ok(())
}

#[tokio::test]
async fn r34_only_its_own_field_manager_and_only_its_own_fields() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _deployment = bed.provider(DeploymentProvider).await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    for (object, manager, kind) in [
        (gemma("by-kaito"), "kaito-provider", INFERENCE_SET),
        (echo("by-example", 0), "deployment-provider", DEPLOYMENT),
    ] {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        bed.create(object).await?;
        let md = bed.running(&name).await?;
        let entries: Vec<_> = md
            .managed_fields()
            .iter()
            .filter(|e| e.manager.as_deref() == Some(manager))
            .collect();
        let [entry] = entries.as_slice() else {
            bail!("{name}: {} entries of {manager}", entries.len())
        };
        ensure!(
            entry.subresource.as_deref() == Some("status") && entry.operation.as_deref() == Some("Apply"),
            "{entry:?}"
        );
        let fields = serde_json::to_value(&entry.fields_v1)?;
        let status = fields["f:status"].as_object().context("no fields")?;
        let provider: Vec<_> = fields["f:status"]["f:provider"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(k, _)| k.as_str())
            .collect();
        ensure!(
            provider
                .iter()
                .all(|f| ["f:resourceKind", "f:resourceName"].contains(f)),
            "{name}: it owns {provider:?}"
        );
        ensure!(
            status.contains_key("f:phase") && status.contains_key("f:observedGeneration"),
            "{name}: {status:?}"
        );
        let version = if kind == INFERENCE_SET { "v1beta1" } else { "v1" };
        let made = bed.upstream(kind, version).get(&name).await?;
        ensure!(
            made.managed_fields()
                .iter()
                .any(|e| e.manager.as_deref() == Some(manager) && e.operation.as_deref() == Some("Apply")),
            "{name}: {:?}",
            made.managed_fields()
        );
    }
    Ok(())
}

/// A whole life: made (without the webhook, so that the finalizer is the provider's to add), changed, edited by hand,
/// recreated, deleted.
#[tokio::test]
async fn r35_nothing_is_forbidden_and_nothing_is_allowed_in_vain() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    let mark = bed.cluster.audit().await?.mark().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _deployment = bed.provider(DeploymentProvider).await?;
    let _simulator = bed.simulator().await?;

    // A container with a claim, one whose name only a Workspace can have, a preset with flags in a ConfigMap, and the example with
    // a claim.
    let storage = json!({ "volumes": [{ "name": "data", "size": "1Gi", "mountPath": "/data" }] });
    let (mut container, mut example) = (gemma("container"), echo("echo", 0));
    for object in [&mut container, &mut example] {
        object["spec"]["model"]["storage"] = storage.clone();
    }
    let mut preset = gemma("preset");
    preset["spec"] = json!({
        "model": { "id": "microsoft/phi-4" }, "provider": { "name": "kaito" },
        "engine": { "type": "vllm", "contextLength": 4096 },
        "resources": { "gpu": { "count": 1 } }, "scaling": { "replicas": 2 },
    });
    for object in [container, gemma(LONG), preset, example] {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        bed.create(object).await?;
        bed.running(&name).await?;
    }
    for name in ["container", LONG] {
        bed.patch(name, json!({ "spec": { "resources": { "memory": "20Gi" } } }))
            .await?;
    }
    bed.patch("preset", json!({ "spec": { "scaling": { "replicas": 3 } } }))
        .await?;
    bed.patch(
        "echo",
        json!({ "spec": { "image": "echo:2", "model": { "storage": null } } }),
    )
    .await?;
    for name in ["container", LONG, "preset", "echo"] {
        bed.status(name, "up to date", |s| s.observed_generation == Some(2))
            .await?;
        bed.running(name).await?;
    }
    let edit = json!({ "metadata": { "labels": { labels::MODEL_SOURCE: "edited" } } });
    bed.inference_sets()
        .patch("container", &PatchParams::default(), &Patch::Merge(&edit))
        .await?;
    bed.workspaces()
        .patch(LONG, &PatchParams::default(), &Patch::Merge(&edit))
        .await?;
    bed.upstream(SERVICE, "v1")
        .patch("echo", &PatchParams::default(), &Patch::Merge(&edit))
        .await?;
    for name in ["container", LONG, "echo"] {
        bed.event(name, "DriftDetected").await?;
    }
    bed.patch(
        "container",
        json!({ "spec": { "model": { "id": "google/another-gguf", "storage": null } } }),
    )
    .await?;
    bed.event("container", "Recreating").await?;
    bed.running("container").await?;
    for name in ["container", LONG, "preset", "echo"] {
        bed.delete(name).await?;
        bed.gone(name).await?;
    }

    let requests = bed.cluster.audit().await?.since(mark).await?;
    let ours = |r: &&audit::Request| {
        [labels::CORE_MANAGER, "kaito-provider", "deployment-provider"].contains(&r.user.as_str())
    };
    let forbidden: Vec<_> = requests.iter().filter(ours).filter(|r| r.code == 403).collect();
    ensure!(forbidden.is_empty(), "{forbidden:?}");
    let secrets: Vec<_> = requests
        .iter()
        .filter(|r| r.user.ends_with("-provider") && r.resource == "secrets")
        .collect();
    ensure!(secrets.is_empty(), "{secrets:?}");
    // No engine is asked here.
    let to_ask: Vec<_> = runway_operator::services::access().iter().flat_map(granted).collect();
    for (user, rules) in [
        ("kaito-provider", runway_provider::access(&Kaito::default())),
        ("deployment-provider", runway_provider::access(&DeploymentProvider)),
    ] {
        let used: BTreeSet<String> = audit::of_user(&requests, user).iter().map(used).collect();
        let vain: Vec<_> = rules
            .iter()
            .flat_map(granted)
            .filter(|right| !to_ask.contains(right))
            .filter(|right| !used.contains(right))
            .collect();
        ensure!(vain.is_empty(), "{user} may {vain:?} and never does; it does {used:?}");
    }
    Ok(())
}

fn used(request: &audit::Request) -> String {
    let subresource = if request.subresource.is_empty() {
        String::new()
    } else {
        format!("/{}", request.subresource)
    };
    format!("{} {}{subresource}.{}", request.verb, request.resource, request.group)
}

/// Permissions of a rule, except for those that the log cannot show: an apply that creates requires `create` and is a `patch`; owner
/// references ask for `finalizers`; and the same Event again is a patch that may not come.
fn granted(rule: &PolicyRule) -> Vec<String> {
    let mut all = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            for verb in &rule.verbs {
                let unseen =
                    verb == "create" || resource.ends_with("/finalizers") || (resource == "events" && verb == "patch");
                if !unseen {
                    all.push(format!("{verb} {resource}.{group}"));
                }
            }
        }
    }
    all
}

async fn config_status(bed: &Bed, name: &str) -> Result<InferenceProviderConfigStatus> {
    Ok(bed.configs().get(name).await?.status.unwrap_or_default())
}

async fn ready(bed: &Bed, name: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        ensure!(config_status(bed, name).await?.ready == Some(true));
        Ok(())
    })
    .await
}

/// Served by the example provider; none of it is ready at once, for no kubelet runs here.
fn echo(name: &str, replicas: i32) -> Value {
    let mut object = gemma(name);
    object["spec"] = json!({
        "provider": { "name": "deployment" }, "model": { "id": "some/model" }, "engine": { "type": "custom" },
        "scaling": { "replicas": replicas }, "resources": { "memory": "1Gi", "cpu": "500m" }, "image": "echo:1",
    });
    object
}

fn by(mut object: Value, provider: &str) -> Value {
    object["spec"]["provider"]["name"] = json!(provider);
    object
}

/// The example provider under another name, with something changed in what it makes.
#[derive(Clone, Copy)]
struct Altered {
    name: &'static str,
    alter: fn(&mut Translation),
}

impl Provider for Altered {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> String {
        format!("{}-provider:v1", self.name)
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        DeploymentProvider.registration()
    }

    fn upstreams(&self) -> Vec<upstream::Upstream> {
        DeploymentProvider.upstreams()
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        DeploymentProvider.children(name)
    }

    fn translate(&self, request: &Request, installed: &Installed) -> Result<Translation, Refusal> {
        let mut translation = DeploymentProvider.translate(request, installed)?;
        (self.alter)(&mut translation);
        Ok(translation)
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        DeploymentProvider.read_status(request, object)
    }
}
