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

use runway_api::ModelDeployment;
use runway_provider::conformance::fields::documents;
use runway_provider::{Installed, Provider, Request, Translation, Upstream};
use runway_provider_kuberay::KubeRay;
use serde_json::Value;

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

/// The only object, as it is applied.
fn document(translation: &Translation) -> Value {
    let mut all = documents(translation);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// The parsed Serve config.
fn serve_config(document: &Value) -> Value {
    serde_saphyr::from_str(document["spec"]["serveConfigV2"].as_str().unwrap()).unwrap()
}
