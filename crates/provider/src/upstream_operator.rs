//! The upstream operator, as its Deployment shows it, by name and in any namespace: whether it runs, and its release.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use semver::Version;

/// Time without an available replica after which the operator counts as down. An upgrade takes less, even with the strategy
/// Recreate (Dynamo `deploy/helm/charts/platform/components/operator/templates/deployment.yaml`).
const GRACE: SignedDuration = SignedDuration::from_mins(1);

/// Annotation of a pod that names its main container.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";
/// Label with the release of a program, as Helm charts set it.
const VERSION: &str = "app.kubernetes.io/version";

/// Running and release of a Deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Running {
    deployment: String,
    release: Option<Version>,
    /// Start of the time without an available replica; `None` if there is one.
    down_since: Option<Timestamp>,
}

impl Running {
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
            release: release(deployment),
            down_since: (!is_available).then_some(unavailable),
        }
    }
}

/// Release of the upstream operator. With several operators, the oldest: newer ones support what it installs.
pub(crate) fn oldest_release(deployments: &[Running]) -> Option<Version> {
    deployments.iter().filter_map(|found| found.release.clone()).min()
}

/// Release in the tag of the main container's image, or else in the label of the Deployment. Builds between releases have none.
fn release(deployment: &Deployment) -> Option<Version> {
    let of_image = || {
        let template = &deployment.spec.as_ref()?.template;
        let containers = &template.spec.as_ref()?.containers;
        let annotations = template.metadata.as_ref().and_then(|m| m.annotations.as_ref());
        let main = annotations.and_then(|annotations| annotations.get(DEFAULT_CONTAINER));
        let container = match main {
            Some(main) => containers.iter().find(|container| container.name == *main)?,
            None => containers.first()?,
        };
        let (image, _digest) = container
            .image
            .as_deref()?
            .split_once('@')
            .unwrap_or((container.image.as_deref()?, ""));
        let (_, tag) = image.rsplit('/').next()?.split_once(':')?;
        parsed(tag)
    };
    of_image().or_else(|| parsed(deployment.labels().get(VERSION)?))
}

fn parsed(text: &str) -> Option<Version> {
    let version = Version::parse(text.strip_prefix('v').unwrap_or(text)).ok()?;
    (version.pre.is_empty() && version.build.is_empty()).then_some(version)
}

/// Reason why the operator does not act, if it is known to be down. Without any Deployment nothing is known: charts can be
/// installed under other names.
pub(crate) fn outage(deployments: &[Running], now: Timestamp) -> Option<String> {
    let is_down = |found: &Running| found.down_since.is_some_and(|since| now.duration_since(since) >= GRACE);
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

    fn deployment(namespace: &str, status: &serde_json::Value) -> Running {
        let object = json!({
            "metadata": {"name": "operator", "namespace": namespace, "creationTimestamp": "2026-01-01T00:00:00Z"},
            "status": status,
        });
        Running::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn release_is_that_of_the_main_container_or_of_the_label() {
        let proxy = "gcr.io/kubebuilder/kube-rbac-proxy:v0.15.0";
        for (image, label, expected) in [
            (
                "nvcr.io/nvidia/ai-dynamo/kubernetes-operator:1.6.1",
                "1.6.0",
                Some("1.6.1"),
            ),
            ("host:5000/operator:v1.6.1@sha256:00", "", Some("1.6.1")),
            ("host:5000/operator", "1.3.1", Some("1.3.1")),
            ("operator@sha256:00", "v1.3.1", Some("1.3.1")),
            ("operator:nightly", "1.7.0-rc1", None),
            ("operator:1.7.0-rc1", "", None),
            ("operator:1.6", "1.6", None),
        ] {
            let named = json!({
                "metadata": {"name": "operator", "labels": {VERSION: label}},
                "spec": {"selector": {}, "template": {
                    "metadata": {"annotations": {DEFAULT_CONTAINER: "manager"}},
                    "spec": {"containers": [{"name": "proxy", "image": proxy}, {"name": "manager", "image": image}]},
                }},
            });
            let alone = json!({
                "metadata": {"name": "operator", "labels": {VERSION: label}},
                "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "operator", "image": image}]}}},
            });
            for deployment in [named, alone] {
                let found = Running::of(&serde_json::from_value(deployment).unwrap());
                assert_eq!(found.release.map(|v| v.to_string()).as_deref(), expected, "{image}");
            }
        }
    }

    #[test]
    fn oldest_of_several_operators_counts() {
        let of = |label: &str| {
            let object = json!({"metadata": {"name": "operator", "labels": {VERSION: label}}});
            Running::of(&serde_json::from_value(object).unwrap())
        };
        assert_eq!(oldest_release(&[]), None);
        assert_eq!(oldest_release(&[of("nightly")]), None);
        assert_eq!(
            oldest_release(&[of("1.10.0"), of("1.9.2"), of("nightly")])
                .unwrap()
                .to_string(),
            "1.9.2"
        );
    }

    #[test]
    fn operator_is_down_after_a_minute_without_an_available_replica() {
        let unavailable = json!({"conditions": [{"type": "Available", "status": "False", "lastTransitionTime": "2026-01-01T12:00:00Z"}]});
        let up = deployment("a", &json!({"availableReplicas": 1}));
        let down = deployment("b", &unavailable);
        let scaled_to_zero = deployment("c", &json!({"conditions": [{"type": "Available", "status": "True"}]}));
        let at = |time: &str| format!("2026-01-01T{time}Z").parse().unwrap();
        let names = |found: &[Running], time: &str| {
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
