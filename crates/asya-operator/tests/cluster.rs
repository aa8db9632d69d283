//! The operator on a real API server, with its own identity and RBAC rules, and the real CRDs of target kinds where available. The
//! controllers of targets are simulated: the test bed's *reverting controller* reverts a Deployment as KServe does.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod bed;

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bed::{Bed, NAMESPACE, PATIENCE, create_as, likeness};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use runway_api::async_actor::{Mode, RUNTIME_ENV, RUNTIME_INJECTED, SCALING_READY, WORKLOAD_READY, messages};
use runway_api::condition::{self, Conditions};
use runway_api::{AsyncActorStatus, ModelDeployment, labels};
use runway_asya_operator::policy;
use runway_asya_testbed::stage::reverting_controller;
use runway_testbed::{audit, eventually};
use serde_json::{Value, json};

fn bound(kind: &str, target: &str) -> Value {
    let api_version = match kind {
        "InferenceService" => "serving.kserve.io/v1beta1",
        "ModelDeployment" => "kubeairunway.ai/v1alpha1",
        _ => "apps/v1",
    };
    json!({
        "transport": "rabbitmq", "workloadRef": {"apiVersion": api_version, "kind": kind, "name": target},
        "runtime": {"image": "asya-rest-adapter:1", "handler": "adapters.openai.forward"},
    })
}

fn with(mut spec: Value, key: &str, value: Value) -> Value {
    spec[key] = value;
    spec
}

/// An actor whose formula does not count the messages of its alias.
fn alias_without_trigger() -> Value {
    let mut spec = bound("Deployment", "x");
    spec["queueAlias"] = json!("AsyaV01");
    spec["scaling"] = json!({"advanced": {"formula": "queue", "target": "5"}});
    spec
}

fn containers(deployment: &Deployment) -> Vec<String> {
    let spec = deployment.spec.as_ref().and_then(|s| s.template.spec.as_ref());
    spec.map(|s| s.containers.iter().map(|c| c.name.clone()).collect())
        .unwrap_or_default()
}

#[allow(clippy::too_many_lines, reason = "one life, in order")]
#[tokio::test]
async fn actors_bind_scale_release_and_stay_silent() -> Result<()> {
    let bed = Bed::start().await?;
    let mark = bed.cluster.audit().await?.mark().await?;
    let _operator = bed.operator().await?;
    let before = bed.model_server("vllm").await?;

    // Bound: two containers more, at the end, a volume with their credentials, and nothing else of the target is another.
    let scaling = json!({"enabled": true, "minReplicaCount": 0});
    bed.create("embed", with(bound("Deployment", "vllm"), "scaling", scaling))
        .await?;
    bed.status("embed", "injected", |s| s.conditions.is_true(RUNTIME_INJECTED))
        .await?;
    let live = bed.deployments().get("vllm").await?;
    ensure!(
        containers(&live) == ["model", "asya-runtime", "asya-sidecar"],
        "{:?}",
        containers(&live)
    );
    let mut without = likeness(&live);
    without["spec"]["template"]["spec"]["containers"]
        .as_array_mut()
        .context("a list")?
        .truncate(1);
    let volumes = without["spec"]["template"]["spec"]
        .as_object_mut()
        .context("a spec")?
        .remove("volumes");
    let volumes = volumes.unwrap_or_default();
    ensure!(
        volumes.as_array().is_some_and(|all| all.len() == 1) && volumes[0]["name"] == "asya-credentials",
        "{volumes}"
    );
    without["spec"]["template"]["metadata"]["labels"]
        .as_object_mut()
        .context("labels")?
        .remove(labels::ASYA_ACTOR);
    without["annotations"] = json!({});
    ensure!(without == before, "{without:#}\n{before:#}");
    ensure!(
        live.owner_references().is_empty(),
        "never an owner reference on what is not ours"
    );
    let scaler = eventually(PATIENCE, async || Ok(bed.scaled_objects().get("asya-embed").await?)).await?;
    ensure!(
        scaler.data["spec"]["initialCooldownPeriod"] == 60 && scaler.data["spec"]["scaleTargetRef"]["name"] == "vllm"
    );

    // A second actor on the same target waits, and takes over when the first is gone.
    bed.create("late", bound("Deployment", "vllm")).await?;
    let late = bed.word("late", "AlreadyManaged").await?;
    ensure!(
        late.message.as_deref().unwrap_or_default().contains("'embed'"),
        "{late:?}"
    );
    bed.delete("embed").await?;
    bed.status("late", "injected", |s| s.conditions.is_true(RUNTIME_INJECTED))
        .await?;
    bed.delete("late").await?;

    // After the release the target is as before, and `managedFields` has no entry of the operator.
    let after = bed.deployments().get("vllm").await?;
    ensure!(likeness(&after) == before, "{:#}\n{before:#}", likeness(&after));
    let managers = after.metadata.managed_fields.unwrap_or_default();
    ensure!(
        managers
            .iter()
            .all(|m| m.manager.as_deref() != Some(labels::ASYA_MANAGER))
    );
    ensure!(bed.scaled_objects().get_opt("asya-embed").await?.is_none());

    // A target that comes later is bound when it is there, and missed when it goes.
    bed.create("early", bound("Deployment", "coming")).await?;
    bed.word("early", "WaitingForTarget").await?;
    bed.model_server("coming").await?;
    bed.status("early", "injected", |s| s.conditions.is_true(RUNTIME_INJECTED))
        .await?;
    bed.deployments().delete("coming", &DeleteParams::background()).await?;
    bed.word("early", "WaitingForTarget").await?;
    bed.delete("early").await?;

    // KServe: what is added to the InferenceService is taken out of it again.
    let services = bed.dynamic("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices");
    let service = json!({"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "sk"},
        "spec": {"predictor": {"model": {"modelFormat": {"name": "sklearn"}, "storageUri": "gs://x"}}}});
    let made = services
        .create(&PostParams::default(), &serde_json::from_value(service)?)
        .await?;
    bed.create("iris", bound("InferenceService", "sk")).await?;
    bed.status("iris", "injected", |s| s.conditions.is_true(RUNTIME_INJECTED))
        .await?;
    let names: Vec<Value> = services.get("sk").await?.data["spec"]["predictor"]["containers"]
        .as_array()
        .context("containers")?
        .iter()
        .map(|c| c["name"].clone())
        .collect();
    ensure!(names == ["asya-runtime", "asya-sidecar"], "{names:?}");
    bed.delete("iris").await?;
    let left = services.get("sk").await?;
    ensure!(
        left.data["spec"] == made.data["spec"] && left.annotations().is_empty(),
        "{:#}",
        left.data
    );

    paused(&bed).await?;
    lost_label(&bed).await?;
    model_deployment(&bed).await?;
    silence(&bed).await?;

    let requests = audit::of_user(&bed.cluster.audit().await?.since(mark).await?, labels::ASYA_MANAGER);
    let forbidden: Vec<_> = requests.iter().filter(|r| r.code == 403).collect();
    ensure!(forbidden.is_empty(), "{forbidden:?}");
    ensure!(
        requests
            .iter()
            .all(|r| r.resource != "secrets" || r.name == "asya-broker")
    );
    Ok(())
}

/// Pods with the containers would be refused: the target keeps its own, and the status has the reason and the remedy.
#[tokio::test]
async fn target_keeps_its_pods_if_the_namespace_refuses_those_with_the_containers() -> Result<()> {
    let bed = Bed::start().await?;
    let _operator = bed.operator().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let namespaces: Api<Namespace> = Api::all(bed.admin.clone());
    let quota = |hard: Value| {
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "tight"}, "spec": {"hard": hard},
        }))
    };
    let before = bed.model_server("model").await?;
    let refused = async |name: &str, spec: Value, said: &[&str]| -> Result<()> {
        bed.create(name, spec).await?;
        let status = bed.word(name, "Refused").await?;
        let message = status.message.unwrap_or_default();
        for part in said {
            ensure!(message.contains(part), "{part}: {message}");
        }
        ensure!(
            likeness(&bed.deployments().get("model").await?) == before,
            "the target was changed"
        );
        bed.delete(name).await
    };

    // The two pods of the target use the whole quota.
    quotas
        .create(&PostParams::default(), &quota(json!({"limits.cpu": "1"}))?)
        .await?;
    eventually(PATIENCE, async || {
        let status = quotas.get("tight").await?.status.unwrap_or_default();
        ensure!(status.used.unwrap_or_default().contains_key("limits.cpu"));
        Ok(())
    })
    .await?;
    let exhausted = [
        "exceeded quota: tight",
        "Set spec.runtime.resources and spec.sidecar.resources within the quota",
    ];
    refused("full", bound("Deployment", "model"), &exhausted).await?;
    let without_limit = json!({"requests": {"cpu": "10m"}});
    let mut unset = bound("Deployment", "model");
    unset["runtime"]["resources"] = without_limit;
    refused("unset", unset, &["must specify limits.cpu for: asya-runtime"]).await?;
    quotas.delete("tight", &DeleteParams::default()).await?;

    let restricted = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    namespaces
        .patch(NAMESPACE, &PatchParams::default(), &Patch::Merge(restricted))
        .await?;
    let mut root = bound("Deployment", "model");
    root["runtime"]["securityContext"] = json!({"runAsNonRoot": false});
    let violation = [
        "violates PodSecurity",
        "runAsNonRoot",
        "Set spec.runtime.securityContext",
    ];
    refused("root", root, &violation).await
}

/// Changes of the target are not reverted until the actor is resumed.
async fn paused(bed: &Bed) -> Result<()> {
    let before = bed.model_server("quiet").await?;
    bed.create("still", bound("Deployment", "quiet")).await?;
    bed.status("still", "injected", |s| s.conditions.is_true(RUNTIME_INJECTED))
        .await?;
    let pause = async |value: Value| {
        let patch = json!({"metadata": {"annotations": {labels::ASYA_PAUSED: value}}});
        bed.actors()
            .patch("still", &PatchParams::default(), &Patch::Merge(patch))
            .await
    };
    pause(json!("true")).await?;
    bed.word("still", "Paused").await?;
    let only_theirs =
        json!({"spec": {"template": {"spec": {"containers": before["spec"]["template"]["spec"]["containers"]}}}});
    bed.deployments()
        .patch("quiet", &PatchParams::default(), &Patch::Merge(only_theirs))
        .await?;
    let wish = json!({"spec": {"scaling": {"enabled": true}}});
    bed.actors()
        .patch("still", &PatchParams::default(), &Patch::Merge(wish))
        .await?;
    // It has looked again, and left everything.
    let looked = |s: &AsyncActorStatus| {
        let paused = s.conditions.get_condition(condition::PAUSED);
        paused.is_some_and(|c| c.observed_generation == Some(2))
    };
    bed.status("still", "looked at", looked).await?;
    ensure!(containers(&bed.deployments().get("quiet").await?) == ["model"]);
    ensure!(bed.scaled_objects().get_opt("asya-still").await?.is_none());

    pause(Value::Null).await?;
    eventually(PATIENCE, async || {
        let names = containers(&bed.deployments().get("quiet").await?);
        ensure!(names == ["model", "asya-runtime", "asya-sidecar"], "{names:?}");
        bed.scaled_objects().get("asya-still").await?;
        Ok(())
    })
    .await?;
    bed.delete("still").await
}

/// An object without the label is in none of the operator's watches, and the field has another owner. It still belongs to the actor.
async fn lost_label(bed: &Bed) -> Result<()> {
    const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    bed.create(
        "lost",
        with(bound("Deployment", "quiet"), "scaling", json!({"enabled": true})),
    )
    .await?;
    let scaler = eventually(PATIENCE, async || Ok(bed.scaled_objects().get("asya-lost").await?)).await?;
    let most = |object: &DynamicObject| object.data["spec"]["maxReplicaCount"].clone();
    let edit = json!({"metadata": {"labels": {MANAGED_BY: null}}, "spec": {"maxReplicaCount": 7}});
    bed.scaled_objects()
        .patch("asya-lost", &PatchParams::default(), &Patch::Merge(edit))
        .await?;
    eventually(PATIENCE, async || {
        let live = bed.scaled_objects().get("asya-lost").await?;
        ensure!(live.labels().contains_key(MANAGED_BY), "{:?}", live.labels());
        ensure!(most(&live) == most(&scaler), "{}", live.data);
        Ok(())
    })
    .await?;
    bed.delete("lost").await
}

/// A ModelDeployment is called at the endpoint in its status.
async fn model_deployment(bed: &Bed) -> Result<()> {
    let models: Api<ModelDeployment> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let md = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "gemma"},
        "spec": {"model": {"id": "a/b"}, "engine": {"type": "llamacpp"}}});
    models
        .create(&PostParams::default(), &serde_json::from_value(md)?)
        .await?;
    bed.create("ask", bound("ModelDeployment", "gemma")).await?;
    bed.word("ask", "WaitingForTarget").await?;
    let status = json!({"status": {"endpoint": {"service": "gemma", "port": 80}}});
    models
        .patch_status("gemma", &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    let proxy = eventually(PATIENCE, async || Ok(bed.deployments().get("ask-asya").await?)).await?;
    let text = serde_json::to_string(&proxy.spec)?;
    ensure!(text.contains("http://gemma.default.svc:80"), "{text}");
    ensure!(
        proxy
            .owner_references()
            .iter()
            .any(|o| o.controller == Some(true) && o.name == "ask")
    );
    let status = bed
        .status("ask", "injected", |s| s.conditions.is_true(RUNTIME_INJECTED))
        .await?;
    ensure!(
        status
            .resolved_target
            .as_ref()
            .is_some_and(|t| t.kind == "ModelDeployment" && t.name == "gemma")
    );
    bed.delete("ask").await
}

/// In steady state, and while unrelated objects change, the operator sends nothing.
async fn silence(bed: &Bed) -> Result<()> {
    for number in 0..20 {
        let target = format!("target-{number}");
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": target},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": target}}, "template": {
                "metadata": {"labels": {"app": target}}, "spec": {"containers": [{"name": "model", "image": "m:1", "ports": [{"containerPort": 80}]}]}}},
        });
        bed.deployments()
            .create(&PostParams::default(), &serde_json::from_value(deployment)?)
            .await?;
        bed.create(&format!("actor-{number}"), bound("Deployment", &target))
            .await?;
    }
    for number in 0..20 {
        let injected =
            |s: &AsyncActorStatus| s.conditions.is_true(RUNTIME_INJECTED) && s.status.as_deref() == Some("Stopped");
        bed.status(&format!("actor-{number}"), "injected and settled", injected)
            .await?;
    }
    // Roll-outs are over when nothing has been sent for a while.
    let quiet = async || {
        let mark = bed.cluster.audit().await?.mark().await?;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let requests = audit::of_user(&bed.cluster.audit().await?.since(mark).await?, labels::ASYA_MANAGER);
        ensure!(requests.iter().all(|r| r.verb == "watch"), "{requests:?}");
        Ok(())
    };
    eventually(PATIENCE, quiet).await?;
    let mark = bed.cluster.audit().await?.mark().await?;
    bed.model_server("nobodys").await?;
    for scale in 0..5 {
        let patch = json!({"spec": {"replicas": scale}});
        bed.deployments()
            .patch("nobodys", &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let requests = audit::of_user(&bed.cluster.audit().await?.since(mark).await?, labels::ASYA_MANAGER);
    ensure!(requests.iter().all(|r| r.verb == "watch"), "{requests:?}");
    Ok(())
}

#[tokio::test]
async fn binding_stops_after_repeated_conflicts() -> Result<()> {
    let bed = Bed::start().await?;
    let _operator = bed.operator().await?;
    for name in ["stubborn", "called"] {
        bed.model_server(name).await?;
        let wanted = bed.deployments().get(name).await?;
        let rival = bed.cluster.client("reverting-controller", &["system:masters"]).await?;
        drop(reverting_controller(rival, wanted));
    }
    // Managed fields tell the time to the second: who made the model is not to be taken for who fights.
    tokio::time::sleep(Duration::from_secs(1)).await;
    bed.create("fight", bound("Deployment", "stubborn")).await?;
    let stopped = bed.word("fight", "ConflictStopped").await?;
    let injected = stopped
        .conditions
        .get_condition(RUNTIME_INJECTED)
        .context("a condition")?;
    ensure!(
        injected.reason == "ConflictLoopDetected" && injected.message.contains("'reverting-controller'"),
        "{injected:?}"
    );
    ensure!(
        stopped.conflict_count == Some(6) && stopped.last_conflict_time.is_some(),
        "{stopped:?}"
    );

    // Stopped means stopped.
    let mark = bed.cluster.audit().await?.mark().await?;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let requests = audit::of_user(&bed.cluster.audit().await?.since(mark).await?, labels::ASYA_MANAGER);
    ensure!(
        requests
            .iter()
            .all(|r| r.resource != "deployments" || r.verb != "patch"),
        "{requests:?}"
    );
    ensure!(containers(&bed.deployments().get("stubborn").await?) == ["model"]);

    // A new generation is a new chance: now the target is called from outside.
    let proxy = json!({"spec": {"binding": {"strategy": "Proxy"}, "runtime": {"targetURL": "http://stubborn:8000"}}});
    bed.actors()
        .patch("fight", &PatchParams::default(), &Patch::Merge(&proxy))
        .await?;
    bed.status("fight", "a proxy", |s| {
        s.conditions.is_true(RUNTIME_INJECTED) && s.conflict_count.is_none()
    })
    .await?;

    // onConflict: Proxy does the same by itself.
    let mut spec = with(bound("Deployment", "called"), "binding", json!({"onConflict": "Proxy"}));
    spec["runtime"]["targetURL"] = json!("http://called:8000");
    bed.create("yield", spec).await?;
    let fallen = bed
        .status("yield", "a proxy", |s| {
            s.conditions
                .get_condition(RUNTIME_INJECTED)
                .is_some_and(|c| c.reason == "ConflictFallback")
        })
        .await?;
    ensure!(
        fallen.binding.as_ref().and_then(|b| b.fallback) == Some(true),
        "{fallen:?}"
    );
    bed.deployments().get("yield-asya").await?;
    bed.delete("yield").await?;
    bed.delete("fight").await
}

#[allow(clippy::too_many_lines, reason = "one life, in order")]
#[tokio::test]
async fn invalid_input_is_rejected_with_field_and_remedy() -> Result<()> {
    let bed = Bed::start().await?;
    let template = |containers: Value| json!({"transport": "rabbitmq", "workload": {"template": {"spec": {"containers": containers}}}});
    let runtime = json!({"name": "asya-runtime", "image": "p:1"});
    let url = |url: &str| {
        let mut spec = bound("Deployment", "x");
        spec["runtime"]["targetURL"] = json!(url);
        spec
    };
    let mut both = template(json!([runtime]));
    both["workloadRef"] = bound("Deployment", "x")["workloadRef"].clone();
    both["runtime"] = bound("Deployment", "x")["runtime"].clone();
    let mut elsewhere = bound("Deployment", "x");
    elsewhere["workloadRef"]["namespace"] = json!("kube-system");
    let mut without_runtime = bound("Deployment", "x");
    without_runtime.as_object_mut().context("an object")?.remove("runtime");
    let scaling = |scaling: Value| with(bound("Deployment", "x"), "scaling", scaling);
    let env = json!([{"name": "X", "value": "1"}, {"name": "ASYA_NAMESPACE", "value": "team-b"}]);
    let mut runtime_env = bound("Deployment", "x");
    runtime_env["runtime"]["env"] = env.clone();
    let reserved = |field: &str| messages::reserved(field, "ASYA_NAMESPACE");
    let [of_sidecar, of_runtime, of_template] =
        [reserved("sidecar.env"), reserved("runtime.env"), reserved(RUNTIME_ENV)];
    let cases = [
        (
            with(template(json!([runtime])), "sidecar", json!({"env": env})),
            &*of_sidecar,
        ),
        (runtime_env, &*of_runtime),
        (
            template(json!([{"name": "other", "env": []}, {"name": "asya-runtime", "image": "x", "env": env}])),
            &*of_template,
        ),
        (json!({"transport": "rabbitmq"}), messages::XOR),
        (both, messages::XOR),
        (without_runtime, messages::RUNTIME_MISSING),
        (
            with(
                template(json!([runtime])),
                "runtime",
                bound("Deployment", "x")["runtime"].clone(),
            ),
            messages::RUNTIME_MISPLACED,
        ),
        (
            with(template(json!([runtime])), "binding", json!({"strategy": "Auto"})),
            messages::BINDING_MISPLACED,
        ),
        (elsewhere, messages::NAMESPACE),
        (template(json!([{"name": "app", "image": "x"}])), messages::ONE_RUNTIME),
        (
            template(json!([runtime, {"name": "asya-sidecar", "image": "x"}])),
            messages::NO_SIDECAR,
        ),
        (
            template(json!([{"name": "asya-runtime", "image": "x", "command": ["sh"]}])),
            messages::NO_COMMAND,
        ),
        (url("ftp://x"), messages::URL),
        (url("http://user:password@x"), messages::URL),
        (url("http://169.254.169.254/latest"), messages::URL_HIDDEN),
        (url("http://metadata.google.internal/"), messages::URL_HIDDEN),
        (url("http://2852039166/"), messages::URL_HIDDEN),
        (url("http://[fe80::1]/"), messages::URL_HIDDEN),
        (
            scaling(json!({"minReplicas": 3, "maxReplicaCount": 2})),
            messages::MIN_ABOVE_MAX,
        ),
        (
            scaling(json!({"minReplicas": 1, "minReplicaCount": 1})),
            messages::MIN_TWICE,
        ),
        (scaling(json!({"advanced": {"target": "5"}})), messages::FORMULA),
        (alias_without_trigger(), messages::FORMULA_ALIAS),
    ];
    for (spec, message) in cases {
        let error = format!(
            "{:#}",
            bed.create("bad", spec.clone())
                .await
                .err()
                .with_context(|| format!("accepted: {spec:#}"))?
        );
        ensure!(error.contains(message), "{spec:#}\n{error}\n{message}");
    }
    let two = template(json!([runtime, runtime]));
    ensure!(bed.create("bad", two).await.is_err(), "two containers of one name");
    let mut good = template(json!([runtime, {"name": "other", "image": "x", "env": env}]));
    good["sidecar"] = json!({"env": [{"name": "ASYA_LOG_LEVEL", "value": "debug"}]});
    bed.create("good", good).await?;

    // Who may not update a target may not bind to it.
    let (rule, binding) = policy::policy();
    Api::all(bed.admin.clone())
        .create(&PostParams::default(), &rule)
        .await?;
    Api::all(bed.admin.clone())
        .create(&PostParams::default(), &binding)
        .await?;
    let actors = runway_operator::access::rule("asya.sh", &["asyncactors"], &["create"]);
    let update = runway_operator::access::rule("apps", &["deployments"], &["update"]);
    bed.grant("intern", vec![actors.clone()]).await?;
    bed.grant("owner", vec![actors, update]).await?;
    let intern = bed.cluster.client("intern", &[]).await?;
    let owner = bed.cluster.client("owner", &[]).await?;
    eventually(PATIENCE, async || {
        let error = match create_as(&intern, "theft", bound("Deployment", "vllm")).await {
            Ok(()) => {
                self::cleaned(&bed, "theft").await?;
                bail!("the policy is not in force")
            }
            Err(error) => format!("{error:#}"),
        };
        ensure!(error.contains("you may not bind to Deployment vllm"), "{error}");
        Ok(())
    })
    .await?;
    create_as(&owner, "fair", bound("Deployment", "vllm")).await?;
    let standalone = template(json!([runtime]));
    create_as(&intern, "own", standalone).await
}

async fn cleaned(bed: &Bed, name: &str) -> Result<()> {
    bed.actors().delete(name, &DeleteParams::background()).await?;
    Ok(())
}

#[tokio::test]
async fn config_maps_with_other_owners_are_not_changed() -> Result<()> {
    let bed = Bed::start().await?;
    let _operator = bed.operator().await?;
    let maps: Api<ConfigMap> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let container = json!({"name": "asya-runtime", "image": "python:3.13", "env": [{"name": "ASYA_HANDLER", "value": "app.handle"}]});
    let own = json!({"transport": "rabbitmq", "scaling": {"enabled": true, "maxReplicas": 3},
        "workload": {"template": {"spec": {"containers": [container]}}}});
    for (name, condition) in [("asya-runtime", WORKLOAD_READY), ("mine-trigger-auth", SCALING_READY)] {
        let theirs = json!({"metadata": {"name": name}, "data": {"theirs": "1"}});
        let theirs = maps
            .create(&PostParams::default(), &serde_json::from_value(theirs)?)
            .await?;
        bed.create("mine", own.clone()).await?;
        let is_taken = |generation: i64| {
            move |s: &AsyncActorStatus| {
                let said = s
                    .conditions
                    .get_condition(condition)
                    .filter(|c| c.reason == "NameTaken");
                said.is_some_and(|c| c.message.contains(name)) && s.observed_generation == Some(generation)
            }
        };
        bed.status("mine", "NameTaken", is_taken(1)).await?;
        let change = Patch::Merge(json!({"spec": {"scaling": {"maxReplicas": 4}}}));
        bed.actors().patch("mine", &PatchParams::default(), &change).await?;
        bed.status("mine", "NameTaken", is_taken(2)).await?;
        // Scaling is tried alone: the workload does not depend on it.
        let is_scaling = condition == SCALING_READY;
        ensure!(
            bed.deployments().get_opt("mine").await?.is_some() == is_scaling,
            "something was half made"
        );
        bed.delete("mine").await?;
        let live = maps.get(name).await?;
        ensure!(live == theirs, "{live:?}\nwas\n{theirs:?}");

        // The actor continues as soon as the name is free.
        bed.create("mine", own.clone()).await?;
        bed.status("mine", "NameTaken", is_taken(1)).await?;
        maps.delete(name, &DeleteParams::default()).await?;
        eventually(PATIENCE, async || Ok(bed.deployments().get("mine").await?)).await?;
        eventually(PATIENCE, async || {
            ensure!(maps.get("mine-trigger-auth").await?.owner_references().len() == 1);
            Ok(())
        })
        .await?;
        bed.delete("mine").await?;
        eventually(PATIENCE, async || {
            ensure!(maps.get_opt("mine-trigger-auth").await?.is_none());
            ensure!(bed.deployments().get_opt("mine").await?.is_none());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// KEDA's webhook rejects a ScaledObject if the target has another autoscaler. A policy takes its place here.
#[tokio::test]
async fn rejected_scaled_object_does_not_stop_the_binding() -> Result<()> {
    let bed = Bed::start().await?;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "keda"}, "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": ["keda.sh"], "apiVersions": ["*"],
                "operations": ["CREATE"], "resources": ["scaledobjects"]}]},
            "validations": [{"expression": "false", "message": "the workload is already managed by the hpa 'theirs'"}]},
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "keda"}, "spec": {"policyName": "keda", "validationActions": ["Deny"]},
    });
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(bed.admin.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(bed.admin.clone());
    policies
        .create(&PostParams::default(), &serde_json::from_value(policy)?)
        .await?;
    bindings
        .create(&PostParams::default(), &serde_json::from_value(binding)?)
        .await?;
    eventually(PATIENCE, async || {
        let probe = json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": {"name": "probe"},
            "spec": {"scaleTargetRef": {"name": "x"}, "triggers": [{"type": "cpu", "metadata": {"value": "1"}}]}});
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let tried = bed.scaled_objects().create(&dry, &serde_json::from_value(probe)?).await;
        let refused = tried.is_err_and(|error| error.to_string().contains("managed by the hpa"));
        ensure!(refused, "the policy does not apply yet");
        Ok(())
    })
    .await?;
    let _operator = bed.operator().await?;
    bed.model_server("vllm").await?;
    let scaling = json!({"enabled": true});
    bed.create("embed", with(bound("Deployment", "vllm"), "scaling", scaling))
        .await?;
    let is_refused = |s: &AsyncActorStatus| {
        let scaling = s.conditions.get_condition(SCALING_READY);
        let said = scaling.filter(|c| c.reason == "Refused" && c.message.contains("managed by the hpa 'theirs'"));
        said.is_some() && s.conditions.is_true(RUNTIME_INJECTED)
    };
    let status = bed.status("embed", "bound and not scaled", is_refused).await?;
    ensure!(status.mode == Some(Mode::Binding), "{status:?}");
    ensure!(!format!("{status:?}").contains("ApiError"), "{status:?}");
    let live = bed.deployments().get("vllm").await?;
    ensure!(containers(&live) == ["model", "asya-runtime", "asya-sidecar"]);

    // It is scaled as soon as nothing speaks against it.
    bindings.delete("keda", &DeleteParams::default()).await?;
    eventually(PATIENCE, async || Ok(bed.scaled_objects().get("asya-embed").await?)).await?;
    Ok(())
}
