//! Documented keys of `provider.overrides` (design 4.15). The loop warns of unknown keys and refuses wrong types.

use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_operator::quantity::{CPU_SUFFIXES, MEMORY_SUFFIXES};
use runway_provider::Refusal;
use runway_provider::overrides::{invalid, quantity};
use serde_json::{Map, Value};

/// Keys, types and descriptions with the defaults.
pub(crate) fn documented() -> Vec<OverrideKey> {
    let key = |path: &str, kind, description: &str| OverrideKey {
        path: path.to_owned(),
        kind,
        description: Some(description.to_owned()),
    };
    vec![
        key(
            "routerMode",
            OverrideType::String,
            "How the frontend chooses a worker: kv, by what the workers have in their KV caches; round-robin; \
             none, as Dynamo's frontend does when it is told nothing. Defaults to round-robin.",
        ),
        key(
            "frontend.replicas",
            OverrideType::Integer,
            "Number of frontend pods, at least 1. Defaults to 1.",
        ),
        key(
            "frontend.resources.cpu",
            OverrideType::String,
            "CPU request of each frontend pod. Defaults to 2.",
        ),
        key(
            "frontend.resources.memory",
            OverrideType::String,
            "Memory request of each frontend pod. Defaults to 4Gi.",
        ),
    ]
}

/// Settings of the frontend, with defaults applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frontend {
    pub(crate) router: Router,
    pub(crate) replicas: i32,
    pub(crate) cpu: String,
    pub(crate) memory: String,
}

/// Selection of a worker by the frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Router {
    Kv,
    RoundRobin,
    /// Dynamo's default.
    Untold,
}

impl Router {
    /// The value of `DYN_ROUTER_MODE` (Dynamo `components/src/dynamo/frontend/frontend_args.py`, `--router-mode`).
    pub(crate) fn environment(self) -> Option<&'static str> {
        match self {
            Self::Kv => Some("kv"),
            Self::RoundRobin => Some("round-robin"),
            Self::Untold => None,
        }
    }
}

pub(crate) fn frontend(overrides: &Map<String, Value>) -> Result<Frontend, Refusal> {
    let frontend = overrides.get("frontend").unwrap_or(&Value::Null);
    let resources = &frontend["resources"];
    Ok(Frontend {
        router: router(overrides.get("routerMode"))?,
        replicas: replicas(&frontend["replicas"])?,
        cpu: quantity("frontend.resources.cpu", &resources["cpu"], "2", CPU_SUFFIXES)?.to_owned(),
        memory: quantity(
            "frontend.resources.memory",
            &resources["memory"],
            "4Gi",
            MEMORY_SUFFIXES,
        )?
        .to_owned(),
    })
}

fn router(given: Option<&Value>) -> Result<Router, Refusal> {
    match given.and_then(Value::as_str) {
        Some("kv") => Ok(Router::Kv),
        None | Some("round-robin") => Ok(Router::RoundRobin),
        Some("none") => Ok(Router::Untold),
        Some(other) => Err(invalid(format!(
            "spec.provider.overrides.routerMode is '{other}', which is none of kv, round-robin and none: \
             choose one of them, or remove it for round-robin"
        ))),
    }
}

fn replicas(given: &Value) -> Result<i32, Refusal> {
    match given.as_i64().map(i32::try_from) {
        None => Ok(1),
        Some(Ok(replicas)) if replicas > 0 => Ok(replicas),
        Some(_) => Err(invalid(format!(
            "spec.provider.overrides.frontend.replicas must be 1 or more, not {given}: requests reach the workers through the frontend"
        ))),
    }
}
