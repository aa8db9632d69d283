//! Bodies of requests to engines: parts of the body that the client sent, and what replaces the others.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// A body in parts. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Body(VecDeque<Bytes>);

impl Body {
    /// These parts, one after the other.
    pub fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        Self(parts.into_iter().filter(|part| !part.is_empty()).collect())
    }

    /// All bytes, copied.
    pub fn whole(&self) -> Bytes {
        self.0.iter().flatten().copied().collect()
    }

    /// The parts.
    pub fn into_parts(self) -> impl Iterator<Item = Bytes> {
        self.0.into_iter()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Bytes::len).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(u64::try_from(self.len()).unwrap_or(u64::MAX))
    }
}
