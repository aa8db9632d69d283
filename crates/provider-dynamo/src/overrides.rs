//! Documented keys of `provider.overrides`. The loop warns of unknown keys and refuses wrong types.

use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_operator::quantity::{CPU_SUFFIXES, MEMORY_SUFFIXES};
use runway_provider::Refusal;
use runway_provider::overrides::{invalid, quantity};
use serde_json::{Map, Value};

use crate::runtime::{RuntimeVersion, v};

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
            "How the frontend chooses a worker: kv, by what the workers have in their KV caches; round-robin or random; \
             since Dynamo 1.0.0 direct, if another router names the worker in each request; since 1.1.0 power-of-two, \
             least-loaded or device-aware-weighted; none, as Dynamo's frontend does when it is reported nothing. \
             Defaults to round-robin.",
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
    /// A mode of the release in use.
    Mode(&'static str),
    /// Dynamo's default.
    Untold,
}

/// By what the workers have in their KV caches.
const KV: &str = "kv";

const DEFAULT: &str = "round-robin";

/// Modes of the frontend, with the release that added them (Dynamo `components/src/dynamo/frontend/frontend_args.py`,
/// `--router-mode`, in the package ai-dynamo 0.7.0 to 1.6.1; `main.py` before 1.0.0).
const MODES: [(&str, RuntimeVersion); 7] = [
    (DEFAULT, v(0, 0, 0)),
    ("random", v(0, 0, 0)),
    (KV, v(0, 0, 0)),
    ("direct", v(1, 0, 0)),
    ("power-of-two", v(1, 1, 0)),
    ("least-loaded", v(1, 1, 0)),
    ("device-aware-weighted", v(1, 1, 0)),
];

impl Router {
    /// The value of `DYN_ROUTER_MODE`.
    pub(crate) fn environment(self) -> Option<&'static str> {
        match self {
            Self::Mode(mode) => Some(mode),
            Self::Untold => None,
        }
    }

    /// Whether the router uses what the workers have in their KV caches.
    pub(crate) fn reads_kv_caches(self) -> bool {
        self == Self::Mode(KV)
    }
}

/// Settings of the frontend of a release.
pub(crate) fn frontend(overrides: &Map<String, Value>, release: RuntimeVersion) -> Result<Frontend, Refusal> {
    let frontend = overrides.get("frontend").unwrap_or(&Value::Null);
    let resources = &frontend["resources"];
    Ok(Frontend {
        router: router(overrides.get("routerMode"), release)?,
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

fn router(given: Option<&Value>, release: RuntimeVersion) -> Result<Router, Refusal> {
    let given = given.and_then(Value::as_str).unwrap_or(DEFAULT);
    if given == "none" {
        return Ok(Router::Untold);
    }
    let modes: Vec<&str> = MODES
        .into_iter()
        .filter(|(_, since)| *since <= release)
        .map(|(mode, _)| mode)
        .collect();
    match modes.iter().find(|mode| **mode == given) {
        Some(mode) => Ok(Router::Mode(mode)),
        None => Err(invalid(format!(
            "spec.provider.overrides.routerMode is '{given}', but Dynamo {release} has {}: \
             choose one of them, or none for its default, or remove it for {DEFAULT}",
            modes.join(", ")
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
