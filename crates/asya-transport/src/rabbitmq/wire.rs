//! Frames of AMQP 0-9-1 on a socket, and the handshake. The encoding is that of amq-protocol.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use amq_protocol::auth::{Credentials, SASLMechanism};
use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame, parse_frame};
use amq_protocol::protocol::{AMQPClass, BasicProperties, basic, channel, connection};
use amq_protocol::types::{AMQPValue, FieldTable, ShortString};
use amq_protocol::uri::{AMQPScheme, AMQPUri};
use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::frames::Frames;

/// Sizes of the parts before and after the payload of a frame (AMQP 0-9-1, section 4.2.3).
const FRAME_HEADER: usize = 7;
const FRAME_END: u8 = 0xCE;
const HEADER_FRAME: u8 = 2;
const BODY_FRAME: u8 = 3;
/// Largest frame; RabbitMQ's default.
const FRAME_MAX: u32 = 128 * 1024;
/// Largest header of a received message. RabbitMQ does not divide it, and adds to it (`x-death`, `x-delivery-count`), so it can exceed
/// the negotiated frame size (`build_simple_content_frames` in rabbit_binary_generator.erl, 3.8 to 4.1).
const LARGEST_HEADER: u32 = 4 * 1024 * 1024;
/// Smallest frame limit that a peer may request.
const FRAME_MIN: u32 = 4 * 1024;
/// Deepest nesting of tables. The parser is recursive, and publishers choose the headers.
const MAX_NESTING: usize = 32;
/// Largest read.
const READ_ROOM: usize = 16 * 1024;
const HEARTBEAT_SECONDS: u16 = 20;
/// AMQP class of messages.
pub(super) const BASIC: u16 = 60;
/// Delivery mode of messages that outlive a restart of the broker.
pub(super) const PERSISTENT: u8 = 2;

/// Failed or ended connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("connection failed")]
    Io(#[from] io::Error),
    #[error("cannot read the password from {} (ASYA_RABBITMQ_PASSWORD_FILE)", path.display())]
    NoPassword { path: PathBuf, source: io::Error },
    #[error("RabbitMQ closed the connection")]
    Ended,
    #[error("received nothing from RabbitMQ for two heartbeats")]
    Silent,
    #[error("RabbitMQ rejects the request: {0}")]
    Refused(String),
    #[error("peer does not speak AMQP 0-9-1: {0}")]
    Malformed(&'static str),
    #[error("unexpected reply from RabbitMQ: {0}")]
    Unexpected(String),
    #[error("cannot encode as AMQP 0-9-1: {0}")]
    Unsayable(String),
    #[error("the headers of the message have {size} bytes, and a frame has at most {largest} (frame_max)")]
    HeadersTooLarge { size: usize, largest: u32 },
    #[error("TLS handshake with {host} failed: {why}")]
    Tls { host: String, why: String },
}

/// Received frame.
#[derive(Debug)]
pub(super) enum Frame {
    Method(u16, AMQPClass),
    Header(u16, Header),
    Body(u16, Bytes),
    Heartbeat,
}

/// Header of a message.
#[derive(Debug)]
pub(super) struct Header {
    /// Size of the body in bytes.
    pub(super) size: u64,
    /// Properties, or the reason why they cannot be read.
    pub(super) properties: Result<BasicProperties, &'static str>,
}

/// Socket, plain or with TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connection that reads and writes frames.
pub(super) struct Wire {
    pub(super) reader: ReadHalf<Box<dyn Stream>>,
    pub(super) writer: WriteHalf<Box<dyn Stream>>,
    pub(super) input: BytesMut,
    /// Negotiated largest frame and heartbeat in seconds (0: none).
    pub(super) frame_max: u32,
    pub(super) heartbeat: u16,
    channels: u16,
}

impl Wire {
    /// Connects and signs in.
    pub(super) async fn open(uri: &AMQPUri, authorities: &str, name: &str) -> Result<Self, Error> {
        Self::over(connect(uri, authorities).await?, uri, name).await
    }

    /// Signs in on a stream.
    pub(super) async fn over(stream: Box<dyn Stream>, uri: &AMQPUri, name: &str) -> Result<Self, Error> {
        let (reader, writer) = tokio::io::split(stream);
        let mut wire = Self {
            reader,
            writer,
            input: BytesMut::new(),
            frame_max: FRAME_MIN,
            heartbeat: 0,
            channels: 0,
        };
        wire.writer.write_all(b"AMQP\x00\x00\x09\x01").await?;
        let user = &uri.authority.userinfo;
        let credentials = Credentials::new(user.username.clone().into(), user.password.clone().into());
        let mechanism = uri.query.auth_mechanism.unwrap_or(SASLMechanism::Plain);
        let AMQPClass::Connection(connection::AMQPMethod::Start(_)) = wire.answer(0).await? else {
            return Err(Error::Malformed("the first frame is not connection.start"));
        };
        let start = connection::StartOk {
            client_properties: about_us(name),
            mechanism: short(mechanism.name())?,
            response: credentials.sasl_auth_string(mechanism),
            locale: short("en_US")?,
        };
        let tune = match wire
            .ask(0, AMQPClass::Connection(connection::AMQPMethod::StartOk(start)))
            .await?
        {
            AMQPClass::Connection(connection::AMQPMethod::Tune(tune)) => tune,
            other => return Err(unexpected(&other)),
        };
        wire.frame_max = agreed(uri.query.frame_max.unwrap_or(FRAME_MAX), tune.frame_max).max(FRAME_MIN);
        wire.heartbeat = agreed(uri.query.heartbeat.unwrap_or(HEARTBEAT_SECONDS), tune.heartbeat);
        let tuned = connection::TuneOk {
            channel_max: tune.channel_max,
            frame_max: wire.frame_max,
            heartbeat: wire.heartbeat,
        };
        wire.say(0, AMQPClass::Connection(connection::AMQPMethod::TuneOk(tuned)))
            .await?;
        let open = connection::Open {
            virtual_host: short(&uri.vhost)?,
        };
        wire.ask(0, AMQPClass::Connection(connection::AMQPMethod::Open(open)))
            .await?;
        Ok(wire)
    }

    /// Opens a channel.
    pub(super) async fn channel(&mut self) -> Result<u16, Error> {
        self.channels += 1;
        let open = AMQPClass::Channel(channel::AMQPMethod::Open(channel::Open {}));
        self.ask(self.channels, open).await?;
        Ok(self.channels)
    }

    /// Sends a method and waits for the reply. The broker closes the channel if it rejects the method.
    pub(super) async fn ask(&mut self, channel: u16, method: AMQPClass) -> Result<AMQPClass, Error> {
        self.say(channel, method).await?;
        self.answer(channel).await
    }

    async fn say(&mut self, channel: u16, method: AMQPClass) -> Result<(), Error> {
        self.put(&AMQPFrame::Method(channel, method)).await
    }

    /// Sends a frame. Headers must fit into one.
    pub(super) async fn put(&mut self, frame: &AMQPFrame) -> Result<(), Error> {
        let mut out = Vec::new();
        encode(frame, &mut out)?;
        if out.len() > self.frame_max as usize {
            return Err(Error::HeadersTooLarge {
                size: out.len(),
                largest: self.frame_max,
            });
        }
        self.writer.write_all(&out).await?;
        Ok(self.writer.flush().await?)
    }

    /// Sends content of the message whose header was sent last.
    pub(super) async fn body(&mut self, channel: u16, content: Bytes) -> Result<(), Error> {
        let mut out = Frames::default();
        push_body(channel, &content, self.frame_max, &mut out);
        while !out.is_empty() {
            let written = self.writer.write(out.front()).await?;
            out.advance(written);
        }
        Ok(self.writer.flush().await?)
    }

    async fn answer(&mut self, on: u16) -> Result<AMQPClass, Error> {
        loop {
            if let Frame::Method(_, method) = self.frame(on).await? {
                return Ok(method);
            }
        }
    }

    /// Waits for the next frame on a channel.
    pub(super) async fn frame(&mut self, on: u16) -> Result<Frame, Error> {
        loop {
            let Some(frame) = next_frame(&mut self.input, self.frame_max)? else {
                read_more(&mut self.reader, &mut self.input).await?;
                continue;
            };
            match &frame {
                Frame::Method(_, AMQPClass::Connection(connection::AMQPMethod::Close(close))) => {
                    let closed = AMQPClass::Connection(connection::AMQPMethod::CloseOk(connection::CloseOk {}));
                    // The connection ends in any case.
                    let _ = self.say(0, closed).await;
                    return Err(refused(&close.reply_text));
                }
                Frame::Method(channel, AMQPClass::Channel(channel::AMQPMethod::Close(close))) => {
                    let closed = AMQPClass::Channel(channel::AMQPMethod::CloseOk(channel::CloseOk {}));
                    self.say(*channel, closed).await?;
                    return Err(refused(&close.reply_text));
                }
                Frame::Method(channel, _) | Frame::Header(channel, _) | Frame::Body(channel, _) if *channel == on => {
                    return Ok(frame);
                }
                _ => {}
            }
        }
    }
}

/// Waits for more bytes. Cancel safe.
pub(super) async fn read_more(reader: &mut ReadHalf<Box<dyn Stream>>, input: &mut BytesMut) -> Result<(), Error> {
    if input.capacity() - input.len() < READ_ROOM / 2 {
        input.reserve(READ_ROOM);
    }
    match reader.read_buf(input).await? {
        0 => Err(Error::Ended),
        _ => Ok(()),
    }
}

/// Writes some of the bytes; without any, flushes what TLS holds of earlier ones. Cancel safe: a broker that stops reading must not
/// keep frames and heartbeats from being read.
pub(super) async fn write_or_flush(writer: &mut WriteHalf<Box<dyn Stream>>, bytes: &[u8]) -> Result<usize, Error> {
    if bytes.is_empty() {
        writer.flush().await?;
        return Ok(0);
    }
    Ok(writer.write(bytes).await?)
}

async fn connect(uri: &AMQPUri, authorities: &str) -> Result<Box<dyn Stream>, Error> {
    let host = uri.authority.host.trim_matches(['[', ']']);
    let plain = TcpStream::connect((host, uri.authority.port)).await?;
    plain.set_nodelay(true)?;
    match uri.scheme {
        AMQPScheme::AMQP => Ok(Box::new(plain)),
        AMQPScheme::AMQPS => {
            let failed = |why: String| Error::Tls {
                host: host.to_owned(),
                why,
            };
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(read_authorities(authorities).map_err(failed)?);
            let config = ClientConfig::builder()
                .with_root_certificates(roots)
                .with_no_client_auth();
            let name = ServerName::try_from(host.to_owned()).map_err(|e| failed(e.to_string()))?;
            let secured = TlsConnector::from(Arc::new(config)).connect(name, plain).await;
            Ok(Box::new(secured.map_err(|e| failed(e.to_string()))?))
        }
    }
}

/// Certificates of the authorities: those of the system, the content of a file, or the file at a path.
fn read_authorities(authorities: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    if authorities.is_empty() {
        return Ok(rustls_native_certs::load_native_certs().certs);
    }
    let text = if authorities.contains("-----BEGIN") {
        authorities.to_owned()
    } else {
        std::fs::read_to_string(authorities)
            .map_err(|error| format!("cannot read {authorities} (ASYA_RABBITMQ_CA): {error}"))?
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err("ASYA_RABBITMQ_CA contains no certificate in PEM format".to_owned()),
    }
}

/// Properties and capabilities of the client. Without `basic.nack` the broker would close the connection instead, without
/// `authentication_failure_close` a wrong password would look like a network failure.
fn about_us(name: &str) -> FieldTable {
    let mut can = FieldTable::default();
    for ability in [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "publisher_confirms",
    ] {
        can.insert(ability.into(), AMQPValue::Boolean(true));
    }
    let mut about = FieldTable::default();
    about.insert("capabilities".into(), AMQPValue::FieldTable(can));
    for (key, value) in [
        ("connection_name", name),
        ("product", "asya-sidecar"),
        ("version", env!("CARGO_PKG_VERSION")),
    ] {
        about.insert(key.into(), AMQPValue::LongString(value.into()));
    }
    about
}

/// The smaller of two limits; 0 means no limit.
fn agreed<T: Ord + Copy + From<u8>>(ours: T, theirs: T) -> T {
    let none = T::from(0);
    match (ours == none, theirs == none) {
        (false, false) => ours.min(theirs),
        _ => ours.max(theirs),
    }
}

/// Encodes a name, which has at most 255 bytes in AMQP.
pub(super) fn short(text: &str) -> Result<ShortString, Error> {
    ShortString::try_new(text).map_err(|_| Error::Unsayable(format!("{text:.100}… is longer than 255 bytes")))
}

pub(super) fn refused(text: &ShortString) -> Error {
    Error::Refused(text.to_string())
}

pub(super) fn unexpected(method: &AMQPClass) -> Error {
    Error::Unexpected(format!(
        "method {}.{}",
        method.get_amqp_class_id(),
        method.get_amqp_method_id()
    ))
}

/// Appends a frame.
pub(super) fn encode(frame: &AMQPFrame, out: &mut Vec<u8>) -> Result<(), Error> {
    let before = std::mem::take(out);
    let written = gen_frame(frame)(WriteContext::from(before)).map_err(|e| Error::Unsayable(e.to_string()))?;
    *out = written.into_inner().0;
    Ok(())
}

/// Header with the number that identifies a message if it is returned. Headers that begin with `x-` end at the next sidecar.
const NUMBER: &str = "x-asya-number";

/// Message to publish.
pub(super) struct Message<'a> {
    pub(super) exchange: &'a str,
    /// User who publishes it. The broker refuses another than that of the login.
    pub(super) user: Option<&'a str>,
    pub(super) key: &'a str,
    /// Number of a message that is returned if no queue accepts it.
    pub(super) number: Option<u64>,
    pub(super) id: Option<&'a str>,
    pub(super) correlation_id: Option<&'a str>,
    pub(super) headers: &'a [(String, String)],
    pub(super) body: &'a Bytes,
}

/// Appends the frames of a message, or nothing after an error.
pub(super) fn encode_message(channel: u16, message: &Message, frame_max: u32, out: &mut Frames) -> Result<(), Error> {
    let publish = basic::Publish {
        exchange: short(message.exchange)?,
        routing_key: short(message.key)?,
        mandatory: message.number.is_some(),
        immediate: false,
    };
    let header = AMQPContentHeader {
        class_id: BASIC,
        body_size: message.body.len() as u64,
        properties: properties(message)?,
    };
    let publish = AMQPClass::Basic(basic::AMQPMethod::Publish(publish));
    let mark = out.mark();
    encode(&AMQPFrame::Method(channel, publish), out.tail())?;
    let before = out.mark();
    encode(&AMQPFrame::Header(channel, header), out.tail())?;
    let size = out.mark() - before;
    if size > frame_max as usize {
        out.truncate(mark);
        return Err(Error::HeadersTooLarge {
            size,
            largest: frame_max,
        });
    }
    push_body(channel, message.body, frame_max, out);
    Ok(())
}

/// Appends the frames of content.
fn push_body(channel: u16, content: &Bytes, frame_max: u32, out: &mut Frames) {
    let largest = frame_max.saturating_sub(8).max(1) as usize;
    for start in (0..content.len()).step_by(largest) {
        let chunk = content.slice(start..content.len().min(start + largest));
        let length = u32::try_from(chunk.len()).unwrap_or(frame_max);
        out.tail().push(BODY_FRAME);
        out.tail().extend_from_slice(&channel.to_be_bytes());
        out.tail().extend_from_slice(&length.to_be_bytes());
        out.push(chunk);
        out.tail().push(FRAME_END);
    }
}

pub(super) fn properties(message: &Message) -> Result<BasicProperties, Error> {
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type(short("application/json")?);
    if let Some(id) = message.id {
        properties = properties.with_message_id(short(id)?);
    }
    if let Some(user) = message.user {
        properties = properties.with_user_id(short(user)?);
    }
    if let Some(id) = message.correlation_id {
        properties = properties.with_correlation_id(short(id)?);
    }
    let mut table = FieldTable::default();
    for (key, value) in message.headers {
        table.insert(short(key)?, AMQPValue::LongString(value.as_str().into()));
    }
    if let Some(number) = message.number.and_then(|number| i64::try_from(number).ok()) {
        table.insert(short(NUMBER)?, AMQPValue::LongLongInt(number));
    }
    Ok(properties.with_headers(table))
}

/// Number of a returned message.
pub(super) fn number(properties: &BasicProperties) -> Option<u64> {
    match properties.headers().as_ref()?.inner().get(NUMBER)? {
        AMQPValue::LongLongInt(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The next frame, if it is complete.
pub(super) fn next_frame(input: &mut BytesMut, frame_max: u32) -> Result<Option<Frame>, Error> {
    let Some(&[kind, channel @ .., a, b, c, d]) = input.first_chunk::<FRAME_HEADER>() else {
        return Ok(None);
    };
    if kind == b'A' {
        return Err(Error::Malformed("it speaks another version of the protocol"));
    }
    let payload = u32::from_be_bytes([a, b, c, d]);
    let largest = if kind == HEADER_FRAME {
        frame_max.max(LARGEST_HEADER)
    } else {
        frame_max
    };
    if payload > largest {
        return Err(Error::Malformed("frame larger than negotiated"));
    }
    let whole = FRAME_HEADER + payload as usize + 1;
    if input.len() < whole {
        input.reserve(whole - input.len());
        return Ok(None);
    }
    let mut frame = input.split_to(whole).freeze();
    if frame.last() != Some(&FRAME_END) {
        return Err(Error::Malformed("frame without end octet"));
    }
    if kind == BODY_FRAME {
        frame.advance(FRAME_HEADER);
        frame.truncate(payload as usize);
        return Ok(Some(Frame::Body(u16::from_be_bytes(channel), frame)));
    }
    let parsed = if nests_too_deep(&frame) {
        Err("the headers are nested deeper than 32 levels")
    } else {
        parse_frame(&frame[..]).map_err(|_| "the headers are not valid AMQP 0-9-1")
    };
    match parsed {
        Ok((_, AMQPFrame::Method(channel, method))) => Ok(Some(Frame::Method(channel, method))),
        Ok((_, AMQPFrame::Header(channel, header))) => {
            let header = Header {
                size: header.body_size,
                properties: Ok(header.properties),
            };
            Ok(Some(Frame::Header(channel, header)))
        }
        Ok((_, AMQPFrame::Heartbeat)) => Ok(Some(Frame::Heartbeat)),
        Ok(_) => Err(Error::Malformed("unknown type of frame")),
        Err(why) => unreadable_header(&frame, why).map(Some),
    }
}

/// Whether tables or lists may be nested too deep for the parser. Any byte of their type with a plausible length counts.
fn nests_too_deep(frame: &[u8]) -> bool {
    let mut ends: Vec<usize> = Vec::new();
    for (at, field) in frame.windows(5).enumerate() {
        let &[b'A' | b'F', a, b, c, d] = field else { continue };
        let end = at + field.len() + u32::from_be_bytes([a, b, c, d]) as usize;
        if end < frame.len() {
            ends.retain(|end| *end > at);
            ends.push(end);
        }
        if ends.len() > MAX_NESTING {
            return true;
        }
    }
    false
}

/// Header of a message whose properties cannot be read. Publishers choose them, so the connection continues.
fn unreadable_header(frame: &[u8], why: &'static str) -> Result<Frame, Error> {
    let (Some(&[HEADER_FRAME, a, b]), Some(payload)) = (frame.first_chunk(), frame.get(FRAME_HEADER..)) else {
        return Err(Error::Malformed("malformed frame"));
    };
    // Class and weight precede the size (AMQP 0-9-1, section 4.2.6.1).
    let Some(size) = payload.get(4..).and_then(<[u8]>::first_chunk) else {
        return Err(Error::Malformed("malformed frame"));
    };
    let header = Header {
        size: u64::from_be_bytes(*size),
        properties: Err(why),
    };
    Ok(Frame::Header(u16::from_be_bytes([a, b]), header))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(message: &Message, frame_max: u32) -> Vec<u8> {
        let mut out = Frames::default();
        encode_message(2, message, frame_max, &mut out).unwrap();
        encode(&AMQPFrame::Heartbeat, out.tail()).unwrap();
        all(&mut out)
    }

    fn all(frames: &mut Frames) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !frames.is_empty() {
            bytes.extend_from_slice(frames.front());
            frames.advance(frames.front().len());
        }
        bytes
    }

    fn message<'a>(headers: &'a [(String, String)], body: &'a Bytes) -> Message<'a> {
        Message {
            exchange: "",
            user: None,
            key: "q",
            number: Some(7),
            id: Some("mine"),
            correlation_id: None,
            headers,
            body,
        }
    }

    #[test]
    fn headers_fill_a_frame_and_are_rejected_beyond_it() {
        let sized = |length: usize| {
            let headers = [("k".to_owned(), "x".repeat(length))];
            let mut out = Frames::default();
            out.tail().push(1);
            let encoded = encode_message(2, &message(&headers, &Bytes::from_static(b"{}")), FRAME_MIN, &mut out);
            (encoded, all(&mut out))
        };
        let fits = (0..FRAME_MIN as usize)
            .rfind(|length| sized(*length).0.is_ok())
            .unwrap();
        // RabbitMQ counts the eight bytes around the payload (rabbit_reader.erl, `handle_input`).
        let (_, bytes) = sized(fits);
        let header = bytes.iter().skip(1).position(|byte| *byte == FRAME_END).unwrap() + 2;
        let payload = u32::from_be_bytes(bytes[header + 3..header + 7].try_into().unwrap());
        assert_eq!((bytes[header], payload), (HEADER_FRAME, FRAME_MIN - 8));
        let (error, bytes) = sized(fits + 1);
        let said = error.unwrap_err().to_string();
        assert_eq!(
            said,
            "the headers of the message have 4097 bytes, and a frame has at most 4096 (frame_max)"
        );
        assert_eq!(bytes, [1], "nothing is appended");
    }

    /// The body of the first message, read in pieces.
    fn read(bytes: &[u8], piece: usize, frame_max: u32) -> Result<(Vec<u8>, Header), Error> {
        let (mut input, mut body, mut header) = (BytesMut::new(), Vec::new(), None);
        for piece in bytes.chunks(piece) {
            input.extend_from_slice(piece);
            while let Some(frame) = next_frame(&mut input, frame_max)? {
                match frame {
                    Frame::Method(channel, _) => assert_eq!(channel, 2),
                    Frame::Header(_, found) => header = Some(found),
                    Frame::Body(_, more) => body.extend_from_slice(&more),
                    Frame::Heartbeat => return Ok((body, header.unwrap())),
                }
            }
        }
        Err(Error::Ended)
    }

    /// A header frame with lists nested this deep.
    fn nested(depth: usize) -> Vec<u8> {
        let mut lists = b"V".to_vec();
        for _ in 0..depth {
            let length = u32::try_from(lists.len()).unwrap().to_be_bytes();
            lists = [b"A", &length[..], &lists].concat();
        }
        let table = [b"\x01k", &lists[..]].concat();
        let length = u32::try_from(table.len()).unwrap().to_be_bytes();
        let (class, size) = (BASIC.to_be_bytes(), 7_u64.to_be_bytes());
        let payload = [&class[..], &[0, 0], &size, &[0x20, 0], &length, &table].concat();
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[2, 0, 1], &length[..], &payload, &[FRAME_END]].concat()
    }

    #[test]
    fn too_deeply_nested_headers_are_reported() {
        for (depth, is_read) in [
            (1, true),
            (MAX_NESTING, true),
            (MAX_NESTING + 1, false),
            (20_000, false),
        ] {
            let mut input = BytesMut::from(&nested(depth)[..]);
            let frame = next_frame(&mut input, FRAME_MAX).unwrap();
            let Some(Frame::Header(1, header)) = frame else {
                panic!("{depth}: {frame:?}")
            };
            assert_eq!(header.size, 7, "{depth}");
            let properties = header.properties.map(|properties| properties.headers().is_some());
            assert_eq!(properties.is_ok_and(|has_headers| has_headers), is_read, "{depth}");
        }
    }

    /// RabbitMQ passes on names that are not UTF-8.
    #[test]
    fn headers_that_cannot_be_parsed_are_reported() {
        let mut bytes = nested(1);
        let name = bytes.iter().position(|byte| *byte == b'k').unwrap();
        bytes[name] = 0xff;
        let frame = next_frame(&mut BytesMut::from(&bytes[..]), FRAME_MAX).unwrap();
        let Some(Frame::Header(1, header)) = frame else {
            panic!("{frame:?}")
        };
        assert_eq!(header.size, 7);
        assert_eq!(header.properties.unwrap_err(), "the headers are not valid AMQP 0-9-1");
    }

    proptest! {
        #[test]
        fn written_frames_are_read_at_any_cut(
            body in proptest::collection::vec(any::<u8>(), 0..20_000),
            piece in 1_usize..5_000,
            frame_max in FRAME_MIN..FRAME_MAX,
            header in "[a-z]{0,300}",
        ) {
            let headers = [("k".to_owned(), header.clone())];
            let body = Bytes::from(body);
            let message = message(&headers, &body);
            let (read_body, read_header) = read(&bytes_of(&message, frame_max), piece, frame_max).unwrap();
            prop_assert_eq!(&read_body, &body);
            prop_assert_eq!(read_header.size, body.len() as u64);
            let properties = read_header.properties.unwrap();
            let id = properties.message_id().clone();
            prop_assert_eq!(id.map(|id| id.to_string()), Some("mine".to_owned()));
            prop_assert_eq!(number(&properties), Some(7));
            let table = properties.headers().clone().unwrap_or_default();
            prop_assert_eq!(table.inner().get("k"), Some(&AMQPValue::LongString(header.as_str().into())));
        }

        #[test]
        fn nonsense_is_an_error_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut input = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = next_frame(&mut input, FRAME_MIN) {}
        }
    }

    #[test]
    fn malformed_frames_are_rejected_with_a_reason() {
        let said = |bytes: &[u8]| {
            next_frame(&mut BytesMut::from(bytes), FRAME_MIN)
                .unwrap_err()
                .to_string()
        };
        assert!(said(b"AMQP\x00\x00\x09\x01").contains("another version"));
        assert!(said(&[1, 0, 0, 0xff, 0, 0, 0]).contains("larger than negotiated"));
        assert!(said(&[8, 0, 0, 0, 0, 0, 0, 0]).contains("without end octet"));
    }

    #[test]
    fn too_long_names_are_rejected() {
        let key = "k".repeat(256);
        let body = Bytes::new();
        let message = Message {
            key: &key,
            ..message(&[], &body)
        };
        let mut out = Frames::default();
        let said = encode_message(1, &message, FRAME_MIN, &mut out)
            .unwrap_err()
            .to_string();
        assert!(said.contains("longer than 255 bytes") && out.is_empty(), "{said}");
    }
}
