//! Whether the upstream operator runs: its Deployment, by name, in any namespace.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;

/// Time without an available replica after which the operator counts as down. An upgrade takes less, even with the strategy
/// Recreate (Dynamo `deploy/helm/charts/platform/components/operator/templates/deployment.yaml`).
const GRACE: SignedDuration = SignedDuration::from_mins(1);

/// Availability of a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Availability {
    deployment: String,
    /// Start of the time without an available replica; `None` if there is one.
    down_since: Option<Timestamp>,
}

impl Availability {
    pub(crate) fn of(deployment: &Deployment) -> Self {
        let status = deployment.status.as_ref();
        let is_available = status.and_then(|s| s.available_replicas).is_some_and(|n| n > 0);
        // A Deployment that was scaled to zero has no such condition.
        let unavailable = status
            .and_then(|s| s.conditions.as_ref())
            .into_iter()
            .flatten()
            .find(|c| c.type_ == "Available" && c.status != "True")
            .and_then(|c| c.last_transition_time.as_ref())
            .or(deployment.metadata.creation_timestamp.as_ref())
            .map_or(Timestamp::UNIX_EPOCH, |since| since.0);
        Self {
            deployment: format!(
                "{}/{}",
                deployment.namespace().unwrap_or_default(),
                deployment.name_any()
            ),
            down_since: (!is_available).then_some(unavailable),
        }
    }
}

/// Reason why the operator does not act, if it is known to be down. Without any Deployment nothing is known: charts can be
/// installed under other names.
pub(crate) fn outage(deployments: &[Availability], now: Timestamp) -> Option<String> {
    let is_down = |found: &Availability| found.down_since.is_some_and(|since| now.duration_since(since) >= GRACE);
    let first = deployments.first()?;
    deployments.iter().all(is_down).then(|| {
        format!(
            "the upstream operator is not running: Deployment '{}' has no available replica",
            first.deployment
        )
    })
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use serde_json::json;

    use super::*;

    fn deployment(namespace: &str, status: &serde_json::Value) -> Availability {
        let object = json!({
            "metadata": {"name": "operator", "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": status,
        });
        Availability::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn operator_is_down_after_a_minute_without_an_available_replica() {
        let unavailable = json!({"conditions": [{"type": "Available", "status": "False", "lastTransitionTime": "2026-01-01T12:00:00Z"}]});
        let up = deployment("a", &json!({"availableReplicas": 1}));
        let down = deployment("b", &unavailable);
        let scaled_to_zero = deployment("c", &json!({"conditions": [{"type": "Available", "status": "True"}]}));
        let at = |time: &str| format!("2026-01-01T{time}Z").parse().unwrap();
        let names = |found: &[Availability], time: &str| {
            outage(found, at(time)).map(|why| why.split('\'').nth(1).unwrap_or_default().to_owned())
        };
        assert_eq!(names(&[], "23:00:00"), None);
        assert_eq!(names(from_ref(&up), "23:00:00"), None);
        assert_eq!(names(from_ref(&down), "12:00:59"), None);
        assert_eq!(names(from_ref(&down), "12:01:00").as_deref(), Some("b/operator"));
        assert_eq!(names(&[down.clone(), up], "23:00:00"), None);
        assert_eq!(
            names(&[scaled_to_zero, down], "23:00:00").as_deref(),
            Some("c/operator")
        );
    }
}
