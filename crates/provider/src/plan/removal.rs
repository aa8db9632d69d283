//! Plans for deletion and for a handover to another provider. Both always end.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use runway_api::{EventReason, labels};
use runway_operator::object;
use runway_operator::plan::{Delete, Finalizer, Note, Plan};

use super::prepare::Blocked;
use super::{serve, status, successor};
use crate::contract::{CLAIM, Provider};
use crate::observe::{Child, Observed};

/// An object that is being deleted for this long is held by its finalizers, which the message then names.
const HELD_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Deletes the objects; removes the finalizer when they are gone, or after the timeout.
pub(super) fn for_deletion(provider: &dyn Provider, seen: &Observed) -> Plan {
    if !seen.md.has_finalizer() {
        return Plan::default();
    }
    let remaining = ours(seen);
    if remaining.is_empty() {
        return Plan {
            finalizer: Finalizer::Remove,
            ..Plan::default()
        };
    }
    let left = seen
        .md
        .metadata
        .deletion_timestamp
        .as_ref()
        .map_or(Duration::ZERO, |since| object::time_left(since.0, seen.now));
    if left.is_zero() {
        let orphans = list(&remaining, seen.now);
        return Plan {
            finalizer: Finalizer::Remove,
            events: vec![Note::new(
                EventReason::FinalizerTimeout,
                format!("Finalizer removed after timeout, provider resource may be orphaned: {orphans}"),
            )],
            ..Plan::default()
        };
    }
    let message = format!("Waiting for {} to be deleted", list(&remaining, seen.now));
    Plan {
        delete: deletions(seen, &remaining),
        look_again: Some(until_held(&remaining, seen.now).map_or(left, |held| held.min(left))),
        ..status::terminating(provider, seen, message)
    }
}

/// Deletes the objects; clears the provider's part of the status when they are gone, so that the core can select the successor.
pub(super) fn for_hand_over(provider: &dyn Provider, seen: &Observed, successor: &str) -> Plan {
    let remaining = ours_alone(seen);
    if remaining.is_empty() {
        return status::cleared(seen);
    }
    let message = format!(
        "Handing over to provider '{successor}': waiting for {} to be deleted",
        list(&remaining, seen.now)
    );
    Plan {
        delete: deletions(seen, &remaining),
        look_again: until_held(&remaining, seen.now),
        ..status::terminating(provider, seen, message)
    }
}

/// Deletes objects that were created while the selection changed to another provider.
pub(super) fn of_leftovers(provider: &dyn Provider, seen: &Observed) -> Plan {
    let made_here = |child: &&Child| {
        child
            .object
            .labels()
            .get(labels::PROVIDER)
            .is_some_and(|name| name == provider.name())
    };
    let leftovers: Vec<&Child> = ours_alone(seen).into_iter().filter(made_here).collect();
    Plan {
        delete: deletions(seen, &leftovers),
        ..Plan::default()
    }
}

/// The status after the API server refused to delete an object.
pub(super) fn refused(provider: &dyn Provider, seen: &Observed, message: String) -> Plan {
    let md = &seen.md;
    if md.selected_provider() != Some(provider.name()) {
        // A leftover: the status belongs to the selected provider.
        return Plan::default();
    }
    if md.is_deleting() || successor(provider, md).is_some() {
        return status::terminating(provider, seen, message);
    }
    status::failed(provider, seen, &Blocked::rejected(message))
}

fn ours(seen: &Observed) -> Vec<&Child> {
    seen.children
        .iter()
        .filter(|c| object::is_ours(seen.md.as_ref(), &c.object))
        .collect()
}

/// Without claims: they hold data, and the next provider mounts them, or deletes those that it does not need.
fn ours_alone(seen: &Observed) -> Vec<&Child> {
    let mut remaining = ours(seen);
    remaining.retain(|child| child.kind != CLAIM);
    remaining
}

fn deletions(seen: &Observed, remaining: &[&Child]) -> Vec<Delete> {
    remaining
        .iter()
        .filter(|c| c.object.metadata.deletion_timestamp.is_none())
        .filter_map(|c| serve::deletion(seen, c.kind, &c.object))
        .collect()
}

fn list(remaining: &[&Child], now: Timestamp) -> String {
    let named = |child: &&Child| {
        let name = child.kind.named(&child.object.name_any());
        match held_in(child, now) {
            Some(SignedDuration::ZERO) => format!("{name} (held by {})", child.object.finalizers().join(", ")),
            _ => name,
        }
    };
    remaining.iter().map(named).collect::<Vec<_>>().join(", ")
}

/// Time until the first of them counts as held.
fn until_held(remaining: &[&Child], now: Timestamp) -> Option<Duration> {
    let times = remaining.iter().filter_map(|child| held_in(child, now));
    times.filter(|time| !time.is_zero()).min()?.try_into().ok()
}

/// Time until an object counts as held by its finalizers; zero if it does. `None` if it is not being deleted, or has none.
fn held_in(child: &Child, now: Timestamp) -> Option<SignedDuration> {
    let since = child.object.metadata.deletion_timestamp.as_ref()?.0;
    let has_finalizers = !child.object.finalizers().is_empty();
    has_finalizers.then(|| (HELD_AFTER - now.duration_since(since)).max(SignedDuration::ZERO))
}
