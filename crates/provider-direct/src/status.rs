//! Status of a Deployment, by the rules of `kubectl rollout status` (Kubernetes
//! `staging/src/k8s.io/kubectl/pkg/polymorphichelpers/rollout_status.go`).

use jiff::Timestamp;
use runway_api::Phase;
use runway_operator::{json, kubelet};
use runway_provider::Reading;
use serde_json::Value;

/// Reads a Deployment with this desired spec and number of replicas.
pub(crate) fn read(object: &Value, wanted: i32, spec: &Value) -> Reading {
    let status = &object["status"];
    if !status["observedGeneration"].is_i64() {
        return Reading::silent();
    }
    let count = |field: &str| status[field].as_i64().and_then(|n| i32::try_from(n).ok()).unwrap_or(0);
    let counts = Counts {
        wanted,
        replicas: count("replicas"),
        updated: count("updatedReplicas"),
        ready: count("readyReplicas"),
    };
    let (phase, reason, message) = if !is_observed(object, spec) {
        let message = "Waiting for the Deployment's latest spec to be observed".to_owned();
        (Phase::Deploying, "Deploying".to_owned(), message)
    } else if counts.is_complete() {
        let message = if wanted == 0 { "Scaled to zero" } else { "" };
        (Phase::Running, "DeploymentReady".to_owned(), message.to_owned())
    } else if let Some((reason, message)) = failure(object) {
        (Phase::Failed, reason, format!("{}: {message}", counts.progress()))
    } else {
        (Phase::Deploying, "Deploying".to_owned(), counts.progress())
    };
    Reading {
        phase,
        reason,
        message,
        ready: counts.ready,
        available: count("availableReplicas"),
        last_change: last_change(status),
        ..Reading::silent()
    }
}

/// Whether the status is about the desired spec: applied, and observed by the Deployment's controller.
fn is_observed(object: &Value, spec: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"] && json::contains(&object["spec"], spec)
}

struct Counts {
    wanted: i32,
    /// Pods that are not terminating, old and new.
    replicas: i32,
    /// Pods of the latest template.
    updated: i32,
    ready: i32,
}

impl Counts {
    /// Whether all desired pods of the latest template serve, and no others exist.
    fn is_complete(&self) -> bool {
        self.updated >= self.wanted
            && self.ready >= self.wanted
            && self.replicas == self.updated
            && self.replicas <= self.wanted
    }

    fn progress(&self) -> String {
        let Self {
            wanted,
            replicas,
            updated,
            ready,
        } = self;
        if updated < wanted {
            format!("{updated} of {wanted} replicas updated, {ready} ready")
        } else if replicas > updated {
            format!("{} old replicas pending termination", replicas - updated)
        } else if updated > wanted {
            format!("{} replicas pending termination", updated - wanted)
        } else {
            format!("{ready} of {updated} updated replicas ready")
        }
    }
}

/// Reason and message of the Deployment if pods cannot be created or a rollout is stuck.
fn failure(deployment: &Value) -> Option<(String, String)> {
    let found = kubelet::rollout_failure(deployment)?;
    let is_complete = !found.reason.is_empty() && !found.message.is_empty();
    is_complete.then(|| (found.reason.to_owned(), found.message.to_owned()))
}

fn last_change(status: &Value) -> Option<Timestamp> {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions
        .flat_map(|c| [&c["lastUpdateTime"], &c["lastTransitionTime"]])
        .filter_map(|time| time.as_str()?.parse().ok())
        .max()
}
