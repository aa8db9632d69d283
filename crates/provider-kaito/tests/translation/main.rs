//! Translation of ModelDeployments to KAITO objects, and of their status back.
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

use std::sync::Arc;

use runway_api::ModelDeployment;
use runway_provider::{Configured, Installed, Provider, Request, Upstream};
use runway_provider_kaito::Kaito;
use serde_json::Value;

/// The provider with settings of an installation.
fn kaito(settings: &Value) -> Arc<dyn Provider> {
    let configured = Configured::new(Arc::new(Kaito::default()), settings.as_object());
    assert_eq!(configured.invalid, None);
    configured.provider
}

fn request(md: &Value) -> Request {
    let md: ModelDeployment = serde_json::from_value(md.clone()).unwrap_or_else(|error| panic!("{error}: {md}"));
    Request::try_from(&md).unwrap()
}

/// The newest schemas of all kinds, except those that are missing, and the oldest schemas of some.
fn installed(missing: &[String], older: &[String]) -> Installed {
    let is_in = |names: &[String], upstream: &Upstream| names.iter().any(|name| name == upstream.kind.kind);
    let upstreams: Vec<Upstream> = Kaito::default()
        .upstreams()
        .into_iter()
        .filter(|upstream| !is_in(missing, upstream))
        .map(|upstream| Upstream {
            schemas: match upstream.schemas {
                [.., oldest] if is_in(older, &upstream) => std::slice::from_ref(oldest),
                all => all,
            },
            ..upstream
        })
        .collect();
    Installed::newest(&upstreams)
}
