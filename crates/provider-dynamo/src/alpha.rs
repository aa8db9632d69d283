//! v1alpha1: a map of services (Dynamo `deploy/operator/api/v1alpha1/dynamocomponentdeployment_types.go`).

use runway_api::model_deployment::DEFAULT_GPU;
use serde_json::{Map, Value, json};

use crate::compatible::Role;
use crate::graph::{Component, Graph};
use crate::object::{Fields, fields};

pub(crate) fn body(graph: &Graph) -> Value {
    let services: Map<String, Value> = graph
        .components
        .iter()
        .map(|component| (component.name.to_owned(), service(component)))
        .collect();
    json!({"spec": {"backendFramework": graph.framework, "services": services}})
}

fn service(component: &Component) -> Value {
    let (kind, part) = match component.role {
        Role::Frontend => ("frontend", None),
        Role::Worker => ("worker", None),
        Role::Prefill => ("worker", Some("prefill")),
        Role::Decode => ("worker", Some("decode")),
    };
    fields()
        .with("componentType", kind)
        .with("subComponentType", part)
        .with("replicas", component.replicas)
        .with("envFromSecret", component.token_secret)
        .with("envs", &component.env)
        .with("resources", resources(component))
        .with(
            "extraPodMetadata",
            fields()
                .with("labels", &component.labels)
                .with("annotations", component.annotations),
        )
        .with("extraPodSpec", pod_spec(component))
        .into()
}

/// Another vendor's GPU is a type beside the number, which is a text.
fn resources(component: &Component) -> Fields {
    let gpu_type = component
        .gpu
        .map(|gpu| gpu.resource.as_str())
        .filter(|resource| *resource != DEFAULT_GPU);
    let requests = fields()
        .with("cpu", component.cpu_request)
        .with("memory", component.memory_request);
    let limits = fields()
        .with("gpu", component.gpu.map(|gpu| gpu.count.to_string()))
        .with("gpuType", gpu_type)
        .with("memory", component.memory_limit);
    fields().with("requests", requests).with("limits", limits)
}

fn pod_spec(component: &Component) -> Fields {
    let main = fields()
        .with("image", component.image)
        .with("command", &component.command)
        .with("args", &component.args);
    fields()
        .with("nodeSelector", component.node_selector)
        .with("tolerations", component.tolerations)
        .with("mainContainer", main)
}
