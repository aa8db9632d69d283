//! Cleanup of a deleted actor: first the ScaledObject (KEDA restores the replicas), then the workload or the containers in the
//! target, and when their sidecars have ended the queue, because they hold messages that the queue does not count as waiting. It ends
//! after five minutes at the latest; an Event reports objects that may be left.

use std::ops::ControlFlow;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use runway_api::EventReason;
use runway_operator::object;
use runway_operator::plan::{Finalizer, Note};

use super::binding::holder;
use super::part::{LOOK_AGAIN, Plan};
use super::{objects, status};
use crate::names;
use crate::object::{Key, SCALED_OBJECT, SECRET};
use crate::observe::Observed;
use crate::queue::{QueueState, QueueWork, Queues, queues};
use crate::request::SIDECAR;
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
                return waiting(
                    seen,
                    plan,
                    left.min(LOOK_AGAIN),
                    format!("Waiting for KEDA to release {key}"),
                );
            }
            None => orphans.push(key.to_string()),
        }
    }
    let holders = seen.objects.keys().filter(|key| KNOWN.contains(&key.kind));
    for key in holders {
        let Some(live) = holder::held(seen, key) else { continue };
        match left {
            Some(left) => {
                let part = holder::reverted(seen, key, live);
                plan.kube.apply.extend(part.apply);
                plan.kube.edit.extend(part.edit);
                plan.kube.look_again = Some(left.min(LOOK_AGAIN));
            }
            None => orphans.push(format!("containers in {key}")),
        }
    }
    if !plan.kube.apply.is_empty() || !plan.kube.edit.is_empty() {
        let note = Note::new(
            EventReason::Unbound,
            "Removed asya-sidecar and asya-runtime from the target",
        );
        plan.kube.events.push(note);
        return plan;
    }
    let mut plan = match remove_queues(seen, plan, left, &mut orphans) {
        ControlFlow::Continue(plan) => plan,
        ControlFlow::Break(plan) => return plan,
    };
    let secret = Key::new(SECRET, names::BROKER_SECRET);
    let is_ours = |live: &DynamicObject| objects::is_ours(seen, &secret, live);
    if seen.is_last && seen.live(&secret).is_some_and(is_ours) {
        plan.kube.delete.extend(objects::deletion(seen, &secret));
    }
    if !orphans.is_empty() {
        let message = format!(
            "Finalizer removed after timeout, may be orphaned: {}",
            orphans.join(", ")
        );
        plan.kube.events.push(Note::new(EventReason::FinalizerTimeout, message));
    }
    plan.kube.finalizer = Finalizer::Remove;
    plan
}

/// Removes the queues after the sidecars have ended. Breaks with a plan that waits; after the timeout, what is left is an orphan.
fn remove_queues(
    seen: &Observed,
    mut plan: Plan,
    left: Option<Duration>,
    orphans: &mut Vec<String>,
) -> ControlFlow<Plan, Plan> {
    let Some(work) = queues_to_remove(seen) else {
        return ControlFlow::Continue(plan);
    };
    let name = work.name.clone();
    let running = seen.pods.iter().any(|pod| holds_messages(pod));
    match (&seen.queue, left) {
        (_, Some(left)) if running => {
            let message =
                format!("Waiting for pods to end before queue '{name}' is removed: their sidecars can hold messages");
            return ControlFlow::Break(waiting(seen, plan, left.min(LOOK_AGAIN), message));
        }
        (_, None) if running => orphans.push(format!("queue '{name}', which running pods use")),
        (QueueState::Removed { left: None }, _) => {}
        (QueueState::Removed { left: Some(count) }, _) => plan.kube.events.push(Note::new(
            EventReason::QueueLeft,
            format!(
                "Queue '{name}' holds {count} messages and is kept: empty and delete it, or create the actor again"
            ),
        )),
        (state, Some(left)) => {
            plan.queue = Some(QueueWork::Remove {
                queues: work,
                is_last: seen.is_last,
            });
            let message = match state {
                QueueState::InUse { by } => format!("Queue '{name}' is in use: {by}"),
                QueueState::Failed { message } => format!("Queue '{name}' cannot be removed: {message}"),
                _ => format!("Removing queue '{name}'"),
            };
            return ControlFlow::Break(waiting(seen, plan, left.min(BROKER_AGAIN), message));
        }
        (QueueState::InUse { by }, None) => orphans.push(format!("queue '{name}' ({by})")),
        (_, None) => orphans.push(format!("queue '{name}'")),
    }
    ControlFlow::Continue(plan)
}

/// The plan with a status that says what the deletion waits for.
fn waiting(seen: &Observed, mut plan: Plan, again: Duration, message: String) -> Plan {
    plan.kube.look_again = Some(again);
    plan.kube.status = status::terminating(seen, message);
    plan
}

/// The queues of the actor, if the operator manages them.
fn queues_to_remove(seen: &Observed) -> Option<Queues> {
    let transport = seen.transports.get(&seen.actor.spec.transport).ok()?;
    seen.settings
        .manage_queues_of(transport)
        .then(|| queues(&seen.actor, transport))
}

/// Whether the sidecar of a pod may run. A pod that is being deleted starts no container again, and the others, such as a handler
/// that ignores SIGTERM, can take until the end of its grace period.
fn holds_messages(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return true };
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return false;
    }
    let mut containers = [&status.init_container_statuses, &status.container_statuses]
        .into_iter()
        .flatten()
        .flatten();
    let sidecar = containers.find(|container| container.name == SIDECAR);
    let runs = sidecar
        .and_then(|sidecar| sidecar.state.as_ref())
        .is_none_or(|state| state.running.is_some());
    pod.metadata.deletion_timestamp.is_none() || runs
}
