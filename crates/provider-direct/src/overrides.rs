//! Documented keys of `provider.overrides`. The loop warns of unknown keys and refuses wrong types.

use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_provider::volumes::Volume;
use runway_provider::{Refusal, Request, refuse};
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
             of one pod more. InPlace: an old pod ends first. Defaults to InPlace with GPUs, and with a claim that pods write to \
             unless its accessMode is ReadWriteMany; to Surge otherwise. Always InPlace with accessMode ReadWriteOncePod.",
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

/// The requested strategy, or the default. Two pods at a time need a spare GPU, which is rare, and a claim that both can use.
pub(crate) fn rollout(request: &Request, has_gpus: bool) -> Result<Rollout, Refusal> {
    let asked = match text(&request.overrides, "rollout") {
        Some("Surge") => Some(Rollout::Surge),
        Some("InPlace") => Some(Rollout::InPlace),
        Some(other) => {
            return refuse(format!(
                "provider.overrides.rollout is '{other}': set it to Surge or InPlace"
            ));
        }
        None => None,
    };
    let default = if has_gpus || request.volumes.iter().any(Volume::is_exclusive) {
        Rollout::InPlace
    } else {
        Rollout::Surge
    };
    Ok(match for_one_pod(request) {
        Some(_) => Rollout::InPlace,
        None => asked.unwrap_or(default),
    })
}

/// Message about a requested strategy that could never finish.
pub(crate) fn overruled_rollout(request: &Request) -> Option<String> {
    let volume = for_one_pod(request)?;
    (text(&request.overrides, "rollout") == Some("Surge")).then(|| {
        format!(
            "provider.overrides.rollout: Surge is ignored: {} is ReadWriteOncePod, so a new pod can start only after the old one has ended",
            volume.field("accessMode")
        )
    })
}

fn for_one_pod(request: &Request) -> Option<&Volume> {
    request.volumes.iter().find(|volume| volume.is_for_one_pod())
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
