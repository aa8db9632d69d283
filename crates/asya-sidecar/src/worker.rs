//! Processing of a message: receive it, call the runtime, decide, send, wait for the confirms, acknowledge.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::crashes::Crashes;
use crate::finished::{Finished, Response};
use crate::gate::Gate;
use crate::metrics::{Metrics, Reason, Status};
use crate::plan::{self, Actor, Admission, Decision, Destination, Failures, Kind, Outcome, Outgoing, Policy};
use crate::progress::{Reporter, Step};
use crate::runtime::Caller;
use crate::transport::queues::{self, Queues};
use crate::transport::{Backoff, Delivery, Headers, Message, PublishError, Transport, jittered};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// First pause after the handler reports that a service is down.
const FIRST_HOLD: Duration = Duration::from_secs(1);
/// Time after which a message returns to the queue if the service is still down. Brokers count returned messages and limit the
/// count, so it is long; with the next call it is below the consumer timeout that the operator sets, and RabbitMQ's default of 30
/// minutes.
const LONGEST_HOLD: Duration = Duration::from_mins(8);
/// Pause after the runtime closed an idle connection.
const CONNECT_AGAIN: Duration = Duration::from_millis(100);
/// Longest wait for the runtime before messages return to the queue. A runtime that restarts at once needs less.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(2);

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
    /// Whether queues also have the names of the public Asya v0.1.
    pub has_alias: bool,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Pauses receiving while no worker can process messages.
    pub gate: Gate,
    /// Messages during whose call the runtime died.
    pub crashes: Crashes,
    /// Results whose connection was lost.
    pub finished: Finished,
    /// Reports progress, if there is a gateway.
    pub reporter: Option<Reporter>,
    /// Cancelled when the sidecar shuts down.
    pub stopping: CancellationToken,
    /// Cancelled at the end of the drain timeout. Messages that are not settled by then return to the queue.
    pub give_up: CancellationToken,
    /// Tasks that send and settle messages.
    pub settling: TaskTracker,
}

/// Fate of a message after the call.
enum Handled {
    /// Send these results, then acknowledge the message.
    Send(Results),
    /// Return the message to the queue, and pause for this time.
    Return(Duration),
    /// The broker delivers the message again.
    Lost,
}

/// Results of a message.
enum Results {
    Made(Vec<Outgoing>),
    /// Made from the items of the response when they are sent.
    Items(Response),
}

/// Processes messages until the transport is stopped. Messages are received only while the runtime is ready. Results are sent while
/// the next call runs.
pub async fn work<T: Transport>(shared: Arc<Shared<T>>, mut caller: Caller) {
    let mut hold = Backoff::new(FIRST_HOLD, LONGEST_PAUSE);
    let mut waiting = Instant::now();
    loop {
        until_ready(&shared, &mut caller).await;
        let received = tokio::select! {
            received = shared.transport.receive() => received,
            () = caller.lost(), if !shared.stopping.is_cancelled() => {
                // A runtime can accept connections and close them at once.
                tokio::time::sleep(CONNECT_AGAIN).await;
                continue;
            }
        };
        let Some(delivery) = received else { return };
        let started = Instant::now();
        shared.metrics.received(delivery.body.len(), started - waiting);
        shared.metrics.active.inc();
        let handled = tokio::select! {
            handled = handle(&shared, &mut caller, &delivery, &mut hold) => handled,
            () = shared.give_up.cancelled() => Handled::Return(Duration::ZERO),
        };
        match handled {
            // At once, because the next delivery can be that of this message.
            Handled::Send(Results::Items(response)) if shared.transport.is_lost(&delivery.receipt) => {
                shared.finished.keep(&delivery.body, response);
                shared.metrics.active.dec();
            }
            Handled::Send(results) => {
                let settling = Arc::clone(&shared);
                shared.settling.spawn(async move {
                    settle(&settling, delivery, results).await;
                    settling.metrics.active.dec();
                    settling.metrics.settled(started.elapsed());
                });
            }
            Handled::Lost => {
                shared.metrics.active.dec();
            }
            Handled::Return(pause) => {
                // First, so that the broker gives the message to another replica.
                shared.gate.leave(&shared.transport).await;
                shared.transport.give_back(delivery.receipt).await;
                shared.metrics.active.dec();
                shared.metrics.returned();
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shared.stopping.cancelled() => {}
                }
                wait(&shared, &mut caller).await;
                shared.gate.enter(&shared.transport).await;
            }
        }
        waiting = Instant::now();
    }
}

/// Waits until the runtime is ready, or the sidecar shuts down. Receiving pauses after [`RUNTIME_PATIENCE`].
async fn until_ready<T: Transport>(shared: &Shared<T>, caller: &mut Caller) {
    if is_soon_ready(shared, caller).await {
        return;
    }
    shared.gate.leave(&shared.transport).await;
    wait(shared, caller).await;
    shared.gate.enter(&shared.transport).await;
}

async fn is_soon_ready<T: Transport>(shared: &Shared<T>, caller: &mut Caller) -> bool {
    tokio::select! {
        ready = tokio::time::timeout(RUNTIME_PATIENCE, caller.ready()) => ready.is_ok(),
        () = shared.stopping.cancelled() => true,
    }
}

/// Waits until the runtime is ready, and reports why it is not.
async fn wait<T: Transport>(shared: &Shared<T>, caller: &mut Caller) {
    if is_soon_ready(shared, caller).await {
        return;
    }
    let is_hung = caller.may_be_busy();
    if is_hung {
        tracing::error!(
            "the runtime is still busy with a call that timed out (ASYA_RUNTIME_TIMEOUT); receiving no messages until it is free or restarted"
        );
        shared.metrics.hung.inc();
    } else {
        tracing::warn!("the runtime is not ready; receiving no messages until it is");
    }
    shared.metrics.not_ready.inc();
    tokio::select! {
        () = caller.ready() => tracing::info!("the runtime is ready again"),
        () = shared.stopping.cancelled() => {}
    }
    shared.metrics.not_ready.dec();
    if is_hung {
        shared.metrics.hung.dec();
    }
}

/// Calls the runtime, with retries, until there is a result to send. The message stays unacknowledged.
async fn handle<T: Transport>(
    shared: &Shared<T>,
    caller: &mut Caller,
    delivery: &Delivery<T::Receipt>,
    hold: &mut Backoff,
) -> Handled {
    let Shared { actor, policy, .. } = shared;
    let body = &delivery.body;
    if let Some(response) = shared.finished.take(body) {
        tracing::info!("sending the results of an earlier delivery, whose connection was lost");
        return Handled::Send(Results::Items(response));
    }
    let received = Instant::now();
    let mut failures = Failures {
        errors: 0,
        crashes: shared.crashes.of(body),
    };
    loop {
        if !is_soon_ready(shared, caller).await {
            return Handled::Return(Duration::ZERO);
        }
        if shared.transport.is_lost(&delivery.receipt) {
            return Handled::Lost;
        }
        let admission = match delivery.unreadable {
            Some(why) => Admission::Refuse(plan::unreadable(actor, body, why)),
            None => plan::admit(actor, policy, body, delivery.deliveries, now()),
        };
        let (decision, answer) = match admission {
            Admission::Refuse(decision) => {
                shared.metrics.failed(Reason::validation_error);
                (decision, Vec::new())
            }
            Admission::Call { envelope, limit } => {
                let report = |step| {
                    if let (Some(reporter), Some(envelope)) = (&shared.reporter, &envelope) {
                        reporter.report(envelope, step);
                    }
                };
                report(Step::Processing);
                let started = Instant::now();
                let outcome = caller.call(body, limit).await;
                shared.metrics.executed(started.elapsed());
                let decision = plan::decide(actor, policy, body, envelope.as_deref(), &outcome, failures);
                if matches!(decision, Decision::Send(_) | Decision::Forward(_)) {
                    report(Step::Completed);
                }
                count(&shared.metrics, actor, &decision);
                match outcome {
                    Outcome::Answer(answer) => (decision, answer),
                    _ => (decision, Vec::new()),
                }
            }
        };
        let results = match decision {
            Decision::Send(outgoing) => Results::Made(outgoing),
            Decision::Forward(items) => Results::Items(Response { answer, items }),
            Decision::Hold { why } => {
                let pause = hold.pause();
                if received.elapsed() > LONGEST_HOLD {
                    tracing::warn!(why, ?pause, "returning the message to the queue");
                    return Handled::Return(pause);
                }
                tracing::warn!(why, ?pause, "holding the message");
                shared.metrics.retried();
                tokio::select! {
                    () = tokio::time::sleep(pause) => continue,
                    () = shared.stopping.cancelled() => return Handled::Return(Duration::ZERO),
                }
            }
            Decision::Retry {
                after,
                failures: so_far,
                why,
            } => {
                tracing::warn!(why, ?after, "retrying");
                failures = so_far;
                shared.crashes.set(body, failures.crashes);
                shared.metrics.retried();
                tokio::time::sleep(jittered(after)).await;
                continue;
            }
        };
        hold.reset();
        shared.crashes.set(body, 0);
        return Handled::Send(results);
    }
}

fn count(metrics: &Metrics, actor: &Actor, decision: &Decision) {
    let outgoing = match decision {
        Decision::Send(outgoing) => outgoing,
        Decision::Forward(_) => return metrics.processed(Status::success),
        Decision::Hold { .. } | Decision::Retry { .. } => return,
    };
    match outgoing.first() {
        None => metrics.processed(Status::end_consumed),
        Some(first) if matches!(first.kind, Kind::ErrorEnd | Kind::DeadLetter) => {
            tracing::warn!(actor = actor.name, "message failed");
            metrics.failed(Reason::runtime_error);
        }
        Some(_) => metrics.processed(Status::empty_response),
    }
}

/// Sends all results, then acknowledges. If the connection is lost, the broker delivers the message again.
async fn settle<T: Transport>(shared: &Shared<T>, delivery: Delivery<T::Receipt>, results: Results) {
    let outcome = tokio::select! {
        outcome = send_all(shared, &delivery, results) => Some(outcome),
        () = shared.give_up.cancelled() => None,
    };
    match outcome {
        Some(Ok(())) => shared.transport.acknowledge(delivery.receipt).await,
        Some(Err(Lost)) => {}
        None => shared.transport.give_back(delivery.receipt).await,
    }
}

/// Sends all results. Keeps them if the connection is lost.
async fn send_all<T: Transport>(
    shared: &Shared<T>,
    delivery: &Delivery<T::Receipt>,
    results: Results,
) -> Result<(), Lost> {
    match results {
        Results::Made(outgoing) => {
            for message in outgoing {
                send(shared, delivery, message).await?;
            }
        }
        Results::Items(response) => {
            let sent = send_items(shared, delivery, &response).await;
            if sent.is_err() {
                shared.finished.keep(&delivery.body, response);
            }
            return sent;
        }
    }
    Ok(())
}

async fn send_items<T: Transport>(
    shared: &Shared<T>,
    delivery: &Delivery<T::Receipt>,
    Response { answer, items }: &Response,
) -> Result<(), Lost> {
    for message in plan::results(&shared.actor, &delivery.body, answer, items) {
        send(shared, delivery, message).await?;
    }
    Ok(())
}

/// The connection is lost, and the broker delivers the message again.
struct Lost;

/// Sends a message. If its queue does not accept it, sends it to error-end, then to the dead-letter queue, until one accepts it.
/// Receiving pauses as long as the user may not send it.
async fn send<T: Transport>(
    shared: &Shared<T>,
    delivery: &Delivery<T::Receipt>,
    message: Outgoing,
) -> Result<(), Lost> {
    let mut is_blocked = false;
    let sent = send_to_any(shared, delivery, message, &mut is_blocked).await;
    if is_blocked {
        tracing::info!("sending messages again");
        shared.metrics.blocked.dec();
        shared.gate.unblock(&shared.transport).await;
    }
    sent
}

async fn send_to_any<T: Transport>(
    shared: &Shared<T>,
    delivery: &Delivery<T::Receipt>,
    mut message: Outgoing,
    is_blocked: &mut bool,
) -> Result<(), Lost> {
    let none = Headers::new();
    let mut headers = &delivery.headers;
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut body = taken(&mut message, &delivery.body);
    loop {
        let queues = queues_of(shared, &message.to);
        let started = Instant::now();
        let (queue, published) = publish(shared, delivery, &queues, &body, headers, message.index).await;
        let error = match published {
            Ok(()) => {
                shared.metrics.sent(queue, message.kind, body.len(), started.elapsed());
                return Ok(());
            }
            Err(PublishError::Lost) => return Err(Lost),
            Err(error) => error,
        };
        let why = error.to_string();
        tracing::error!(queue, why, "cannot send a message");
        if matches!(error, PublishError::Forbidden(_)) && !std::mem::replace(is_blocked, true) {
            tracing::warn!("receiving no messages until their results can be sent");
            shared.metrics.blocked.inc();
            shared.gate.block(&shared.transport).await;
        }
        let no_reply = matches!(error, PublishError::NoQueue(_)) && matches!(message.to, Destination::Reply(_));
        let undeliverable = |reported| plan::undeliverable(&shared.actor, message.kind, no_reply, reported, &why);
        let instead = match error {
            PublishError::NoQueue(_) => undeliverable(&body),
            PublishError::TooLarge(_) => {
                plan::undeliverable_item(&shared.actor, message.kind, &delivery.body, &body, &why)
            }
            PublishError::HeadersTooLarge(_) if !headers.is_empty() => {
                headers = &none;
                match message.kind {
                    Kind::Routing | Kind::HappyEnd => undeliverable(&body),
                    Kind::ErrorEnd | Kind::DeadLetter => continue,
                }
            }
            PublishError::HeadersTooLarge(_)
            | PublishError::Lost
            | PublishError::Refused(_)
            | PublishError::Forbidden(_) => None,
        };
        if let Some(instead) = instead {
            shared.metrics.failed(match instead.kind {
                Kind::DeadLetter => Reason::error_queue_send_failed,
                _ => Reason::routing_error,
            });
            message = instead;
            body = taken(&mut message, &delivery.body);
        } else {
            tokio::select! {
                () = tokio::time::sleep(backoff.pause()) => {}
                () = shared.transport.lost(&delivery.receipt) => {}
            }
        }
    }
}

/// Queues of a destination, in the order in which they are tried.
fn queues_of<T>(shared: &Shared<T>, to: &Destination) -> Vec<String> {
    let name = match to {
        Destination::Actor(name) => name,
        Destination::Reply(name) => return vec![queues::reply(name)],
        Destination::DeadLetter => return vec![shared.queues.dead_letter.clone()],
    };
    let is_end = [&shared.actor.happy_end, &shared.actor.error_end].contains(&name);
    of_actor(&shared.queues, name, shared.has_alias, is_end)
}

/// Queues of an actor, in the order in which they are tried.
fn of_actor(queues: &Queues, name: &str, has_alias: bool, is_end: bool) -> Vec<String> {
    let own = queues.of(name);
    // A name with `_` would lead to the queue of another namespace, `asya-NAMESPACE_ACTOR`.
    if !has_alias || name.contains('_') {
        return vec![own];
    }
    // The operator creates the ends in each namespace, so the order decides who gets the results.
    let public = queues::public(name);
    if is_end { vec![public, own] } else { vec![own, public] }
}

/// Publishes a message to the first of these queues that exists. Returns its name, or that of the last.
async fn publish<'a, T: Transport>(
    shared: &Shared<T>,
    delivery: &Delivery<T::Receipt>,
    queues: &'a [String],
    body: &Bytes,
    headers: &Headers,
    index: usize,
) -> (&'a str, Result<(), PublishError>) {
    let mut missing = Vec::new();
    for queue in queues {
        let message = Message {
            queue,
            body: body.clone(),
            headers,
            index,
        };
        match shared.transport.publish(Some(&delivery.receipt), &message).await {
            Err(PublishError::NoQueue(why)) => missing.push(why),
            other => return (queue, other),
        }
    }
    let last = queues.last().map_or("", String::as_str);
    (last, Err(PublishError::NoQueue(missing.join("; "))))
}

/// Content of a message to send.
fn taken(message: &mut Outgoing, received: &Bytes) -> Bytes {
    message.body.take().map_or_else(|| received.clone(), Bytes::from)
}

fn now() -> Timestamp {
    #[expect(clippy::disallowed_methods, reason = "the edge: plans get the time from here")]
    Timestamp::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_leads_to_no_queue_of_another_namespace() {
        let queues = Queues::new(Some("team-a"), "embed");
        let of = |name, has_alias, is_end| of_actor(&queues, name, has_alias, is_end);
        assert_eq!(of("next", false, false), ["asya-team-a_next"]);
        assert_eq!(of("next", true, false), ["asya-team-a_next", "asya-next"]);
        assert_eq!(of("happy-end", true, true), ["asya-happy-end", "asya-team-a_happy-end"]);
        assert_eq!(of("team-b_payments", true, false), ["asya-team-a_team-b_payments"]);
    }
}
