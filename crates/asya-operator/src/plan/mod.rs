//! The plan for an AsyncActor: objects, queues, status and Events. Pure and deterministic: no client, no clock, no memory.

mod binding;
mod conflict;
mod containers;
mod fields;
mod objects;
mod part;
mod pods;
mod queue;
mod removal;
mod scaling;
mod standalone;
mod status;
mod transport;

use runway_api::async_actor::ActorState;
use runway_operator::apply;

use crate::observe::Observed;
use crate::request::{Request, Work};

pub use part::Plan;
pub use pods::WORDS as POD_TROUBLES;
pub use queue::{QueueWork, Queues, queues_of};

/// The plan for one AsyncActor.
pub fn plan(seen: &Observed) -> Plan {
    if seen.actor.is_deleting() {
        return removal::for_deletion(seen);
    }
    if seen.actor.is_paused() {
        return status::paused(seen);
    }
    let request = match Request::new(&seen.actor) {
        Ok(request) => request,
        Err(wrong) => return status::invalid(seen, &wrong),
    };
    let transport = transport::read(seen);
    let outcome = match &request.work {
        Work::Standalone(workload) => standalone::plan(seen, &request, workload, transport.usable),
        Work::Bound(bound) => binding::plan(seen, &request, bound, transport.usable),
    };
    status::settle(seen, &request, transport, outcome)
}

/// The plan after the API server rejected a write of [`plan`]: it reports the error. It is empty if a retry can help.
pub fn after_failure(seen: &Observed, error: &apply::Error) -> Plan {
    match error {
        apply::Error::NameTaken {
            kind, name, manager, ..
        } => {
            let message = objects::taken_text(kind, name, manager);
            status::refused(seen, (kind, name), ActorState::NameTaken, message)
        }
        apply::Error::Apply { kind, name, source } if error.is_conflict() => {
            let message = format!(
                "{kind} '{name}' was refused: another field manager owns a field that the operator must set; rename the other container, or set binding.strategy to Proxy: {source}"
            );
            status::refused(seen, (kind, name), ActorState::FieldConflict, message)
        }
        apply::Error::Apply { kind, name, source } if error.is_refusal() => status::refused(
            seen,
            (kind, name),
            ActorState::Refused,
            format!("{kind} '{name}' was refused: {source}"),
        ),
        _ => Plan::default(),
    }
}
