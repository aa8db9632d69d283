//! The life of a ModelDeployment on a real API server: core, KAITO provider and the upstream simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use runway_api::condition::{self, Conditions};
use runway_api::labels;
use runway_api::model_deployment::Phase;
use runway_product_testbed::{Bed, NAMESPACE, PATIENCE, Upstream, gemma, gemma_simulated, vllm};
use runway_testbed::{audit, crds, eventually};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

#[tokio::test]
async fn create_update_drift_pause_and_delete() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;

    // Create: admission fills in defaults and the finalizer; KAITO is chosen; the simulator makes it ready.
    let mut object = gemma("gemma");
    object["metadata"]["labels"] = json!({ "kubeairunway.ai/team": "a", "other": "not-copied" });
    let created = bed.create(object).await?;
    ensure!(created.has_finalizer(), "the webhook adds the finalizer");
    let md = bed.running("gemma").await?;
    let status = md.status.clone().unwrap_or_default();
    let provider = status.provider.clone().unwrap_or_default();
    ensure!(
        provider.selected_reason.as_deref()
            == Some("matched capabilities: engine=llamacpp, gpu=false, mode=aggregated")
    );
    ensure!((provider.name.as_deref(), provider.resource_kind.as_deref()) == (Some("kaito"), Some("InferenceSet")));
    ensure!(
        status.endpoint.as_ref().and_then(|e| e.service.as_deref()) == Some("gemma"),
        "{status:?}"
    );
    ensure!(status.observed_generation == md.metadata.generation);
    let set = bed.inference_sets().get("gemma").await?;
    ensure!(set.labels().get("kubeairunway.ai/team").map(String::as_str) == Some("a"));
    ensure!(!set.labels().contains_key("other"));
    ensure!(
        set.owner_references()
            .iter()
            .any(|o| o.uid == md.uid().unwrap_or_default() && o.controller == Some(true))
    );
    bed.event("gemma", "ProviderSelected").await?;
    bed.event("gemma", "ResourceCreated").await?;

    // KAITO does not roll a changed template out, so the InferenceSet is created again.
    bed.patch("gemma", json!({ "spec": { "resources": { "memory": "20Gi" } } }))
        .await?;
    eventually(PATIENCE, async || {
        let updated = bed.inference_sets().get("gemma").await?;
        ensure!(updated.uid() != set.uid(), "not recreated");
        ensure!(
            updated.data["spec"]["template"]["inference"]["template"]["spec"]["containers"][0]["resources"]["requests"]
                ["memory"]
                == "20Gi"
        );
        Ok(())
    })
    .await?;
    bed.status("gemma", "up to date", |s| s.observed_generation == Some(2))
        .await?;

    drift_is_reverted_and_pause_stops_that(&bed).await?;
    identity_recreates(&bed).await?;

    // Deletion goes before pause.
    bed.patch(
        "gemma",
        json!({ "metadata": { "annotations": { labels::PAUSED: "true" } } }),
    )
    .await?;
    bed.delete("gemma").await?;
    bed.gone("gemma").await?;
    bed.inference_set_gone("gemma").await
}

async fn drift_is_reverted_and_pause_stops_that(bed: &Bed) -> Result<()> {
    // Drift: a direct edit is reverted and reported once.
    let edit = json!({ "spec": { "template": { "inference": { "template": { "spec": { "containers": [{ "name": "model", "image": "evil:1" }] } } } } } });
    bed.inference_sets()
        .patch("gemma", &PatchParams::default(), &Patch::Merge(&edit))
        .await?;
    bed.event("gemma", "DriftDetected").await?;
    eventually(PATIENCE, async || {
        let image = bed.inference_sets().get("gemma").await?.data["spec"]["template"]["inference"]["template"]["spec"]
            ["containers"][0]["image"]
            .clone();
        ensure!(image == "ghcr.io/sozercan/llama-cpp-runner:latest", "still {image}");
        Ok(())
    })
    .await?;

    // Pause: a direct edit stays, the status says so; then everything is put right.
    bed.patch(
        "gemma",
        json!({ "metadata": { "annotations": { labels::PAUSED: "true" } } }),
    )
    .await?;
    bed.status("gemma", "paused", |s| s.conditions.is_true(condition::PAUSED))
        .await?;
    bed.inference_sets()
        .patch("gemma", &PatchParams::default(), &Patch::Merge(&edit))
        .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let image =
        bed.inference_sets().get("gemma").await?.data["spec"]["template"]["inference"]["template"]["spec"]["containers"][0]["image"].clone();
    ensure!(image == "evil:1", "paused, and yet {image}");
    bed.patch(
        "gemma",
        json!({ "metadata": { "annotations": { labels::PAUSED: null } } }),
    )
    .await?;
    eventually(PATIENCE, async || {
        let image = bed.inference_sets().get("gemma").await?.data["spec"]["template"]["inference"]["template"]["spec"]
            ["containers"][0]["image"]
            .clone();
        ensure!(image != "evil:1");
        Ok(())
    })
    .await?;
    bed.status("gemma", "not paused", |s| {
        s.conditions.get_condition(condition::PAUSED).is_none()
    })
    .await?;
    Ok(())
}

async fn identity_recreates(bed: &Bed) -> Result<()> {
    // Identity: the old object goes first, then a new one comes.
    let before = bed.inference_sets().get("gemma").await?.uid();
    bed.patch("gemma", json!({ "spec": { "model": { "id": "google/another-gguf" } } }))
        .await?;
    bed.event_with(
        "gemma",
        "Recreating",
        "model.id changed from 'google/gemma-3-1b-it-qat-q8_0-gguf' to 'google/another-gguf'",
    )
    .await?;
    eventually(PATIENCE, async || {
        ensure!(bed.inference_sets().get("gemma").await?.uid() != before);
        Ok(())
    })
    .await?;
    bed.running("gemma").await?;
    Ok(())
}

/// Statuses by the name of the model, each with the version of the object.
type Versions = BTreeMap<String, Vec<(Option<String>, Value)>>;

/// The statuses of models in the order of their versions, without times.
struct Statuses {
    all: Arc<Mutex<Versions>>,
    _recorder: AbortOnDropHandle<()>,
}

impl Statuses {
    fn record(bed: &Bed) -> Self {
        let all = Arc::<Mutex<Versions>>::default();
        let (known, models) = (Arc::clone(&all), bed.deployments());
        let recorder = tokio::spawn(async move {
            let events = watcher(models, watcher::Config::default()).default_backoff();
            let mut versions = pin!(events.applied_objects());
            while let Some(version) = versions.next().await {
                let Ok(mut model) = version else { continue };
                let Some(mut status) = model.status.take() else {
                    continue;
                };
                for condition in &mut status.conditions {
                    condition.last_transition_time = Time(Timestamp::UNIX_EPOCH);
                }
                let mut known = known.lock();
                let of_model = known.entry(model.name_any()).or_default();
                let version = model.resource_version();
                // After a reconnection, the last version comes again.
                if of_model.last().is_none_or(|(seen, _)| *seen != version) {
                    of_model.push((version, json!(status)));
                }
            }
        });
        Self {
            all,
            _recorder: AbortOnDropHandle::new(recorder),
        }
    }

    fn of(&self, model: &str) -> Vec<Value> {
        let all = self.all.lock();
        let of_model = all.get(model).into_iter().flatten();
        of_model.map(|(_, status)| status.clone()).collect()
    }
}

#[tokio::test]
async fn six_writes_no_reads_then_silence_also_after_a_restart() -> Result<()> {
    const OBJECTS: usize = 200;
    let bed = Bed::start().await?;
    let core = bed.core().await?;
    let kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;

    let mark = bed.cluster.audit().await?.mark().await?;
    let statuses = Statuses::record(&bed);
    for index in 0..OBJECTS {
        bed.create(gemma(&format!("gemma-{index}"))).await?;
    }
    for index in 0..OBJECTS {
        bed.running(&format!("gemma-{index}")).await?;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let ours = |requests: &[audit::Request]| -> Vec<audit::Request> {
        requests
            .iter()
            .filter(|r| r.user == labels::CORE_MANAGER || r.user == "kaito-provider")
            .cloned()
            .collect()
    };
    let requests = ours(&bed.cluster.audit().await?.since(mark).await?);
    // Events are counted apart: they are sent in the background and may be dropped.
    let (events, others): (Vec<_>, Vec<_>) = requests.into_iter().partition(|r| r.resource == "events");
    let about_objects: Vec<_> = others.into_iter().filter(|r| r.name.starts_with("gemma-")).collect();
    let count = audit::Count::of(&about_objects);
    println!(
        "{OBJECTS} objects: {} writes, {} reads, {} events",
        count.write,
        count.read,
        events.len()
    );
    for (key, n) in audit::count_by(&about_objects, |r| {
        (
            r.user.clone(),
            r.verb.clone(),
            r.resource.clone(),
            r.subresource.clone(),
            r.code,
        )
    }) {
        println!("  {key:?}: {n:?}");
    }
    ensure!(count.read == 0, "reads: {}", count.read);
    let (mut reported, applied): (Vec<_>, Vec<_>) = about_objects.into_iter().partition(|r| r.subresource == "status");
    // A write that is guarded by the version is rejected if another one was faster, and the object is planned again.
    reported.retain(|r| r.code != 409);
    // The Service, a dry run of the InferenceSet and the InferenceSet.
    ensure!(
        applied.len() == 3 * OBJECTS,
        "{} writes for {OBJECTS} objects",
        applied.len()
    );
    for (object, n) in audit::by_object(&applied) {
        ensure!(n.total() == 3, "{object:?}: {n:?}");
    }
    // The selected provider, the applied objects and the running model. A reconcile between two writes of the upstream reports the
    // state between them: how many do depends on the machine, so that each write has to report another state.
    for ((_, name), n) in audit::by_object(&reported) {
        let written = eventually(PATIENCE, async || {
            let written = statuses.of(&name);
            ensure!(written.len() == n.write, "{name}: {n:?}, seen: {written:#?}");
            Ok(written)
        })
        .await?;
        ensure!(written.len() >= 3, "{name}: {written:#?}");
        ensure!(
            written.windows(2).all(|pair| pair[0] != pair[1]),
            "{name}: {written:#?}"
        );
    }

    // At rest nothing is asked and nothing is said about any object.
    let mark = bed.cluster.audit().await?.mark().await?;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let quiet = ours(&bed.cluster.audit().await?.since(mark).await?);
    let about: Vec<_> = quiet.iter().filter(|r| r.name.starts_with("gemma-")).collect();
    ensure!(about.is_empty(), "at rest: {about:?}");
    println!(
        "60 quiet seconds: {} requests of both controllers, none about an object",
        quiet.len()
    );

    // A restart finds everything as it should be.
    let mark = bed.cluster.audit().await?.mark().await?;
    drop((core, kaito));
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = ours(&bed.cluster.audit().await?.since(mark).await?);
    let about: Vec<_> = after.iter().filter(|r| r.name.starts_with("gemma-")).collect();
    ensure!(
        about.is_empty(),
        "after a restart: {} requests, such as {:?}",
        about.len(),
        about.first()
    );
    Ok(())
}

#[tokio::test]
async fn the_same_counts_hold_for_every_provider() -> Result<()> {
    const OBJECTS: usize = 12;
    let bed = Bed::start_with(Upstream::All, true).await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _dynamo = bed.provider(runway_provider_dynamo::Dynamo::default()).await?;
    let _kuberay = bed.provider(runway_provider_kuberay::KubeRay::default()).await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    // A provider that has registered may not have read its upstream's CRD yet.
    for provider in ["dynamo", "kuberay", "kaito"] {
        bed.create(vllm(&format!("first-{provider}"), provider)).await?;
        bed.running(&format!("first-{provider}")).await?;
    }

    let mark = bed.cluster.audit().await?.mark().await?;
    let names = |provider: &str| {
        (0..OBJECTS)
            .map(|index| format!("{provider}-{index}"))
            .collect::<Vec<_>>()
    };
    for provider in ["dynamo", "kuberay"] {
        for name in names(provider) {
            bed.create(vllm(&name, provider)).await?;
        }
        for name in names(provider) {
            bed.running(&name).await?;
        }
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    let requests = bed.cluster.audit().await?.since(mark).await?;
    let ours: Vec<audit::Request> = requests
        .into_iter()
        .filter(|r| r.user == labels::CORE_MANAGER || r.user.ends_with("-provider"))
        .filter(|r| r.resource != "events" && (r.name.starts_with("dynamo-") || r.name.starts_with("kuberay-")))
        .collect();
    for (object, count) in audit::by_object(&ours) {
        let of_it = || {
            ours.iter()
                .filter(|r| (&r.namespace, &r.name) == (&object.0, &object.1))
        };
        ensure!(
            count.read == 0 && count.total() <= 4,
            "{object:?}: {count:?}: {:?}",
            of_it().collect::<Vec<_>>()
        );
    }

    let mark = bed.cluster.audit().await?.mark().await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let quiet = bed.cluster.audit().await?.since(mark).await?;
    let said: Vec<_> = quiet
        .iter()
        .filter(|r| r.user.ends_with("-provider") && r.name.contains('-'))
        .collect();
    ensure!(said.is_empty(), "at rest: {said:?}");
    Ok(())
}

#[tokio::test]
async fn refused_with_a_reason() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    bed.admission_is_up().await?;
    let refused = async |change: Value| -> Result<String> {
        let mut object = gemma("refused");
        json_patch::merge(&mut object, &change);
        match bed.create(object).await {
            Ok(_) => anyhow::bail!("accepted: {change}"),
            Err(error) => Ok(format!("{error:#}")),
        }
    };
    let cases = [
        (json!({"spec": {"engine": {"type": null}}}), "engine.type is required"),
        (
            json!({"spec": {"model": {"id": null}}}),
            "model.id is required when source is huggingface",
        ),
        (
            json!({"spec": {"engine": {"type": "vllm"}}}),
            "vLLM engine requires GPU (set resources.gpu.count > 0)",
        ),
        (json!({"spec": {"engine": {"type": "warp"}}}), "warp"),
        (
            json!({"spec": {"provider": {"name": "kaito"}, "engine": {"type": "sglang"}, "resources": {"gpu": {"count": 1}}}}),
            "provider 'kaito' does not support engine sglang: change spec.engine.type",
        ),
        (
            json!({"spec": {"provider": {"name": "missing"}}}),
            "Provider 'missing' CRD not installed in cluster",
        ),
        (
            json!({"spec": {"serving": {"mode": "disaggregated"}, "engine": {"type": "vllm"}}}),
            "Disaggregated mode requires scaling.prefill and scaling.decode",
        ),
        (
            json!({"spec": {"resources": {"memory": "lots"}}}),
            "resources.memory must be a quantity",
        ),
        (json!({"spec": {"scaling": {"replicas": -1}}}), "spec.scaling.replicas"),
        (
            json!({"spec": {"provider": {"name": "kaito"}}, "metadata": {"name": "with.dots"}}),
            "metadata.name",
        ),
    ];
    for (change, text) in cases {
        let said = refused(change).await?;
        ensure!(said.contains(text), "expected {text:?} in: {said}");
    }
    ensure!(
        bed.deployments()
            .list(&kube::api::ListParams::default())
            .await?
            .items
            .is_empty(),
        "nothing half made"
    );

    // The selected provider stays selected, so a change that it does not support is refused too.
    bed.create(gemma("selected")).await?;
    bed.status("selected", "selected", |s| {
        let provider = s.provider.as_ref().and_then(|provider| provider.name.as_deref());
        provider == Some("kaito")
    })
    .await?;
    let change = json!({"spec": {"engine": {"type": "sglang"}, "resources": {"gpu": {"count": 1}}}});
    match bed.patch("selected", change).await {
        Ok(md) => anyhow::bail!("accepted: {md:?}"),
        Err(error) => {
            let said = format!("{error:#}");
            ensure!(
                said.contains("provider 'kaito' does not support engine sglang"),
                "{said}"
            );
        }
    }
    Ok(())
}

#[tokio::test]
async fn without_webhooks_the_controllers_do_the_same() -> Result<()> {
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    let mark = bed.cluster.audit().await?.mark().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;

    let mut bad = gemma("bad");
    bad["spec"]["engine"]["type"] = json!("vllm");
    bed.create(bad).await?;
    let md = bed.status("bad", "Failed", |s| s.phase == Some(Phase::Failed)).await?;
    let status = md.status.unwrap_or_default();
    ensure!(status.conditions.is_true(condition::STALLED));
    ensure!(
        status.message.as_deref() == Some("vLLM engine requires GPU (set resources.gpu.count > 0)"),
        "{status:?}"
    );
    ensure!(status.conditions.when_false(condition::VALIDATED).is_some());

    // Put right, it goes its way; the finalizer comes from the provider.
    bed.patch("bad", json!({ "spec": { "engine": { "type": "llamacpp" } } }))
        .await?;
    let md = bed.running("bad").await?;
    ensure!(md.has_finalizer());
    // The status that follows the finalizer refers to the object with it.
    let requests = bed.cluster.audit().await?.since(mark).await?;
    let conflicts: Vec<_> = audit::of_user(&requests, "kaito-provider")
        .into_iter()
        .filter(|r| r.resource == "modeldeployments" && r.code == 409)
        .collect();
    ensure!(conflicts.is_empty(), "{conflicts:?}");

    // Nothing is deleted for an unknown provider.
    bed.patch("bad", json!({ "spec": { "provider": { "name": "missing" } } }))
        .await?;
    bed.status("bad", "refused", |s| {
        s.conditions.when_false(condition::VALIDATED).is_some()
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(
        bed.inference_sets().get_opt("bad").await?.is_some(),
        "the InferenceSet serves on"
    );
    bed.patch("bad", json!({ "spec": { "provider": { "name": "kaito" } } }))
        .await?;
    bed.running("bad").await?;

    // What KAITO cannot do is reported in a condition, with the documented text.
    let mut object = gemma("wrong-engine");
    object["spec"]["engine"]["type"] = json!("sglang");
    object["spec"]["resources"]["gpu"]["count"] = json!(1);
    object["spec"]["provider"] = json!({ "name": "kaito" });
    bed.create(object).await?;
    let md = bed
        .status("wrong-engine", "Failed", |s| s.phase == Some(Phase::Failed))
        .await?;
    let compatible = md.conditions().get_condition(condition::PROVIDER_COMPATIBLE).cloned();
    ensure!(
        compatible.is_some_and(|c| c.status == "False" && c.message == "KAITO does not support sglang engine"),
        "{md:?}"
    );

    // One that never had a provider goes at once.
    let mut hopeless = gemma("hopeless");
    hopeless["metadata"]["finalizers"] = json!([labels::FINALIZER]);
    hopeless["spec"]["engine"]["type"] = json!("vllm");
    bed.create(hopeless).await?;
    bed.status("hopeless", "Failed", |s| s.phase == Some(Phase::Failed))
        .await?;
    bed.delete("hopeless").await?;
    bed.gone("hopeless").await
}

/// KAITO leaves a StatefulSet as it is that has the Workspace's name already, and is ready when its pods are. A new Workspace is
/// therefore created only after the StatefulSet of the old one is gone.
#[tokio::test]
async fn a_recreated_workspace_never_gets_the_workload_of_the_old_one() -> Result<()> {
    let bed = Bed::start_with(Upstream::Workspaces, true).await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator_with_workloads().await?;
    bed.admission_is_up().await?;
    let nodes: Api<Node> = Api::all(bed.admin.clone());
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let node = json!({"metadata": {"name": "node", "labels": {"kubernetes.io/os": "linux"}}, "status": ready});
    nodes
        .create(&PostParams::default(), &serde_json::from_value(node)?)
        .await?;
    bed.create(gemma("model")).await?;
    let workloads: Api<StatefulSet> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let first = eventually(PATIENCE, async || Ok(workloads.get("model").await?)).await?;
    let workspace = bed.workspaces().get("model").await?.uid();

    // Its pods take their time to terminate.
    let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    workloads
        .patch("model", &PatchParams::default(), &hold(json!(["test.example/hold"])))
        .await?;
    bed.patch("model", json!({"spec": {"image": "llama-cpp:2"}})).await?;
    eventually(PATIENCE, async || {
        let current = workloads.get("model").await?;
        ensure!(current.metadata.deletion_timestamp.is_some() && current.uid() == first.uid());
        Ok(())
    })
    .await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let waiting = bed.workspaces().get("model").await?;
    ensure!(
        waiting.uid() == workspace && waiting.metadata.deletion_timestamp.is_some(),
        "recreated beside the old workload"
    );

    workloads
        .patch("model", &PatchParams::default(), &hold(Value::Null))
        .await?;
    eventually(PATIENCE, async || {
        let second = workloads.get("model").await?;
        let containers = second.spec.and_then(|s| s.template.spec).map(|s| s.containers);
        let image = containers.and_then(|c| c.into_iter().next()).and_then(|c| c.image);
        ensure!(image.as_deref() == Some("llama-cpp:2"), "{image:?}");
        Ok(())
    })
    .await?;
    ensure!(bed.workspaces().get("model").await?.uid() != workspace);
    Ok(())
}

/// A Workspace that was created before there were InferenceSets stays, whatever starts again; and once it has been replaced, the
/// number of replicas changes without a loss, at the same endpoint.
#[tokio::test]
async fn an_upgrade_keeps_workspaces_and_scaling_keeps_replicas() -> Result<()> {
    let bed = Bed::start_with(Upstream::Workspaces, true).await?;
    let _core = bed.core().await?;
    let kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("old")).await?;
    let limited = |md: &runway_api::ModelDeployment, text: &str| {
        let limit = md.conditions().when_true(condition::SCALING_LIMITED);
        limit.is_some_and(|c| c.reason == "FixedReplicas" && c.message.contains(text))
    };
    let md = bed.running("old").await?;
    ensure!(limited(&md, "install KAITO 0.11 or newer"), "{md:?}");
    let endpoint = md.status.as_ref().and_then(|s| s.endpoint.clone());
    let workspace = bed.workspaces().get("old").await?;

    // KAITO gets InferenceSets, and our controller starts again.
    drop(kaito);
    for crd in crds::upstream_crds(&[crds::KAITO_INFERENCE_SETS])? {
        crds::install_crd(&bed.admin, crd).await?;
    }
    let _kaito = bed.kaito().await?;
    bed.create(gemma("new")).await?;
    bed.running("new").await?;
    ensure!(bed.inference_sets().get_opt("new").await?.is_some());
    let is_limited = |md: &runway_api::ModelDeploymentStatus| {
        let limit = md.conditions.when_true(condition::SCALING_LIMITED);
        limit.is_some_and(|c| c.message.contains("kubectl delete workspace old"))
    };
    bed.status("old", "a warning that scaling interrupts", is_limited)
        .await?;
    let kept = bed.workspaces().get("old").await?;
    ensure!(kept.uid() == workspace.uid() && kept.metadata.generation == workspace.metadata.generation);
    ensure!(bed.inference_sets().get_opt("old").await?.is_none());

    // Another number of replicas replaces it.
    scale(&bed, "old", 2).await?;
    let md = bed.running("old").await?;
    ensure!(
        bed.workspaces().get_opt("old").await?.is_none() && !limited(&md, ""),
        "{md:?}"
    );
    ensure!(
        md.status.as_ref().and_then(|s| s.endpoint.clone()) == endpoint,
        "{md:?}"
    );
    bed.event_with("old", "Recreating", "Workspace 'old' is replaced by InferenceSet 'old'")
        .await?;

    // From now on replicas come and go, and the others stay.
    let set = bed.inference_sets().get("old").await?.uid();
    let mut before = replicas(&bed, "old").await?;
    for wanted in [3, 1, 0, 1] {
        scale(&bed, "old", wanted).await?;
        let after = eventually(PATIENCE, async || {
            let after = replicas(&bed, "old").await?;
            ensure!(after.len() == wanted, "{after:?}");
            Ok(after)
        })
        .await?;
        ensure!(
            before.is_subset(&after) || after.is_subset(&before),
            "{before:?} {after:?}"
        );
        before = after;
        if wanted > 0 {
            bed.running("old").await?;
        }
    }
    let md = bed.deployments().get("old").await?;
    ensure!(md.status.and_then(|s| s.endpoint) == endpoint);
    ensure!(
        bed.inference_sets().get("old").await?.uid() == set,
        "the InferenceSet was recreated"
    );
    Ok(())
}

async fn scale(bed: &Bed, name: &str, replicas: usize) -> Result<()> {
    let md = bed
        .patch(name, json!({ "spec": { "scaling": { "replicas": replicas } } }))
        .await?;
    bed.status(name, "up to date", |s| s.observed_generation == md.metadata.generation)
        .await
        .map(drop)
}

/// The Workspaces of an InferenceSet that stay, by uid.
async fn replicas(bed: &Bed, name: &str) -> Result<BTreeSet<String>> {
    let of_set = ListParams::default().labels(&format!("inferenceset.kaito.sh/created-by={name}"));
    let all = bed.workspaces().list(&of_set).await?.items;
    let stay = all.into_iter().filter(|w| w.metadata.deletion_timestamp.is_none());
    Ok(stay.filter_map(|w| w.uid()).collect())
}

/// The version that is desired last is created, whichever was about to be.
#[tokio::test]
async fn a_revert_during_a_rollout_ends_at_the_old_version() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    let object = gemma("model");
    let image = object["spec"]["image"].clone();
    bed.create(object).await?;
    bed.running("model").await?;
    let mark = bed.cluster.audit().await?.mark().await?;
    let first = bed.inference_sets().get("model").await?.uid();
    let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    bed.inference_sets()
        .patch("model", &PatchParams::default(), &hold(json!(["test.example/hold"])))
        .await?;
    bed.patch("model", json!({"spec": {"image": "llama-cpp:2"}})).await?;
    bed.event_with("model", "Recreating", "spec.image").await?;
    bed.patch("model", json!({"spec": {"image": image}})).await?;
    bed.status("model", "waiting", |s| {
        s.observed_generation == Some(3) && s.phase == Some(Phase::Deploying)
    })
    .await?;
    bed.inference_sets()
        .patch("model", &PatchParams::default(), &hold(Value::Null))
        .await?;
    let md = bed.running("model").await?;
    ensure!(md.status.as_ref().and_then(|s| s.observed_generation) == Some(3));
    let set = bed.inference_sets().get("model").await?;
    let running = &set.data["spec"]["template"]["inference"]["template"]["spec"]["containers"][0]["image"];
    ensure!(*running == image && set.uid() != first, "{running}");
    let created = bed.cluster.audit().await?.since(mark).await?;
    let created = created
        .iter()
        .filter(|r| r.resource == "inferencesets" && r.subresource.is_empty() && r.code == 201);
    ensure!(created.count() == 1, "the new version was created in between");
    Ok(())
}

#[tokio::test]
async fn dry_run_makes_nothing() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    let mut object = gemma("dry");
    object["metadata"]["annotations"] = json!({ labels::DRY_RUN: "true" });
    bed.create(object).await?;
    let md = bed.status("dry", "planned", |s| s.plan.is_some()).await?;
    let plan = md.status.and_then(|s| s.plan).unwrap_or_default();
    ensure!(
        plan.objects.len() == 2 && plan.objects[1]["kind"] == "InferenceSet",
        "{plan:?}"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    ensure!(bed.inference_sets().get_opt("dry").await?.is_none(), "nothing is made");
    bed.patch(
        "dry",
        json!({ "metadata": { "annotations": { labels::DRY_RUN: null } } }),
    )
    .await?;
    let md = bed.running("dry").await?;
    ensure!(
        md.status.and_then(|s| s.plan).is_none(),
        "the plan goes when it has been carried out"
    );
    Ok(())
}

#[tokio::test]
async fn the_upstream_crd_appears_later() -> Result<()> {
    let bed = Bed::start_with(Upstream::None, true).await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("early")).await?;
    let md = bed
        .status("early", "Pending", |s| s.phase == Some(Phase::Pending))
        .await?;
    ensure!(
        md.status.as_ref().and_then(|s| s.message.as_deref()) == Some("No healthy providers available"),
        "{:?}",
        md.status
    );
    for crd in crds::upstream_crds(&[crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS])? {
        crds::install_crd(&bed.admin, crd).await?;
    }
    bed.running("early").await?;
    let config = bed.configs().get("kaito").await?.status.unwrap_or_default();
    ensure!(
        config.upstream_crd_version.as_deref() == Some("kaito.sh/v1beta1"),
        "{config:?}"
    );
    ensure!(config.upstream_schema_hash.is_some());
    Ok(())
}

#[tokio::test]
async fn deletion_ends_when_the_operator_is_dead_or_its_crd_is_gone() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("orphan")).await?;
    bed.running("orphan").await?;

    // The operator dies with its finalizer on the InferenceSet: the deletion waits, and says for what.
    drop(simulator);
    bed.delete("orphan").await?;
    let md = bed
        .status("orphan", "Terminating", |s| s.phase == Some(Phase::Terminating))
        .await?;
    ensure!(
        md.status
            .and_then(|s| s.message)
            .is_some_and(|m| m.contains("InferenceSet 'orphan'"))
    );

    // The operator runs again, and completes the deletion.
    let simulator = bed.simulator().await?;
    bed.gone("orphan").await?;

    // The CRD goes with everything in it.
    bed.create(gemma("second")).await?;
    bed.running("second").await?;
    let crd_api: kube::Api<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    > = kube::Api::all(bed.admin.clone());
    for name in ["workspaces.kaito.sh", "inferencesets.kaito.sh"] {
        crd_api.delete(name, &kube::api::DeleteParams::default()).await?;
    }
    // Before the operator dies: its finalizer would keep the CRD of an object, too.
    eventually(PATIENCE, async || {
        for name in ["workspaces.kaito.sh", "inferencesets.kaito.sh"] {
            ensure!(crd_api.get_opt(name).await?.is_none(), "{name} is still there");
        }
        Ok(())
    })
    .await?;
    drop(simulator);
    bed.delete("second").await?;
    bed.gone("second").await
}

#[tokio::test]
async fn switching_the_provider_never_makes_two() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _deployment = bed.provider(deployment_provider::DeploymentProvider).await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("moving")).await?;
    bed.running("moving").await?;

    bed.patch("moving", json!({ "spec": { "provider": { "name": "deployment" } } }))
        .await?;
    let md = bed
        .status("moving", "with the other provider", |s| {
            let kind = s.provider.as_ref().and_then(|p| p.resource_kind.as_deref());
            kind == Some("Deployment") && s.conditions.as_slice().is_true(condition::RESOURCE_CREATED)
        })
        .await?;
    ensure!(
        bed.inference_sets().get_opt("moving").await?.is_none(),
        "the InferenceSet went before the Deployment came"
    );
    let provider = md.status.and_then(|s| s.provider).unwrap_or_default();
    ensure!(
        provider.selected_reason.as_deref() == Some("explicit provider selection"),
        "{provider:?}"
    );
    let deployments = bed.upstream(deployment_provider::DEPLOYMENT, "v1");
    ensure!(deployments.get_opt("moving").await?.is_some());

    // And back.
    bed.patch("moving", json!({ "spec": { "provider": { "name": "kaito" } } }))
        .await?;
    bed.running("moving").await?;
    eventually(PATIENCE, async || {
        ensure!(deployments.get_opt("moving").await?.is_none());
        ensure!(bed.inference_sets().get_opt("moving").await?.is_some());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_kill_in_the_middle_changes_nothing() -> Result<()> {
    const OBJECTS: usize = 20;
    let bed = Bed::start().await?;
    let mut core = Some(bed.core().await?);
    let mut kaito = Some(bed.kaito().await?);
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    for index in 0..OBJECTS {
        bed.create(gemma(&format!("gemma-{index}"))).await?;
        if index % 4 == 3 {
            // Killed, not stopped, in the middle of what they do.
            core.take();
            kaito.take();
            core = Some(bed.core().await?);
            kaito = Some(bed.kaito().await?);
        }
    }
    for index in 0..OBJECTS {
        bed.running(&format!("gemma-{index}")).await?;
    }
    let sets = bed
        .inference_sets()
        .list(&kube::api::ListParams::default())
        .await?
        .items;
    ensure!(sets.len() == OBJECTS, "{} InferenceSets", sets.len());
    drop((core, kaito));
    Ok(())
}

#[tokio::test]
async fn failures_are_reported_with_a_remedy() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;

    bed.create(gemma_simulated("failing", "fail")).await?;
    let md = bed
        .status("failing", "Failed", |s| s.phase == Some(Phase::Failed))
        .await?;
    ensure!(md.conditions().is_true(condition::STALLED));
    bed.event("failing", "ProviderError").await?;

    let mut object = gemma_simulated("no-secret", "secret-missing");
    object["spec"]["secrets"] = json!({ "huggingFaceToken": "hf-token" });
    bed.create(object).await?;
    let note = bed.event("no-secret", "SecretNotFound").await?;
    let noted = "Secret 'hf-token' not found in namespace 'default'";
    ensure!(note.starts_with(noted), "{note}");
    bed.status("no-secret", "explained", |s| {
        s.message.as_ref().is_some_and(|m| m.starts_with(noted))
    })
    .await?;

    // An undocumented override is not dropped silently.
    let mut object = gemma("typo");
    object["spec"]["provider"] = json!({ "name": "kaito", "overrides": { "replicsa": 2 } });
    bed.create(object).await?;
    bed.event("typo", "OverridesIgnored").await?;

    // An InferenceSet of another owner is not changed.
    bed.apply(&json!({
        "apiVersion": "kaito.sh/v1beta1", "kind": "InferenceSet", "metadata": { "name": "taken", "namespace": "default" },
        "spec": { "labelSelector": { "matchLabels": { "a": "b" } }, "template": { "inference": { "preset": { "name": "phi-4" } }, "resource": {} } },
    }))
    .await?;
    bed.create(gemma("taken")).await?;
    let md = bed
        .status("taken", "Failed", |s| s.phase == Some(Phase::Failed))
        .await?;
    ensure!(
        md.status
            .and_then(|s| s.message)
            .is_some_and(|m| m.contains("was not created for this ModelDeployment"))
    );
    bed.delete("taken").await?;
    bed.gone("taken").await?;
    ensure!(bed.inference_sets().get_opt("taken").await?.is_some(), "still there");
    Ok(())
}

/// A webhook of others, whose server is away: the API server fails with an internal error as long as it stands.
#[tokio::test]
async fn a_write_that_keeps_failing_is_in_the_status_until_it_succeeds() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    let webhook = bed
        .apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": "of-others" },
            "webhooks": [{
                "name": "sets.others.example", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": { "url": "https://127.0.0.1:9/" },
                "rules": [{ "apiGroups": ["kaito.sh"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["inferencesets"] }],
            }],
        }))
        .await?;
    bed.create(gemma("gemma")).await?;
    let failed = eventually(PATIENCE, async || {
        let status = bed.deployments().get("gemma").await?.status.unwrap_or_default();
        ensure!(status.phase == Some(Phase::Failed), "{status:?}");
        Ok(status)
    })
    .await?;
    let message = failed.message.unwrap_or_default();
    ensure!(
        message.starts_with("InferenceSet 'gemma' ")
            && message.contains("failed calling webhook \"sets.others.example\""),
        "{message}"
    );

    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(bed.admin.clone());
    webhooks.delete(&webhook.name_any(), &DeleteParams::default()).await?;
    // A user who has mended it need not wait for the next attempt.
    bed.patch("gemma", json!({ "metadata": { "annotations": { "mended": "true" } } }))
        .await?;
    bed.running("gemma").await?;
    Ok(())
}

#[tokio::test]
async fn a_deletion_that_is_refused_is_in_the_status_until_it_succeeds() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("gemma")).await?;
    bed.running("gemma").await?;
    bed.apply(&json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": { "name": "keep" },
        "spec": {
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["kaito.sh"], "apiVersions": ["*"], "operations": ["DELETE"], "resources": ["inferencesets"],
            }] },
            "validations": [{ "expression": "false", "message": "kept for an audit" }],
        },
    }))
    .await?;
    let binding = bed
        .apply(&json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": "keep" }, "spec": { "policyName": "keep", "validationActions": ["Deny"] },
        }))
        .await?;
    let dry_run = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    eventually(PATIENCE, async || {
        let deleted = bed.inference_sets().delete("gemma", &dry_run).await;
        ensure!(deleted.is_err(), "the policy is not in force");
        Ok(())
    })
    .await?;

    bed.delete("gemma").await?;
    bed.status("gemma", "Terminating, with the reason", |s| {
        s.phase == Some(Phase::Terminating)
            && s.message.as_ref().is_some_and(|m| {
                m.starts_with("InferenceSet 'gemma' cannot be deleted: ") && m.contains("kept for an audit")
            })
    })
    .await?;
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(bed.admin.clone());
    bindings.delete(&binding.name_any(), &DeleteParams::default()).await?;
    bed.gone("gemma").await
}

#[tokio::test]
async fn rules_that_are_broken_are_reported_and_the_others_go_on() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core().await?;
    let _kaito = bed.kaito().await?;
    bed.admission_is_up().await?;
    let bomb = format!("{}true{}", "(".repeat(1500), ")".repeat(1500));
    bed.apply(&json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "InferenceProviderConfig", "metadata": { "name": "hostile" },
        "spec": {
            "capabilities": { "engines": ["llamacpp"], "servingModes": ["aggregated"], "cpuSupport": true },
            "selectionRules": [
                { "condition": "spec.engine.type ==", "priority": 1 },
                { "condition": bomb, "priority": 2 },
                { "condition": "spec.engine.type == 'llamacpp'", "priority": 3 },
            ],
        },
    }))
    .await?;
    let status = eventually(PATIENCE, async || {
        let status = bed.configs().get("hostile").await?.status.unwrap_or_default();
        ensure!(status.conditions.get_condition(condition::RULES_VALID).is_some());
        Ok(status)
    })
    .await?;
    let rules = status.conditions.get_condition(condition::RULES_VALID).cloned();
    ensure!(
        rules.as_ref().is_some_and(|c| c.status == "False"
            && c.message.contains("selectionRules[0]")
            && c.message.contains("selectionRules[1]")),
        "{rules:?}"
    );
    // Admission and selection are as alive as before.
    bed.create(gemma("after")).await?;
    bed.status("after", "selected", |s| {
        s.provider.as_ref().is_some_and(|p| p.name.as_deref() == Some("kaito"))
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_selector_of_ones_own() -> Result<()> {
    let bed = Bed::start().await?;
    let _core = bed.core_with(false).await?;
    let _kaito = bed.kaito().await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;
    bed.create(gemma("mine")).await?;
    let md = bed
        .status("mine", "Pending", |s| s.phase == Some(Phase::Pending))
        .await?;
    ensure!(
        md.status.and_then(|s| s.message).as_deref()
            == Some("No provider specified and provider-selector not installed")
    );
    let choice = json!({ "status": { "provider": { "name": "kaito", "selectedReason": "cheapest" } } });
    bed.deployments()
        .patch_status("mine", &PatchParams::default(), &Patch::Merge(&choice))
        .await?;
    let md = bed.running("mine").await?;
    let provider = md.status.and_then(|s| s.provider).unwrap_or_default();
    ensure!(provider.selected_reason.as_deref() == Some("cheapest"), "{provider:?}");
    Ok(())
}
