//! The HTTPRoute of a ModelDeployment, and the answer to it.

use std::fmt::Write as _;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::core::DynamicObject;
use runway_api::GatewayReason::{RouteNotAccepted, RouteNotResolved, RoutePending};
use runway_api::{ModelDeployment, labels};
use runway_operator::object;
use runway_operator::plan::Apply;
use serde_json::{Value, json};

use super::status::{Outcome, refused};
use crate::routes::kinds::{self, Answer, GATEWAY, HEADER, HTTP_ROUTE, Verdict};
use crate::routes::settings::{GatewayName, Settings};

/// Prefix of the paths of inference. Engines serve metrics and management beside it, for which the Gateway asks for no right.
const PATH: &str = "/v1";

/// The desired route, compared with the live one, which must be ours.
pub(super) fn wanted(
    md: &ModelDeployment,
    settings: &Settings,
    gateway: &GatewayName,
    model: &str,
    backend: &Value,
    live: Option<&DynamicObject>,
) -> Apply {
    let spec = json!({
        "parentRefs": [{
            "group": GATEWAY.group,
            "kind": GATEWAY.kind,
            "namespace": gateway.namespace.to_string(),
            "name": gateway.name.to_string(),
        }],
        "rules": [{
            "matches": [{
                "path": { "type": "PathPrefix", "value": PATH },
                "headers": [{ "type": "Exact", "name": HEADER, "value": model }],
            }],
            "backendRefs": [backend],
            "timeouts": { "request": duration(settings.timeout) },
        }],
    });
    let drift = "The HTTPRoute of this ModelDeployment was changed directly, reverting it";
    let desired = object::namesake(md, labels::DEPLOYMENT, HTTP_ROUTE, &spec);
    object::wanted(HTTP_ROUTE.resource(), desired, live, labels::APPLIED_HASH, drift)
}

/// A time in the form of the Gateway API (GEP-2257): numbers of at most five digits with units.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let parts = [(seconds / 3600, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let mut text = String::new();
    for (number, unit) in parts.into_iter().filter(|(number, _)| *number > 0) {
        // Writing to a String does not fail.
        let _ = write!(text, "{number}{unit}");
    }
    text
}

/// The refusal of a route by the named Gateway.
pub(super) fn refusal(route: &DynamicObject, gateway: &GatewayName) -> Option<Outcome> {
    let named = HTTP_ROUTE.named(&route.name_any());
    answer(
        &named,
        &format!("Gateway '{gateway}'"),
        kinds::verdict(route, Some(gateway)),
        &route.namespace().unwrap_or_default(),
    )
}

/// The obstacle that the Gateway, or any parent if none is given, reports for a route, or that it reports nothing; `None` if it is
/// accepted.
pub(super) fn answered(route: &DynamicObject, gateway: Option<&GatewayName>) -> Option<Outcome> {
    let named = HTTP_ROUTE.named(&route.name_any());
    let by = gateway.map_or_else(|| "its Gateway".to_owned(), |gateway| format!("Gateway '{gateway}'"));
    match kinds::verdict(route, gateway) {
        Verdict::Accepted => None,
        Verdict::Pending => {
            let message = format!(
                "Waiting for the controller of {by} to accept {named}. If this lasts, check that it runs, and that a listener allows routes from this namespace"
            );
            Some(refused(RoutePending, message))
        }
        other => answer(&named, &by, other, &route.namespace().unwrap_or_default()),
    }
}

fn answer(named: &str, by: &str, verdict: Verdict, namespace: &str) -> Option<Outcome> {
    match verdict {
        Verdict::Pending | Verdict::Accepted => None,
        Verdict::Refused(answer) => {
            let remedy = remedy(&answer, namespace);
            let message = format!("{named} is not accepted by {by}: {answer}{remedy}");
            Some(refused(RouteNotAccepted, message))
        }
        Verdict::Unresolved(answer) => {
            let remedy = remedy(&answer, namespace);
            let message = format!("{named} refers to something that {by} cannot resolve: {answer}{remedy}");
            Some(refused(RouteNotResolved, message))
        }
    }
}

/// Remedy for a reason of the Gateway API (`apis/v1/shared_types.go` of kubernetes-sigs/gateway-api).
fn remedy(answer: &Answer, namespace: &str) -> String {
    match answer.reason.as_str() {
        "NotAllowedByListeners" => format!(
            ". An administrator must let a listener of the Gateway allow routes from namespace '{namespace}' (spec.listeners[].allowedRoutes.namespaces)"
        ),
        "NoMatchingListenerHostname" => {
            ". Routes of models have no host name: an administrator must add a listener that matches all".to_owned()
        }
        "NoMatchingParent" => ". The Gateway has no listener for HTTPRoutes: an administrator must add one".to_owned(),
        "InvalidKind" => {
            ". If the backend is an InferencePool, the Gateway's controller does not support it: remove --endpoint-picker of the routes controller".to_owned()
        }
        "UnsupportedValue" => ". The Gateway's controller does not support a value of the route".to_owned(),
        "BackendNotFound" => ". The Service or InferencePool of the model does not exist: see the condition Ready".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_the_form_of_the_gateway_api() {
        for (seconds, text) in [(1, "1s"), (90, "1m30s"), (300, "5m"), (86_400, "24h"), (3_601, "1h1s")] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
