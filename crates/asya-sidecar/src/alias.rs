//! Alias of the actor's queue: messages in the queue of the public Asya v0.1 are moved to the actor's own queue, and then processed like
//! all others. A message that is moved when the sidecar is killed can be in both queues, and is never in none.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::transport::{Backoff, Delivery, Headers, Message, PublishError, Transport};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Moves messages to the queue `to` until `from` is stopped. A message that is not moved when `give_up` is cancelled returns to its
/// queue.
pub async fn forward<T: Transport>(from: Arc<T>, to: String, metrics: Arc<Metrics>, give_up: CancellationToken) {
    while let Some(delivery) = from.receive().await {
        let moved = tokio::select! {
            moved = send(&*from, &to, &delivery) => Some(moved),
            () = give_up.cancelled() => None,
        };
        match moved {
            Some(Ok(())) => {
                metrics.moved();
                from.acknowledge(delivery.receipt).await;
            }
            Some(Err(Lost)) => {}
            None => from.give_back(delivery.receipt).await,
        }
    }
}

/// The connection is lost, and the broker delivers the message again.
struct Lost;

/// Sends a message until its queue accepts it. It is not returned in the meantime, because brokers limit the number of returns.
async fn send<T: Transport>(from: &T, to: &str, delivery: &Delivery<T::Receipt>) -> Result<(), Lost> {
    let none = Headers::new();
    let mut headers = &delivery.headers;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let message = Message {
            queue: to,
            body: delivery.body.clone(),
            headers,
            index: 0,
        };
        match from.publish(Some(&delivery.receipt), &message).await {
            Ok(()) => return Ok(()),
            Err(PublishError::Lost) => return Err(Lost),
            Err(PublishError::HeadersTooLarge(_)) if !headers.is_empty() => headers = &none,
            Err(error) => {
                tracing::error!(to, %error, "cannot move a message to the queue of the actor (ASYA_QUEUE_ALIAS)");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}
