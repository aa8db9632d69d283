//! v1beta1: a list of components (Dynamo `deploy/operator/api/v1beta1/dynamocomponentdeployment_types.go`).

use runway_provider::fields::{Fields, fields};
use runway_provider::pods;
use runway_provider::volumes::Volume;
use serde_json::{Value, json};

use crate::engine::CONTAINER;
use crate::graph::{Component, Graph};
use crate::role::Role;

pub(crate) fn body(graph: &Graph) -> Value {
    let components: Vec<Value> = graph.components.iter().map(component).collect();
    let spec = fields()
        .with("backendFramework", graph.framework)
        .with("components", components);
    fields().with("spec", spec).into()
}

fn component(component: &Component) -> Value {
    let metadata = fields()
        .with("labels", json!(component.labels))
        .with("annotations", json!(component.annotations));
    let volumes: Vec<Value> = component.volumes.iter().map(Volume::source).collect();
    let spec = pods::settings(fields(), component.request, component.pull_secrets)
        .with("volumes", volumes)
        .with("nodeSelector", json!(component.node_selector))
        .with("tolerations", json!(component.tolerations))
        .with("containers", [Value::from(main(component))]);
    fields()
        .with("name", component.name)
        .with("type", kind(component.role))
        .with("replicas", component.replicas)
        .with(
            "runtimeVersionOverride",
            component.runtime_version.map(|version| version.to_string()),
        )
        .with("sharedMemorySize", component.shared_memory)
        .with("podTemplate", fields().with("metadata", metadata).with("spec", spec))
        .into()
}

/// Prefill and decode have their own types: Dynamo's conversion derives them from v1alpha1 workers of these subtypes (pull
/// request 9082, `shared_spec_conversion.go`, sharedComponentTypeToHub), and a type cannot change (pull request 13763). A graph
/// that was created as v1alpha1 can therefore be updated only with these types.
fn kind(role: Role) -> &'static str {
    match role {
        Role::Frontend => "frontend",
        Role::Worker => "worker",
        Role::Prefill => "prefill",
        Role::Decode => "decode",
    }
}

fn main(component: &Component) -> Fields {
    let env_from: Vec<_> = component
        .token_secret
        .iter()
        .map(|secret| json!({"secretRef": {"name": secret}}))
        .collect();
    fields()
        .with("name", CONTAINER)
        .with("image", component.image)
        .with("command", component.command.as_slice())
        .with("args", component.args.as_slice())
        .with("terminationMessagePolicy", pods::LAST_WORDS)
        .with("env", json!(component.env))
        .with("envFrom", env_from)
        .with("resources", resources(component))
        .with(
            "volumeMounts",
            component.volumes.iter().map(Volume::mount).collect::<Vec<_>>(),
        )
        .with(
            "securityContext",
            pods::container_security(component.request, component.image_user),
        )
}

fn resources(component: &Component) -> Fields {
    let requests = fields()
        .with("cpu", component.cpu_request)
        .with("memory", component.memory_request);
    let mut limits = fields().with("memory", component.memory_limit);
    if let Some(gpu) = component.gpu {
        limits = limits.with(&gpu.resource, gpu.count.to_string());
    }
    fields().with("requests", requests).with("limits", limits)
}
