//! Deletion by the core: without a selected provider, or if the provider does not act. It always ends.

use jiff::SignedDuration;
use runway_api::EventReason;
use runway_operator::object;
use runway_operator::plan::{Finalizer, Note, Plan};

use super::status;
use crate::observe::Observed;

/// Additional time for the provider, which has the same timeout and acts first.
const GRACE: SignedDuration = SignedDuration::from_secs(15);

pub(super) fn plan(seen: &Observed) -> Plan {
    let md = &seen.md;
    if !md.has_finalizer() {
        return Plan::default();
    }
    let (Some(provider), Some(since)) = (md.selected_provider(), &md.metadata.deletion_timestamp) else {
        return Plan {
            finalizer: Finalizer::Remove,
            ..Plan::default()
        };
    };
    let left = object::time_left(since.0 + GRACE, seen.now);
    if !left.is_zero() {
        return Plan {
            look_again: Some(left),
            ..status::deletion_stands_still(seen)
        };
    }
    let resource = md.status.as_ref().and_then(|s| s.provider.as_ref()).and_then(|p| {
        Some(format!(
            ": {} '{}'",
            p.resource_kind.as_deref()?,
            p.resource_name.as_deref()?
        ))
    });
    Plan {
        finalizer: Finalizer::Remove,
        events: vec![Note::new(
            EventReason::FinalizerTimeout,
            format!(
                "Finalizer removed after timeout, provider resource may be orphaned{} (provider '{provider}' did not clean up)",
                resource.unwrap_or_default()
            ),
        )],
        ..Plan::default()
    }
}
