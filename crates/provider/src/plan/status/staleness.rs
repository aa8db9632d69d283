//! Age of work in progress that the upstream does not report on.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use runway_api::ProviderReason;
use runway_api::condition::{self, Conditions, Draft, yes};

use crate::observe::Observed;

/// Age after which the status of an upstream object in progress counts as stale.
const STALE_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// The condition of an object that makes no progress.
pub(super) fn stale(seen: &Observed, name: &str, staleness: &Staleness) -> Option<Draft> {
    match &seen.outage {
        Some(why) if *staleness != Staleness::Settled => Some(yes(
            condition::STALE_STATUS,
            ProviderReason::OperatorUnavailable,
            format!("{name} makes no progress: {why}"),
        )),
        _ if *staleness == Staleness::Stale => Some(yes(
            condition::STALE_STATUS,
            ProviderReason::UpstreamSilent,
            format!("{name} has reported nothing for 5 minutes: is the upstream operator running?"),
        )),
        _ => None,
    }
}

#[derive(PartialEq, Eq)]
pub(super) enum Staleness {
    Settled,
    In(Duration),
    Stale,
}

pub(super) fn has_unready(seen: &Observed) -> bool {
    seen.pods.iter().flatten().any(|pod| !pod.is_ready())
}

/// Whether work in progress that last changed at one of these times is stale.
pub(super) fn staleness(seen: &Observed, changes: [Option<Timestamp>; 2]) -> Staleness {
    // A model that was ready until a moment ago is not stale yet.
    let not_ready_since = seen
        .md
        .conditions()
        .get_condition(condition::READY)
        .filter(|c| c.status != "True")
        .map_or(seen.now, |c| c.last_transition_time.0);
    let last = changes
        .into_iter()
        .flatten()
        .chain([not_ready_since])
        .max()
        .unwrap_or(seen.now);
    match Duration::try_from(STALE_AFTER - seen.now.duration_since(last)) {
        Ok(left) if !left.is_zero() => Staleness::In(left),
        _ => Staleness::Stale,
    }
}
