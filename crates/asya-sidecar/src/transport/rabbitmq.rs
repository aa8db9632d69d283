//! RabbitMQ. Results are published and confirmed before the message is acknowledged. After a lost connection the broker delivers
//! unacknowledged messages again.
//!
//! A `Session` is one connection with two channels, so that an error on the publishing channel does not close the consumer. A
//! delivery belongs to its session and is dropped with it.

mod confirms;
mod session;
mod tags;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use amq_protocol::uri::AMQPUri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::{Backoff, Delivery, Headers, PublishError, Transport};
use crate::with_cause;
use confirms::Published;
use session::Session;

const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Address of the broker, and names on it.
#[derive(Clone)]
pub struct Config {
    /// URI of the broker.
    pub uri: AMQPUri,
    /// Topic exchange for all messages. If empty, the default exchange.
    pub exchange: String,
    /// Queue of this actor.
    pub queue: String,
    /// Dead-letter queue of this actor.
    pub dead_letter: String,
    /// Additional routing keys of the queue.
    pub extra_keys: Vec<String>,
    /// Prefetch count: largest number of unacknowledged messages.
    pub prefetch: u16,
    /// Whether to create the queues if they do not exist.
    pub create_queues: bool,
}

/// Omits the password.
impl fmt::Debug for Config {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Config");
        shown.field("place", &place(&self.uri)).field("queue", &self.queue);
        shown.finish_non_exhaustive()
    }
}

/// The transport.
#[derive(Debug)]
pub struct RabbitMq {
    exchange: String,
    deliveries: Mutex<mpsc::UnboundedReceiver<Delivery<Receipt>>>,
    session: watch::Receiver<Option<Arc<Session>>>,
    stopping: CancellationToken,
}

/// Data with which a delivery is settled.
#[derive(Debug)]
pub struct Receipt {
    tag: u64,
    session: Arc<Session>,
}

impl RabbitMq {
    /// Connects in the background, and reconnects until [`Transport::stop`].
    pub fn start(config: Config) -> Self {
        let (deliveries_in, deliveries) = mpsc::unbounded_channel();
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

/// Reads deliveries from a stream until it ends. For the fuzz targets.
#[doc(hidden)]
pub async fn deliveries_over(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    config: &Config,
) -> Vec<Delivery<Receipt>> {
    let (deliveries_in, mut deliveries) = mpsc::unbounded_channel();
    if let Ok((_, running)) = Session::over(Box::new(stream), config, &deliveries_in).await {
        running.run().await;
    }
    let mut all = Vec::new();
    while let Ok(delivery) = deliveries.try_recv() {
        all.push(delivery);
    }
    all
}

async fn keep_connected(
    config: Config,
    deliveries: mpsc::UnboundedSender<Delivery<Receipt>>,
    current: watch::Sender<Option<Arc<Session>>>,
    stopping: CancellationToken,
) {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    // The broker reports its limit when it closes a session; the next session respects it.
    let largest = Arc::new(AtomicUsize::new(usize::MAX));
    while !stopping.is_cancelled() {
        let opened = Session::open(&config, &deliveries, &largest);
        match tokio::time::timeout(CONNECT_PATIENCE, opened).await {
            Ok(Ok((session, running))) => {
                tracing::info!(queue = config.queue, "consuming");
                backoff.reset();
                current.send_replace(Some(session));
                running.run().await;
                if stopping.is_cancelled() {
                    return;
                }
                current.send_replace(None);
                tracing::warn!("lost the connection to RabbitMQ; unacknowledged messages will be delivered again");
            }
            Ok(Err(error)) => {
                let why = with_cause(&error);
                tracing::warn!("cannot consume from RabbitMQ at {}: {why}", place(&config.uri));
            }
            Err(_) => tracing::warn!("RabbitMQ at {} does not answer", place(&config.uri)),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stopping.cancelled() => {}
        }
    }
}

/// Host and port, without the password.
fn place(uri: &AMQPUri) -> String {
    format!("{}:{}", uri.authority.host, uri.authority.port)
}

impl Transport for RabbitMq {
    type Receipt = Receipt;

    async fn receive(&self) -> Option<Delivery<Receipt>> {
        let mut deliveries = self.deliveries.lock().await;
        loop {
            let delivery = tokio::select! {
                biased;
                () = self.stopping.cancelled() => break,
                delivery = deliveries.recv() => delivery?,
            };
            // Deliveries of an ended session are delivered again.
            if !delivery.receipt.session.dead.is_cancelled() {
                return Some(delivery);
            }
        }
        while let Ok(delivery) = deliveries.try_recv() {
            self.give_back(delivery.receipt).await;
        }
        None
    }

    async fn publish(&self, source: &Receipt, queue: &str, body: &[u8], headers: &Headers) -> Result<(), PublishError> {
        if queue.len() > usize::from(u8::MAX) {
            let text = format!("the queue name {queue:.100}… is longer than the 255 bytes of AMQP");
            return Err(PublishError::NoQueue(text));
        }
        let session = &source.session;
        match session.publish(&self.exchange, queue, body, headers).await? {
            Published::Routed => return Ok(()),
            Published::Unroutable if self.exchange.is_empty() => {}
            // It is not bound to the exchange. The default exchange routes to every queue by its name.
            Published::Unroutable => {
                if let Published::Routed = session.publish("", queue, body, headers).await? {
                    return Ok(());
                }
            }
        }
        Err(PublishError::NoQueue(format!("queue {queue} does not exist")))
    }

    async fn acknowledge(&self, receipt: Receipt) {
        receipt.session.acknowledge(receipt.tag);
    }

    async fn give_back(&self, receipt: Receipt) {
        receipt.session.give_back(receipt.tag);
    }

    async fn stop(&self) {
        self.stopping.cancel();
        let session = self.session.borrow().clone();
        if let Some(session) = session {
            session.stop_consuming();
        }
    }

    async fn close(&self) {
        let session = self.session.borrow().clone();
        if let Some(session) = session {
            session.close().await;
        }
    }

    fn is_connected(&self) -> bool {
        self.session
            .borrow()
            .as_ref()
            .is_some_and(|session| !session.dead.is_cancelled())
    }
}
