//! InferenceSet or Workspace, with their ConfigMap and Service.

use std::collections::BTreeMap;

use runway_api::model_deployment::Endpoint;
use runway_provider::{Component, Container, Kind, Object, Request, Translation};
use serde_json::{Value, json};

use crate::compatible::{Accepted, Shape, Workload};
use crate::config::KaitoConfig;
use crate::engine::PORT;
use crate::labels;
use crate::schema::{INFERENCE_SET, SERVICE, WORKSPACE};

/// Name of the container with the engine in a pod template.
pub(crate) const CONTAINER: &str = "model";

/// Inference settings, which a Workspace and the template of an InferenceSet have in common.
pub(crate) struct Inference {
    /// The field `inference`.
    pub(crate) spec: Value,
    /// Settings that KAITO reads from a ConfigMap.
    pub(crate) config_map: Option<Object>,
    /// Fields that KAITO does not allow to change, or whose changes it ignores.
    pub(crate) immutable: BTreeMap<String, Value>,
    /// Fields whose changes KAITO does not roll out to existing pods (KAITO `pkg/workspace/inference/template_inference.go`,
    /// CreateTemplateInference; its issue 2124).
    pub(crate) settings: BTreeMap<String, Value>,
    /// Name of the model in client requests, if known.
    pub(crate) model_name: Option<String>,
    /// Fields without effect.
    pub(crate) ignored: Vec<String>,
}

pub(crate) fn translation(
    request: &Request,
    accepted: &Accepted,
    inference: Inference,
    config: &KaitoConfig,
) -> Translation {
    let nodes = node_labels(request, accepted, config);
    let main = |kind: Kind, version: &str, body: Value| Object {
        kind,
        version: version.to_owned(),
        name: request.name.clone(),
        annotations: BTreeMap::new(),
        body,
        immutable: immutable(accepted, &inference, &nodes),
        not_rolled_out: inference
            .settings
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        reset: BTreeMap::new(),
    };
    let mut objects: Vec<Object> = inference.config_map.clone().into_iter().collect();
    let (pod_label, scaling_limit) = match &accepted.shape {
        Shape::Workspace { version, scaling_limit } => {
            objects.push(main(WORKSPACE, version, workspace(accepted, &nodes, &inference.spec)));
            (labels::POD_WORKSPACE, Some(scaling_limit.clone()))
        }
        Shape::InferenceSet { version, replicas } => {
            let body = inference_set(accepted, *replicas, &nodes, &inference.spec);
            objects.extend(services(request, accepted));
            objects.push(main(INFERENCE_SET, version, body));
            (labels::POD_INFERENCE_SET, None)
        }
    };
    Translation {
        endpoint: Some(Endpoint {
            service: Some(request.name.clone()),
            port: Some(80),
        }),
        objects,
        components: vec![component(accepted, &inference)],
        model_name: inference.model_name,
        ignored: inference.ignored,
        scaling_limit,
        replicas: accepted.worker.replicas,
        pod_label: Some(pod_label),
    }
}

/// The pods that serve: of a preset, the first of each Workspace. KAITO leaves a StatefulSet that differs from the template as it is.
fn component(accepted: &Accepted, inference: &Inference) -> Component {
    let replicas = accepted.worker.replicas;
    let wanted = &inference.spec["template"]["spec"]["containers"][0];
    let labels = match accepted.workload {
        Workload::Preset { .. } => vec![(labels::POD_INDEX, "0".to_owned())],
        Workload::Container { .. } => Vec::new(),
    };
    Component {
        labels,
        pods: replicas,
        replicas,
        serves: true,
        ready_when_loaded: true,
        container: Container::of(CONTAINER, wanted),
        ..Component::default()
    }
}

/// `resource.count` is the number of nodes of one replica, deprecated and immutable (KAITO workspace_types.go).
fn workspace(accepted: &Accepted, nodes: &BTreeMap<String, String>, inference: &Value) -> Value {
    let mut resource = json!({"count": 1, "labelSelector": {"matchLabels": nodes}});
    if let Some(instance_type) = accepted.instance_type {
        resource["instanceType"] = json!(instance_type);
    }
    json!({"resource": resource, "inference": inference})
}

fn inference_set(accepted: &Accepted, replicas: i32, nodes: &BTreeMap<String, String>, inference: &Value) -> Value {
    let mut template = json!({"inference": inference});
    if let Some(instance_type) = accepted.instance_type {
        template["resource"] = json!({"instanceType": instance_type});
    }
    json!({"spec": {"replicas": replicas, "labelSelector": {"matchLabels": nodes}, "template": template}})
}

/// The design's selector, the cluster's labels of GPU nodes, and the user's node selector.
fn node_labels(request: &Request, accepted: &Accepted, config: &KaitoConfig) -> BTreeMap<String, String> {
    let mut nodes = BTreeMap::from([(labels::NODE_OS.to_owned(), "linux".to_owned())]);
    let gpu = accepted.worker.gpu.is_some();
    nodes.extend(config.node_labels.selector(gpu, &request.node_selector));
    nodes
}

/// Name of the Service that earlier releases created for several replicas. Their users keep it.
pub(crate) fn earlier_service(name: &str) -> String {
    format!("{name}-replicas")
}

/// Service of the replicas, which has the name of the Service that KAITO creates for a Workspace. KAITO creates none for an
/// InferenceSet (KAITO `pkg/inferenceset/inferenceset_controller.go`).
fn services(request: &Request, accepted: &Accepted) -> Vec<Object> {
    let earlier = Some(earlier_service(&request.name)).filter(|earlier| request.has(SERVICE, earlier));
    let names = earlier.into_iter().chain([request.name.clone()]);
    names.map(|name| service(request, accepted, name)).collect()
}

fn service(request: &Request, accepted: &Accepted, name: String) -> Object {
    let mut selector = BTreeMap::from([(labels::POD_INFERENCE_SET, request.name.as_str())]);
    if matches!(accepted.workload, Workload::Preset { .. }) {
        selector.insert(labels::POD_INDEX, "0");
    }
    Object {
        kind: SERVICE,
        version: "v1".to_owned(),
        name,
        annotations: BTreeMap::new(),
        body: json!({"spec": {
            "selector": selector,
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": PORT}],
        }}),
        immutable: BTreeMap::new(),
        not_rolled_out: BTreeMap::new(),
        reset: BTreeMap::new(),
    }
}

/// By the names of the spec's fields. KAITO: workspace_validation.go, the functions validateUpdate.
fn immutable(accepted: &Accepted, inference: &Inference, nodes: &BTreeMap<String, String>) -> BTreeMap<String, Value> {
    let mut immutable = inference.immutable.clone();
    let run_by = match accepted.workload {
        Workload::Preset { .. } => "preset",
        Workload::Container { .. } => "template",
    };
    immutable.insert("inference".to_owned(), json!(run_by));
    immutable.insert("nodeSelector".to_owned(), json!(nodes));
    if let Some(instance_type) = accepted.instance_type {
        immutable.insert("the provider's instance type".to_owned(), json!(instance_type));
    }
    // An absent value stays absent: null would be a difference.
    immutable.retain(|_, value| !value.is_null());
    immutable
}
