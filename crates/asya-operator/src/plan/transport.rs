//! The transport of an actor: the condition `TransportReady`, and the work at the broker.

use runway_api::ActorReason;
use runway_api::async_actor::TRANSPORT_READY;
use runway_api::condition::{no, yes};

use super::part::Part;
use crate::observe::Observed;
use crate::queue::{QueueState, QueueWork, queues};
use crate::transports::{Transport, Unusable};

/// Longest name of an SQS queue.
const SQS_NAME_MAX: usize = 80;

/// The transport of an actor, and the state of its queue.
#[derive(Default)]
pub(super) struct Reading<'a> {
    /// The transport, unless it is missing from the configuration or does not fit the actor.
    pub(super) usable: Option<&'a Transport>,
    /// Name of the queue.
    pub(super) queue: Option<String>,
    pub(super) work: Option<QueueWork>,
    pub(super) part: Part,
}

pub(super) fn read(seen: &Observed) -> Reading<'_> {
    let transport = match seen.transports.get_for(&seen.actor.spec.transport, &seen.namespace()) {
        Ok(transport) => transport,
        Err(unusable) => {
            let reason = match unusable {
                Unusable::Unknown { .. } | Unusable::Disabled { .. } => ActorReason::TransportNotConfigured,
                Unusable::OtherNamespaces { .. } => ActorReason::TransportNotAllowed,
            };
            return Reading {
                part: Part::says(no(TRANSPORT_READY, reason, unusable.to_string())),
                ..Reading::default()
            };
        }
    };
    let queues = queues(&seen.actor, transport);
    let name = queues.name.clone();
    let longest = queues.dead_letters.as_ref().unwrap_or(&name);
    if matches!(transport, Transport::Sqs(_)) && longest.len() > SQS_NAME_MAX {
        let message = format!(
            "SQS queue names have at most {SQS_NAME_MAX} characters, and '{longest}' has {}: shorten the name of the actor or of the namespace",
            longest.len()
        );
        return Reading {
            part: Part::says(no(TRANSPORT_READY, ActorReason::QueueNameTooLong, message)),
            queue: Some(name),
            ..Reading::default()
        };
    }
    let managed = seen.settings.manage_queues_of(transport);
    let (condition, work) = match &seen.queue {
        _ if !managed => {
            let message = format!("Queue '{name}' is not managed by the operator: the sidecar creates it");
            (yes(TRANSPORT_READY, ActorReason::NotManaged, message), None)
        }
        QueueState::Ready { drift: None } => {
            let message = match &queues.alias {
                Some(alias) => format!("Queue '{name}' and its alias '{}' exist", alias.queue),
                None => format!("Queue '{name}' exists"),
            };
            (yes(TRANSPORT_READY, ActorReason::QueueReady, message), None)
        }
        QueueState::Ready { drift: Some(drift) } => {
            let message = format!("Queue '{name}' exists and is used, but differs from the configuration: {drift}");
            (yes(TRANSPORT_READY, ActorReason::QueueDiffers, message), None)
        }
        QueueState::Failed { message } => {
            let message = format!("Queue '{name}': {message}");
            (no(TRANSPORT_READY, ActorReason::QueueFailed, message), None)
        }
        QueueState::Unknown | QueueState::InUse { .. } | QueueState::Removed { .. } => {
            let message = format!("Queue '{name}' is being created");
            let work = QueueWork::Ensure(queues);
            (no(TRANSPORT_READY, ActorReason::QueuePending, message), Some(work))
        }
    };
    Reading {
        usable: Some(transport),
        queue: Some(name),
        work,
        part: Part {
            needs_finalizer: managed,
            ..Part::says(condition)
        },
    }
}
