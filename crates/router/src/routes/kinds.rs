//! Kinds of the Gateway API and its inference extension, and the fields that are read of them. Pure.

use std::fmt;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_operator::object::{Condition, Kind, condition};
use serde_json::Value;

use super::settings::GatewayName;

/// Group of the Gateway API.
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// Gateway.
pub const GATEWAY: Kind = Kind::new(GATEWAY_API, "v1", "Gateway", "gateways");
/// HTTPRoute.
pub const HTTP_ROUTE: Kind = Kind::new(GATEWAY_API, "v1", "HTTPRoute", "httproutes");
/// InferencePool of the inference extension.
pub const INFERENCE_POOL: Kind = Kind::new("inference.networking.k8s.io", "v1", "InferencePool", "inferencepools");
/// All of them.
pub const ALL: [Kind; 3] = [GATEWAY, HTTP_ROUTE, INFERENCE_POOL];

/// Header with the name of the model. The body-based router of the inference extension sets it from the body
/// (`pkg/bbr/README.md` of kubernetes-sigs/gateway-api-inference-extension).
pub const HEADER: &str = "X-Gateway-Model-Name";

/// Name of the model in a route that this controller created.
pub fn model_name(route: &DynamicObject) -> Option<&str> {
    let headers = route.data.pointer("/spec/rules/0/matches/0/headers")?.as_array()?;
    let header = headers.iter().find(|header| header["name"] == HEADER)?;
    header["value"].as_str()
}

/// Whether a reference of an object in `namespace` names this Gateway.
pub fn refers(reference: &Value, namespace: &str, gateway: &GatewayName) -> bool {
    let field = |name: &str, default: &str| reference[name].as_str().unwrap_or(default).to_owned();
    field("group", GATEWAY_API) == GATEWAY_API
        && field("kind", GATEWAY.kind) == GATEWAY.kind
        && gateway.name == *field("name", "")
        && gateway.namespace == *field("namespace", namespace)
}

/// Whether a route has this Gateway as a parent.
pub fn is_child_of(route: &DynamicObject, gateway: &GatewayName) -> bool {
    let namespace = route.namespace().unwrap_or_default();
    let parents = route.data["spec"]["parentRefs"].as_array();
    parents
        .into_iter()
        .flatten()
        .any(|parent| refers(parent, &namespace, gateway))
}

/// Kind and name of each backend of a route in its own namespace.
pub fn backends(route: &DynamicObject) -> Vec<(&str, &str)> {
    let namespace = route.metadata.namespace.as_deref();
    let rules = route.data["spec"]["rules"].as_array().into_iter().flatten();
    rules
        .flat_map(|rule| rule["backendRefs"].as_array().into_iter().flatten())
        .filter(|backend| {
            backend["namespace"]
                .as_str()
                .is_none_or(|other| Some(other) == namespace)
        })
        .filter_map(|backend| Some((backend["kind"].as_str().unwrap_or("Service"), backend["name"].as_str()?)))
        .collect()
}

/// Answer of the controllers of Gateways to a route or a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No answer about this generation.
    Pending,
    /// Not accepted.
    Refused(Answer),
    /// Accepted, and something that it refers to does not exist, or is not supported or not permitted.
    Unresolved(Answer),
    /// Accepted.
    Accepted,
}

/// Reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Reason, such as `NotAllowedByListeners`.
    pub reason: String,
    /// Message.
    pub message: String,
}

impl Answer {
    /// Reason and message of a condition.
    pub fn of(condition: Condition) -> Self {
        Self {
            reason: condition.reason.trim().to_owned(),
            message: condition.message.trim().to_owned(),
        }
    }
}

/// The message, with the reason in parentheses.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message.as_str() {
            "" => f.write_str(&self.reason),
            message => write!(f, "{message} ({})", self.reason),
        }
    }
}

/// The answer to a route or a pool, for this Gateway or, without one, for any parent. One listener or controller that accepts is
/// enough.
pub fn verdict(object: &DynamicObject, gateway: Option<&GatewayName>) -> Verdict {
    let namespace = object.namespace().unwrap_or_default();
    let generation = object.metadata.generation.unwrap_or_default();
    let parents = object.data["status"]["parents"].as_array().into_iter().flatten();
    let asked = parents.filter(|parent| gateway.is_none_or(|g| refers(&parent["parentRef"], &namespace, g)));
    let mut best = Verdict::Pending;
    for parent in asked {
        // A condition about an earlier generation says nothing about this one.
        let is_current = |c: &Condition| c.generation.is_none_or(|of| of >= generation);
        let current = |type_: &str| condition(parent, type_).filter(is_current);
        let resolved = current("ResolvedRefs");
        let found = match current("Accepted") {
            Some(accepted) if accepted.is_true() => match resolved {
                Some(refs) if refs.is_false() => Verdict::Unresolved(Answer::of(refs)),
                _ => Verdict::Accepted,
            },
            Some(accepted) if accepted.is_false() => Verdict::Refused(Answer::of(accepted)),
            _ => Verdict::Pending,
        };
        let rank = |verdict: &Verdict| match verdict {
            Verdict::Pending => 0,
            Verdict::Refused(_) => 1,
            Verdict::Unresolved(_) => 2,
            Verdict::Accepted => 3,
        };
        if rank(&found) > rank(&best) {
            best = found;
        }
    }
    best
}
