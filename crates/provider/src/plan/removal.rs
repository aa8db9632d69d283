//! Plans for deletion and for a handover to another provider. Both always end.

use std::time::Duration;

use kube::ResourceExt;
use runway_api::{EventReason, labels};
use runway_operator::object;
use runway_operator::plan::{Delete, Finalizer, Note, Plan};

use super::{serve, status};
use crate::contract::{CLAIM, Provider};
use crate::observe::{Child, Observed};

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
        let orphans = list(&remaining);
        return Plan {
            finalizer: Finalizer::Remove,
            events: vec![Note::new(
                EventReason::FinalizerTimeout,
                format!("Finalizer removed after timeout, provider resource may be orphaned: {orphans}"),
            )],
            ..Plan::default()
        };
    }
    let message = format!("Waiting for {} to be deleted", list(&remaining));
    Plan {
        delete: deletions(seen, &remaining),
        look_again: Some(left),
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
        list(&remaining)
    );
    Plan {
        delete: deletions(seen, &remaining),
        // The core may have given up waiting, and removed this status.
        status_guarded: true,
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

fn list(remaining: &[&Child]) -> String {
    remaining
        .iter()
        .map(|c| c.kind.named(&c.object.name_any()))
        .collect::<Vec<_>>()
        .join(", ")
}
