//! RabbitMQ. Publish, confirm, then acknowledge; a lost connection means that the broker gives out again what was in flight.
//!
//! One connection with two channels at a time, a `Session`: an error of the publishing channel must not take the consumer along
//! unseen, and everything of a session dies with it. A delivery belongs to its session; when that is dead, work on it is dropped.

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

/// How to reach the broker, and what is ours there.
#[derive(Clone)]
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

/// Without the password.
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

/// What settles a delivery.
#[derive(Debug)]
pub struct Receipt {
    tag: u64,
    session: Arc<Session>,
}

impl RabbitMq {
    /// Starts to connect, and goes on connecting until [`Transport::stop`].
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

/// What is delivered by whoever is at the other end of a stream, until it ends. For the fuzz targets.
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
    // The broker says what it takes when it is too late: for that session, not for the next.
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
                tracing::warn!("the connection to RabbitMQ is lost; what was in flight will be delivered again");
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

/// Host and port. Never the password.
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
            // What was waiting here when its session ended is on its way to us again.
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
            // Not bound to the exchange; the default exchange reaches every queue by its name.
            Published::Unroutable => {
                if let Published::Routed = session.publish("", queue, body, headers).await? {
                    return Ok(());
                }
            }
        }
        Err(PublishError::NoQueue(format!("there is no queue {queue}")))
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
