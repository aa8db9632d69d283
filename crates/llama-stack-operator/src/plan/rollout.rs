//! The reported state of the Deployment.

use kube::core::DynamicObject;
use runway_api::DistributionReason;
use runway_operator::kubelet;
use serde_json::{Value, json};

use super::story::Trouble;

/// The reported state of the Deployment.
pub(super) struct Rollout {
    pub(super) exists: bool,
    /// Whether the live Deployment is the desired one, and its status is of that generation.
    pub(super) current: bool,
    pub(super) wanted: i64,
    pub(super) total: i64,
    pub(super) updated: i64,
    pub(super) available: i64,
    pub(super) trouble: Option<Trouble>,
}

impl Rollout {
    pub(super) fn read(live: Option<&DynamicObject>, is_current: bool) -> Self {
        let nothing = json!(null);
        let data = live.map_or(&nothing, |l| &l.data);
        let count = |name: &str| data["status"][name].as_i64().unwrap_or(0);
        let generation = live.and_then(|l| l.metadata.generation).unwrap_or(0);
        Self {
            exists: live.is_some(),
            current: is_current && live.is_some() && count("observedGeneration") >= generation,
            wanted: data["spec"]["replicas"].as_i64().unwrap_or(1),
            total: count("replicas"),
            updated: count("updatedReplicas"),
            available: count("availableReplicas"),
            trouble: is_current.then(|| deployment_trouble(data)).flatten(),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.current && self.updated >= self.wanted && self.available >= self.wanted && self.total == self.updated
    }
}

fn deployment_trouble(deployment: &Value) -> Option<Trouble> {
    let conditions = deployment["status"]["conditions"].as_array()?;
    let find = |type_: &str, status: &str| {
        conditions
            .iter()
            .find(|c| c["type"] == type_ && c["status"] == status)
            .map(|c| {
                (
                    c["reason"].as_str().unwrap_or_default(),
                    c["message"].as_str().unwrap_or_default(),
                )
            })
    };
    if let Some(failure) = kubelet::replica_failure(deployment) {
        let message = failure["message"].as_str().unwrap_or_default();
        return Some(Trouble::new(
            DistributionReason::PodsRefused,
            format!("Pods cannot be created: {message}"),
            "Correct the cause in the message: a quota, a policy of the namespace (see spec.server.podOverrides.securityContext), or a ServiceAccount that does not exist",
        ));
    }
    match find("Progressing", "False") {
        Some(("ProgressDeadlineExceeded", message)) => Some(Trouble::new(
            DistributionReason::ProgressDeadlineExceeded,
            format!("The pods did not become ready in time: {message}"),
            "Check the pods of the Deployment and their logs",
        )),
        _ => None,
    }
}
