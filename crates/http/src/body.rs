//! Bodies of requests, bounded, whether or not their length is declared; and bodies of responses that hold something.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::Form;
use crate::slots::Work;

/// A client that sends too much reads the refusal only when it has sent everything; more than this is not waited for.
const DISCARDED: usize = 64 * 1024 * 1024;

/// A request's body is larger than its server takes.
#[derive(Debug)]
pub struct TooLarge {
    /// Bytes that are taken.
    pub limit: usize,
}

/// A client has not sent the body of a request in time.
#[derive(Debug)]
pub struct TooSlow {
    /// The time that it has.
    pub limit: Duration,
}

impl TooLarge {
    pub(crate) fn refusal(&self, form: Form) -> Response {
        let mut response = form.refusal(StatusCode::PAYLOAD_TOO_LARGE, "too_large", &self.to_string());
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
        response
    }
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { limit } = self;
        write!(
            f,
            "the body of the request is too large: at most {} are read",
            size(*limit)
        )
    }
}

impl std::error::Error for TooLarge {}

impl std::fmt::Display for TooSlow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.limit.as_secs();
        write!(f, "the body of the request was not sent within {seconds} seconds")
    }
}

impl std::error::Error for TooSlow {}

/// A number of bytes, for people.
pub fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes / 1024),
        _ if bytes.is_multiple_of(1_048_576) => format!("{} MiB", bytes / 1_048_576),
        _ => format!("{}.{} MiB", bytes / 1_048_576, bytes % 1_048_576 * 10 / 1_048_576),
    }
}

/// A body of at most some bytes; more is discarded, and then an error.
pub(crate) struct Bounded {
    inner: Incoming,
    limit: usize,
    left: usize,
    discarded: usize,
    exceeded: Arc<AtomicBool>,
    work: Arc<Work>,
}

impl Bounded {
    pub(crate) fn new(inner: Incoming, limit: usize, work: Arc<Work>) -> Self {
        if inner.is_end_stream() {
            work.begins();
        }
        Self {
            inner,
            limit,
            left: limit,
            discarded: 0,
            exceeded: Arc::default(),
            work,
        }
    }

    /// Whether more came than may, also after the body has been given away.
    pub(crate) fn exceeded(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.exceeded)
    }

    /// Whether the client has declared more than may come.
    pub(crate) fn declares_too_much(&self) -> bool {
        usize::try_from(self.inner.size_hint().lower()).is_ok_and(|declared| declared > self.limit)
    }

    /// Reads the rest and forgets it, so that the client comes to read the response; not if it waits to be asked for the body.
    pub(crate) async fn discard(mut self, headers: &HeaderMap) {
        if headers.contains_key(header::EXPECT) {
            return;
        }
        while let Some(Ok(_)) = self.frame().await {}
    }
}

impl Body for Bounded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        loop {
            let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
            let too_large = TooLarge { limit: self.limit };
            match frame {
                Some(Ok(frame)) => {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    if !self.exceeded.load(Ordering::Relaxed) && length <= self.left {
                        self.left -= length;
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    self.exceeded.store(true, Ordering::Relaxed);
                    self.discarded += length;
                    if self.discarded > DISCARDED {
                        return Poll::Ready(Some(Err(axum::Error::new(too_large))));
                    }
                }
                _ if self.exceeded.load(Ordering::Relaxed) => {
                    return Poll::Ready(Some(Err(axum::Error::new(too_large))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(axum::Error::new(error)))),
                None => {
                    self.work.begins();
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A body that holds something until it is dropped, such as a place or a connection.
#[derive(Debug)]
pub struct Holding<B, T> {
    body: B,
    _held: T,
}

impl<B, T> Holding<B, T> {
    /// This body, which holds `held`.
    pub fn new(body: B, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<B: Body + Unpin, T: Unpin> Body for Holding<B, T> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(size(12), "12 bytes");
        assert_eq!(size(64 * 1024), "64 KiB");
        assert_eq!(size(7 * 1024 * 1024), "7 MiB");
        assert_eq!(size(2_936_012), "2.7 MiB");
    }
}
