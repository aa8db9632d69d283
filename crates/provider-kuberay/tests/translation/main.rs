//! Translation of ModelDeployments to RayServices, and of their status back.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

mod cases;
mod crd;
mod properties;
mod registration;
mod scaling;

use std::path::Path;

use runway_api::ModelDeployment;
use runway_provider::{Installed, Provider, Request, Translation, Upstream};
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

fn yaml(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn request(md: &Value) -> Request {
    let md: ModelDeployment = serde_json::from_value(md.clone()).unwrap_or_else(|error| panic!("{error}: {md}"));
    Request::try_from(&md).unwrap()
}

/// The schema with this many newer ones.
fn installed(before: usize) -> Installed {
    let upstreams: Vec<Upstream> = KubeRay::default().upstreams();
    let older = upstreams.iter().map(|u| Upstream {
        kind: u.kind,
        schemas: &u.schemas[before..],
    });
    Installed::newest(&older.collect::<Vec<_>>())
}

/// The object as it is applied, without the loop's metadata.
fn document(translation: &Translation) -> Value {
    let [object] = translation.objects.as_slice() else {
        panic!("one object is made, not {:?}", translation.objects)
    };
    let mut document = json!({
        "apiVersion": format!("{}/{}", object.kind.group, object.version),
        "kind": object.kind.kind,
        "metadata": {"name": object.name},
    });
    document
        .as_object_mut()
        .unwrap()
        .extend(object.body.as_object().unwrap().clone());
    document
}

/// The parsed Serve config.
fn serve_config(document: &Value) -> Value {
    serde_saphyr::from_str(document["spec"]["serveConfigV2"].as_str().unwrap()).unwrap()
}
