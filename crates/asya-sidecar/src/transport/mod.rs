//! Queues, as little of them as the sidecar needs.
//!
//! | module | what |
//! |---|---|
//! | [`rabbitmq`] | AMQP 0-9-1: publisher confirms, mandatory publishing, acknowledgements in batches |
//! | [`sqs`] | Amazon SQS: hidden while worked on, deleted when done |

pub mod rabbitmq;
pub mod sqs;

use std::time::Duration;

/// A message that was taken from our queue and is not acknowledged yet.
#[derive(Debug)]
pub struct Delivery<R> {
    /// The message.
    pub body: Vec<u8>,
    /// Headers of the transport that are kept at the next hop.
    pub headers: Headers,
    /// How often the broker has delivered it, this time included; `None` where it does not count.
    pub deliveries: Option<u32>,
    /// What the transport needs to settle it.
    pub receipt: R,
}

/// Text headers beside the message.
pub type Headers = Vec<(String, String)>;

/// Why a message was not taken by a queue.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The connection is gone. The broker gives the source message out again, so there is nothing left to do.
    #[error("the connection to the broker is lost")]
    Lost,
    /// There is no such queue.
    #[error("{0}")]
    NoQueue(String),
    /// The queue does not take a message of this size.
    #[error("{0}")]
    TooLarge(String),
    /// The broker refused it for now.
    #[error("{0}")]
    Refused(String),
}

/// A broker.
pub trait Transport: Send + Sync + 'static {
    /// What settles a delivery.
    type Receipt: Send + Sync + 'static;

    /// The next message of our queue. It reconnects for ever; `None` only after [`Transport::stop`].
    fn receive(&self) -> impl Future<Output = Option<Delivery<Self::Receipt>>> + Send;

    /// Sends a message to a queue; done means that the broker has taken responsibility for it.
    fn publish(
        &self,
        source: &Self::Receipt,
        queue: &str,
        body: &[u8],
        headers: &Headers,
    ) -> impl Future<Output = Result<(), PublishError>> + Send;

    /// The message is done with.
    fn acknowledge(&self, receipt: Self::Receipt) -> impl Future<Output = ()> + Send;

    /// The message goes back to the queue.
    fn give_back(&self, receipt: Self::Receipt) -> impl Future<Output = ()> + Send;

    /// Takes no further messages. Those in flight can still be settled.
    fn stop(&self) -> impl Future<Output = ()> + Send;

    /// Settles what is under way and disconnects.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// Whether messages can come and go at this moment.
    fn is_connected(&self) -> bool;
}

/// Pauses between attempts: doubling, capped, and never the same for two sidecars.
#[derive(Debug)]
pub struct Backoff {
    failures: u32,
    base: Duration,
    cap: Duration,
}

impl Backoff {
    /// Begins with about `base` and ends at about `cap`.
    pub fn new(base: Duration, cap: Duration) -> Self {
        Self { failures: 0, base, cap }
    }

    /// After a success.
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

/// Between half of it and all of it.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + 0.5 * random_fraction())
}

/// The standard library's hasher is seeded by the system: randomness enough to spread retries.
fn random_fraction() -> f64 {
    use std::hash::{BuildHasher as _, RandomState};
    let bits = RandomState::new().hash_one(0_u8);
    f64::from(u32::try_from(bits >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}
