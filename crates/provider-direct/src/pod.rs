//! The pod: one container with the engine's server.
//!
//! The pod is admitted under Pod Security `baseline`, and under `restricted` if a user other than root is set: the engines' images
//! run as root by default.

use runway_api::model_deployment::ModelSource;
use runway_operator::quantity;
use runway_provider::engine::{Flags, HEALTH_PATH};
use runway_provider::fields::fields;
use runway_provider::{Request, Worker, pods};
use serde_json::{Value, json};

use crate::compatible::{Accepted, Model};
use crate::settings::DirectSettings;

/// Name of the container's port, which the Service and the probes refer to.
pub const PORT_NAME: &str = "http";

/// Seconds from the start of a server to its first response: download, load, compile.
pub(crate) const START_UP_BUDGET: i32 = 3600;

/// Seconds for an engine to stop, after the drain.
const GRACE: u16 = 120;

/// Variable from which all engines read the token, and its key in the Secret.
const TOKEN: &str = "HF_TOKEN";

/// Directory for downloads. They survive a restart of the container, and end with the pod.
const CACHE: &str = "/cache";

/// The spec of a pod, and the ignored fields of the request.
pub(crate) struct Pod {
    pub(crate) spec: Value,
    pub(crate) ignored: Option<String>,
}

pub(crate) fn pod(request: &Request, accepted: &Accepted, settings: &DirectSettings, flags: &Flags) -> Pod {
    let gpu = accepted.worker.gpu.is_some();
    let (volumes, mounts) = volumes(request, accepted);
    let spec = pods::settings(fields(), request, &settings.image_pull_secrets)
        .with(
            "containers",
            vec![container(request, accepted, settings, flags, mounts)],
        )
        .with("volumes", volumes)
        .with(
            "nodeSelector",
            json!(settings.node_labels.selector(gpu, &request.node_selector)),
        )
        .with("tolerations", json!(request.tolerations))
        .with("terminationGracePeriodSeconds", GRACE + settings.drain_seconds.get())
        // A model needs no permissions in the cluster, and may contain code.
        .with("automountServiceAccountToken", false)
        // Otherwise a Service named vllm would set VLLM_PORT, which vLLM reads as its own setting (vllm/envs.py, get_vllm_port).
        .with("enableServiceLinks", false);
    let overruled = request.token_secret.is_some() && sets(request, TOKEN);
    Pod {
        spec: spec.into(),
        ignored: overruled.then(|| format!("secrets.huggingFaceToken is ignored: spec.env sets {TOKEN} itself")),
    }
}

fn container(
    request: &Request,
    accepted: &Accepted,
    settings: &DirectSettings,
    flags: &Flags,
    mounts: Vec<Value>,
) -> Value {
    fields()
        .with("name", "model")
        .with("image", accepted.image.as_ref())
        .with("command", command(accepted))
        .with("args", arguments(accepted, flags))
        .with(
            "ports",
            json!([{"name": PORT_NAME, "containerPort": accepted.port, "protocol": "TCP"}]),
        )
        .with("env", environment(request, accepted))
        .with("resources", resources(accepted.worker))
        .with("volumeMounts", mounts)
        // Every second, so that a small model serves at once.
        .with("startupProbe", probe(1, START_UP_BUDGET, 5))
        .with("readinessProbe", probe(5, 6, 10))
        // A server under load responds slowly, SGLang within 20 seconds: only one that is silent for minutes is restarted.
        .with("livenessProbe", probe(10, 10, 30))
        .with("lifecycle", lifecycle(settings))
        .with("terminationMessagePolicy", pods::LAST_WORDS)
        .with("securityContext", pods::container_security(request, None))
        .into()
}

/// Delay between the pod's termination, which ends new requests, and the signal to the engine: llama-server drops its requests
/// on SIGTERM. The kubelet sleeps, since an image may have no shell.
fn lifecycle(settings: &DirectSettings) -> Value {
    match settings.drain_seconds.get() {
        0 => Value::Null,
        seconds => json!({"preStop": {"sleep": {"seconds": seconds}}}),
    }
}

/// Command of the engine, unless only the image knows what it serves.
fn command(accepted: &Accepted) -> Vec<&'static str> {
    match accepted.model {
        Model::Image => Vec::new(),
        Model::Hub(_) | Model::Path { .. } => accepted.engine.command.to_vec(),
    }
}

/// Arguments that load the model, and the flags.
fn arguments(accepted: &Accepted, flags: &Flags) -> Vec<String> {
    let load = match accepted.model {
        Model::Hub(id) => (accepted.engine.from_hub)(id),
        Model::Path { path, .. } => (accepted.engine.from_path)(path),
        Model::Image => Vec::new(),
    };
    load.into_iter().chain(flags.arguments()).collect()
}

/// Generated variables first, each unless the user sets it: a name must be unique.
fn environment(request: &Request, accepted: &Accepted) -> Vec<Value> {
    let cache = has_own_cache(request).then(|| json!({"name": accepted.engine.cache_variable, "value": CACHE}));
    let token = request
        .token_secret
        .as_ref()
        .map(|secret| json!({"name": TOKEN, "valueFrom": {"secretKeyRef": {"name": secret, "key": TOKEN}}}));
    let ours = [cache, token].into_iter().flatten();
    ours.filter(|variable| !variable["name"].as_str().is_some_and(|name| sets(request, name)))
        .chain(accepted.caches.iter().map(|variable| json!(variable)))
        .chain(request.env.iter().map(|variable| json!(variable)))
        .collect()
}

fn sets(request: &Request, variable: &str) -> bool {
    request.env.iter().any(|given| given.name == variable)
}

/// Whether downloads are kept in a volume of ours, which has the lifetime of the pod.
fn has_own_cache(request: &Request) -> bool {
    request.source == ModelSource::Huggingface && request.model_cache().is_none()
}

/// Volumes of the pod, and their mounts.
fn volumes(request: &Request, accepted: &Accepted) -> (Vec<Value>, Vec<Value>) {
    let (mut sources, mut mounts) = pods::volumes(request, accepted.engine.needs_shared_memory(accepted.worker));
    if has_own_cache(request) {
        sources.insert(0, json!({"name": "cache", "emptyDir": {}}));
        mounts.insert(0, json!({"name": "cache", "mountPath": CACHE}));
    }
    (sources, mounts)
}

/// Memory is request and limit: a model that needs more is killed and reported as OOMKilled, instead of affecting the node. CPU
/// has no limit: a model may use idle capacity.
fn resources(worker: &Worker) -> Value {
    let memory = worker.memory.as_deref().map(quantity::canonical);
    let cpu = worker.cpu.as_deref().map(quantity::canonical);
    let gpus = worker
        .gpu
        .as_ref()
        .map(|gpu| (gpu.resource.as_str(), gpu.count.to_string()));
    let with_gpus = |amounts: runway_provider::fields::Fields| match &gpus {
        Some((resource, count)) => amounts.with(resource, count.as_str()),
        None => amounts,
    };
    fields()
        .with(
            "requests",
            with_gpus(fields().with("memory", json!(memory)).with("cpu", json!(cpu))),
        )
        .with("limits", with_gpus(fields().with("memory", json!(memory))))
        .into()
}

/// A probe every `period` seconds. It fails after this number of failures, each of which takes at most `timeout` seconds.
fn probe(period: i32, failures: i32, timeout: i32) -> Value {
    json!({
        "httpGet": {"path": HEALTH_PATH, "port": PORT_NAME},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    })
}
