//! Processing of a message: receive it, call the runtime, decide, send, wait for the confirms, acknowledge.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::metrics::{Metrics, Reason, Status};
use crate::plan::{self, Actor, Admission, Decision, Destination, Failures, Kind, Outgoing, Policy};
use crate::queues::Queues;
use crate::runtime::Caller;
use crate::transport::{Backoff, Delivery, PublishError, Transport, jittered};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// State shared by all messages.
#[derive(Debug)]
pub struct Shared<T> {
    /// Client of the broker.
    pub transport: T,
    /// The actor of this sidecar.
    pub actor: Actor,
    /// Limits and retries.
    pub policy: Policy,
    /// Names of queues.
    pub queues: Queues,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Cancelled at the end of the drain timeout. Messages that are not settled by then return to the queue.
    pub give_up: CancellationToken,
    /// Tasks that send and settle messages.
    pub settling: TaskTracker,
}

/// Processes messages until the transport is stopped. Results are sent while the next call runs.
pub async fn work<T: Transport>(shared: Arc<Shared<T>>, mut caller: Caller) {
    let mut waiting = Instant::now();
    while let Some(delivery) = shared.transport.receive().await {
        let started = Instant::now();
        shared.metrics.received(delivery.body.len(), started - waiting);
        shared.metrics.active.inc();
        let decided = tokio::select! {
            decided = handle(&shared, &mut caller, &delivery) => Some(decided),
            () = shared.give_up.cancelled() => None,
        };
        let Some(outgoing) = decided else {
            shared.transport.give_back(delivery.receipt).await;
            shared.metrics.active.dec();
            waiting = Instant::now();
            continue;
        };
        let settling = Arc::clone(&shared);
        shared.settling.spawn(async move {
            settle(&settling, delivery, outgoing).await;
            settling.metrics.active.dec();
            settling.metrics.settled(started.elapsed());
        });
        waiting = Instant::now();
    }
}

/// Calls the runtime, with retries, until there is a result to send. The message stays unacknowledged.
async fn handle<T: Transport>(
    shared: &Shared<T>,
    caller: &mut Caller,
    delivery: &Delivery<T::Receipt>,
) -> Vec<Outgoing> {
    let Shared { actor, policy, .. } = shared;
    let body = &delivery.body;
    let mut failures = Failures::default();
    loop {
        caller.ready().await;
        let decision = match plan::admit(actor, policy, body, delivery.deliveries, now()) {
            Admission::Refuse(decision) => {
                shared.metrics.failed(Reason::validation_error);
                decision
            }
            Admission::Call { envelope, limit } => {
                let started = Instant::now();
                let outcome = caller.call(body, limit).await;
                shared.metrics.executed(started.elapsed());
                let decision = plan::decide(actor, policy, body, envelope.as_deref(), &outcome, failures);
                count(&shared.metrics, actor, &decision);
                decision
            }
        };
        match decision {
            Decision::Send(outgoing) => return outgoing,
            Decision::Retry {
                after,
                failures: so_far,
                why,
            } => {
                tracing::warn!(why, ?after, "retrying");
                failures = so_far;
                shared.metrics.retried();
                tokio::time::sleep(jittered(after)).await;
            }
        }
    }
}

fn count(metrics: &Metrics, actor: &Actor, decision: &Decision) {
    let Decision::Send(outgoing) = decision else { return };
    match outgoing.first() {
        None => metrics.processed(Status::end_consumed),
        Some(first) if matches!(first.kind, Kind::ErrorEnd | Kind::DeadLetter) => {
            tracing::warn!(actor = actor.name, "message failed");
            metrics.failed(Reason::runtime_error);
        }
        Some(Outgoing { body: None, .. }) => metrics.processed(Status::empty_response),
        Some(_) => metrics.processed(Status::success),
    }
}

/// Sends all results, then acknowledges. If the connection is lost, the broker delivers the message again.
async fn settle<T: Transport>(shared: &Shared<T>, delivery: Delivery<T::Receipt>, outgoing: Vec<Outgoing>) {
    let all_sent = async {
        for message in outgoing {
            send(shared, &delivery, message).await?;
        }
        Ok::<_, Lost>(())
    };
    let outcome = tokio::select! {
        outcome = all_sent => Some(outcome),
        () = shared.give_up.cancelled() => None,
    };
    match outcome {
        Some(Ok(())) => shared.transport.acknowledge(delivery.receipt).await,
        Some(Err(Lost)) => {}
        None => shared.transport.give_back(delivery.receipt).await,
    }
}

/// The connection is lost, and the broker delivers the message again.
struct Lost;

/// Sends a message. If its queue does not accept it, sends it to error-end, then to the dead-letter queue, until one accepts it.
async fn send<T: Transport>(
    shared: &Shared<T>,
    delivery: &Delivery<T::Receipt>,
    mut message: Outgoing,
) -> Result<(), Lost> {
    let Delivery {
        body, headers, receipt, ..
    } = delivery;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    loop {
        let queue = match &message.to {
            Destination::Actor(name) => shared.queues.of(name),
            Destination::DeadLetter => shared.queues.dead_letter.clone(),
        };
        let bytes = message.body.as_deref().unwrap_or(body);
        let started = Instant::now();
        let error = match shared.transport.publish(receipt, &queue, bytes, headers).await {
            Ok(()) => {
                shared
                    .metrics
                    .sent(&queue, message.kind, bytes.len(), started.elapsed());
                return Ok(());
            }
            Err(PublishError::Lost) => return Err(Lost),
            Err(error) => error,
        };
        let why = error.to_string();
        tracing::error!(queue, why, "cannot send a message");
        let undeliverable = |told| plan::undeliverable(&shared.actor, message.kind, told, &why);
        let instead = match error {
            PublishError::NoQueue(_) => undeliverable(bytes),
            // It would also be too large in an error envelope, so error-end gets the received message.
            PublishError::TooLarge(_) => undeliverable(body),
            PublishError::Lost | PublishError::Refused(_) => None,
        };
        if let Some(instead) = instead {
            shared.metrics.failed(match instead.kind {
                Kind::DeadLetter => Reason::error_queue_send_failed,
                _ => Reason::routing_error,
            });
            message = instead;
        } else {
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}

fn now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "the edge: plans get the time from here")]
    Timestamp::now()
}
