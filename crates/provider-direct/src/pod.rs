//! The pod: one container with the engine's server.
//!
//! It is admitted under Pod Security `baseline`. Under `restricted` it is not: the engines' images run as root, and who wants
//! another user needs an image for it.

use runway_api::model_deployment::ModelSource;
use runway_operator::quantity;
use runway_provider::fields::fields;
use runway_provider::{Request, Worker};
use serde_json::{Value, json};

use crate::compatible::{Accepted, Model};
use crate::flags::Flags;
use crate::objects::PORT_NAME;

/// Seconds that a server may take from its start to its first answer: download, load, compile.
pub(crate) const START_UP_BUDGET: i32 = 3600;

/// Seconds for running requests after a pod was told to end.
const GRACE: i32 = 120;

/// Path on which every engine tells whether the model is loaded and answers.
const HEALTH: &str = "/health";

/// The variable that all engines read the token from, and the key that it has in the Secret.
const TOKEN: &str = "HF_TOKEN";

/// Where downloads go: they outlive a container that crashes, and end with the pod.
const CACHE: &str = "/cache";

/// A pod's spec, and what of the request is not in it.
pub(crate) struct Pod {
    pub(crate) spec: Value,
    pub(crate) ignored: Option<String>,
}

pub(crate) fn pod(request: &Request, accepted: &Accepted, flags: &Flags) -> Pod {
    let volumes = volumes(request, accepted);
    let spec = fields()
        .with("containers", vec![container(request, accepted, flags, &volumes)])
        .with("volumes", volumes.iter().map(Volume::source).collect::<Vec<_>>())
        .with("nodeSelector", json!(request.node_selector))
        .with("tolerations", json!(request.tolerations))
        .with("terminationGracePeriodSeconds", GRACE)
        // A model needs no rights in the cluster, and may bring code of its own.
        .with("automountServiceAccountToken", false)
        // A Service named vllm would otherwise become VLLM_PORT, which vLLM takes for its own (vllm/envs.py, get_vllm_port).
        .with("enableServiceLinks", false);
    let overruled = request.token_secret.is_some() && sets(request, TOKEN);
    Pod {
        spec: spec.into(),
        ignored: overruled.then(|| format!("secrets.huggingFaceToken is ignored: spec.env sets {TOKEN} itself")),
    }
}

fn container(request: &Request, accepted: &Accepted, flags: &Flags, volumes: &[Volume]) -> Value {
    fields()
        .with("name", "model")
        .with("image", accepted.image)
        .with("command", command(accepted))
        .with("args", arguments(accepted, flags))
        .with(
            "ports",
            json!([{"name": PORT_NAME, "containerPort": accepted.port, "protocol": "TCP"}]),
        )
        .with("env", environment(request, accepted))
        .with("resources", resources(accepted.worker))
        .with("volumeMounts", volumes.iter().map(Volume::mount).collect::<Vec<_>>())
        // Every second, so that a small model serves at once.
        .with("startupProbe", probe(1, START_UP_BUDGET, 5))
        .with("readinessProbe", probe(5, 6, 10))
        // A server under load answers slowly, and SGLang within 20 seconds: only one that is silent for minutes is ended.
        .with("livenessProbe", probe(10, 10, 30))
        // An engine that refuses its arguments says so at its end.
        .with("terminationMessagePolicy", "FallbackToLogsOnError")
        .with(
            "securityContext",
            json!({
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }),
        )
        .into()
}

/// The engine's command, unless the image alone knows what it serves.
fn command(accepted: &Accepted) -> Vec<&'static str> {
    match accepted.model {
        Model::Image => Vec::new(),
        Model::Hub(_) | Model::Path { .. } => accepted.engine.command.to_vec(),
    }
}

/// What to load, and the flags.
fn arguments(accepted: &Accepted, flags: &Flags) -> Vec<String> {
    let load = match accepted.model {
        Model::Hub(id) => (accepted.engine.from_hub)(id),
        Model::Path { path, .. } => (accepted.engine.from_path)(path),
        Model::Image => Vec::new(),
    };
    load.into_iter().chain(flags.arguments()).collect()
}

/// Ours first, each unless the user sets it: a name may be there once only.
fn environment(request: &Request, accepted: &Accepted) -> Vec<Value> {
    let cache = keeps_downloads(request).then(|| json!({"name": accepted.engine.cache_variable, "value": CACHE}));
    let token = request
        .token_secret
        .as_ref()
        .map(|secret| json!({"name": TOKEN, "valueFrom": {"secretKeyRef": {"name": secret, "key": TOKEN}}}));
    let ours = [cache, token].into_iter().flatten();
    ours.filter(|variable| !variable["name"].as_str().is_some_and(|name| sets(request, name)))
        .chain(request.env.iter().map(|variable| json!(variable)))
        .collect()
}

fn sets(request: &Request, variable: &str) -> bool {
    request.env.iter().any(|given| given.name == variable)
}

fn keeps_downloads(request: &Request) -> bool {
    request.source == ModelSource::Huggingface
}

/// A volume that lives as long as its pod.
struct Volume {
    name: &'static str,
    path: &'static str,
    medium: Option<&'static str>,
}

impl Volume {
    fn source(&self) -> Value {
        let medium = self.medium.map(|medium| json!({"medium": medium}));
        json!({"name": self.name, "emptyDir": medium.unwrap_or_else(|| json!({}))})
    }

    fn mount(&self) -> Value {
        json!({"name": self.name, "mountPath": self.path})
    }
}

fn volumes(request: &Request, accepted: &Accepted) -> Vec<Volume> {
    let cache = Volume {
        name: "cache",
        path: CACHE,
        medium: None,
    };
    let shared_memory = Volume {
        name: "shm",
        path: "/dev/shm",
        medium: Some("Memory"),
    };
    let wanted = [
        (keeps_downloads(request), cache),
        (wants_shared_memory(accepted), shared_memory),
    ];
    wanted
        .into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, volume)| volume)
        .collect()
}

/// The processes of one server, one for each GPU, talk through shared memory, of which a container has 64 MiB. llama.cpp is
/// one process.
fn wants_shared_memory(accepted: &Accepted) -> bool {
    let gpus = accepted.worker.gpu.as_ref().map_or(0, |gpu| gpu.count);
    accepted.engine.tensor_parallel.is_some() && gpus > 1
}

/// Memory is a limit too: a model that needs more is ended and told as OOMKilled, instead of taking a node with it.
/// Processors are no limit: a model uses what is idle.
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

/// Asks every `period` seconds, and gives up after so many failures, each of which takes at most `timeout` seconds.
fn probe(period: i32, failures: i32, timeout: i32) -> Value {
    json!({
        "httpGet": {"path": HEALTH, "port": PORT_NAME},
        "periodSeconds": period,
        "failureThreshold": failures,
        "timeoutSeconds": timeout,
    })
}
