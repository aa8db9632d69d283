//! The head of a Ray cluster, as set by overrides.

use std::collections::BTreeMap;

use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_operator::quantity::{CPU_SUFFIXES, MEMORY_SUFFIXES};
use runway_provider::overrides::quantity;
use runway_provider::{Refusal, Request};
use serde_json::Value;

const CPU: &str = "head.resources.cpu";
const MEMORY: &str = "head.resources.memory";
const RAY_START_PARAMS: &str = "head.rayStartParams";

/// Settings of the head.
pub(crate) struct Head<'a> {
    pub(crate) cpu: &'a str,
    pub(crate) memory: &'a str,
    pub(crate) ray_start_params: BTreeMap<&'a str, &'a str>,
}

/// Documented keys with their defaults.
pub(crate) fn overrides() -> Vec<OverrideKey> {
    let key = |path: &str, kind, description: &str| OverrideKey {
        path: path.to_owned(),
        kind,
        description: Some(description.to_owned()),
    };
    vec![
        key(CPU, OverrideType::String, "CPU request of the Ray head. Default: 4"),
        key(MEMORY, OverrideType::String, "Memory of the Ray head. Default: 16Gi"),
        key(
            RAY_START_PARAMS,
            OverrideType::StringMap,
            "Parameters of `ray start` on the head, added to dashboard-host: 0.0.0.0 and num-cpus: \"0\", or in their place",
        ),
    ]
}

/// The requested head. The loop has checked the types.
pub(crate) fn of(request: &Request) -> Result<Head<'_>, Refusal> {
    let given = |path: &str| {
        let mut steps = path.split('.');
        let first = request.overrides.get(steps.next()?)?;
        steps.try_fold(first, |at, step| at.get(step))
    };
    let amount = |path, default, suffixes| quantity(path, given(path).unwrap_or(&Value::Null), default, suffixes);
    // Without CPUs no replica is placed on it; KubeRay sends the Serve config to its dashboard.
    let mut ray_start_params = BTreeMap::from([("dashboard-host", "0.0.0.0"), ("num-cpus", "0")]);
    let params = given(RAY_START_PARAMS).and_then(|value| value.as_object());
    ray_start_params.extend(
        params
            .into_iter()
            .flatten()
            .filter_map(|(key, value)| Some((key.as_str(), value.as_str()?))),
    );
    Ok(Head {
        cpu: amount(CPU, "4", CPU_SUFFIXES)?,
        memory: amount(MEMORY, "16Gi", MEMORY_SUFFIXES)?,
        ray_start_params,
    })
}
