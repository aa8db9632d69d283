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

use std::path::Path;

use clap::Parser;
use runway_api::ModelDeployment;
use runway_provider::{Installed, Provider, Request, Translation, Upstream};
use runway_provider_kaito::{Kaito, KaitoConfig};
use serde_json::{Map, Value, json};

/// Arguments of the provider's process for KAITO.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    kaito: KaitoConfig,
}

fn kaito(arguments: &[&str]) -> Kaito {
    let all = std::iter::once("kaito-provider").chain(arguments.iter().copied());
    Kaito::new(Arguments::try_parse_from(all).unwrap().kaito)
}

fn yaml(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn request(md: &Value) -> Request {
    let md: ModelDeployment = serde_json::from_value(md.clone()).unwrap_or_else(|error| panic!("{error}: {md}"));
    Request::try_from(&md).unwrap()
}

/// The newest schemas of all kinds except some.
fn installed(without: &[&str]) -> Installed {
    let upstreams: Vec<Upstream> = Kaito::default()
        .upstreams()
        .into_iter()
        .filter(|u| !without.contains(&u.kind.kind))
        .collect();
    Installed::newest(&upstreams)
}

/// The objects as they are applied, without the loop's metadata.
fn documents(translation: &Translation) -> Vec<Value> {
    translation
        .objects
        .iter()
        .map(|object| {
            let api_version = if object.kind.group.is_empty() {
                object.version.clone()
            } else {
                format!("{}/{}", object.kind.group, object.version)
            };
            let mut document =
                json!({"apiVersion": api_version, "kind": object.kind.kind, "metadata": {"name": object.name}});
            let body: Map<String, Value> = object.body.as_object().unwrap().clone();
            document.as_object_mut().unwrap().extend(body);
            document
        })
        .collect()
}
