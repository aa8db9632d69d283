//! The queues of an actor: names, state, and work at a broker.

use kube::ResourceExt;
use runway_api::AsyncActor;
use runway_asya_transport::sqs::LONGEST_VISIBILITY;

use crate::names;
use crate::transports::{Transport, Transports};

/// State of an actor's queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueueState {
    /// Not looked up yet.
    #[default]
    Unknown,
    /// The queue exists.
    Ready {
        /// Difference between the queue and its configuration, if any.
        drift: Option<String>,
    },
    /// The queue could not be created or looked up.
    Failed {
        /// Error, as a message for the user.
        message: String,
    },
    /// The queue could not be deleted yet, because it is in use.
    InUse {
        /// Consumers and unacknowledged messages.
        by: String,
    },
    /// The queue was deleted, or kept because it holds messages.
    Removed {
        /// Number of messages in a queue that was kept.
        left: Option<u64>,
    },
}

/// Work at a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueWork {
    /// Create the queues, unless they exist.
    Ensure(Queues),
    /// Delete the queues, unless they hold messages; with the last actor of its namespace also the user of the namespace.
    Remove {
        /// The queues.
        queues: Queues,
        /// Whether no other actor of the namespace remains.
        is_last: bool,
    },
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
    /// Namespace, if it has a user of its own at the broker.
    pub tenant: Option<String>,
    /// Second name of the actor's own queue, if any.
    pub alias: Option<Alias>,
    /// Queues of the namespace at which every route can end: created with the first actor, never deleted with one.
    pub ends: Vec<String>,
    /// Seconds for which a received message is invisible to others.
    pub visibility: u32,
    /// Seconds for which a consumer can have a message, if that is more than brokers allow by default.
    pub consumer_timeout: Option<u32>,
}

/// A queue whose messages the sidecar moves to the actor's own queue. Created unless it exists, never deleted: it belongs to the public
/// Asya v0.1.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Alias {
    /// Name of the queue.
    pub queue: String,
    /// Routing key of messages for it, beside its name: the name of the actor.
    pub key: String,
}

impl Alias {
    fn of(actor: &AsyncActor) -> Option<Self> {
        actor.spec.queue_alias?;
        let key = actor.name_any();
        let queue = names::alias(&key);
        Some(Self { queue, key })
    }
}

impl Queues {
    /// The actor's queue and the ends, each with its dead-letter queue.
    pub fn with_dead_letters(&self) -> impl Iterator<Item = (&String, Option<String>)> {
        let has = self.dead_letters.is_some();
        let queues = self.ends.iter().chain([&self.name]);
        queues.map(move |queue| (queue, has.then(|| names::dead_letters(queue))))
    }
}

/// Time after which RabbitMQ takes a message from its consumer, in seconds, unless the queue or the broker has another one
/// (`consumer_timeout`).
const CONSUMER_TIMEOUT: u32 = 30 * 60;
/// Time beside the calls of the handler that a message can be with its consumer, in seconds.
const BESIDE_CALLS: u32 = 10 * 60;
/// Variable of the sidecar with the number of messages that it takes at once.
const PREFETCH: &str = "ASYA_RABBITMQ_PREFETCH";

/// Longest time for which a consumer can have a message: it waits for those that were taken before.
fn consumer_timeout(actor: &AsyncActor, processing: u32) -> Option<u32> {
    let mut env = actor.spec.sidecar.iter().flat_map(|sidecar| &sidecar.env);
    let set = env.rfind(|variable| variable.name == PREFETCH);
    let prefetch = set.and_then(|variable| variable.value.as_ref()?.parse::<u16>().ok());
    let longest = processing
        .saturating_mul(prefetch.unwrap_or(1).into())
        .saturating_add(BESIDE_CALLS);
    (longest > CONSUMER_TIMEOUT).then_some(longest)
}

/// The queues of an actor, if its transport is configured.
pub fn queues_of(actor: &AsyncActor, transports: &Transports) -> Option<Queues> {
    let transport = transports.get(&actor.spec.transport).ok()?;
    Some(queues(actor, transport))
}

pub(crate) fn queues(actor: &AsyncActor, transport: &Transport) -> Queues {
    let namespace = actor.namespace().unwrap_or_default();
    let name = names::queue(&namespace, &actor.name_any());
    let end = |end: &str| names::queue(&namespace, end);
    let processing = u32::try_from(actor.spec.processing_seconds()).unwrap_or(300);
    let longest = u32::try_from(LONGEST_VISIBILITY.as_secs()).unwrap_or(u32::MAX);
    let visibility = match transport {
        Transport::Sqs(sqs) => sqs.visibility_timeout,
        Transport::RabbitMq(_) => None,
    };
    Queues {
        transport: actor.spec.transport.clone(),
        tenant: transport.tenants().map(|_| namespace.clone()),
        alias: Alias::of(actor),
        dead_letters: transport.queues().dlq.enabled.then(|| names::dead_letters(&name)),
        ends: [end(names::HAPPY_END), end(names::ERROR_END)]
            .into_iter()
            .filter(|end| *end != name)
            .collect(),
        name,
        consumer_timeout: match transport {
            Transport::RabbitMq(_) => consumer_timeout(actor, processing),
            Transport::Sqs(_) => None,
        },
        visibility: visibility.unwrap_or_else(|| processing.saturating_mul(2).min(longest)),
    }
}
