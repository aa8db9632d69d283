//! One connection: a channel that consumes, one that publishes, one that publishes copies, and the task that reads and writes the socket. Publishing and
//! settling append frames to the outbox, which is written as a whole.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, channel, confirm, connection, exchange, queue};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};
use amq_protocol::uri::AMQPUri;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::confirms::{Answer, Confirms, Published};
use super::frames::Frames;
use super::tags::Tags;
use super::wire::{
    self, Error, Frame, Header, Stream, Wire, encode, encode_message, next_frame, read_more, short, write_or_flush,
};
use super::{Config, ExchangeKind, Kept, Receipt};
use crate::queues::{FEWEST_RETURNS, Pair};
use crate::{Delivery, Headers, Message, PublishError, is_redelivered, queues, with_cause};

/// Consumer of as many messages as are processed at once.
const CONSUMER: &str = "asya";
/// Consumer of those that wait, while none is delivered again.
const AHEAD: &str = "asya-ahead";
const GOODBYE_PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait of an acknowledgement for other frames, because each write wakes the broker.
const ACKNOWLEDGE_WITHIN: Duration = Duration::from_millis(5);
/// Largest buffer that is allocated before the body of a message is received.
const ROOM: u64 = 1024 * 1024;

/// Channel for deliveries, limited by the prefetch count.
type Deliveries = mpsc::UnboundedSender<Delivery<Receipt>>;

/// One connection.
#[derive(Debug)]
pub(super) struct Session {
    consuming: u16,
    publishing: u16,
    queue: ShortString,
    /// Exchange for messages to queues of the namespace, and name of the user, if it is one of a namespace.
    tenant: Option<(String, String)>,
    tap: Option<Tap>,
    frame_max: u32,
    /// Largest message that the broker accepts in bytes, if known.
    largest: Arc<AtomicUsize>,
    /// Number of messages that are processed at once.
    at_once: u16,
    /// Number of further messages that can wait.
    ahead: u16,
    /// Number of acknowledgements that are sent without waiting, before the prefetch count is exhausted.
    few: usize,
    outbox: Mutex<Outbox>,
    /// Whether a message was acknowledged.
    settled: AtomicBool,
    /// Notified when the outbox gets a frame.
    wake: Notify,
    /// Number of deliveries that are not settled.
    held: AtomicUsize,
    /// Cancelled when the broker cancels the consumer. The session then ends with the last delivery.
    pub(super) cancelled: CancellationToken,
    /// Cancelled when the connection ends.
    pub(super) dead: CancellationToken,
}

/// Channel for copies. It has no confirms, and its errors do not end the session.
#[derive(Debug)]
struct Tap {
    channel: u16,
    exchange: String,
    /// Whether the broker closed the channel.
    closed: AtomicBool,
}

/// Frames to write, and publishers that wait for confirms.
#[derive(Debug, Default)]
struct Outbox {
    frames: Frames,
    acknowledged: Tags,
    confirms: Confirms,
    /// Whether the broker sends messages.
    consumes: bool,
    /// Whether it also sends those that have to wait.
    looks_ahead: bool,
    /// Whether the outbox is closed.
    over: bool,
}

impl Session {
    /// Connects, creates missing queues, and starts consuming if `consumes`. Run the second value for the lifetime of the session.
    pub(super) async fn open(
        config: &Config,
        deliveries: &Deliveries,
        largest: &Arc<AtomicUsize>,
        consumes: bool,
    ) -> Result<(Arc<Self>, Running), Error> {
        let wire = Wire::open(&signed_in(config).await?, &config.authorities, &connection_name(config)).await?;
        Self::begin(wire, config, deliveries, largest, consumes).await
    }

    /// Like [`Session::open`], on an existing stream.
    pub(super) async fn over(
        stream: Box<dyn Stream>,
        config: &Config,
        deliveries: &Deliveries,
    ) -> Result<(Arc<Self>, Running), Error> {
        let wire = Wire::over(stream, &config.uri, &connection_name(config)).await?;
        let largest = Arc::new(AtomicUsize::new(usize::MAX));
        Self::begin(wire, config, deliveries, &largest, true).await
    }

    async fn begin(
        mut wire: Wire,
        config: &Config,
        deliveries: &Deliveries,
        largest: &Arc<AtomicUsize>,
        consumes: bool,
    ) -> Result<(Arc<Self>, Running), Error> {
        ensure_queues(&mut wire, config).await?;

        let publishing = wire.channel().await?;
        let select = confirm::AMQPMethod::Select(confirm::Select { nowait: false });
        wire.ask(publishing, AMQPClass::Confirm(select)).await?;
        let tap = open_tap(&mut wire, config).await?;
        let consuming = wire.channel().await?;
        let at_once = config.at_once.min(config.prefetch);
        if consumes {
            wire.ask(consuming, prefetch(at_once)).await?;
            let consume = basic::Consume {
                queue: short(&config.queue)?,
                consumer_tag: short(CONSUMER)?,
                ..basic::Consume::default()
            };
            wire.ask(consuming, AMQPClass::Basic(basic::AMQPMethod::Consume(consume)))
                .await?;
        }
        let outbox = Outbox {
            consumes,
            ..Outbox::default()
        };
        let session = Arc::new(Self {
            consuming,
            publishing,
            tenant: config
                .publish_exchange
                .clone()
                .map(|exchange| (exchange, config.uri.authority.userinfo.username.clone())),
            tap,
            frame_max: wire.frame_max,
            largest: Arc::clone(largest),
            at_once,
            ahead: config.prefetch - at_once,
            few: usize::from(config.prefetch) / 4,
            outbox: Mutex::new(outbox),
            queue: short(&config.queue)?,
            settled: AtomicBool::new(false),
            wake: Notify::new(),
            held: AtomicUsize::new(0),
            cancelled: CancellationToken::new(),
            dead: CancellationToken::new(),
        });
        let running = Running {
            session: Arc::clone(&session),
            deliveries: deliveries.clone(),
            wire,
            contents: BTreeMap::new(),
            most: config.largest,
            heard: Instant::now(),
        };
        Ok((session, running))
    }

    /// Publishes a message to its queue, and waits for its confirm.
    ///
    /// The default exchange routes to the queue with the name of the key and to no other, and so does that of a namespace, which is
    /// direct. On a topic exchange, a queue that is bound with `#` would count as the destination.
    pub(super) async fn publish(&self, kept: &Kept, message: &Message<'_>) -> Answer {
        let largest = self.largest.load(Ordering::Relaxed);
        if message.body.len() > largest {
            let text = format!(
                "the message has {} bytes, and RabbitMQ accepts at most {largest} (max_message_size)",
                message.body.len()
            );
            return Err(PublishError::TooLarge(text));
        }
        // Results of a fan-out are different messages.
        let id = match (&kept.message_id, message.index) {
            (Some(id), index @ 1..) => Some(format!("{id}-{index}")).filter(|id| u8::try_from(id.len()).is_ok()),
            (id, _) => id.clone(),
        };
        let (exchange, user) = match &self.tenant {
            Some((_, user)) if queues::is_reply(message.queue) => (queues::REPLIES, Some(user)),
            Some((exchange, user)) => (exchange.as_str(), Some(user)),
            None => ("", None),
        };
        let mut encoded = wire::Message {
            exchange,
            user: user.map(String::as_str),
            key: message.queue,
            number: None,
            id: id.as_deref(),
            correlation_id: kept.correlation_id.as_deref(),
            headers: message.headers,
            body: &message.body,
        };
        let (answer, reported) = oneshot::channel();
        {
            let mut outbox = self.outbox.lock();
            if outbox.over {
                return Err(PublishError::Lost);
            }
            encoded.number = Some(outbox.confirms.next_number());
            match encode_message(self.publishing, &encoded, self.frame_max, &mut outbox.frames) {
                Ok(()) => outbox.confirms.add(answer),
                Err(error @ Error::HeadersTooLarge { .. }) => {
                    return Err(PublishError::HeadersTooLarge(error.to_string()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot publish a message");
                    self.dead.cancel();
                    return Err(PublishError::Lost);
                }
            }
        }
        self.wake.notify_one();
        let published = reported.await.unwrap_or(Err(PublishError::Lost));
        if let (Ok(Published::Routed), Some(tap)) = (&published, &self.tap)
            && !tap.closed.load(Ordering::Relaxed)
        {
            let copy = wire::Message {
                exchange: &tap.exchange,
                number: None,
                ..encoded
            };
            // It fits, because the message itself did.
            let _ = encode_message(tap.channel, &copy, self.frame_max, &mut self.outbox.lock().frames);
            self.wake.notify_one();
        }
        published
    }

    /// Counts a delivery until [`Session::release`].
    pub(super) fn hold(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn release(&self) {
        self.held.fetch_sub(1, Ordering::Relaxed);
        if self.cancelled.is_cancelled() {
            self.wake.notify_one();
        }
    }

    fn is_finished(&self) -> bool {
        self.cancelled.is_cancelled() && self.held.load(Ordering::Relaxed) == 0
    }

    /// Whether a message was acknowledged through this connection.
    pub(super) fn has_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Acknowledges a message soon. If the connection is lost, the broker delivers it again.
    pub(super) fn acknowledge(&self, tag: u64) {
        self.settled.store(true, Ordering::Relaxed);
        self.outbox.lock().acknowledged.add(tag);
        self.wake.notify_one();
    }

    /// Returns a message to the queue soon.
    pub(super) fn give_back(&self, tag: u64) {
        self.refuse(tag, true);
    }

    /// Moves a message to the dead-letter queue soon.
    fn reject(&self, tag: u64) {
        self.refuse(tag, false);
    }

    fn refuse(&self, tag: u64, requeue: bool) {
        self.outbox.lock().refuse(self.consuming, tag, requeue);
        self.wake.notify_one();
    }

    /// Opens the publishing channel again, which the broker closed for this reason. Messages in progress are kept, and their publishers
    /// decide when to try again.
    fn open_again(&self, why: &str) {
        let largest = largest_message(why);
        if let Some(largest) = largest {
            self.largest.store(largest, Ordering::Relaxed);
        }
        let mut outbox = self.outbox.lock();
        let closed = channel::AMQPMethod::CloseOk(channel::CloseOk {});
        outbox.say(self.publishing, AMQPClass::Channel(closed));
        let open = channel::AMQPMethod::Open(channel::Open {});
        outbox.say(self.publishing, AMQPClass::Channel(open));
        let select = confirm::AMQPMethod::Select(confirm::Select { nowait: true });
        outbox.say(self.publishing, AMQPClass::Confirm(select));
        outbox.confirms.restart(|| match largest {
            // The message that is too large is recognized when it is published again.
            Some(_) => PublishError::Refused(why.to_owned()),
            None => PublishError::Forbidden(why.to_owned()),
        });
        drop(outbox);
        self.wake.notify_one();
    }

    /// Starts or cancels the consumer, if it is not in this state. Messages that are on their way return to the queue.
    pub(super) fn consume(&self, wanted: bool) {
        let mut outbox = self.outbox.lock();
        if outbox.consumes == wanted {
            return;
        }
        outbox.consumes = wanted;
        if wanted {
            self.start(&mut outbox, CONSUMER, self.at_once);
        } else {
            self.cancel(&mut outbox, CONSUMER);
            if std::mem::take(&mut outbox.looks_ahead) {
                self.cancel(&mut outbox, AHEAD);
            }
        }
        drop(outbox);
        self.wake.notify_one();
    }

    /// Starts or cancels the consumer of messages that have to wait. Those that are on their way are kept.
    fn look_ahead(&self, wanted: bool) {
        let mut outbox = self.outbox.lock();
        if self.ahead == 0 || outbox.looks_ahead == wanted || !outbox.consumes {
            return;
        }
        outbox.looks_ahead = wanted;
        if wanted {
            self.start(&mut outbox, AHEAD, self.ahead);
        } else {
            self.cancel(&mut outbox, AHEAD);
        }
        drop(outbox);
        self.wake.notify_one();
    }

    /// The prefetch count is that of consumers that are started after it (RabbitMQ, "Consumer Prefetch").
    fn start(&self, outbox: &mut Outbox, consumer: &str, count: u16) {
        outbox.say(self.consuming, prefetch(count));
        let consume = basic::Consume {
            queue: self.queue.clone(),
            consumer_tag: consumer.into(),
            nowait: true,
            ..basic::Consume::default()
        };
        outbox.say(self.consuming, AMQPClass::Basic(basic::AMQPMethod::Consume(consume)));
    }

    fn cancel(&self, outbox: &mut Outbox, consumer: &str) {
        let cancel = basic::Cancel {
            consumer_tag: consumer.into(),
            nowait: true,
        };
        outbox.say(self.consuming, AMQPClass::Basic(basic::AMQPMethod::Cancel(cancel)));
    }

    fn consumes(&self) -> bool {
        self.outbox.lock().consumes
    }

    /// Writes the remaining frames and closes the connection.
    pub(super) async fn close(&self) {
        self.outbox.lock().acknowledge(self.consuming);
        let close = connection::Close {
            reply_code: 200,
            reply_text: "bye".into(),
            class_id: 0,
            method_id: 0,
        };
        self.say(0, AMQPClass::Connection(connection::AMQPMethod::Close(close)));
        let _ = timeout(GOODBYE_PATIENCE, self.dead.cancelled()).await;
        self.dead.cancel();
    }

    fn say(&self, channel: u16, method: AMQPClass) {
        self.outbox.lock().say(channel, method);
        self.wake.notify_one();
    }

    /// Moves the frames to write into `out`. Few acknowledgements wait for other frames, unless `late`. Returns whether some wait.
    fn gather(&self, out: &mut Frames, late: bool) -> bool {
        out.clear();
        let mut outbox = self.outbox.lock();
        if late || !outbox.frames.is_empty() || outbox.acknowledged.untold() >= self.few.max(1) {
            outbox.acknowledge(self.consuming);
        }
        std::mem::swap(&mut outbox.frames, out);
        outbox.acknowledged.untold() > 0
    }
}

impl Outbox {
    fn say(&mut self, channel: u16, method: AMQPClass) {
        if let Err(error) = encode(&AMQPFrame::Method(channel, method), self.frames.tail()) {
            tracing::error!(%error, "cannot send a frame to RabbitMQ");
        }
    }

    fn refuse(&mut self, channel: u16, tag: u64, requeue: bool) {
        let nack = basic::Nack {
            delivery_tag: tag,
            multiple: false,
            requeue,
        };
        self.say(channel, AMQPClass::Basic(basic::AMQPMethod::Nack(nack)));
        // After the frame: an acknowledgement of all tags up to a later one follows it.
        self.acknowledged.refused(tag);
    }

    fn acknowledge(&mut self, channel: u16) {
        for (delivery_tag, multiple) in self.acknowledged.take() {
            let ack = basic::Ack { delivery_tag, multiple };
            self.say(channel, AMQPClass::Basic(basic::AMQPMethod::Ack(ack)));
        }
    }
}

/// Task of the session.
pub(super) struct Running {
    session: Arc<Session>,
    deliveries: Deliveries,
    wire: Wire,
    /// Incomplete messages by channel, because the broker can interleave them.
    contents: BTreeMap<u16, Content>,
    /// Largest message that is received, in bytes.
    most: Option<u64>,
    heard: Instant,
}

/// Incomplete message.
struct Content {
    about: About,
    header: Option<Header>,
    body: Vec<u8>,
    /// Bytes of the body so far. They are not kept if the message is too large.
    received: u64,
    is_too_large: bool,
}

impl Content {
    fn new(about: About) -> Self {
        Self {
            about,
            header: None,
            body: Vec::new(),
            received: 0,
            is_too_large: false,
        }
    }

    fn is_whole(&self) -> bool {
        let size = self.header.as_ref().map(|header| header.size);
        size.is_some_and(|size| self.received >= size)
    }
}

enum About {
    Delivery { tag: u64 },
    Returned,
}

impl Running {
    /// Runs until the connection ends.
    pub(super) async fn run(mut self) {
        let session = Arc::clone(&self.session);
        let over = self.exchange().await;
        session.dead.cancel();
        let mut outbox = session.outbox.lock();
        outbox.over = true;
        outbox.confirms.forget();
        drop(outbox);
        if let Err(error) = over {
            tracing::warn!("{}", with_cause(&error));
        }
    }

    async fn exchange(&mut self) -> Result<(), Error> {
        let session = Arc::clone(&self.session);
        let heartbeat = u64::from(self.wire.heartbeat);
        let silence = Duration::from_secs(heartbeat * 2);
        let mut beat = interval(Duration::from_secs(heartbeat.max(2) / 2));
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let patience = sleep(Duration::ZERO);
        tokio::pin!(patience);
        let mut some_wait = false;
        let mut out = Frames::default();
        let mut unflushed = false;
        // Frames received together with the last one of the handshake.
        if self.take_frames()?.is_break() {
            return Ok(());
        }
        loop {
            if out.is_empty() {
                let late = some_wait && patience.is_elapsed();
                let waited = std::mem::replace(&mut some_wait, session.gather(&mut out, late));
                if some_wait && !waited {
                    patience.as_mut().reset(Instant::now() + ACKNOWLEDGE_WITHIN);
                }
            }
            let idle = out.is_empty();
            if idle && session.is_finished() {
                return Ok(());
            }
            tokio::select! {
                more = read_more(&mut self.wire.reader, &mut self.wire.input) => {
                    more?;
                    self.heard = Instant::now();
                    if self.take_frames()?.is_break() {
                        return Ok(());
                    }
                }
                written = write_or_flush(&mut self.wire.writer, out.front()), if !idle || unflushed => {
                    out.advance(written?);
                    unflushed = !idle;
                }
                () = session.wake.notified() => {}
                () = &mut patience, if some_wait && idle => {}
                _ = beat.tick(), if heartbeat > 0 => {
                    if self.heard.elapsed() > silence {
                        return Err(Error::Silent);
                    }
                    encode(&AMQPFrame::Heartbeat, session.outbox.lock().frames.tail())?;
                }
                () = session.dead.cancelled() => return Ok(()),
            }
        }
    }

    fn take_frames(&mut self) -> Result<ControlFlow<()>, Error> {
        while let Some(frame) = next_frame(&mut self.wire.input, self.wire.frame_max)? {
            let flow = match frame {
                Frame::Method(channel, method) => self.take_method(channel, method)?,
                Frame::Header(channel, header) => self.take_header(channel, header)?,
                Frame::Body(channel, body) => self.take_body(channel, &body)?,
                Frame::Heartbeat => ControlFlow::Continue(()),
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn take_method(&mut self, on: u16, method: AMQPClass) -> Result<ControlFlow<()>, Error> {
        match method {
            AMQPClass::Basic(method) => return self.take_basic(on, method),
            AMQPClass::Channel(channel::AMQPMethod::Close(close)) => {
                if let Some(tap) = self.session.tap.as_ref().filter(|tap| tap.channel == on) {
                    tap.closed.store(true, Ordering::Relaxed);
                    let (exchange, why) = (&tap.exchange, close.reply_text.to_string());
                    tracing::warn!(exchange, why, "cannot publish copies (ASYA_RABBITMQ_TAP_EXCHANGE)");
                    let closed = channel::AMQPMethod::CloseOk(channel::CloseOk {});
                    self.session.say(on, AMQPClass::Channel(closed));
                    return Ok(ControlFlow::Continue(()));
                }
                if on == self.session.publishing {
                    self.contents.remove(&on);
                    self.session.open_again(close.reply_text.as_str());
                    return Ok(ControlFlow::Continue(()));
                }
                return Err(wire::refused(&close.reply_text));
            }
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(_)) => {}
            AMQPClass::Channel(channel::AMQPMethod::Flow(flow)) => {
                let done = channel::FlowOk { active: flow.active };
                let done = AMQPClass::Channel(channel::AMQPMethod::FlowOk(done));
                self.session.say(on, done);
            }
            AMQPClass::Connection(connection::AMQPMethod::Close(close)) => {
                return Err(wire::refused(&close.reply_text));
            }
            AMQPClass::Connection(connection::AMQPMethod::CloseOk(_)) => return Ok(ControlFlow::Break(())),
            AMQPClass::Connection(connection::AMQPMethod::Blocked(blocked)) => {
                let why = blocked.reason.to_string();
                tracing::warn!(why, "RabbitMQ blocks publishing");
            }
            AMQPClass::Connection(connection::AMQPMethod::Unblocked(_)) => {
                tracing::info!("RabbitMQ accepts messages again");
            }
            other => return Err(wire::unexpected(&other)),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn take_basic(&mut self, on: u16, method: basic::AMQPMethod) -> Result<ControlFlow<()>, Error> {
        match method {
            basic::AMQPMethod::Deliver(deliver) => {
                let tag = deliver.delivery_tag;
                self.contents.insert(on, Content::new(About::Delivery { tag }));
            }
            basic::AMQPMethod::Return(_) => {
                self.contents.insert(on, Content::new(About::Returned));
            }
            basic::AMQPMethod::Ack(ack) => {
                let confirms = &mut self.session.outbox.lock().confirms;
                confirms.settle(ack.delivery_tag, ack.multiple, true);
            }
            basic::AMQPMethod::Nack(nack) => {
                let confirms = &mut self.session.outbox.lock().confirms;
                confirms.settle(nack.delivery_tag, nack.multiple, false);
            }
            basic::AMQPMethod::CancelOk(_) | basic::AMQPMethod::QosOk(_) => {}
            // The queue was deleted. The next session creates it, and this one sends the results of the messages in progress, because the
            // broker does not deliver them again.
            basic::AMQPMethod::Cancel(_) => {
                if !self.session.cancelled.is_cancelled() {
                    tracing::warn!("RabbitMQ cancelled the consumer: the queue was deleted");
                    self.session.cancelled.cancel();
                }
            }
            other => return Err(wire::unexpected(&AMQPClass::Basic(other))),
        }
        Ok(ControlFlow::Continue(()))
    }

    fn take_header(&mut self, on: u16, header: Header) -> Result<ControlFlow<()>, Error> {
        let Some(content) = self.contents.get_mut(&on) else {
            return Err(Error::Malformed("content header without a message"));
        };
        content.is_too_large = self.most.is_some_and(|most| header.size > most);
        if !content.is_too_large {
            let room = usize::try_from(header.size.min(ROOM)).unwrap_or_default();
            content.body.reserve_exact(room);
        }
        content.header = Some(header);
        self.take_body(on, &[])
    }

    fn take_body(&mut self, on: u16, body: &[u8]) -> Result<ControlFlow<()>, Error> {
        let Some(content) = self.contents.get_mut(&on) else {
            return Err(Error::Malformed("content body without a message"));
        };
        content.received += body.len() as u64;
        if !content.is_too_large {
            content.body.extend_from_slice(body);
        }
        if !content.is_whole() {
            return Ok(ControlFlow::Continue(()));
        }
        Ok(match self.contents.remove(&on) {
            Some(Content {
                about: About::Delivery { tag },
                is_too_large: true,
                received,
                ..
            }) => {
                tracing::warn!(received, "a message is too large; it is in the dead-letter queue");
                self.session.reject(tag);
                ControlFlow::Continue(())
            }
            Some(Content {
                about,
                header: Some(header),
                body,
                ..
            }) => self.take_message(&about, &header, body),
            _ => ControlFlow::Continue(()),
        })
    }

    fn take_message(&self, about: &About, header: &Header, body: Vec<u8>) -> ControlFlow<()> {
        match *about {
            About::Delivery { tag } if !self.session.consumes() => self.session.give_back(tag),
            About::Delivery { tag } => {
                let properties = header.properties.as_ref();
                let table = properties.ok().and_then(|properties| properties.headers().as_ref());
                let (headers, deliveries) = read_headers(table);
                self.session.look_ahead(!is_redelivered(deliveries));
                let delivery = Delivery {
                    body: body.into(),
                    headers,
                    unreadable: properties.err().copied(),
                    deliveries,
                    user: properties.ok().and_then(user),
                    receipt: Receipt::new(tag, &self.session, properties.map(kept).unwrap_or_default()),
                };
                // The receiver is closed. The broker delivers the message again after the connection ends.
                if self.deliveries.send(delivery).is_err() {
                    return ControlFlow::Break(());
                }
            }
            About::Returned => {
                if let Some(number) = header.properties.as_ref().ok().and_then(wire::number) {
                    self.session.outbox.lock().confirms.returned(number);
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// Sets the prefetch count of consumers that are started next.
fn prefetch(count: u16) -> AMQPClass {
    AMQPClass::Basic(basic::AMQPMethod::Qos(basic::Qos {
        prefetch_count: count,
        global: false,
    }))
}

/// Address of the broker with the current password.
async fn signed_in(config: &Config) -> Result<AMQPUri, Error> {
    let mut uri = config.uri.clone();
    if let Some(path) = &config.password_file {
        let read = tokio::fs::read_to_string(path).await;
        let password = read.map_err(|source| Error::NoPassword {
            path: path.clone(),
            source,
        })?;
        let password = password.trim_end_matches(['\n', '\r']);
        password.clone_into(&mut uri.authority.userinfo.password);
    }
    Ok(uri)
}

/// Name of the connection in the broker's management UI.
fn connection_name(config: &Config) -> String {
    format!("{} {}", config.program, config.queue)
}

/// Largest message that a broker accepts, from the error with which it closes a channel (RabbitMQ 3.8 to 4.1, `check_msg_size` in
/// rabbit_channel.erl).
fn largest_message(reply: &str) -> Option<usize> {
    let (_, sizes) = reply.split_once("message size ")?;
    sizes.rsplit_once(" max size ")?.1.trim().parse().ok()
}

/// Declares the exchange for copies, and opens its channel.
async fn open_tap(wire: &mut Wire, config: &Config) -> Result<Option<Tap>, Error> {
    if config.tap_exchange.is_empty() {
        return Ok(None);
    }
    declare_exchange(wire, &config.tap_exchange, ExchangeKind::Topic).await?;
    Ok(Some(Tap {
        channel: wire.channel().await?,
        exchange: config.tap_exchange.clone(),
        closed: AtomicBool::new(false),
    }))
}

async fn declare_exchange(wire: &mut Wire, name: &str, kind: ExchangeKind) -> Result<(), Error> {
    let kind = kind.as_str();
    let declare = exchange::Declare {
        exchange: short(name)?,
        kind: short(kind)?,
        durable: true,
        ..exchange::Declare::default()
    };
    let channel = wire.channel().await?;
    let declared = AMQPClass::Exchange(exchange::AMQPMethod::Declare(declare));
    match wire.ask(channel, declared).await {
        Err(error @ Error::Refused(_)) => {
            tracing::warn!(%error, exchange = name, kind, "cannot declare the exchange as a durable exchange of this type; the existing exchange is used");
        }
        other => drop(other?),
    }
    Ok(())
}

/// Creates the queues that do not exist. The check is a passive declaration, which does not compare arguments.
async fn ensure_queues(wire: &mut Wire, config: &Config) -> Result<(), Error> {
    if !config.exchange.is_empty() {
        declare_exchange(wire, &config.exchange, config.exchange_kind).await?;
    }
    if !config.create_queues {
        return Ok(());
    }
    let own = Pair {
        queue: config.queue.clone(),
        dead_letter: config.dead_letter.clone(),
    };
    for pair in std::iter::once(&own).chain(&config.ends) {
        ensure(wire, &pair.dead_letter, arguments(config, None)).await?;
        ensure(wire, &pair.queue, arguments(config, Some(&pair.dead_letter))).await?;
    }
    if config.exchange.is_empty() {
        return Ok(());
    }
    let channel = wire.channel().await?;
    let extra = config.extra_keys.iter().map(|key| (&config.queue, key));
    let all = std::iter::once(&own).chain(&config.ends);
    for (queue, key) in all.map(|pair| (&pair.queue, &pair.queue)).chain(extra) {
        let bind = queue::Bind {
            queue: short(queue)?,
            exchange: short(&config.exchange)?,
            routing_key: short(key)?,
            nowait: false,
            arguments: FieldTable::default(),
        };
        wire.ask(channel, AMQPClass::Queue(queue::AMQPMethod::Bind(bind)))
            .await?;
    }
    Ok(())
}

async fn ensure(wire: &mut Wire, name: &str, arguments: FieldTable) -> Result<(), Error> {
    match declare(wire, name, true, FieldTable::default()).await {
        Err(Error::Refused(_)) => declare(wire, name, false, arguments).await,
        other => other,
    }
}

/// Arguments of a queue that is created, which the operator gives it, too.
fn arguments(config: &Config, dead_letter: Option<&str>) -> FieldTable {
    let mut all = FieldTable::default();
    let mut set = |key: &str, value: &str| {
        all.insert(key.into(), AMQPValue::LongString(value.into()));
    };
    if config.quorum {
        set("x-queue-type", "quorum");
    }
    let Some(dead_letter) = dead_letter.filter(|_| config.quorum || config.largest.is_some()) else {
        return all;
    };
    set("x-dead-letter-exchange", "");
    set("x-dead-letter-routing-key", dead_letter);
    if config.quorum {
        set("x-dead-letter-strategy", "at-least-once");
        set("x-overflow", "reject-publish");
        let limit = AMQPValue::LongLongInt(FEWEST_RETURNS.into());
        all.insert("x-delivery-limit".into(), limit);
    }
    all
}

async fn declare(wire: &mut Wire, name: &str, passive: bool, arguments: FieldTable) -> Result<(), Error> {
    let declare = queue::Declare {
        queue: short(name)?,
        passive,
        durable: true,
        arguments,
        ..queue::Declare::default()
    };
    let channel = wire.channel().await?;
    wire.ask(channel, AMQPClass::Queue(queue::AMQPMethod::Declare(declare)))
        .await
        .map(drop)
}

/// User who published a message, which the broker compares with the login.
fn user(properties: &BasicProperties) -> Option<String> {
    properties.user_id().as_ref().map(ToString::to_string)
}

pub(super) fn kept(properties: &BasicProperties) -> Kept {
    let text = |text: &Option<ShortString>| text.as_ref().map(ToString::to_string);
    Kept {
        message_id: text(properties.message_id()),
        correlation_id: text(properties.correlation_id()),
    }
}

/// Text headers, and the number of deliveries by a quorum queue, including this one.
pub(super) fn read_headers(table: Option<&FieldTable>) -> (Headers, Option<u32>) {
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
    (headers, deliveries.map(|before: u32| before.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_limit_is_parsed_from_the_brokers_reply() {
        let configured = "PRECONDITION_FAILED - message size 200 is larger than configured max size 100";
        assert_eq!(largest_message(configured), Some(100));
        let fixed = "PRECONDITION_FAILED - message size 536870913 is larger than max size 536870912";
        assert_eq!(largest_message(fixed), Some(536_870_912));
        assert_eq!(largest_message("NOT_FOUND - no exchange 'max size 3'"), None);
    }

    #[test]
    fn later_messages_are_acknowledged_together_after_a_returned_one() {
        let mut outbox = Outbox::default();
        outbox.refuse(1, 1, true);
        for tag in [2, 3, 4] {
            outbox.acknowledged.add(tag);
        }
        assert_eq!(outbox.acknowledged.take(), [(4, true)]);
    }

    #[test]
    fn delivery_count_includes_this_one_and_does_not_overflow() {
        let deliveries = |count| {
            let mut table = FieldTable::default();
            table.insert("x-delivery-count".into(), count);
            read_headers(Some(&table)).1
        };
        assert_eq!(deliveries(AMQPValue::LongLongInt(2)), Some(3));
        assert_eq!(deliveries(AMQPValue::LongUInt(u32::MAX)), Some(u32::MAX));
        assert_eq!(deliveries(AMQPValue::LongInt(-1)), None);
    }
}
