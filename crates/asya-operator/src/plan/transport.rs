//! The transport of an actor: the condition `TransportReady`, and the work at the broker.

use k8s_openapi::ByteString;
use runway_api::ActorReason;
use runway_api::async_actor::{BrokerUser, TRANSPORT_READY};
use runway_api::condition::{no, yes};
use runway_asya_transport::tenants::Credentials;
use runway_operator::plan::Apply;
use serde_json::json;

use super::objects;
use super::part::Part;
use crate::names;
use crate::object::{Key, SECRET};
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
    if transport.tenants().is_some()
        && let Some(why) = without_tenant(seen, transport)
    {
        return Reading {
            part: Part::says(no(TRANSPORT_READY, ActorReason::TenantFailed, why)),
            ..Reading::default()
        };
    }
    let secret = match secret(seen) {
        Ok(secret) => secret,
        Err(taken) => {
            return Reading {
                part: *taken,
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
            children: secret.into_iter().collect(),
            ..Part::says(condition)
        },
    }
}

/// Reason why the actor cannot have the user of its namespace.
fn without_tenant(seen: &Observed, transport: &Transport) -> Option<String> {
    let name = &seen.actor.spec.transport;
    if !seen.settings.manage_queues_of(transport) {
        return Some(format!(
            "Transport '{name}' has a user for each namespace, which cannot create queues: let the operator manage them (ASYA_DISABLE_QUEUE_MANAGEMENT)"
        ));
    }
    if seen.actor.spec.queue_alias.is_some() {
        return Some(format!(
            "spec.queueAlias: transport '{name}' has a user for each namespace, and the queues of Asya v0.1 belong to none: remove it, or use another transport"
        ));
    }
    let unknown = seen.tenant.as_ref()?.as_ref().err()?;
    Some(format!("Transport '{name}': {unknown}"))
}

/// The Secret with the user of the namespace, if it has one. An error reports another object with its name.
fn secret(seen: &Observed) -> Result<Option<(Key, Apply)>, Box<Part>> {
    let Some(Ok(Credentials { username, password })) = &seen.tenant else {
        return Ok(None);
    };
    let key = Key::new(SECRET, names::BROKER_SECRET);
    if let Some(taken) = objects::taken(seen, &key, TRANSPORT_READY) {
        return Err(Box::new(taken));
    }
    let encoded = |text: &String| ByteString(text.clone().into_bytes());
    let data = json!({"data": {
        names::BROKER_USERNAME: encoded(username), names::BROKER_PASSWORD: encoded(password),
    }});
    Ok(Some((key.clone(), objects::shared(seen, &key, data))))
}

/// The user of the sidecars, if the broker has users.
pub(super) fn broker_user(transport: &Transport) -> Option<BrokerUser> {
    match transport {
        Transport::RabbitMq(rabbit) if rabbit.tenants.is_some() => Some(BrokerUser::Namespace),
        Transport::RabbitMq(_) => Some(BrokerUser::Shared),
        Transport::Sqs(_) => None,
    }
}
