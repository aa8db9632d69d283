//! Release of a target: removes the containers from an object that must not hold them any more.

use kube::core::DynamicObject;
use runway_api::async_actor::RUNTIME_INJECTED;
use runway_api::condition::no;
use runway_api::{ActorReason, EventReason};
use runway_operator::plan::Note;

use super::holder::{held, reverted};
use crate::object::{Key, SCALED_OBJECT};
use crate::observe::Observed;
use crate::plan::objects;
use crate::plan::part::{LOOK_AGAIN, Outcome, Part};
use crate::{names, needs};

/// Removes the containers from the previous holder, if it still has them and is another object than `now`.
pub(super) fn leave(seen: &Observed, now: Option<&Key>) -> Option<Outcome> {
    let previous = needs::previous_holder(&seen.actor).filter(|previous| Some(previous) != now)?;
    let live = held(seen, &previous)?;
    let message = format!("The containers are being removed from {previous}");
    Some(Outcome {
        binding: seen.actor.status.as_ref().and_then(|s| s.binding.clone()),
        parts: vec![
            Part::says(no(RUNTIME_INJECTED, ActorReason::Leaving, message)),
            take_out(seen, &previous, live),
        ],
        ..Outcome::default()
    })
}

/// Removes the containers from an object. The ScaledObject goes first, because KEDA restores the replicas at its end.
pub(super) fn take_out(seen: &Observed, holder: &Key, live: &DynamicObject) -> Part {
    let scaler = Key::new(SCALED_OBJECT, names::scaler(&seen.name()));
    // No part wants the ScaledObject, so the plan deletes it.
    if objects::exists(seen, &scaler) {
        return Part {
            look_again: Some(LOOK_AGAIN),
            ..Part::default()
        };
    }
    let message = format!("Removed asya-sidecar and asya-runtime from {holder}");
    Part {
        events: vec![Note::new(EventReason::Unbound, message)],
        ..reverted(seen, holder, live)
    }
}
