//! Documented keys of `provider.overrides`. The loop warns of unknown keys and refuses wrong types.

use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_provider::{Refusal, refuse};
use serde_json::{Map, Value};

/// Keys, types and descriptions with the defaults.
pub(crate) fn documented() -> Vec<OverrideKey> {
    let key = |path: &str, description: &str| OverrideKey {
        path: path.to_owned(),
        kind: OverrideType::String,
        description: Some(description.to_owned()),
    };
    vec![
        key(
            "rollout",
            "How pods are replaced after a change. Surge: a new pod starts before an old one ends, which takes the resources \
             of one pod more. InPlace: an old pod ends first. Defaults to InPlace with GPUs, to Surge without.",
        ),
        key(
            "serviceType",
            "Type of the Service: ClusterIP, NodePort or LoadBalancer. Defaults to ClusterIP.",
        ),
    ]
}

/// Order in which a rollout replaces pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rollout {
    /// A new pod starts before an old one terminates.
    Surge,
    /// An old pod terminates before a new one starts.
    InPlace,
}

/// The requested strategy, or the default for a worker with or without GPUs: a spare GPU for one more pod is rare.
pub(crate) fn rollout(overrides: &Map<String, Value>, has_gpus: bool) -> Result<Rollout, Refusal> {
    match text(overrides, "rollout") {
        Some("Surge") => Ok(Rollout::Surge),
        Some("InPlace") => Ok(Rollout::InPlace),
        Some(other) => refuse(format!(
            "provider.overrides.rollout is '{other}': set it to Surge or InPlace"
        )),
        None if has_gpus => Ok(Rollout::InPlace),
        None => Ok(Rollout::Surge),
    }
}

/// Type of the Service.
pub(crate) fn service_type(overrides: &Map<String, Value>) -> Result<&'static str, Refusal> {
    const TYPES: [&str; 3] = ["ClusterIP", "NodePort", "LoadBalancer"];
    let Some(given) = text(overrides, "serviceType") else {
        return Ok(TYPES[0]);
    };
    match TYPES.into_iter().find(|known| *known == given) {
        Some(known) => Ok(known),
        None => refuse(format!(
            "provider.overrides.serviceType is '{given}': set it to ClusterIP, NodePort or LoadBalancer"
        )),
    }
}

fn text<'a>(overrides: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    overrides.get(key).and_then(Value::as_str)
}
