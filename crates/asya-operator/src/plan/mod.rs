//! The plan for an AsyncActor: objects, queues, status and Events. Pure and deterministic: no client, no clock, no memory.

mod binding;
mod conflict;
mod containers;
mod fields;
mod objects;
mod part;
mod pods;
mod removal;
mod scaling;
mod standalone;
mod status;
mod surroundings;
mod transport;

use runway_api::async_actor::ActorState;
use runway_operator::apply;

use self::status::Refusal;
use crate::object::POD;
use crate::observe::Observed;
use crate::request::{Request, Work};

pub use part::Plan;
pub use pods::WORDS as POD_TROUBLES;

/// The plan for one AsyncActor.
pub fn plan(seen: &Observed) -> Plan {
    plan_after(seen, None)
}

/// The plan for one AsyncActor. If the API server rejected one of its writes, the status reports it.
fn plan_after(seen: &Observed, refusal: Option<&Refusal>) -> Plan {
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
    status::settle(seen, &request, transport, outcome, refusal)
}

/// The plan after the API server rejected a write of [`plan`]: it reports the error. It is empty if a retry can help.
pub fn after_failure(seen: &Observed, error: &apply::Error) -> Plan {
    if seen.actor.is_deleting() {
        return status::cleanup_refused(seen, error);
    }
    let (kind, name, state, message) = match error {
        apply::Error::NameTaken {
            kind, name, manager, ..
        } => (
            kind,
            name,
            ActorState::NameTaken,
            objects::taken_text(kind, name, manager),
        ),
        apply::Error::Apply { kind, name, .. } if error.is_conflict() => {
            let message = format!(
                "{kind} '{name}' was refused: another field manager owns a field that the operator must set; rename the other container, or set binding.strategy to Proxy: {}",
                error.message()
            );
            (kind, name, ActorState::FieldConflict, message)
        }
        apply::Error::Apply { kind, name, .. } if kind == POD.kind && error.is_refusal() => {
            let message = format!(
                "the containers were not added, because the API server refuses pods that have them: {}{}",
                error.message(),
                pods::remedy(&error.message())
            );
            (kind, name, ActorState::Refused, message)
        }
        apply::Error::Apply { kind, name, .. } | apply::Error::Delete { kind, name, .. } => {
            let Some(message) = error.refusal() else {
                return Plan::default();
            };
            (kind, name, ActorState::Refused, message)
        }
        _ => return Plan::default(),
    };
    let refusal = Refusal::new(seen, (kind, name), state, message);
    status::refused(seen, plan_after(seen, Some(&refusal)), refusal)
}
