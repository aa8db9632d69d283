//! The plans for going away: deletion, and hand-over to another provider. Both always end.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use runway_api::labels;
use runway_operator::plan::{Finalizer, Note, Plan};

use super::objects::{self, named};
use super::{serve, status};
use crate::contract::Provider;
use crate::observe::{Child, Observed};

/// Clean-up is given up after this (design 4.7).
const CLEANUP_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// Deletes what is there; takes the finalizer off when it is gone, or when the time is up.
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
    let left = time_left(seen);
    if left.is_zero() {
        let orphans = list(&remaining);
        return Plan {
            finalizer: Finalizer::Remove,
            events: vec![Note::warning(
                "FinalizerTimeout",
                format!("Finalizer removed after timeout, provider resource may be orphaned: {orphans}"),
            )],
            ..Plan::default()
        };
    }
    let message = format!("Waiting for {} to be deleted", list(&remaining));
    Plan {
        delete: deletions(provider, seen, &remaining),
        look_again: Some(left),
        ..status::terminating(provider, seen, message)
    }
}

/// Deletes what is there; clears our part of the status when it is gone, which lets the core name the successor.
pub(super) fn for_hand_over(provider: &dyn Provider, seen: &Observed, successor: &str) -> Plan {
    let remaining = ours(seen);
    if remaining.is_empty() {
        return status::cleared(seen);
    }
    let message = format!(
        "Handing over to provider '{successor}': waiting for {} to be deleted",
        list(&remaining)
    );
    Plan {
        delete: deletions(provider, seen, &remaining),
        ..status::terminating(provider, seen, message)
    }
}

/// Another provider serves. If the choice was taken back while we were making something, it goes.
pub(super) fn of_leftovers(provider: &dyn Provider, seen: &Observed) -> Plan {
    let made_here = |child: &&Child| {
        child
            .object
            .labels()
            .get(labels::PROVIDER)
            .is_some_and(|name| name == provider.name())
    };
    let leftovers: Vec<&Child> = ours(seen).into_iter().filter(made_here).collect();
    Plan {
        delete: deletions(provider, seen, &leftovers),
        ..Plan::default()
    }
}

fn ours(seen: &Observed) -> Vec<&Child> {
    seen.children
        .iter()
        .filter(|c| objects::is_ours(&seen.md, &c.object))
        .collect()
}

fn deletions(provider: &dyn Provider, seen: &Observed, remaining: &[&Child]) -> Vec<runway_operator::plan::Delete> {
    remaining
        .iter()
        .filter(|c| c.object.metadata.deletion_timestamp.is_none())
        .filter_map(|c| serve::deletion(provider, seen, c.kind, &c.object))
        .collect()
}

fn list(remaining: &[&Child]) -> String {
    remaining
        .iter()
        .map(|c| named(c.kind, &c.object.name_any()))
        .collect::<Vec<_>>()
        .join(", ")
}

fn time_left(seen: &Observed) -> Duration {
    let Some(since) = &seen.md.metadata.deletion_timestamp else {
        return Duration::ZERO;
    };
    let left = CLEANUP_TIMEOUT - seen.now.duration_since(since.0);
    Duration::try_from(left).unwrap_or(Duration::ZERO)
}
