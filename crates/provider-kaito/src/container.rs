//! An engine in the user's image, with a pod template.
//!
//! The node selector is not set here: KAITO overwrites the pod's affinity with the Workspace's labelSelector (KAITO
//! `pkg/workspace/manifests/manifests.go`, GenerateManifestWithPodTemplate). It adds its own tolerations to the user's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use runway_api::labels::DEPLOYMENT;
use runway_api::model_deployment::ModelSource;
use runway_operator::json;
use runway_provider::engine::{Flags, HEALTH_PATH, VLLM, llamacpp};
use runway_provider::fields::fields;
use runway_provider::flags::find;
use runway_provider::settings::PullSecrets;
use runway_provider::{Request, Worker, pods};
use serde_json::{Map, Value, json};

use crate::compatible::Accepted;
use crate::config::KaitoConfig;
use crate::engine::{Engine, PORT};
use crate::family::{self, Family};
use crate::flags;
use crate::labels;
use crate::objects::{CONTAINER, Inference};

pub(crate) fn inference(request: &Request, accepted: &Accepted, image: &str, config: &KaitoConfig) -> Inference {
    let mut flags = flags::of(request, accepted);
    let (pod_labels, overruled) = pod_labels(request);
    flags.ignored.extend(overruled);

    let mut metadata = json!({"labels": pod_labels});
    if !request.pod_annotations.is_empty() {
        metadata["annotations"] = json!(request.pod_annotations);
    }
    let (volumes, mounts) = pods::volumes(request, accepted.engine.dialect().needs_shared_memory(accepted.worker));
    let spec: Value = pods::settings(fields(), request, &config.image_pull_secrets)
        .with("containers", vec![container(request, accepted, image, &flags, mounts)])
        .with("volumes", volumes)
        .with("tolerations", json!(request.tolerations))
        .into();
    let mut settings = settings(request, accepted.worker, image, &flags);
    let pull_secrets = config.image_pull_secrets.references();
    if !pull_secrets.is_empty() {
        settings.insert("imagePullSecrets".to_owned(), json!(pull_secrets));
    }
    Inference {
        spec: json!({"template": {"metadata": metadata, "spec": spec}}),
        config_map: None,
        immutable: BTreeMap::new(),
        model_name: flags.served_name(accepted.engine.dialect()),
        settings,
        ignored: flags.ignored,
    }
}

/// The user's labels, overridden by ours and KAITO's.
fn pod_labels(request: &Request) -> (BTreeMap<String, String>, Option<String>) {
    const RESERVED: [&str; 3] = [DEPLOYMENT, labels::POD_WORKSPACE, labels::POD_INFERENCE_SET];
    let (mut labels, ignored) = pods::labels(request, |key| RESERVED.contains(&key), "the provider and KAITO set");
    labels.insert(DEPLOYMENT.to_owned(), request.name.clone());
    (labels, ignored)
}

fn container(request: &Request, accepted: &Accepted, image: &str, flags: &Flags, mounts: Vec<Value>) -> Value {
    let mut container = json!({
        "name": CONTAINER,
        "image": image,
        "args": arguments(request, accepted.engine, flags),
        "ports": [{"containerPort": PORT}],
        "readinessProbe": readiness(accepted.engine),
        "terminationMessagePolicy": pods::LAST_WORDS,
        "securityContext": Value::from(pods::container_security(request, None)),
    });
    // Images differ in their entrypoint.
    match accepted.engine {
        Engine::Vllm if request.source == ModelSource::Huggingface => container["command"] = json!(VLLM.command),
        Engine::LlamaCpp(Family::RamaLama) => container["command"] = json!(["llama-server"]),
        _ => {}
    }
    if !mounts.is_empty() {
        container["volumeMounts"] = mounts.into();
    }
    if let Some(resources) = resources(accepted.worker) {
        container["resources"] = resources;
    }
    let env: Vec<&EnvVar> = accepted.caches.iter().chain(&request.env).collect();
    if !env.is_empty() {
        container["env"] = json!(env);
    }
    if let Some(secret) = &request.token_secret {
        // All keys become variables.
        container["envFrom"] = json!([{"secretRef": {"name": secret}}]);
    }
    container
}

/// KAITO adds no probe to a template, and reports a Workspace as ready when its pods are. `/health` of both servers fails until
/// the model is loaded. Of other images only the port is known.
fn readiness(engine: Engine) -> Value {
    match engine {
        Engine::Vllm => json!({"httpGet": {"path": HEALTH_PATH, "port": PORT}, "periodSeconds": 5}),
        Engine::LlamaCpp(family) if family.is_llama_server() => {
            json!({"httpGet": {"path": HEALTH_PATH, "port": PORT}, "periodSeconds": 2})
        }
        Engine::LlamaCpp(_) => json!({"tcpSocket": {"port": PORT}, "periodSeconds": 2}),
    }
}

/// Arguments for the model, the address and the flags.
fn arguments(request: &Request, engine: Engine, flags: &Flags) -> Vec<String> {
    let id = request
        .model_id
        .as_ref()
        .filter(|_| request.source == ModelSource::Huggingface);
    let load = id.map_or_else(Vec::new, |id| match engine {
        Engine::Vllm => (VLLM.from_hub)(id),
        Engine::LlamaCpp(family) => {
            let (repository, file) = family::model(request, id);
            family.load(repository, file)
        }
    });
    let is_set = |flag| find(&flags.values, flag).is_some();
    let listen: Vec<String> = match engine {
        Engine::Vllm if !is_set("port") => vec![format!("--port={PORT}")],
        Engine::LlamaCpp(family) if family.is_llama_server() => {
            [("host", "0.0.0.0".to_owned()), ("port", PORT.to_string())]
                .into_iter()
                .filter(|(flag, _)| !is_set(flag))
                .flat_map(|(flag, value)| [format!("--{flag}"), value])
                .collect()
        }
        Engine::LlamaCpp(_) if !is_set("port") && !is_set("address") => vec![format!("--address=:{PORT}")],
        _ => Vec::new(),
    };
    load.into_iter().chain(listen).chain(flags.arguments()).collect()
}

/// Memory and CPU are requests, as in the design's example, not limits.
fn resources(worker: &Worker) -> Option<Value> {
    let requests: Map<String, Value> = [("memory", &worker.memory), ("cpu", &worker.cpu)]
        .into_iter()
        .filter_map(|(name, amount)| Some((name.to_owned(), json!(amount.as_ref()?))))
        .collect();
    let limits = worker
        .gpu
        .as_ref()
        .map(|gpu| json!({&gpu.resource: gpu.count.to_string()}));
    let mut resources = Map::new();
    if !requests.is_empty() {
        resources.insert("requests".to_owned(), requests.into());
    }
    if let Some(limits) = limits {
        resources.insert("limits".to_owned(), limits);
    }
    (!resources.is_empty()).then(|| resources.into())
}

/// The template by the fields of the spec. Values that may be long or private are hashed, since they are stored in an annotation
/// and shown in Events.
fn settings(request: &Request, worker: &Worker, image: &str, flags: &Flags) -> BTreeMap<String, Value> {
    BTreeMap::from([
        ("spec.image".to_owned(), json!(image)),
        ("engine flags".to_owned(), json!(flags.values)),
        (
            format!("engine.args.{}", llamacpp::FILE),
            json!(llamacpp::file_in(&request.args).map(|(_, file)| file)),
        ),
        (
            format!("provider.overrides.{}", family::KEY),
            json!(request.overrides.get(family::KEY)),
        ),
        ("resources".to_owned(), json!(resources(worker))),
        ("secrets.huggingFaceToken".to_owned(), json!(request.token_secret)),
        ("spec.env".to_owned(), json!(json::hash(&request.env))),
        (
            "podTemplate.metadata".to_owned(),
            json!(json::hash(&(&request.pod_labels, &request.pod_annotations))),
        ),
        ("spec.tolerations".to_owned(), json!(json::hash(&request.tolerations))),
        // Absent while unused, so that an upgrade of the provider restarts no pod.
        ("pod settings".to_owned(), pod_settings(request)),
    ])
}

fn pod_settings(request: &Request) -> Value {
    if pods::fields_of_pods(request).is_empty() {
        return Value::Null;
    }
    let volumes: Vec<Value> = request
        .volumes
        .iter()
        .flat_map(|volume| [volume.source(), volume.mount()])
        .collect();
    let settings = Value::from(pods::settings(fields(), request, &PullSecrets::default()));
    json!(json::hash(&(settings, volumes, &request.pods.shm_size)))
}
