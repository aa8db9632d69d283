//! Dead letters of RabbitMQ. They are pulled one by one on a connection of their own, so that memory holds at most one, and the broker
//! returns those that are not settled when the connection ends, however it ends.
//!
//! A quorum queue counts each return, and RabbitMQ 4 deletes a message after 20 of them unless the queue has another limit. A dead
//! letter that was returned some times is therefore sent to the end of its queue, as a new message, before it is deleted.

use std::time::Duration;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame};
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, channel, confirm, connection, queue};
use amq_protocol::types::{AMQPValue, FieldTable};
use amq_protocol::uri::AMQPUri;
use bytes::{Bytes, BytesMut};
use tokio::time::{sleep, timeout};

use super::session::{kept, read_headers};
use super::wire::{self, Error, Frame, Header, Wire, short};
use crate::letters::{self, DeadLetter, Fate, Numbers, PATIENCE, Visit, Visited};
use crate::with_cause;

/// Number of returns after which a dead letter is sent to the end of its queue.
const MOST_RETURNS: u32 = 3;
/// Longest reason, in bytes. Those of RabbitMQ are single words.
const LONGEST_REASON: usize = 64;
/// Delays between looks for returned dead letters, in milliseconds: about a second in all.
const RETURNING: [u64; 7] = [10, 20, 40, 80, 160, 320, 640];
const PROGRAM: &str = "asya-gateway operators";

/// Messages and consumers of a queue, or `None` if it does not exist.
async fn look(wire: &mut Wire, name: &str) -> Result<Option<queue::DeclareOk>, Error> {
    let declare = queue::Declare {
        queue: short(name)?,
        passive: true,
        ..queue::Declare::default()
    };
    // A rejected declaration closes its channel.
    let channel = wire.channel().await?;
    match wire
        .ask(channel, AMQPClass::Queue(queue::AMQPMethod::Declare(declare)))
        .await
    {
        Ok(AMQPClass::Queue(queue::AMQPMethod::DeclareOk(found))) => Ok(Some(found)),
        Ok(other) => Err(wire::unexpected(&other)),
        Err(Error::Refused(why)) if why.starts_with("NOT_FOUND") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Numbers of messages of a queue, without those that are not acknowledged.
pub(crate) async fn numbers(
    uri: &AMQPUri,
    authorities: &str,
    name: &str,
    dead_letters: &str,
) -> Result<Numbers, letters::Error> {
    let asked = async {
        let mut wire = Wire::open(uri, authorities, PROGRAM).await?;
        let found = look(&mut wire, name).await?;
        let dead = look(&mut wire, dead_letters).await?;
        goodbye(&mut wire).await?;
        Ok((found, dead))
    };
    let (found, dead) = in_time(asked).await.map_err(letters::Error::Unreachable)?;
    let found = found.ok_or_else(|| letters::Error::NoQueue(name.to_owned()))?;
    Ok(Numbers {
        waiting: found.message_count.into(),
        running: None,
        consumers: Some(found.consumer_count.into()),
        dead: dead.map(|dead| dead.message_count.into()),
    })
}

/// Visits dead letters.
pub(crate) async fn visit(uri: &AMQPUri, authorities: &str, mut visit: Visit) -> Result<Visited, letters::Error> {
    let opened = in_time(Reader::open(uri, authorities, &visit.dead_letters)).await;
    let opened = opened.map_err(letters::Error::Unreachable)?;
    let (mut reader, count) = opened.ok_or_else(|| letters::Error::NoQueue(visit.dead_letters.clone()))?;
    let mut visited = Visited {
        count: count.into(),
        settled: 0,
    };
    let interrupted = |settled, why| letters::Error::Interrupted { settled, why };
    // Those that arrive during the visit are not seen: a redriven message can be among them.
    for seen in 0..count as usize {
        if !visit.continues(seen) {
            break;
        }
        match in_time(reader.next(&mut visit)).await {
            Ok(Some(Fate::Keep)) => {}
            Ok(Some(Fate::Redrive | Fate::Drop)) => visited.settled += 1,
            Ok(None) => break,
            Err(why) => return Err(interrupted(visited.settled, why)),
        }
    }
    let remaining = visited.count.saturating_sub(visited.settled);
    let ended = in_time(reader.end(&visit.dead_letters, remaining)).await;
    ended.map_err(|why| interrupted(visited.settled, why))?;
    Ok(visited)
}

/// Connection with a channel that pulls dead letters and one that publishes with confirms.
struct Reader {
    wire: Wire,
    pulling: u16,
    publishing: u16,
}

/// A pulled message before its content.
struct Pulled {
    tag: u64,
    header: Header,
    letter: DeadLetter,
    /// Whether it was returned so often that it must not be returned again.
    is_worn: bool,
}

impl Reader {
    /// Connects. Returns the number of dead letters too, and `None` if their queue does not exist.
    async fn open(uri: &AMQPUri, authorities: &str, dead_letters: &str) -> Result<Option<(Self, u32)>, Error> {
        let mut wire = Wire::open(uri, authorities, PROGRAM).await?;
        let Some(found) = look(&mut wire, dead_letters).await? else {
            return Ok(None);
        };
        let publishing = wire.channel().await?;
        let select = confirm::AMQPMethod::Select(confirm::Select { nowait: false });
        wire.ask(publishing, AMQPClass::Confirm(select)).await?;
        let pulling = wire.channel().await?;
        let reader = Self {
            wire,
            pulling,
            publishing,
        };
        Ok(Some((reader, found.message_count)))
    }

    /// Pulls a dead letter and does what is decided. `None` if there are no more.
    async fn next(&mut self, visit: &mut Visit) -> Result<Option<Fate>, Error> {
        let Some(mut pulled) = self.pull(&visit.dead_letters).await? else {
            return Ok(None);
        };
        if pulled.header.size > visit.largest {
            return self.pass(pulled, visit).await.map(Some);
        }
        let body = self.content(pulled.header.size).await?;
        pulled.letter.body = Some(body.clone());
        let fate = visit.fate(&pulled.letter);
        match fate {
            Fate::Keep if !pulled.is_worn => return Ok(Some(fate)),
            Fate::Keep => self.send(&visit.dead_letters, renewed(&pulled.header), &body).await?,
            Fate::Redrive => self.send(&visit.queue, again(&pulled)?, &body).await?,
            Fate::Drop => {}
        }
        self.acknowledge(pulled.tag).await?;
        Ok(Some(fate))
    }

    /// Does what is decided about a dead letter that is too large to be kept in memory: a worn one is sent on while it is received.
    async fn pass(&mut self, pulled: Pulled, visit: &mut Visit) -> Result<Fate, Error> {
        let fate = visit.fate(&pulled.letter);
        let renews = fate == Fate::Keep && pulled.is_worn;
        if renews {
            self.begin(&visit.dead_letters, renewed(&pulled.header), pulled.header.size)
                .await?;
        }
        let mut received = 0;
        while received < pulled.header.size {
            let part = self.part().await?;
            received += part.len() as u64;
            if renews {
                self.wire.body(self.publishing, part).await?;
            }
        }
        if renews {
            self.confirmed(&visit.dead_letters).await?;
        }
        if renews || fate == Fate::Drop {
            self.acknowledge(pulled.tag).await?;
        }
        Ok(fate)
    }

    async fn pull(&mut self, queue: &str) -> Result<Option<Pulled>, Error> {
        let get = basic::Get {
            queue: short(queue)?,
            no_ack: false,
        };
        let asked = AMQPClass::Basic(basic::AMQPMethod::Get(get));
        let tag = match self.wire.ask(self.pulling, asked).await? {
            AMQPClass::Basic(basic::AMQPMethod::GetOk(got)) => got.delivery_tag,
            AMQPClass::Basic(basic::AMQPMethod::GetEmpty(_)) => return Ok(None),
            other => return Err(wire::unexpected(&other)),
        };
        let Frame::Header(_, header) = self.wire.frame(self.pulling).await? else {
            return Err(Error::Malformed("message without a header"));
        };
        let table = header
            .properties
            .as_ref()
            .ok()
            .and_then(|known| known.headers().as_ref());
        let (headers, deliveries) = read_headers(table);
        let (reason, since) = table.map_or((None, None), death);
        let letter = DeadLetter {
            body: None,
            size: header.size,
            headers,
            reason,
            since,
        };
        // Headers that cannot be read do not show how often it was returned.
        let is_worn = header.properties.is_err() || deliveries.is_some_and(|deliveries| deliveries > MOST_RETURNS);
        Ok(Some(Pulled {
            tag,
            header,
            letter,
            is_worn,
        }))
    }

    async fn content(&mut self, size: u64) -> Result<Bytes, Error> {
        let mut body = BytesMut::new();
        while (body.len() as u64) < size {
            body.extend_from_slice(&self.part().await?);
        }
        Ok(body.freeze())
    }

    async fn part(&mut self) -> Result<Bytes, Error> {
        match self.wire.frame(self.pulling).await? {
            Frame::Body(_, part) => Ok(part),
            _ => Err(Error::Malformed("message without its content")),
        }
    }

    async fn send(&mut self, queue: &str, properties: BasicProperties, body: &Bytes) -> Result<(), Error> {
        self.begin(queue, properties, body.len() as u64).await?;
        self.wire.body(self.publishing, body.clone()).await?;
        self.confirmed(queue).await
    }

    /// Begins to publish a message, whose content follows.
    async fn begin(&mut self, queue: &str, properties: BasicProperties, body_size: u64) -> Result<(), Error> {
        let publish = basic::Publish {
            exchange: short("")?,
            routing_key: short(queue)?,
            mandatory: true,
            immediate: false,
        };
        let header = AMQPContentHeader {
            class_id: wire::BASIC,
            body_size,
            properties,
        };
        let on = self.publishing;
        let publish = AMQPClass::Basic(basic::AMQPMethod::Publish(publish));
        self.wire.put(&AMQPFrame::Method(on, publish)).await?;
        self.wire.put(&AMQPFrame::Header(on, header)).await
    }

    /// Waits until the broker has stored the published message.
    async fn confirmed(&mut self, queue: &str) -> Result<(), Error> {
        let mut is_returned = false;
        loop {
            match self.wire.frame(self.publishing).await? {
                Frame::Method(_, AMQPClass::Basic(basic::AMQPMethod::Return(_))) => is_returned = true,
                Frame::Method(_, AMQPClass::Basic(basic::AMQPMethod::Ack(_))) if is_returned => {
                    return Err(Error::Refused(format!("queue {queue} does not exist")));
                }
                Frame::Method(_, AMQPClass::Basic(basic::AMQPMethod::Ack(_))) => return Ok(()),
                Frame::Method(_, AMQPClass::Basic(basic::AMQPMethod::Nack(_))) => {
                    return Err(Error::Refused(format!("queue {queue} does not accept the message")));
                }
                // The content of a returned message.
                _ => {}
            }
        }
    }

    async fn acknowledge(&mut self, delivery_tag: u64) -> Result<(), Error> {
        let ack = basic::Ack {
            delivery_tag,
            multiple: false,
        };
        let ack = AMQPClass::Basic(basic::AMQPMethod::Ack(ack));
        self.wire.put(&AMQPFrame::Method(self.pulling, ack)).await
    }

    /// Returns the dead letters that are not settled, and waits until their queue shows them again, so that the next visit sees them.
    async fn end(mut self, dead_letters: &str, remaining: u64) -> Result<(), Error> {
        let all = basic::Nack {
            delivery_tag: 0,
            multiple: true,
            requeue: true,
        };
        let all = AMQPClass::Basic(basic::AMQPMethod::Nack(all));
        self.wire.put(&AMQPFrame::Method(self.pulling, all)).await?;
        let close = channel::Close {
            reply_code: 200,
            reply_text: short("done")?,
            class_id: 0,
            method_id: 0,
        };
        let close = AMQPClass::Channel(channel::AMQPMethod::Close(close));
        self.wire.ask(self.pulling, close).await?;
        // A quorum queue closes the channel before it has applied the return. If another client takes dead letters in the meantime, the
        // queue never shows all of them.
        for wait in RETURNING {
            let found = look(&mut self.wire, dead_letters).await?;
            if found.is_none_or(|found| u64::from(found.message_count) >= remaining) {
                break;
            }
            sleep(Duration::from_millis(wait)).await;
        }
        goodbye(&mut self.wire).await
    }
}

async fn goodbye(wire: &mut Wire) -> Result<(), Error> {
    let close = connection::Close {
        reply_code: 200,
        reply_text: short("done")?,
        class_id: 0,
        method_id: 0,
    };
    let close = AMQPClass::Connection(connection::AMQPMethod::Close(close));
    wire.ask(0, close).await.map(drop)
}

/// The broker's reason for a dead letter, and its time in seconds: those of the latest one.
fn death(headers: &FieldTable) -> (Option<String>, Option<u64>) {
    let Some(AMQPValue::FieldArray(deaths)) = headers.inner().get("x-death") else {
        return (None, None);
    };
    let Some(AMQPValue::FieldTable(latest)) = deaths.as_slice().first() else {
        return (None, None);
    };
    let reason = match latest.inner().get("reason") {
        Some(AMQPValue::LongString(reason)) => Some(reason.to_string()),
        _ => None,
    };
    let since = match latest.inner().get("time") {
        Some(AMQPValue::Timestamp(since)) => Some(*since),
        _ => None,
    };
    // Publishers can set these headers, too.
    (reason.filter(|reason| reason.len() <= LONGEST_REASON), since)
}

/// Properties of a dead letter at the end of its queue: its own, without the number of returns.
fn renewed(header: &Header) -> BasicProperties {
    let properties = header.properties.clone().unwrap_or_default();
    let mut table = FieldTable::default();
    for (name, value) in properties.headers().iter().flat_map(FieldTable::inner) {
        if !["x-delivery-count", "x-acquired-count"].contains(&name.as_str()) {
            table.insert(name.clone(), value.clone());
        }
    }
    properties.with_headers(table).with_delivery_mode(wire::PERSISTENT)
}

/// Properties of a redriven message: those that sidecars keep.
fn again(pulled: &Pulled) -> Result<BasicProperties, Error> {
    let kept = pulled.header.properties.as_ref().map(kept).unwrap_or_default();
    wire::properties(&wire::Message {
        exchange: "",
        user: None,
        key: "",
        number: None,
        id: kept.message_id.as_deref(),
        correlation_id: kept.correlation_id.as_deref(),
        headers: &pulled.letter.headers,
        body: &Bytes::new(),
    })
}

async fn in_time<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(PATIENCE, work).await {
        Ok(done) => done.map_err(|error| with_cause(&error)),
        Err(_) => Err(format!("RabbitMQ does not answer within {PATIENCE:?}")),
    }
}
