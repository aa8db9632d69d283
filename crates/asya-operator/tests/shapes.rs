//! Workloads as platforms create them: how an actor is bound to each, or the reason why it is not. Pure.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::path::Path;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_api::AsyncActor;
use runway_asya_operator::object::{Found, Key, Objects};
use runway_asya_operator::request::{Request, Work};
use runway_asya_operator::targets::{known, resolve};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    name: String,
    /// The target, and the workload that its controller created.
    objects: Vec<DynamicObject>,
    strategy: Option<String>,
    url: Option<String>,
    bound: String,
}

#[test]
fn each_shape_of_a_workload_is_bound_or_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shapes.yaml");
    let shapes: Vec<Shape> = runway_golden::yaml(&path);
    let different: Vec<String> = shapes.iter().filter_map(difference).collect();
    assert!(different.is_empty(), "\n{}", different.join("\n"));
}

fn difference(shape: &Shape) -> Option<String> {
    let found = bound(shape);
    (found != shape.bound).then(|| format!("{}\n  expected {}\n  found    {found}", shape.name, shape.bound))
}

/// The strategy and the URL, or the message of the refusal.
fn bound(shape: &Shape) -> String {
    let target = &shape.objects[0];
    let types = target.types.as_ref().unwrap();
    let actor: AsyncActor = serde_json::from_value(json!({
        "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": "a", "namespace": "team"},
        "spec": {
            "transport": "rabbitmq",
            "workloadRef": {"apiVersion": types.api_version, "kind": types.kind, "name": target.name_any()},
            "runtime": {"image": "i", "handler": "a.b", "targetURL": shape.url},
            "binding": {"strategy": shape.strategy},
        },
    }))
    .unwrap();
    let Work::Bound(request) = Request::new(&actor).unwrap().work else {
        panic!("{}: not a binding", shape.name);
    };
    let found: Objects = shape.objects.iter().map(seen).collect();
    match resolve(&request, "team", false, &found) {
        Ok(resolved) => format!("{} at {}", resolved.way.strategy().as_str(), resolved.url),
        Err(why) => format!("refused: {}", why.message),
    }
}

fn seen(object: &DynamicObject) -> (Key, Found) {
    let types = object.types.as_ref().unwrap();
    let kind = known(&types.api_version, &types.kind).unwrap();
    let found = Found::Here {
        version: kind.version.to_owned(),
        object: Arc::new(object.clone()),
    };
    (Key::new(kind, object.name_any()), found)
}
