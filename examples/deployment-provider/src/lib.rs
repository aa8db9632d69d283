//! A complete third-party provider: serves any image that speaks HTTP on port 8000, as a Deployment and a Service.
//!
//! This is all that a provider is: a registration, a translation there, and a reading back. Watching, applying, drift,
//! deletion, hand-over, dry run and events are the loop's. `docs/reference/provider-contract.md` has the rules;
//! `tests/conformance.rs` runs the suite that checks them.

use std::collections::BTreeMap;

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::{Endpoint, Phase, ServingMode};
use runway_api::provider_config::{Capabilities, OverrideKey, OverrideType, SelectionPolicy};
use runway_provider::fields::fields;
use runway_provider::pods;
use runway_provider::settings::PullSecrets;
use runway_provider::{
    ChildRef, Installed, Kind, Object, Provider, Reading, Refusal, Request, Topology, Translation, Upstream, Worker,
};
use serde_json::{Map, Value, json};

/// The kind whose status is read.
pub const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments");
/// Endpoint of the model.
pub const SERVICE: Kind = Kind::new("", "v1", "Service", "services");

/// Port on which the image must listen.
const PORT: i32 = 8000;

/// Serves any image as a Deployment.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeploymentProvider;

impl Provider for DeploymentProvider {
    fn name(&self) -> &'static str {
        "deployment"
    }

    fn version(&self) -> String {
        concat!("deployment-provider:v", env!("CARGO_PKG_VERSION")).to_owned()
    }

    fn registration(&self) -> InferenceProviderConfigSpec {
        InferenceProviderConfigSpec {
            capabilities: Capabilities {
                engines: vec!["custom".to_owned(), "vllm".to_owned(), "llamacpp".to_owned()],
                serving_modes: vec![ServingMode::Aggregated],
                cpu_support: true,
                gpu_support: true,
                per_engine: Vec::new(),
            },
            // Only ModelDeployments that name it: other providers support these engines better.
            selection_policy: Some(SelectionPolicy::Explicit),
            overrides: Some(vec![OverrideKey {
                path: "serviceType".to_owned(),
                kind: OverrideType::String,
                description: Some("Type of the Service. Defaults to ClusterIP".to_owned()),
            }]),
            documentation: Some("https://github.com/kubeairunway/kubeairunway".to_owned()),
            ..InferenceProviderConfigSpec::default()
        }
    }

    fn upstreams(&self) -> Vec<Upstream> {
        vec![Upstream {
            kind: DEPLOYMENT,
            schemas: &[],
        }]
    }

    fn children(&self, name: &str) -> Vec<ChildRef> {
        [SERVICE, DEPLOYMENT]
            .map(|kind| ChildRef {
                kind,
                name: name.to_owned(),
            })
            .into()
    }

    fn translate(&self, request: &Request, _: &Installed) -> Result<Translation, Refusal> {
        let Topology::Aggregated(worker) = &request.topology else {
            return Err(Refusal::incompatible(
                "The deployment provider does not support disaggregated mode",
            ));
        };
        let Some(image) = &request.image else {
            return Err(Refusal::incompatible(
                "spec.image is required: the deployment provider runs what you give it",
            ));
        };
        Ok(Translation {
            objects: vec![service(request), deployment(request, worker, image)?],
            ignored: ignored(request),
            scaling_limit: None,
            endpoint: Some(Endpoint {
                service: Some(request.name.clone()),
                port: Some(80),
            }),
            // The image decides what it lists.
            model_name: None,
            components: Vec::new(),
            replicas: worker.replicas,
            pod_label: Some(runway_api::labels::DEPLOYMENT),
        })
    }

    fn read_status(&self, request: &Request, object: &Value) -> Reading {
        if object["status"]["observedGeneration"].is_null() {
            return Reading::silent();
        }
        let count = |field: &str| i32::try_from(object["status"][field].as_i64().unwrap_or(0)).unwrap_or(0);
        let (wanted, ready) = (request.topology.replicas(), count("readyReplicas"));
        let stuck = object["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|c| {
                c["type"] == "Progressing" && c["status"] == "False"
                    || c["type"] == "ReplicaFailure" && c["status"] == "True"
            });
        let seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
        let (phase, reason, message) = match stuck {
            Some(condition) => (
                Phase::Failed,
                "DeploymentFailed",
                condition["message"].as_str().unwrap_or_default().to_owned(),
            ),
            None if seen && ready >= wanted => (Phase::Running, "DeploymentReady", String::new()),
            None => (
                Phase::Deploying,
                "Deploying",
                format!("{ready} of {wanted} replicas ready"),
            ),
        };
        Reading {
            phase,
            reason: reason.to_owned(),
            message,
            ready,
            available: count("availableReplicas"),
            ..Reading::silent()
        }
    }
}

fn service(request: &Request) -> Object {
    let kind = request
        .overrides
        .get("serviceType")
        .and_then(Value::as_str)
        .unwrap_or("ClusterIP");
    object(
        request,
        SERVICE,
        json!({
            "spec": {
                "type": kind,
                "selector": selector(request),
                "ports": [{ "name": "http", "port": 80, "targetPort": PORT, "protocol": "TCP" }],
            }
        }),
    )
}

fn deployment(request: &Request, worker: &Worker, image: &str) -> Result<Object, Refusal> {
    let mut labels = request.pod_labels.clone();
    labels.insert(runway_api::labels::DEPLOYMENT.to_owned(), request.name.clone());
    let mut metadata = json!({ "labels": labels, "annotations": request.pod_annotations });
    drop_empty(&mut metadata);
    let (volumes, mounts) = pods::volumes(request, false);
    let pod: Value = pods::settings(fields(), request, &PullSecrets::default())
        .with("containers", vec![container(request, worker, image, &mounts)?])
        .with("volumes", volumes)
        .with("nodeSelector", json!(request.node_selector))
        .with("tolerations", json!(request.tolerations))
        .into();
    Ok(object(
        request,
        DEPLOYMENT,
        json!({
            "spec": {
                "replicas": worker.replicas,
                "selector": { "matchLabels": selector(request) },
                "template": { "metadata": metadata, "spec": pod },
            }
        }),
    ))
}

fn container(request: &Request, worker: &Worker, image: &str, mounts: &[Value]) -> Result<Value, Refusal> {
    let mut env = request.env.clone();
    env.extend(pods::cache_variables(request)?);
    let secrets: Vec<Value> = request
        .token_secret
        .iter()
        .map(|name| json!({ "secretRef": { "name": name } }))
        .collect();
    let mut args: Vec<String> = request.args.iter().map(|(flag, value)| argument(flag, value)).collect();
    args.extend(request.model_id.iter().map(|id| argument("model", id)));
    args.extend(
        request
            .served_name
            .iter()
            .filter(|_| request.served_name_given)
            .map(|name| argument("served-model-name", name)),
    );
    args.extend(
        request
            .context_length
            .map(|tokens| argument("max-model-len", &tokens.to_string())),
    );
    let mut container = json!({
        "name": "model",
        "image": image,
        "args": args,
        "ports": [{ "containerPort": PORT, "protocol": "TCP" }],
        "env": env,
        "envFrom": secrets,
        "resources": resources(worker),
        "volumeMounts": mounts,
    });
    drop_empty(&mut container);
    Ok(container)
}

fn argument(flag: &str, value: &str) -> String {
    if value.is_empty() {
        format!("--{flag}")
    } else {
        format!("--{flag}={value}")
    }
}

fn resources(worker: &Worker) -> Value {
    let given = [("memory", worker.memory.clone()), ("cpu", worker.cpu.clone())];
    let mut requests: Map<String, Value> = given
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?.into())))
        .collect();
    let mut limits = Map::new();
    if let Some(gpu) = &worker.gpu {
        limits.insert(gpu.resource.clone(), gpu.count.to_string().into());
        requests.insert(gpu.resource.clone(), gpu.count.to_string().into());
    }
    let mut resources = json!({ "requests": requests, "limits": limits });
    drop_empty(&mut resources);
    resources
}

/// Empty lists and maps say nothing; the server would drop some of them, and that would look like drift.
fn drop_empty(value: &mut Value) {
    if let Value::Object(map) = value {
        map.retain(|_, v| v.as_array().is_none_or(|a| !a.is_empty()) && v.as_object().is_none_or(|o| !o.is_empty()));
    }
}

fn ignored(request: &Request) -> Vec<String> {
    let remote_code = request.trust_remote_code.then(|| {
        "spec.engine.trustRemoteCode does nothing here: give the image's own flag in spec.engine.args".to_owned()
    });
    remote_code.into_iter().collect()
}

fn selector(request: &Request) -> Map<String, Value> {
    [(runway_api::labels::DEPLOYMENT.to_owned(), request.name.clone().into())]
        .into_iter()
        .collect()
}

fn object(request: &Request, kind: Kind, body: Value) -> Object {
    Object {
        kind,
        version: "v1".to_owned(),
        name: request.name.clone(),
        annotations: BTreeMap::new(),
        body,
        // The selector of a Deployment may not change, and does not: it is made from the name.
        immutable: BTreeMap::new(),
        not_rolled_out: BTreeMap::new(),
        reset: BTreeMap::new(),
    }
}
