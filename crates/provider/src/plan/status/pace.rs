//! Changes that wait, so that a model in progress is not written every second.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_api::{ModelDeploymentStatus, ProviderReason};
use runway_operator::plan::Plan;

use super::write::owned;
use crate::observe::Observed;

/// Time without changes after which a message about progress is written.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Whether the last attempt to create the upstream object was rejected.
pub(super) fn was_rejected(seen: &Observed) -> bool {
    let created = seen.md.conditions().when_false(condition::RESOURCE_CREATED);
    created.is_some_and(|c| c.reason == ProviderReason::NameTaken || c.reason == ProviderReason::ResourceRejected)
}

/// Whether the provider has written a status.
pub(super) fn has_spoken(seen: &Observed) -> bool {
    let phase = seen.md.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Pending | Phase::Deploying | Phase::Running))
}

/// Whether the status says that the upstream has not seen the change yet, and `reason` that it works on it.
pub(super) fn begins_to_change(seen: &Observed, reason: &str) -> bool {
    let ready = seen.md.conditions().when_false(condition::READY);
    ready.is_some_and(|c| c.reason == ProviderReason::Updating) && reason != ProviderReason::Updating.as_str()
}

/// Time until the upstream has been unchanged for [`SETTLED_AFTER`]. While it starts, it reports something new every second; a
/// phase is written at once, a message when it has settled.
pub(super) fn time_to_settle(now: Timestamp, last_change: Option<Timestamp>) -> Option<Duration> {
    let since = now.duration_since(last_change?);
    Duration::try_from(SETTLED_AFTER - since)
        .ok()
        .filter(|left| !left.is_zero())
}

/// Whether a plan would change only messages and counts of work in progress, or report that the object which was being created
/// exists.
pub(super) fn is_mere_progress(seen: &Observed, plan: &Plan) -> bool {
    let wanted = plan
        .status
        .clone()
        .and_then(|s| serde_json::from_value::<ModelDeploymentStatus>(s).ok());
    let (Some(before), Some(wanted)) = (seen.md.status.as_ref().map(owned), wanted) else {
        return false;
    };
    let created = before.conditions.get_condition(condition::RESOURCE_CREATED);
    let is_creation = created.is_some_and(|c| c.reason == ProviderReason::Creating);
    let wordless = |status: &ModelDeploymentStatus| {
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .filter(|c| !(is_creation && c.type_ == condition::RESOURCE_CREATED))
            .map(|c| (c.type_.clone(), c.status.clone()))
            .collect();
        let rest = ModelDeploymentStatus {
            message: None,
            replicas: None,
            conditions: Vec::new(),
            ..status.clone()
        };
        (rest, conditions)
    };
    matches!(wanted.phase, Some(Phase::Pending | Phase::Deploying)) && wordless(&before) == wordless(&wanted)
}
