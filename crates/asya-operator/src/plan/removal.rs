//! Cleanup of a deleted actor: first the ScaledObject (KEDA restores the replicas), then the containers in the target, then the
//! queue. It ends after five minutes at the latest; an Event reports objects that may be left.

use std::time::Duration;

use runway_operator::object;
use runway_operator::plan::{Finalizer, Note};

use super::binding::holder;
use super::objects;
use super::part::{LOOK_AGAIN, Plan};
use super::queue::{QueueWork, manages, queues};
use crate::names;
use crate::object::{Key, SCALED_OBJECT};
use crate::observe::{Observed, QueueState};
use crate::targets::{DEPLOYMENT, KNOWN, STATEFUL_SET};

/// Time until the next try at a broker.
const BROKER_AGAIN: Duration = Duration::from_secs(10);

pub(super) fn for_deletion(seen: &Observed) -> Plan {
    let mut plan = Plan::default();
    let Some(since) = seen
        .actor
        .metadata
        .deletion_timestamp
        .as_ref()
        .filter(|_| seen.actor.has_finalizer())
    else {
        return plan;
    };
    let left = Some(object::time_left(since.0, seen.now)).filter(|left| !left.is_zero());
    let mut orphans = Vec::new();

    let name = seen.name();
    let scalers = [names::scaler(&name), names::target_scaler(&name)].map(|name| Key::new(SCALED_OBJECT, name));
    let workloads = [
        Key::new(DEPLOYMENT, &name),
        Key::new(STATEFUL_SET, &name),
        Key::new(DEPLOYMENT, names::proxy(&name)),
    ];
    for key in scalers.iter().chain(&workloads) {
        if seen.live(key).is_some_and(|live| objects::is_leftover(seen, live)) {
            plan.kube.delete.extend(objects::deletion(seen, key));
        }
    }
    for key in scalers.iter().filter(|key| objects::exists(seen, key)) {
        match left {
            Some(left) => {
                plan.kube.look_again = Some(left.min(LOOK_AGAIN));
                return plan;
            }
            None => orphans.push(key.to_string()),
        }
    }
    let holders = seen.objects.keys().filter(|key| KNOWN.contains(&key.kind));
    for key in holders {
        let Some(live) = holder::held(seen, key) else { continue };
        match left {
            Some(left) => {
                let part = holder::put_back(seen, key, live);
                plan.kube.apply.extend(part.apply);
                plan.kube.edit.extend(part.edit);
                plan.kube.look_again = Some(left.min(LOOK_AGAIN));
            }
            None => orphans.push(format!("containers in {key}")),
        }
    }
    if !plan.kube.apply.is_empty() || !plan.kube.edit.is_empty() {
        let note = Note::normal("Unbound", "Removed asya-sidecar and asya-runtime from the target");
        plan.kube.events.push(note);
        return plan;
    }
    if let Ok(transport) = seen.transports.get(&seen.actor.spec.transport)
        && manages(&seen.settings, transport)
    {
        let work = queues(&seen.actor, transport);
        match (&seen.queue, left) {
            (QueueState::Removed { left: None }, _) => {}
            (QueueState::Removed { left: Some(count) }, _) => plan.kube.events.push(Note::warning(
                "QueueLeft",
                format!(
                    "Queue '{}' holds {count} messages and is kept: empty and delete it, or create the actor again",
                    work.name
                ),
            )),
            (_, Some(left)) => {
                plan.queue = Some(QueueWork::Remove(work));
                plan.kube.look_again = Some(left.min(BROKER_AGAIN));
                return plan;
            }
            (_, None) => orphans.push(format!("queue '{}'", work.name)),
        }
    }
    if !orphans.is_empty() {
        let message = format!(
            "Finalizer removed after timeout, may be orphaned: {}",
            orphans.join(", ")
        );
        plan.kube.events.push(Note::warning("FinalizerTimeout", message));
    }
    plan.kube.finalizer = Finalizer::Remove;
    plan
}
