//! The message brokers of Asya, behind one interface.
//!
//! | module | content |
//! |---|---|
//! | [`settings`] | `transports.json`: which brokers there are |
//! | [`args`] | arguments of programs that read them |
//! | [`queues`] | names of queues |
//! | [`tenants`] | users of namespaces |
//! | [`letters`], [`operate`] | numbers of messages and dead letters, for operators |
//! | [`management`] | the management API of RabbitMQ |
//! | [`rabbitmq`] | AMQP 0-9-1: publisher confirms, mandatory publishing, acknowledgements in batches |
//! | [`sqs`] | Amazon SQS: messages are hidden while in progress, then deleted |

pub mod args;
pub mod letters;
pub mod management;
pub mod operate;
pub mod queues;
pub mod rabbitmq;
pub mod settings;
pub mod sqs;
pub mod tenants;

use std::time::Duration;

use bytes::Bytes;

/// Received message that is not settled yet.
#[derive(Debug)]
pub struct Delivery<R> {
    /// Content.
    pub body: Bytes,
    /// Transport headers, which are kept at the next hop.
    pub headers: Headers,
    /// Reason why the transport headers cannot be read. The message is then rejected.
    pub unreadable: Option<&'static str>,
    /// Number of deliveries including this one; `None` if the broker does not count them. Except for the first, a message is delivered
    /// when a caller waits for it, so these deliveries are attempts.
    pub deliveries: Option<u32>,
    /// User who published it, if the publisher said so: the broker has verified it.
    pub user: Option<String>,
    /// Data with which the transport settles it.
    pub receipt: R,
}

/// Whether a message was delivered before, by the broker's count.
fn is_redelivered(deliveries: Option<u32>) -> bool {
    deliveries.is_some_and(|count| count > 1)
}

/// Text headers beside the message.
pub type Headers = Vec<(String, String)>;

/// Message to publish.
#[derive(Debug)]
pub struct Message<'a> {
    /// Name of the queue that gets it.
    pub queue: &'a str,
    /// Content.
    pub body: Bytes,
    /// Transport headers.
    pub headers: &'a Headers,
    /// Number of an item of a fan-out, 0 for the first and for single messages.
    pub index: usize,
}

/// Failed publication.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The connection is lost. The broker delivers the source message again.
    #[error("lost the connection to the broker")]
    Lost,
    /// The queue does not exist, or the broker will never accept a message for it from this sidecar.
    #[error("{0}")]
    NoQueue(String),
    /// The queue does not accept a message of this size.
    #[error("{0}")]
    TooLarge(String),
    /// The broker does not accept headers of this size.
    #[error("{0}")]
    HeadersTooLarge(String),
    /// The broker rejected the message. A later attempt may succeed.
    #[error("{0}")]
    Refused(String),
    /// The broker closed the channel, for example because the user has no permission to write. A later attempt may succeed.
    #[error("the broker refuses messages of this user: {0}; check its permission to write, and the exchange")]
    Forbidden(String),
}

/// A broker.
pub trait Transport: Send + Sync + 'static {
    /// Data with which a delivery is settled.
    type Receipt: Send + Sync + 'static;

    /// The next message. Reconnects without limit; `None` only after [`Transport::stop`]. Cancel safe until then.
    fn receive(&self) -> impl Future<Output = Option<Delivery<Self::Receipt>>> + Send;

    /// Sends a message to a queue. On success the broker has stored it. A message that results from a delivery, `source`, is sent
    /// through its connection, and keeps its properties.
    fn publish(
        &self,
        source: Option<&Self::Receipt>,
        message: &Message<'_>,
    ) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// Acknowledges a message.
    fn acknowledge(&self, receipt: Self::Receipt) -> impl Future<Output = ()> + Send;

    /// Whether the broker delivers a message again, whatever becomes of this delivery.
    fn is_lost(&self, receipt: &Self::Receipt) -> bool;

    /// Waits until [`Transport::is_lost`].
    fn lost(&self, receipt: &Self::Receipt) -> impl Future<Output = ()> + Send;

    /// Returns a message to the queue.
    fn give_back(&self, receipt: Self::Receipt) -> impl Future<Output = ()> + Send;

    /// Pauses receiving, and returns received messages that [`Transport::receive`] has not passed on. Callers may wait in it.
    fn pause(&self) -> impl Future<Output = ()> + Send;

    /// Resumes receiving.
    fn resume(&self) -> impl Future<Output = ()> + Send;

    /// Stops receiving messages. Received ones can still be settled.
    fn stop(&self) -> impl Future<Output = ()> + Send;

    /// Settles the remaining messages and disconnects.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// Whether messages can be received and sent now.
    fn is_connected(&self) -> bool;
}

/// Exponential back-off with jitter.
#[derive(Debug)]
pub struct Backoff {
    failures: u32,
    base: Duration,
    cap: Duration,
}

impl Backoff {
    /// Starts at about `base`, up to about `cap`.
    pub fn new(base: Duration, cap: Duration) -> Self {
        Self { failures: 0, base, cap }
    }

    /// Resets the pause after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// The next pause.
    pub fn pause(&mut self) -> Duration {
        let pause = self
            .base
            .saturating_mul(2_u32.saturating_pow(self.failures))
            .min(self.cap);
        self.failures = self.failures.saturating_add(1);
        jittered(pause)
    }
}

/// A random duration between half of the given one and all of it.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + 0.5 * random_fraction())
}

/// A random number from the seed of the standard library's hasher, which is good enough to spread retries.
fn random_fraction() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    let bits = RandomState::new().hash_one(0_u8);
    f64::from(u32::try_from(bits >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}

/// An error with its causes, in one line.
pub fn with_cause(error: &dyn std::error::Error) -> String {
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
