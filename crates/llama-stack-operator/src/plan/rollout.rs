//! The reported state of the Deployment.

use kube::core::DynamicObject;
use runway_api::DistributionReason;
use runway_operator::{kubelet, object};
use serde_json::{Value, json};

use super::startup::Trouble;

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
    if let Some(failure) = kubelet::replica_failure(deployment) {
        return Some(Trouble::new(
            DistributionReason::PodsRefused,
            format!("Pods cannot be created: {}", failure.message),
            "Correct the cause in the message: a quota, a policy of the namespace (see spec.server.podOverrides.securityContext), or a ServiceAccount that does not exist",
        ));
    }
    let progress = object::condition(&deployment["status"], "Progressing")?;
    (progress.is_false() && progress.reason == "ProgressDeadlineExceeded").then(|| {
        Trouble::new(
            DistributionReason::ProgressDeadlineExceeded,
            format!("The pods did not become ready in time: {}", progress.message),
            "Check the pods of the Deployment and their logs",
        )
    })
}
