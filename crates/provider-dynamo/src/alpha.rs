//! v1alpha1: a map of services (Dynamo `deploy/operator/api/v1alpha1/dynamocomponentdeployment_types.go`).

use runway_api::model_deployment::DEFAULT_GPU;
use runway_provider::fields::{Fields, fields};
use runway_provider::pods;
use runway_provider::volumes::Volume;
use serde_json::{Map, Value, json};

use crate::graph::{Component, Graph};
use crate::role::Role;

pub(crate) fn body(graph: &Graph) -> Value {
    let services: Map<String, Value> = graph
        .components
        .iter()
        .map(|component| (component.name.to_owned(), service(component)))
        .collect();
    let spec = fields()
        .with("backendFramework", graph.framework)
        .with("services", services);
    fields().with("spec", spec).into()
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
        .with("envs", json!(component.env))
        .with("resources", resources(component))
        .with("sharedMemory", fields().with("size", component.shared_memory))
        .with(
            "extraPodMetadata",
            fields()
                .with("labels", json!(component.labels))
                .with("annotations", json!(component.annotations)),
        )
        .with("extraPodSpec", pod_spec(component))
        .into()
}

/// The type of another vendor's GPU is next to the number, which is a string.
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
        .with("command", component.command.as_slice())
        .with("args", component.args.as_slice())
        .with("terminationMessagePolicy", pods::LAST_WORDS)
        .with(
            "volumeMounts",
            component.volumes.iter().map(Volume::mount).collect::<Vec<_>>(),
        )
        .with(
            "securityContext",
            pods::container_security(component.request, component.image_user),
        );
    let volumes: Vec<Value> = component.volumes.iter().map(Volume::source).collect();
    pods::settings(fields(), component.request, component.pull_secrets)
        .with("volumes", volumes)
        .with("nodeSelector", json!(component.node_selector))
        .with("tolerations", json!(component.tolerations))
        .with("mainContainer", main)
}
