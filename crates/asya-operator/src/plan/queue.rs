//! The queues of an actor.

use kube::ResourceExt;
use runway_api::AsyncActor;

use crate::names;
use crate::observe::Settings;
use crate::transports::{Transport, Transports};

/// Work at a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueWork {
    /// Create the queues, unless they exist.
    Ensure(Queues),
    /// Delete the queues, unless they hold messages.
    Remove(Queues),
}

/// The queues of an actor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Queues {
    /// Name of the transport.
    pub transport: String,
    /// Name of the actor's own queue.
    pub name: String,
    /// Name of its dead-letter queue, if the transport has them.
    pub dead_letters: Option<String>,
    /// Queues of the namespace at which every route can end: created with the first actor, never deleted with one.
    pub ends: Vec<String>,
    /// Seconds for which a received message is invisible to others.
    pub visibility: u32,
}

/// The queues of an actor, if its transport is configured.
pub fn queues_of(actor: &AsyncActor, transports: &Transports) -> Option<Queues> {
    let transport = transports.get(&actor.spec.transport).ok()?;
    Some(queues(actor, transport))
}

/// Whether the operator creates and deletes the queues of the transport; otherwise the sidecars create them.
pub(super) fn manages(settings: &Settings, transport: &Transport) -> bool {
    settings.manages_queues && transport.queues().auto_create
}

pub(super) fn queues(actor: &AsyncActor, transport: &Transport) -> Queues {
    let namespace = actor.namespace().unwrap_or_default();
    let name = names::queue(&namespace, &actor.name_any());
    let end = |end: &str| names::queue(&namespace, end);
    let processing = u32::try_from(actor.spec.processing_seconds()).unwrap_or(300);
    let visibility = match transport {
        Transport::Sqs(sqs) => sqs.visibility_timeout,
        Transport::RabbitMq(_) => None,
    };
    Queues {
        transport: actor.spec.transport.clone(),
        dead_letters: transport.queues().dlq.enabled.then(|| names::dead_letters(&name)),
        ends: [end(names::HAPPY_END), end(names::ERROR_END)]
            .into_iter()
            .filter(|end| *end != name)
            .collect(),
        name,
        visibility: visibility.unwrap_or_else(|| processing.saturating_mul(2)),
    }
}
