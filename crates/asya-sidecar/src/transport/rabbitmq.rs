//! RabbitMQ. Publish, confirm, then acknowledge; a lost connection means that the broker gives out again what was in flight.
//!
//! One connection with two channels at a time, a [`Session`]: an error of the publishing channel must not take the consumer along
//! unseen, and everything of a session dies with it. A delivery belongs to its session; when that is dead, work on it is dropped.

mod acknowledge;
mod confirm;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use lapin::options::{
    BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, ConfirmSelectOptions,
    ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::uri::AMQPUri;
use lapin::{Channel, Connection, ConnectionProperties, Consumer, ExchangeKind};
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Backoff, Delivery, Headers, PublishError, Transport};
use acknowledge::Acknowledger;
use confirm::{Published, Publisher};

/// lapin keeps two buffers of 32 frames; with the broker's 128 KiB that would be 8 MiB for nothing.
const FRAME_MAX: u32 = 16 * 1024;
const HEARTBEAT_SECONDS: u16 = 20;
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// How to reach the broker, and what is ours there.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the broker is.
    pub uri: AMQPUri,
    /// The topic exchange everything is published to; empty is the default exchange.
    pub exchange: String,
    /// Our queue.
    pub queue: String,
    /// Our dead-letter queue.
    pub dead_letter: String,
    /// Further routing keys of our queue.
    pub extra_keys: Vec<String>,
    /// How many messages the broker hands out before it waits for acknowledgements.
    pub prefetch: u16,
    /// Make our queues if they are missing.
    pub create_queues: bool,
}

/// The transport.
#[derive(Debug)]
pub struct RabbitMq {
    exchange: String,
    deliveries: Mutex<mpsc::Receiver<Delivery<Receipt>>>,
    session: watch::Receiver<Option<Arc<Session>>>,
    stopping: CancellationToken,
}

/// What settles a delivery.
#[derive(Debug)]
pub struct Receipt {
    tag: u64,
    session: Arc<Session>,
}

/// One connection's worth of everything.
#[derive(Debug)]
pub struct Session {
    connection: Connection,
    consuming: Channel,
    consumer_tag: lapin::types::ShortString,
    publisher: Publisher,
    acknowledger: Acknowledger,
    dead: CancellationToken,
}

impl RabbitMq {
    /// Starts to connect, and goes on connecting until [`Transport::stop`].
    pub fn start(config: Config) -> Self {
        let (deliveries_in, deliveries) = mpsc::channel(usize::from(config.prefetch.max(1)));
        let (session_in, session) = watch::channel(None);
        let stopping = CancellationToken::new();
        let exchange = config.exchange.clone();
        tokio::spawn(keep_connected(config, deliveries_in, session_in, stopping.clone()));
        Self {
            exchange,
            deliveries: Mutex::new(deliveries),
            session,
            stopping,
        }
    }
}

async fn keep_connected(
    config: Config,
    deliveries: mpsc::Sender<Delivery<Receipt>>,
    current: watch::Sender<Option<Arc<Session>>>,
    stopping: CancellationToken,
) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    while !stopping.is_cancelled() {
        match tokio::time::timeout(CONNECT_PATIENCE, Session::open(&config)).await {
            Ok(Ok((session, consumer))) => {
                tracing::info!(queue = config.queue, "consuming");
                backoff.reset();
                let session = Arc::new(session);
                current.send_replace(Some(Arc::clone(&session)));
                forward(consumer, &session, &deliveries, &stopping).await;
                if stopping.is_cancelled() {
                    return;
                }
                session.end().await;
                current.send_replace(None);
                tracing::warn!("the connection to RabbitMQ is lost; what was in flight will be delivered again");
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot consume from RabbitMQ at {}", place(&config.uri)),
            Err(_) => tracing::warn!("RabbitMQ at {} does not answer", place(&config.uri)),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stopping.cancelled() => {}
        }
    }
}

/// Hands deliveries on until the session ends.
async fn forward(
    mut consumer: Consumer,
    session: &Arc<Session>,
    deliveries: &mpsc::Sender<Delivery<Receipt>>,
    stopping: &CancellationToken,
) {
    loop {
        let next = tokio::select! {
            next = consumer.next() => next,
            () = session.dead.cancelled() => return,
            () = stopping.cancelled() => return,
        };
        let delivery = match next {
            Some(Ok(delivery)) => delivery,
            Some(Err(error)) => {
                tracing::warn!(%error, "RabbitMQ ended the consumer");
                return;
            }
            // The broker cancels a consumer whose queue was deleted; connecting again makes the queue again.
            None => return,
        };
        let (headers, deliveries_before) = read_headers(delivery.properties.headers().as_ref());
        let message = Delivery {
            body: delivery.data,
            headers,
            deliveries: deliveries_before.map(|count| count + 1),
            receipt: Receipt {
                tag: delivery.delivery_tag,
                session: Arc::clone(session),
            },
        };
        tokio::select! {
            sent = deliveries.send(message) => if sent.is_err() { return },
            () = stopping.cancelled() => return,
        }
    }
}

impl Session {
    async fn open(config: &Config) -> Result<(Self, Consumer), lapin::Error> {
        let mut uri = config.uri.clone();
        uri.query.frame_max.get_or_insert(FRAME_MAX);
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        let properties =
            ConnectionProperties::default().with_connection_name(format!("asya-sidecar {}", config.queue).into());
        let connection = Connection::connect_uri(uri, properties).await?;
        ensure_queues(&connection, config).await?;

        let publishing = connection.create_channel().await?;
        publishing.confirm_select(ConfirmSelectOptions::default()).await?;
        let consuming = connection.create_channel().await?;
        consuming.basic_qos(config.prefetch, BasicQosOptions::default()).await?;
        let consumer = consuming
            .basic_consume(
                config.queue.as_str().into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        let dead = CancellationToken::new();
        let session = Self {
            publisher: Publisher::start(publishing, dead.clone()),
            acknowledger: Acknowledger::start(consuming.clone(), dead.clone()),
            consumer_tag: consumer.tag(),
            connection,
            consuming,
            dead,
        };
        Ok((session, consumer))
    }

    /// Whatever is still waiting for an answer of this connection stops waiting.
    async fn end(&self) {
        self.dead.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(1), self.connection.close(200, "bye".into())).await;
    }
}

/// A queue that exists is taken as it is, whatever its arguments: only a passive declaration does not compare them.
async fn ensure_queues(connection: &Connection, config: &Config) -> Result<(), lapin::Error> {
    if !config.exchange.is_empty() {
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        let channel = connection.create_channel().await?;
        let exchange = config.exchange.as_str();
        let declared = channel
            .exchange_declare(exchange.into(), ExchangeKind::Topic, options, FieldTable::default())
            .await;
        if let Err(error) = declared {
            tracing::warn!(%error, exchange, "the exchange cannot be declared as a durable topic exchange; it is used as it is");
        }
    }
    if !config.create_queues {
        return Ok(());
    }
    for queue in [&config.dead_letter, &config.queue] {
        ensure_queue(connection, queue).await?;
    }
    if config.exchange.is_empty() {
        return Ok(());
    }
    let channel = connection.create_channel().await?;
    for key in std::iter::once(&config.queue).chain(&config.extra_keys) {
        channel
            .queue_bind(
                config.queue.as_str().into(),
                config.exchange.as_str().into(),
                key.as_str().into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await?;
    }
    let _ = channel.close(200, "bound".into()).await;
    Ok(())
}

async fn ensure_queue(connection: &Connection, queue: &str) -> Result<(), lapin::Error> {
    let declare = async |passive: bool| {
        let options = QueueDeclareOptions {
            passive,
            durable: true,
            ..QueueDeclareOptions::default()
        };
        let channel = connection.create_channel().await?;
        channel
            .queue_declare(queue.into(), options, FieldTable::default())
            .await?;
        // A refused passive declaration has closed the channel already.
        let _ = channel.close(200, "declared".into()).await;
        Ok(())
    };
    if declare(true).await.is_ok() {
        return Ok(());
    }
    declare(false).await
}

/// Text headers to keep, and how often a quorum queue has delivered the message before.
fn read_headers(table: Option<&FieldTable>) -> (Headers, Option<u32>) {
    let mut headers = Headers::new();
    let mut deliveries = None;
    for (key, value) in table.into_iter().flat_map(FieldTable::inner) {
        let key = key.as_str();
        if key == "x-delivery-count" {
            deliveries = match value {
                AMQPValue::LongLongInt(count) => u32::try_from(*count).ok(),
                AMQPValue::LongInt(count) => u32::try_from(*count).ok(),
                AMQPValue::LongUInt(count) => Some(*count),
                AMQPValue::ShortInt(count) => u32::try_from(*count).ok(),
                AMQPValue::ShortShortInt(count) => u32::try_from(*count).ok(),
                _ => None,
            };
        } else if !key.starts_with("x-")
            && let AMQPValue::LongString(text) = value
            && let Ok(text) = std::str::from_utf8(text.as_bytes())
        {
            headers.push((key.to_owned(), text.to_owned()));
        }
    }
    (headers, deliveries)
}

/// Host and port. Never the password.
fn place(uri: &AMQPUri) -> String {
    format!("{}:{}", uri.authority.host, uri.authority.port)
}

impl Transport for RabbitMq {
    type Receipt = Receipt;

    async fn receive(&self) -> Option<Delivery<Receipt>> {
        loop {
            let delivery = self.deliveries.lock().await.recv().await?;
            if self.stopping.is_cancelled() {
                self.give_back(delivery.receipt).await;
                continue;
            }
            // What was waiting here when its session ended is on its way to us again.
            if !delivery.receipt.session.dead.is_cancelled() {
                return Some(delivery);
            }
        }
    }

    async fn publish(&self, source: &Receipt, queue: &str, body: &[u8], headers: &Headers) -> Result<(), PublishError> {
        if queue.len() > usize::from(u8::MAX) {
            let text = format!("the queue name {queue:.100}… is longer than the 255 bytes of AMQP");
            return Err(PublishError::NoQueue(text));
        }
        let publisher = &source.session.publisher;
        match publisher.publish(&self.exchange, queue, body, headers).await? {
            Published::Routed => return Ok(()),
            Published::Unroutable if self.exchange.is_empty() => {}
            // Not bound to the exchange; the default exchange reaches every queue by its name.
            Published::Unroutable => {
                if let Published::Routed = publisher.publish("", queue, body, headers).await? {
                    return Ok(());
                }
            }
        }
        Err(PublishError::NoQueue(format!("there is no queue {queue}")))
    }

    async fn acknowledge(&self, receipt: Receipt) {
        receipt.session.acknowledger.acknowledge(receipt.tag);
    }

    async fn give_back(&self, receipt: Receipt) {
        let options = BasicNackOptions {
            requeue: true,
            ..BasicNackOptions::default()
        };
        // On a dead connection the broker has taken it back already.
        let _ = receipt.session.consuming.basic_nack(receipt.tag, options).await;
    }

    async fn stop(&self) {
        self.stopping.cancel();
        let session = self.session.borrow().clone();
        if let Some(session) = session {
            let _ = session
                .consuming
                .basic_cancel(session.consumer_tag.clone(), BasicCancelOptions::default())
                .await;
        }
    }

    async fn close(&self) {
        let session = self.session.borrow().clone();
        if let Some(session) = session {
            session.acknowledger.flush().await;
            session.end().await;
        }
    }

    fn is_connected(&self) -> bool {
        self.session
            .borrow()
            .as_ref()
            .is_some_and(|session| !session.dead.is_cancelled())
    }
}
