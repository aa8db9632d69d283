//! RabbitMQ. Results are published and confirmed before the message is acknowledged. After a lost connection the broker delivers
//! unacknowledged messages again.
//!
//! A `Session` is one connection with two channels, so that an error on the publishing channel does not close the consumer. A
//! delivery belongs to its session and is dropped with it.

mod confirms;
mod frames;
pub(crate) mod letters;
mod session;
mod tags;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use amq_protocol::uri::AMQPUri;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::queues::Pair;
use crate::{Backoff, Delivery, Message, PublishError, Transport, is_redelivered, with_cause};
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
    /// File with the password, which is read for each connection. Takes precedence over the password of the URI.
    pub password_file: Option<PathBuf>,
    /// Certificate authorities in PEM format, or the path of a file with them. If empty, those of the system.
    pub authorities: String,
    /// Exchange that the queue is bound to, for other publishers. If empty, none.
    pub exchange: String,
    /// Type of this exchange, if it is created.
    pub exchange_kind: ExchangeKind,
    /// Exchange through which messages are published to queues, and `queues::REPLIES` to reply queues, with the verified name of the
    /// user. If absent, the default exchange, and no name.
    pub publish_exchange: Option<String>,
    /// Topic exchange that gets a copy of every sent message. If empty, none.
    pub tap_exchange: String,
    /// Queue of this actor.
    pub queue: String,
    /// Dead-letter queue of this actor.
    pub dead_letter: String,
    /// Additional routing keys of the queue.
    pub extra_keys: Vec<String>,
    /// Name of the program, for the broker's management UI.
    pub program: &'static str,
    /// Prefetch count: largest number of unacknowledged messages.
    pub prefetch: u16,
    /// Number of messages that are processed at once. The rest of the prefetch count is used only while the broker redelivers no
    /// message, so that a redelivered one does not wait here for others, whose fate it would share.
    pub at_once: u16,
    /// Whether to create the queues if they do not exist.
    pub create_queues: bool,
    /// Queues of the ends of routes, which are created, too.
    pub ends: Vec<Pair>,
    /// Whether queues are created as quorum queues, with their dead-letter queues and a limit of returns.
    pub quorum: bool,
    /// Largest message that is received, in bytes. A larger one is not kept in memory, and goes to the dead-letter queue, with which
    /// the queue is created.
    pub largest: Option<u64>,
}

/// Type of an exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    /// Keys are patterns.
    Topic,
    /// Keys are names.
    Direct,
}

impl ExchangeKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Direct => "direct",
        }
    }
}

impl Config {
    /// Signs in as a guest and consumes from a queue that exists. For brokers that follow a script: the fuzz targets and tests.
    #[doc(hidden)]
    #[must_use]
    pub fn of_script(heartbeat_seconds: u16) -> Self {
        let mut uri = AMQPUri::default();
        uri.query.heartbeat = Some(heartbeat_seconds);
        Self {
            uri,
            password_file: None,
            authorities: String::new(),
            exchange: String::new(),
            exchange_kind: ExchangeKind::Topic,
            publish_exchange: None,
            tap_exchange: String::new(),
            queue: "asya-a".to_owned(),
            dead_letter: "asya-dead".to_owned(),
            extra_keys: Vec::new(),
            program: "script",
            prefetch: 10,
            at_once: 10,
            create_queues: false,
            ends: Vec::new(),
            quorum: false,
            largest: None,
        }
    }
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
    received: Mutex<Received>,
    session: watch::Receiver<Option<Arc<Session>>>,
    demand: Arc<Demand>,
    stopping: CancellationToken,
}

/// Whether a session consumes when it is opened.
#[derive(Debug)]
struct Demand {
    /// Whether receiving is not paused.
    consuming: AtomicBool,
    /// Number of callers that wait for a delivery. While there are none, a message that is delivered again would only wait.
    idle: AtomicUsize,
}

impl Demand {
    fn is_paused(&self) -> bool {
        !self.consuming.load(Ordering::SeqCst)
    }

    fn exists(&self) -> bool {
        !self.is_paused() && self.idle.load(Ordering::SeqCst) > 0
    }

    /// Counts a caller that waits, until the returned value is dropped.
    fn wait(&self) -> impl Drop + Send + '_ {
        struct Idle<'a>(&'a AtomicUsize);
        impl Drop for Idle<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.idle.fetch_add(1, Ordering::SeqCst);
        Idle(&self.idle)
    }
}

/// Deliveries that no caller has yet. Redelivered ones come first.
#[derive(Debug)]
struct Received {
    incoming: mpsc::UnboundedReceiver<Delivery<Receipt>>,
    again: VecDeque<Delivery<Receipt>>,
    new: VecDeque<Delivery<Receipt>>,
}

impl Received {
    fn add(&mut self, delivery: Delivery<Receipt>) {
        if is_redelivered(delivery.deliveries) {
            self.again.push_back(delivery);
        } else {
            self.new.push_back(delivery);
        }
    }

    /// The next delivery. Those of an ended session are dropped, because the broker delivers them again.
    fn next(&mut self) -> Option<Delivery<Receipt>> {
        while let Ok(delivery) = self.incoming.try_recv() {
            self.add(delivery);
        }
        loop {
            let delivery = self.again.pop_front().or_else(|| self.new.pop_front())?;
            if !delivery.receipt.is_lost() {
                return Some(delivery);
            }
        }
    }

    /// Returns all of them to the queue.
    fn give_back(&mut self) {
        while let Some(delivery) = self.next() {
            delivery.receipt.session.give_back(delivery.receipt.tag);
        }
    }
}

/// Data with which a delivery is settled. Its session does not end before it is dropped, unless the connection is lost.
#[derive(Debug)]
pub struct Receipt {
    tag: u64,
    session: Arc<Session>,
    kept: Kept,
}

impl Receipt {
    fn new(tag: u64, session: &Arc<Session>, kept: Kept) -> Self {
        session.hold();
        Self {
            tag,
            session: Arc::clone(session),
            kept,
        }
    }

    fn is_lost(&self) -> bool {
        self.session.dead.is_cancelled()
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.session.release();
    }
}

/// Properties that the messages sent for a delivery get.
#[derive(Debug, Default)]
struct Kept {
    message_id: Option<String>,
    correlation_id: Option<String>,
}

impl RabbitMq {
    /// Connects in the background, and reconnects until [`Transport::stop`].
    pub fn start(config: Config) -> Self {
        let (deliveries_in, deliveries) = mpsc::unbounded_channel();
        let (session_in, session) = watch::channel(None);
        let stopping = CancellationToken::new();
        let demand = Arc::new(Demand {
            consuming: AtomicBool::new(true),
            idle: AtomicUsize::new(0),
        });
        let keeper = Keeper {
            config,
            deliveries: deliveries_in,
            current: session_in,
            demand: Arc::clone(&demand),
            stopping: stopping.clone(),
        };
        tokio::spawn(keeper.run());
        Self {
            received: Mutex::new(Received {
                incoming: deliveries,
                again: VecDeque::new(),
                new: VecDeque::new(),
            }),
            session,
            demand,
            stopping,
        }
    }

    fn current(&self) -> Option<Arc<Session>> {
        self.session.borrow().clone()
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

/// Connects, and reconnects.
struct Keeper {
    config: Config,
    deliveries: mpsc::UnboundedSender<Delivery<Receipt>>,
    current: watch::Sender<Option<Arc<Session>>>,
    demand: Arc<Demand>,
    stopping: CancellationToken,
}

impl Keeper {
    async fn run(self) {
        let Self {
            config,
            deliveries,
            current,
            demand,
            stopping,
        } = self;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        // The broker reports its limit when it closes a session; the next session respects it.
        let largest = Arc::new(AtomicUsize::new(usize::MAX));
        while !stopping.is_cancelled() {
            let opened = Session::open(&config, &deliveries, &largest, demand.exists());
            match tokio::time::timeout(CONNECT_PATIENCE, opened).await {
                Ok(Ok((session, running))) => {
                    tracing::info!(queue = config.queue, is_paused = demand.is_paused(), "consuming");
                    current.send_replace(Some(Arc::clone(&session)));
                    // It may have changed in the meantime.
                    if demand.is_paused() {
                        session.consume(false);
                    } else if demand.exists() {
                        session.consume(true);
                    }
                    // A session whose consumer is cancelled continues until the messages in progress are settled.
                    let mut ended = tokio::spawn(running.run());
                    let is_lost = tokio::select! {
                        _ = &mut ended => true,
                        () = session.cancelled.cancelled() => false,
                    };
                    if stopping.is_cancelled() {
                        return;
                    }
                    // A connection alone does not count: the message that ended it is delivered again.
                    if session.has_settled() {
                        backoff.reset();
                    }
                    current.send_replace(None);
                    if is_lost {
                        tracing::warn!(
                            "lost the connection to RabbitMQ; unacknowledged messages will be delivered again"
                        );
                    }
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
}

/// Host and port, without the password.
fn place(uri: &AMQPUri) -> String {
    format!("{}:{}", uri.authority.host, uri.authority.port)
}

impl Transport for RabbitMq {
    type Receipt = Receipt;

    async fn receive(&self) -> Option<Delivery<Receipt>> {
        let _idle = self.demand.wait();
        let mut received = self.received.lock().await;
        loop {
            if self.stopping.is_cancelled() {
                received.give_back();
                return None;
            }
            if let Some(delivery) = received.next() {
                return Some(delivery);
            }
            if self.demand.exists()
                && let Some(session) = self.current()
            {
                session.consume(true);
            }
            tokio::select! {
                biased;
                () = self.stopping.cancelled() => {}
                delivery = received.incoming.recv() => received.add(delivery?),
            }
        }
    }

    async fn publish(&self, source: Option<&Receipt>, message: &Message<'_>) -> Result<(), PublishError> {
        let queue = message.queue;
        if queue.len() > usize::from(u8::MAX) {
            let text = format!("the queue name {queue:.100}… is longer than the 255 bytes of AMQP");
            return Err(PublishError::NoQueue(text));
        }
        let published = if let Some(source) = source {
            source.session.publish(&source.kept, message).await?
        } else {
            let session = self.current().ok_or(PublishError::Lost)?;
            session.publish(&Kept::default(), message).await?
        };
        match published {
            Published::Routed => Ok(()),
            Published::Unroutable => Err(PublishError::NoQueue(format!("queue {queue} does not exist"))),
        }
    }

    async fn acknowledge(&self, receipt: Receipt) {
        receipt.session.acknowledge(receipt.tag);
    }

    fn is_lost(&self, receipt: &Receipt) -> bool {
        receipt.is_lost()
    }

    async fn lost(&self, receipt: &Receipt) {
        receipt.session.dead.cancelled().await;
    }

    async fn give_back(&self, receipt: Receipt) {
        receipt.session.give_back(receipt.tag);
    }

    async fn pause(&self) {
        self.demand.consuming.store(false, Ordering::SeqCst);
        if let Some(session) = self.current() {
            session.consume(false);
        }
        // A caller that waits for a delivery has it, and then there is none to return.
        if let Ok(mut received) = self.received.try_lock() {
            received.give_back();
        }
    }

    async fn resume(&self) {
        self.demand.consuming.store(true, Ordering::SeqCst);
        if let Some(session) = self.current()
            && !self.stopping.is_cancelled()
        {
            session.consume(true);
        }
    }

    async fn stop(&self) {
        self.stopping.cancel();
        if let Some(session) = self.current() {
            session.consume(false);
        }
    }

    async fn close(&self) {
        if let Some(session) = self.current() {
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tokio::io::ReadBuf;
    use tokio::time::timeout;

    use super::*;

    /// Bytes that a broker sends, up to its first delivery.
    const SCRIPT: &[u8] = include_bytes!("../../../fuzz/corpus/amqp_session/delivery");
    const HEARTBEAT: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 0xCE];

    /// A broker behind TLS that says [`SCRIPT`] and reads nothing after the first heartbeat: what TLS holds is never flushed.
    struct Stuck {
        script: &'static [u8],
        is_full: bool,
    }

    impl AsyncRead for Stuck {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if self.script.is_empty() {
                return Poll::Pending;
            }
            into.put_slice(self.script);
            self.script = &[];
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Stuck {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.is_full |= bytes.ends_with(&HEARTBEAT);
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.is_full {
                Poll::Pending
            } else {
                Poll::Ready(Ok(()))
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_broker_that_stops_reading_is_noticed_over_tls_too() {
        let broker = Stuck {
            script: SCRIPT,
            is_full: false,
        };
        let ended = timeout(Duration::from_mins(1), deliveries_over(broker, &Config::of_script(1))).await;
        assert_eq!(ended.map(|deliveries| deliveries.len()).ok(), Some(1));
    }
}
