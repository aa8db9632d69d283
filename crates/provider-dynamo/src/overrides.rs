//! Documented keys of `provider.overrides` (design 4.15). The loop warns of unknown keys and refuses wrong types.

use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_operator::quantity::{self, Amount};
use runway_provider::Refusal;
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
            "Number of frontend pods. Defaults to 1.",
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
        cpu: amount("cpu", &resources["cpu"], "2", quantity::CPU_SUFFIXES)?,
        memory: amount("memory", &resources["memory"], "4Gi", quantity::MEMORY_SUFFIXES)?,
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
        Some(Ok(replicas)) if replicas >= 0 => Ok(replicas),
        Some(_) => Err(invalid(format!(
            "spec.provider.overrides.frontend.replicas must be 0 or more, not {given}"
        ))),
    }
}

/// Same limits as `resources.cpu` and `resources.memory` of a ModelDeployment: v1alpha1 accepts any text here, and fails later.
fn amount(name: &str, given: &Value, default: &str, suffixes: &[&str]) -> Result<String, Refusal> {
    let text = given.as_str().unwrap_or(default);
    if quantity::amount(text, suffixes) == Amount::Unreadable {
        return Err(invalid(format!(
            "spec.provider.overrides.frontend.resources.{name} must be a quantity such as {default}, not '{text}'"
        )));
    }
    Ok(text.to_owned())
}

fn invalid(message: String) -> Refusal {
    Refusal {
        reason: "InvalidOverrides",
        message,
    }
}
