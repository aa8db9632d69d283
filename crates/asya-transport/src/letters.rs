//! Numbers of messages, and dead letters, as operators see them. [`crate::operate`] asks a broker for them.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::Headers;

/// Longest wait for an answer of a broker.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Numbers of messages of an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Numbers {
    /// Messages that wait for a consumer.
    pub waiting: u64,
    /// Messages that consumers have and have not acknowledged. `None` if the broker does not report it.
    pub running: Option<u64>,
    /// Consumers. `None` if the broker does not know them.
    pub consumers: Option<u64>,
    /// Messages in the dead-letter queue. `None` if the queue does not exist.
    pub dead: Option<u64>,
}

/// Message in a dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Content; `None` if it is larger than [`Visit::largest`].
    pub body: Option<Bytes>,
    /// Bytes of the content.
    pub size: u64,
    /// Transport headers.
    pub headers: Headers,
    /// Reason of the broker, such as `delivery_limit`; `None` if a client sent the message to the dead-letter queue.
    pub reason: Option<String>,
    /// Time of the broker's decision, in seconds since 1970.
    pub since: Option<u64>,
}

/// Decision about a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It returns to the dead-letter queue.
    Keep,
    /// It is sent to the queue again, and deleted when the broker has confirmed that.
    Redrive,
    /// It is deleted.
    Drop,
}

/// Decides about each dead letter.
pub type Decide = Box<dyn FnMut(&DeadLetter) -> Fate + Send>;

/// Visit to the dead letters of a queue, each of which is seen once.
pub struct Visit {
    /// Queue of the actor.
    pub queue: String,
    /// Its dead-letter queue.
    pub dead_letters: String,
    /// Largest number of dead letters that are looked at.
    pub most: usize,
    /// Largest content that is read, in bytes. Larger dead letters can only be kept or dropped.
    pub largest: u64,
    /// No further dead letter is looked at after this time.
    pub until: Instant,
    /// Decides about each dead letter.
    pub decide: Decide,
}

impl Visit {
    /// The decision about a dead letter.
    pub(crate) fn fate(&mut self, letter: &DeadLetter) -> Fate {
        match (self.decide)(letter) {
            Fate::Redrive if letter.body.is_none() => Fate::Keep,
            fate => fate,
        }
    }

    /// Whether to look at another dead letter after `seen`.
    pub(crate) fn continues(&self, seen: usize) -> bool {
        seen < self.most && Instant::now() < self.until
    }
}

/// Result of a visit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visited {
    /// Dead letters at the start.
    pub count: u64,
    /// Dead letters that were redriven or dropped.
    pub settled: u64,
}

/// Failed visit, or numbers that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The queue does not exist.
    #[error("queue {0} does not exist")]
    NoQueue(String),
    /// The broker cannot be reached or asked.
    #[error("{0}")]
    Unreachable(String),
    /// A visit ended early. Dead letters that are not settled stay in their queue.
    #[error("{why}; {settled} dead letters were processed, and one more may be sent twice if the request is repeated")]
    Interrupted {
        /// Dead letters that were redriven or dropped.
        settled: u64,
        /// Cause.
        why: String,
    },
}
