//! Autoscaling of ModelDeployments on a real API server with the real HorizontalPodAutoscaler controller, and on a real node with
//! a real KEDA.

use std::ops::Deref;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{DynamicObject, ObjectMeta};
use runway_api::condition::{AUTOSCALER_READY, Conditions, READY};
use runway_api::{ModelDeployment, labels};
use runway_core::autoscalers::SCALED_OBJECT;
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Upstream, vllm};
use runway_provider_direct::{DEPLOYMENT, Direct};
use runway_provider_dynamo::Dynamo;
use runway_provider_kuberay::KubeRay;
use runway_testbed::engine::{LlamaServer, MODEL};
use runway_testbed::{ControlPlane, Node, audit, crds, eventually, keda};
use serde_json::{Value, json};

fn autoscaled(name: &str, autoscaling: &Value) -> Value {
    let mut object = vllm(name, "direct");
    object["spec"]["scaling"] = json!({ "autoscaling": autoscaling });
    object
}

fn by_requests() -> Value {
    json!({ "minReplicas": 2, "maxReplicas": 5, "requestsInFlight": 8 })
}

fn by_clock() -> Value {
    json!({ "minReplicas": 0, "maxReplicas": 3, "trigger": { "type": "cron", "metadata": {
        "timezone": "UTC", "start": "0 8 * * *", "end": "0 18 * * *", "desiredReplicas": "2" } } })
}

fn autoscalers<C: Deref<Target = ControlPlane>>(bed: &Bed<C>) -> Api<HorizontalPodAutoscaler> {
    Api::namespaced(bed.admin.clone(), NAMESPACE)
}

/// Waits for this reason of the condition, and returns the message.
async fn autoscaler_is<C: Deref<Target = ControlPlane>>(bed: &Bed<C>, name: &str, reason: &str) -> Result<String> {
    eventually(PATIENCE, async || {
        let status = bed.deployments().get(name).await?.status.unwrap_or_default();
        let condition = status.conditions.get_condition(AUTOSCALER_READY);
        let found = condition.with_context(|| format!("no condition: {:?}", status.conditions))?;
        ensure!(found.reason == reason, "{}: {}", found.reason, found.message);
        Ok(found.message.clone())
    })
    .await
}

/// Waits until an autoscaler of this name exists, or is gone.
async fn exists<C: Deref<Target = ControlPlane>>(
    bed: &Bed<C>,
    kind: runway_provider::Kind,
    name: &str,
    expected: bool,
) -> Result<Option<DynamicObject>> {
    eventually(PATIENCE, async || {
        let found = bed.upstream(kind, kind.version).get_opt(name).await?;
        ensure!(found.is_some() == expected, "{} '{name}': {found:?}", kind.kind);
        Ok(found)
    })
    .await
}

async fn scale<C: Deref<Target = ControlPlane>>(bed: &Bed<C>, name: &str, replicas: i32) -> Result<()> {
    let patch = json!({ "spec": { "replicas": replicas } });
    bed.deployments()
        .patch_scale(name, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    Ok(())
}

#[tokio::test]
async fn autoscaler_follows_the_spec() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;

    let md = bed.create(autoscaled("llama", &by_requests())).await?;
    ensure!(
        md.spec.scaling.as_ref().and_then(|s| s.replicas) == Some(2),
        "the first number of replicas is the minimum: {:?}",
        md.spec.scaling
    );
    // The real controller asks for a metric that nothing serves here.
    let message = autoscaler_is(&bed, "llama", "AutoscalerInactive").await?;
    ensure!(message.contains("vllm:num_requests_running"), "{message}");
    bed.event("llama", "ResourceCreated").await?;

    direct_edits_are_reverted(&bed).await?;
    manifests_without_replicas_keep_them(&bed, &md).await?;
    an_autoscaler_of_another_is_respected(&bed).await?;
    a_trigger_needs_keda(&bed).await?;

    bed.patch("llama", json!({ "spec": { "scaling": { "autoscaling": null } } }))
        .await?;
    exists(&bed, SCALED_OBJECT, "llama", false).await?;
    bed.status("llama", "without autoscaling", |s| {
        s.conditions.get_condition(AUTOSCALER_READY).is_none()
    })
    .await?;
    Ok(())
}

async fn direct_edits_are_reverted(bed: &Bed) -> Result<()> {
    let edit = json!({ "spec": { "maxReplicas": 50 } });
    let edited = autoscalers(bed)
        .patch("llama", &PatchParams::default(), &Patch::Merge(&edit))
        .await?;
    ensure!(
        edited.spec.is_some_and(|s| s.max_replicas == 50),
        "the edit is not stored"
    );
    eventually(PATIENCE, async || {
        let spec = autoscalers(bed).get("llama").await?.spec.unwrap_or_default();
        ensure!(spec.max_replicas == 5, "{}", spec.max_replicas);
        Ok(())
    })
    .await?;
    bed.event("llama", "DriftDetected").await?;
    Ok(())
}

/// Sends a whole manifest without a number of replicas: the one that an autoscaler wrote stays.
async fn manifests_without_replicas_keep_them(bed: &Bed, created: &ModelDeployment) -> Result<()> {
    scale(bed, "llama", 4).await?;
    let mut manifest = created.clone();
    manifest.metadata.managed_fields = None;
    manifest.spec.image = Some("example.com/vllm:2".to_owned());
    manifest.spec.scaling.get_or_insert_default().replicas = None;
    // The controllers write the status meanwhile.
    let sent = eventually(PATIENCE, async || {
        let live = bed.deployments().get("llama").await?;
        ensure!(live.spec.scaling.as_ref().and_then(|s| s.replicas) == Some(4));
        let manifest = ModelDeployment {
            metadata: ObjectMeta {
                resource_version: live.metadata.resource_version,
                ..manifest.metadata.clone()
            },
            ..manifest.clone()
        };
        Ok(bed
            .deployments()
            .replace("llama", &PostParams::default(), &manifest)
            .await?)
    })
    .await?;
    ensure!(
        sent.spec.scaling.as_ref().and_then(|s| s.replicas) == Some(4),
        "{:?}",
        sent.spec.scaling
    );
    Ok(())
}

async fn an_autoscaler_of_another_is_respected(bed: &Bed) -> Result<()> {
    bed.apply(&json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": { "name": "theirs", "namespace": NAMESPACE },
        "spec": {
            "scaleTargetRef": { "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "name": "llama" },
            "minReplicas": 2, "maxReplicas": 3,
            "metrics": [{ "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 80 } } }],
        },
    }))
    .await?;
    let message = autoscaler_is(bed, "llama", "OtherAutoscaler").await?;
    ensure!(message.contains("HorizontalPodAutoscaler 'theirs'"), "{message}");
    eventually(PATIENCE, async || {
        ensure!(autoscalers(bed).get_opt("llama").await?.is_none(), "two autoscalers");
        Ok(())
    })
    .await?;
    ensure!(
        autoscalers(bed).get_opt("theirs").await?.is_some(),
        "that of another is gone"
    );
    autoscalers(bed).delete("theirs", &DeleteParams::default()).await?;
    eventually(PATIENCE, async || {
        ensure!(autoscalers(bed).get_opt("llama").await?.is_some(), "not created again");
        Ok(())
    })
    .await
}

async fn a_trigger_needs_keda(bed: &Bed) -> Result<()> {
    let trigger =
        json!({ "requestsInFlight": null, "trigger": by_clock()["trigger"], "minReplicas": 0, "maxReplicas": 3 });
    bed.patch("llama", json!({ "spec": { "scaling": { "autoscaling": trigger } } }))
        .await?;
    let message = autoscaler_is(bed, "llama", "KedaNotInstalled").await?;
    ensure!(message.contains("install it"), "{message}");
    // The CRD is noticed without a restart.
    for crd in crds::upstream_crds(&[crds::KEDA_SCALED_OBJECTS])? {
        crds::install_crd(&bed.admin, crd).await?;
    }
    let scaled = exists(bed, SCALED_OBJECT, "llama", true).await?.context("checked")?;
    ensure!(
        scaled.data["spec"]["scaleTargetRef"]["kind"] == "ModelDeployment"
            && scaled.data["spec"]["minReplicaCount"] == 0,
        "{}",
        scaled.data
    );
    autoscaler_is(bed, "llama", "AutoscalerPending").await?;
    ensure!(autoscalers(bed).get_opt("llama").await?.is_none(), "two autoscalers");
    Ok(())
}

#[tokio::test]
async fn models_without_autoscaling_are_rejected() -> Result<()> {
    let bed = Bed::start_with(Upstream::All, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    let _kuberay = bed.provider(KubeRay::default()).await?;
    bed.admission_is_up().await?;
    autoscaling_is_checked(&bed).await?;
    let mut of_kuberay = autoscaled("llama", &by_requests());
    of_kuberay["spec"]["provider"]["name"] = "kuberay".into();
    let mut disaggregated = autoscaled("llama", &by_requests());
    disaggregated["spec"]["serving"] = json!({ "mode": "disaggregated" });
    let cases = [
        (
            autoscaled(
                "llama",
                &json!({ "minReplicas": 3, "maxReplicas": 2, "requestsInFlight": 8 }),
            ),
            "minReplicas must not be above",
        ),
        (
            autoscaled(
                "llama",
                &json!({ "maxReplicas": 2, "requestsInFlight": 8, "tokensPerSecond": 9 }),
            ),
            "requires exactly one of",
        ),
        (
            autoscaled("llama", &json!({ "maxReplicas": 2 })),
            "requires exactly one of",
        ),
        (
            autoscaled(
                "llama",
                &json!({ "minReplicas": 0, "maxReplicas": 2, "queuedRequests": 8 }),
            ),
            "minReplicas: 0 requires",
        ),
        (disaggregated, "not supported in disaggregated mode"),
        (
            of_kuberay,
            "provider 'kuberay' has no pod metric for requestsInFlight with vllm",
        ),
    ];
    for (object, expected) in cases {
        let refusal = bed.refusal(&object).await?;
        let message = refusal.map(|status| status.message.clone());
        let message = message.with_context(|| format!("accepted: {object}"))?;
        ensure!(message.contains(expected), "{message}");
    }
    let mut by_trigger = autoscaled("llama", &by_clock());
    by_trigger["spec"]["provider"]["name"] = "kuberay".into();
    ensure!(
        bed.refusal(&by_trigger).await?.is_none(),
        "a trigger is for every provider"
    );
    Ok(())
}

/// Waits until admission knows the registrations.
async fn autoscaling_is_checked(bed: &Bed) -> Result<()> {
    eventually(PATIENCE, async || {
        for name in ["direct", "kuberay"] {
            let refusal = bed.refusal(&vllm("probe", name)).await?;
            ensure!(refusal.is_none(), "{refusal:?}");
        }
        Ok(())
    })
    .await
}

/// An autoscaler writes `scale`; the provider passes it on.
#[tokio::test]
async fn scale_reaches_the_upstream_object_of_every_provider() -> Result<()> {
    let bed = Bed::start_with(Upstream::All, true).await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _dynamo = bed.provider(Dynamo::default()).await?;
    let _kuberay = bed.provider(KubeRay::default()).await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    let upstreams = [
        ("kaito", runway_provider_kaito::INFERENCE_SET, "v1beta1"),
        ("dynamo", runway_provider_dynamo::DYNAMO_GRAPH_DEPLOYMENT, "v1beta1"),
        ("kuberay", runway_provider_kuberay::RAY_SERVICE, "v1"),
        ("direct", DEPLOYMENT, "v1"),
    ];
    for (provider, ..) in upstreams {
        bed.create(vllm(provider, provider)).await?;
    }
    for replicas in [1, 3] {
        for (provider, kind, version) in upstreams {
            scale(&bed, provider, replicas).await?;
            eventually(PATIENCE, async || {
                let object = bed.upstream(kind, version).get(provider).await?;
                let text = object.data["spec"].to_string();
                let (of_most, of_ray) = (format!("\"replicas\":{replicas}"), format!("num_replicas: {replicas}"));
                ensure!(
                    text.contains(&of_most) || text.contains(&of_ray),
                    "{provider}, {replicas}: {text}"
                );
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

/// The trigger counts pods: one with the label wakes the model, none puts it to sleep.
#[tokio::test(flavor = "multi_thread")]
async fn keda_scales_a_model_from_zero_and_back() -> Result<()> {
    const WHAT: &str = "a ModelDeployment scaled by a real KEDA on a real node";
    let Some(engine) = LlamaServer::for_node(WHAT).await? else {
        return Ok(());
    };
    let bed = Bed::start_with_node(Upstream::None).await?;
    bed.cluster.import_image(&engine.image.archive).await?;
    keda::install(&bed.cluster).await?;
    let _core = bed.core().await?;
    let _direct = bed.asking_provider(Direct::default()).await?;
    bed.admission_is_up().await?;

    let trigger = json!({ "type": "kubernetes-workload", "pollingInterval": 1, "cooldownPeriod": 5,
        "metadata": { "podSelector": "demand=yes", "value": "1" } });
    let mut object = autoscaled(
        "parrot",
        &json!({ "minReplicas": 0, "maxReplicas": 2, "trigger": trigger }),
    );
    object["spec"]["model"] = json!({ "source": "custom" });
    object["spec"]["engine"] = json!({ "type": "llamacpp", "args": { "model": MODEL, "threads": "1" } });
    object["spec"]["image"] = json!(engine.image.name);
    object["spec"]["resources"] = json!({ "memory": "256Mi", "cpu": "10m" });
    bed.create(object).await?;
    autoscaler_is(&bed, "parrot", "AutoscalerActive").await?;
    asleep(&bed, "parrot").await?;

    for round in 0..2 {
        demand(&bed, round).await?;
        running_with(&bed, "parrot", 1).await?;
        pods(&bed)
            .delete("demand", &DeleteParams::default().grace_period(0))
            .await?;
        asleep(&bed, "parrot").await?;
    }
    bed.delete("parrot").await?;
    bed.gone("parrot").await?;
    exists(&bed, SCALED_OBJECT, "parrot", false).await?;
    bed.cluster.stop().await
}

fn pods(bed: &Bed<Node>) -> Api<Pod> {
    Api::namespaced(bed.admin.clone(), NAMESPACE)
}

/// Creates the pod that the trigger counts. It never runs.
async fn demand(bed: &Bed<Node>, round: usize) -> Result<()> {
    bed.apply(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "demand", "namespace": NAMESPACE, "labels": { "demand": "yes", "round": round.to_string() } },
        "spec": { "containers": [{ "name": "none", "image": "testbed.local/none", "imagePullPolicy": "Never" }] },
    }))
    .await?;
    Ok(())
}

/// Waits until the model has no pod, and says why.
async fn asleep(bed: &Bed<Node>, name: &str) -> Result<()> {
    bed.status(name, "scaled to zero", |s| {
        let ready = s.conditions.get_condition(READY);
        ready.is_some_and(|c| c.reason == "ScaledToZero")
    })
    .await?;
    let of_model = ListParams::default().labels(&format!("{}={name}", labels::DEPLOYMENT));
    eventually(PATIENCE, async || {
        let pods = pods(bed).list(&of_model).await?.items;
        ensure!(pods.is_empty(), "{} pods", pods.len());
        Ok(())
    })
    .await
}

/// Waits until the model answers with this number of replicas.
async fn running_with(bed: &Bed<Node>, name: &str, replicas: i32) -> Result<()> {
    bed.status(name, "awake", |s| {
        let ready = s.replicas.as_ref().and_then(|r| r.ready);
        ready == Some(replicas) && s.conditions.is_true(READY)
    })
    .await?;
    Ok(())
}

/// The status of an autoscaler changes with each measurement.
#[tokio::test]
async fn changing_metrics_cause_no_request() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _direct = bed.provider(Direct::default()).await?;
    bed.admission_is_up().await?;
    bed.create(autoscaled("quiet", &by_requests())).await?;
    autoscaler_is(&bed, "quiet", "AutoscalerInactive").await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let mark = bed.cluster.audit().await?.mark().await?;
    for number in 0..3 {
        let status = json!({ "status": { "currentReplicas": number, "desiredReplicas": number } });
        autoscalers(&bed)
            .patch_status("quiet", &PatchParams::default(), &Patch::Merge(&status))
            .await?;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    let requests = bed.cluster.audit().await?.since(mark).await?;
    let loud: Vec<_> = audit::of_user(&requests, labels::CORE_MANAGER)
        .into_iter()
        .filter(|request| request.class() != audit::Class::Watch)
        .collect();
    ensure!(loud.is_empty(), "{loud:?}");
    Ok(())
}
