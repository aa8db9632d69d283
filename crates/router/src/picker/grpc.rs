//! Messages and statuses of gRPC on HTTP/2: each message has a prefix with its length, and the status is a trailer.
//!
//! Source: <https://github.com/grpc/grpc/blob/v1.76.0/doc/PROTOCOL-HTTP2.md>.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::response::Response;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prost::Message;
use runway_http::pool::{Part, Pool};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

/// Bytes before a message: a flag for compression, and the length.
const PREFIX: usize = 5;
/// Bytes of each stream that count for no budget: most parts of a response are smaller.
const ALWAYS: usize = 4 * 1024;
/// Unit of the budget.
const UNIT: usize = 1024;

const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    code: u16,
    message: &'static str,
}

impl Status {
    /// The call has succeeded.
    pub const OK: Self = Self { code: 0, message: "" };

    /// The client does not follow the protocol.
    pub const fn invalid(message: &'static str) -> Self {
        Self { code: 3, message }
    }

    /// The client has taken too long.
    pub const fn too_late(message: &'static str) -> Self {
        Self { code: 4, message }
    }

    /// A limit is reached.
    pub const fn exhausted(message: &'static str) -> Self {
        Self { code: 8, message }
    }

    /// The server does not have the method, or does not support the call.
    pub const fn unimplemented(message: &'static str) -> Self {
        Self { code: 12, message }
    }

    /// As headers or trailers.
    pub fn headers(self) -> HeaderMap {
        let mut headers = HeaderMap::from_iter([(STATUS, HeaderValue::from(self.code))]);
        if !self.message.is_empty() {
            headers.insert(MESSAGE, HeaderValue::from_static(self.message));
        }
        headers
    }

    /// As the response to a call without a reply.
    pub fn response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.headers_mut() = self.headers();
        response.headers_mut().insert(CONTENT_TYPE, GRPC);
        response
    }
}

/// A message with its prefix.
pub fn encoded(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // It fails without capacity only.
    let _ = message.encode(&mut bytes);
    bytes.freeze()
}

/// Reason why the next message cannot be received.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// The client has left.
    Left,
    /// The memory for messages is used up. Another attempt may succeed.
    Full,
    /// The client does not follow the protocol.
    Status(Status),
}

/// A pool of this many bytes for messages.
pub fn memory(bytes: usize) -> Pool {
    Pool::new(bytes / UNIT)
}

/// Messages of a client. Their memory is part of a pool.
pub struct Messages {
    body: Body,
    received: BytesMut,
    largest: usize,
    memory: Part,
}

impl Messages {
    /// The messages in a body, of at most `largest` bytes each.
    pub fn new(body: Body, largest: usize, memory: Part) -> Self {
        Self {
            body,
            received: BytesMut::new(),
            largest,
            memory,
        }
    }

    /// Takes memory from this part from now on, and frees the one before.
    pub fn use_memory(&mut self, memory: Part) {
        self.memory = memory;
    }

    /// The next message; `None` after the last one. `kept` are bytes of messages before that are still in use. It may be called
    /// again after it was dropped or the pool was full.
    ///
    /// # Errors
    /// The next message cannot be received.
    pub async fn next<M: Message + Default>(&mut self, kept: usize) -> Result<Option<M>, Broken> {
        loop {
            let counted = (kept + self.received.len()).saturating_sub(ALWAYS);
            if !self.memory.grow_to(counted.div_ceil(UNIT)) {
                return Err(Broken::Full);
            }
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    let data = frame.into_data().unwrap_or_default();
                    self.received.extend_from_slice(&data);
                }
                None if self.received.is_empty() => return Ok(None),
                None | Some(Err(_)) => return Err(Broken::Left),
            }
        }
    }

    /// The message that has been received completely.
    fn take<M: Message + Default>(&mut self) -> Result<Option<M>, Broken> {
        let Some(mut prefix) = self.received.get(..PREFIX) else {
            return Ok(None);
        };
        let invalid = |message| Broken::Status(Status::invalid(message));
        if prefix.get_u8() != 0 {
            let text = "compressed messages are not supported: send without grpc-encoding";
            return Err(Broken::Status(Status::unimplemented(text)));
        }
        let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
        if length > self.largest {
            let text = "the message is too large: it contains more than the largest body of a request";
            return Err(Broken::Status(Status::exhausted(text)));
        }
        if self.received.len() < PREFIX + length {
            return Ok(None);
        }
        self.received.advance(PREFIX);
        let message = M::decode(self.received.split_to(length).freeze());
        message
            .map(Some)
            .map_err(|_| invalid("the message cannot be decoded: send those of Envoy's ext_proc v3"))
    }
}

/// The body of a response: frames of a task, which ends with it.
pub struct Replies {
    frames: mpsc::Receiver<Frame<Bytes>>,
    _task: AbortOnDropHandle<()>,
}

impl Replies {
    /// The frames that a task sends.
    pub fn new(frames: mpsc::Receiver<Frame<Bytes>>, task: AbortOnDropHandle<()>) -> Self {
        Self { frames, _task: task }
    }
}

impl http_body::Body for Replies {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.frames.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

/// The response to a call, with replies and a status at the end.
pub fn response(body: impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static) -> Response {
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The response to a call with one reply.
pub fn reply(message: &impl Message) -> Response {
    let frames = [Frame::data(encoded(message)), Frame::trailers(Status::OK.headers())];
    response(StreamBody::new(futures::stream::iter(frames.map(Ok))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picker::messages::{HttpBody, HttpStatus};

    /// Messages from these parts of a body, with a pool of 64 KiB.
    fn messages(parts: Vec<Bytes>) -> Messages {
        let parts = parts.into_iter().map(Ok::<_, Infallible>);
        let body = Body::from_stream(futures::stream::iter(parts));
        Messages::new(body, 128 * 1024, memory(64 * 1024).part(None))
    }

    fn status(code: i32) -> Bytes {
        encoded(&HttpStatus { code })
    }

    #[tokio::test]
    async fn messages_are_read_wherever_their_bytes_are_split() {
        let all = [status(200), status(503)].concat();
        for size in 1..all.len() {
            let mut messages = messages(all.chunks(size).map(Bytes::copy_from_slice).collect());
            for code in [200, 503] {
                assert_eq!(messages.next(0).await, Ok(Some(HttpStatus { code })));
            }
            assert_eq!(messages.next::<HttpStatus>(0).await, Ok(None));
        }
    }

    #[tokio::test]
    async fn broken_messages_are_refused() {
        for (bytes, expected) in [
            (Bytes::from_static(&[0, 0, 0, 0, 9, 1]), "Left"),
            (Bytes::from_static(&[1, 0, 0, 0, 0]), "without grpc-encoding"),
            (Bytes::from_static(&[0, 255, 255, 255, 255]), "too large"),
            (Bytes::from_static(&[0, 0, 0, 0, 2, 255, 255]), "cannot be decoded"),
        ] {
            let error = messages(vec![bytes]).next::<HttpStatus>(0).await.unwrap_err();
            assert!(format!("{error:?}").contains(expected), "{error:?}");
        }
    }

    #[tokio::test]
    async fn messages_take_memory_of_their_pool_until_it_is_full() {
        let body = Bytes::from(vec![0; 60 * 1024]);
        let message = HttpBody {
            body,
            end_of_stream: false,
        };
        let mut messages = messages(vec![encoded(&message); 2]);
        assert!(matches!(messages.next::<HttpBody>(0).await, Ok(Some(_))));
        assert_eq!(
            messages.next::<HttpBody>(60 * 1024).await,
            Err(Broken::Full),
            "the first one is still in use"
        );
        assert!(matches!(messages.next::<HttpBody>(0).await, Ok(Some(_))));
    }
}
