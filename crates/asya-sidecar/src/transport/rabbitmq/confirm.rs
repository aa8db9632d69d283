//! Publishing with confirms, and exactly which message was returned as unroutable.
//!
//! A returned message comes before its confirm, but lapin hands it to whichever confirm it resolves next; when one confirm
//! covers several messages, that can be the wrong one, and a message for a missing queue would pass as delivered. So
//! every message carries its number, and outcomes are read in order and only when a whole confirm has been taken in.

use std::collections::{BTreeSet, VecDeque};

use futures::FutureExt as _;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::transport::{Headers, PublishError};

const PERSISTENT: u8 = 2;

/// What the broker made of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Published {
    /// It is in a queue.
    Routed,
    /// No queue took it.
    Unroutable,
}

type Answer = Result<Published, PublishError>;

/// The publishing channel.
#[derive(Debug)]
pub(super) struct Publisher {
    /// Locked while a message is written: confirms are numbered by the order of writing.
    writing: Mutex<Writing>,
    dead: CancellationToken,
}

#[derive(Debug)]
struct Writing {
    channel: Channel,
    number: u64,
    unconfirmed: mpsc::UnboundedSender<Unconfirmed>,
}

#[derive(Debug)]
struct Unconfirmed {
    number: u64,
    confirm: PublisherConfirm,
    answer: oneshot::Sender<Answer>,
}

impl Publisher {
    pub(super) fn start(channel: Channel, dead: CancellationToken) -> Self {
        let (unconfirmed, queue) = mpsc::unbounded_channel();
        tokio::spawn(settle(channel.clone(), queue, dead.clone()));
        let writing = Writing {
            channel,
            number: 0,
            unconfirmed,
        };
        Self {
            writing: Mutex::new(writing),
            dead,
        }
    }

    /// Done means confirmed.
    pub(super) async fn publish(&self, exchange: &str, key: &str, body: &[u8], headers: &Headers) -> Answer {
        let (answer, told) = oneshot::channel();
        let told_in_time = async {
            self.write(exchange, key, body, headers, answer).await?;
            told.await.map_err(|_| PublishError::Lost)?
        };
        tokio::select! {
            outcome = told_in_time => outcome,
            () = self.dead.cancelled() => Err(PublishError::Lost),
        }
    }

    async fn write(
        &self,
        exchange: &str,
        key: &str,
        body: &[u8],
        headers: &Headers,
        answer: oneshot::Sender<Answer>,
    ) -> Result<(), PublishError> {
        let mut writing = self.writing.lock().await;
        writing.number += 1;
        let number = writing.number;
        let options = BasicPublishOptions {
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let promise = writing
            .channel
            .basic_publish(exchange.into(), key.into(), options, body, properties(number, headers))
            .await
            .map_err(|error| {
                tracing::warn!(%error, "the publishing channel is closed");
                self.dead.cancel();
                PublishError::Lost
            })?;
        let message = Unconfirmed {
            number,
            confirm: promise,
            answer,
        };
        writing.unconfirmed.send(message).map_err(|_| PublishError::Lost)
    }
}

fn properties(number: u64, headers: &Headers) -> BasicProperties {
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("application/json".into())
        .with_message_id(number.to_string().into());
    if headers.is_empty() {
        return properties;
    }
    let mut table = FieldTable::default();
    for (key, value) in headers {
        table.insert(
            key.as_str().into(),
            AMQPValue::LongString(LongString::from(value.as_str())),
        );
    }
    properties.with_headers(table)
}

/// Reads outcomes in the order of writing.
async fn settle(channel: Channel, mut confirms: mpsc::UnboundedReceiver<Unconfirmed>, dead: CancellationToken) {
    let mut waiting = VecDeque::new();
    let mut returned = BTreeSet::new();
    loop {
        let mut head: Unconfirmed = match waiting.pop_front() {
            Some(head) => head,
            None => match confirms.recv().await {
                Some(head) => head,
                None => return,
            },
        };
        let outcome = tokio::select! {
            outcome = &mut head.confirm => outcome,
            () = dead.cancelled() => return,
        };
        // lapin resolves all messages of one confirm under a lock that this call takes, too: after it, all are resolved.
        let _ = channel.wait_for_confirms().now_or_never();

        let mut group = vec![(head, outcome)];
        while let Ok(further) = confirms.try_recv() {
            waiting.push_back(further);
        }
        while let Some(outcome) = waiting.front_mut().and_then(|next| (&mut next.confirm).now_or_never()) {
            group.extend(waiting.pop_front().map(|next| (next, outcome)));
        }
        returned.extend(group.iter().filter_map(|(_, outcome)| returned_number(outcome)));
        for (message, outcome) in group {
            let answer = match outcome {
                Ok(_) if returned.remove(&message.number) => Ok(Published::Unroutable),
                Ok(Confirmation::Ack(_) | Confirmation::NotRequested) => Ok(Published::Routed),
                Ok(Confirmation::Nack(_)) => Err(PublishError::Refused("the broker refused the message".to_owned())),
                Err(error) => {
                    tracing::debug!(%error, "no confirm");
                    dead.cancel();
                    Err(PublishError::Lost)
                }
            };
            let _ = message.answer.send(answer);
        }
    }
}

/// The number of the message that came back with this confirm. It need not be the confirmed one.
fn returned_number(outcome: &lapin::Result<Confirmation>) -> Option<u64> {
    let Ok(Confirmation::Ack(Some(message)) | Confirmation::Nack(Some(message))) = outcome else {
        return None;
    };
    message.delivery.properties.message_id().as_ref()?.as_str().parse().ok()
}
