//! Bodies of responses whose tokens are counted on their way to the client.

use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use axum::http::{HeaderMap, header};
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};

use crate::usage::{self, Finder, Usage};

/// Longest event of a stream that is read. A longer one, and all after it, pass unread.
const LONGEST_EVENT: usize = 1024 * 1024;

/// The count of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// Tokens as the engine reported them.
    pub usage: Option<Usage>,
    /// Parts of a stream: about one for each token.
    pub parts: u64,
    /// It is a stream.
    pub is_stream: bool,
    /// Time of the first part of a stream.
    pub first_part: Option<Instant>,
    /// End of the response.
    pub end: End,
}

/// End of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The last byte was passed on.
    Complete,
    /// The engine ended it before.
    Broken,
    /// The client left, or lost its right, before.
    Left,
}

impl End {
    /// Value in the audit log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Broken => "broken",
            Self::Left => "left",
        }
    }
}

type Settle = Box<dyn FnOnce(Count) + Send + Sync>;

/// A body that counts the tokens of its response.
pub struct Metered<B: Body> {
    body: B,
    reader: Reader,
    end: End,
    settle: Option<Settle>,
}

enum Reader {
    Whole(Finder),
    Events(Events),
    /// Not JSON, such as audio.
    Other,
}

impl<B: Body> Metered<B> {
    /// This body of a response with these headers. `settle` is called once, at its end. With `added`, the event that has only
    /// tokens is removed, because the client did not request it.
    pub fn new(headers: &HeaderMap, body: B, added: bool, settle: impl FnOnce(Count) + Send + Sync + 'static) -> Self {
        let content = headers
            .get(header::CONTENT_TYPE)
            .map_or(&b""[..], |content| content.as_bytes());
        let reader = if content.starts_with(b"text/event-stream") {
            Reader::Events(Events {
                removes_usage: added,
                ..Events::default()
            })
        } else if content.starts_with(b"application/json") {
            Reader::Whole(Finder::default())
        } else {
            Reader::Other
        };
        Self {
            body,
            reader,
            end: End::Left,
            settle: Some(Box::new(settle)),
        }
    }

    /// Whether the client gets fewer bytes than the engine sends.
    pub fn removes_events(&self) -> bool {
        matches!(&self.reader, Reader::Events(events) if events.removes_usage)
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Metered<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        loop {
            let mut frame = match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    this.end = End::Broken;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.end = End::Complete;
                    return Poll::Ready(this.reader.rest().map(|rest| Ok(Frame::data(rest))));
                }
            };
            if let Some(data) = frame.data_mut() {
                this.reader.read(data);
                if data.is_empty() {
                    continue;
                }
            }
            return Poll::Ready(Some(Ok(frame)));
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream() && self.reader.held().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if self.removes_events() {
            return SizeHint::default();
        }
        self.body.size_hint()
    }
}

impl<B: Body> Drop for Metered<B> {
    fn drop(&mut self) {
        if self.end == End::Left && self.body.is_end_stream() {
            self.end = End::Complete;
        }
        let none = Count {
            usage: None,
            parts: 0,
            is_stream: false,
            first_part: None,
            end: self.end,
        };
        let count = match &self.reader {
            Reader::Whole(finder) => Count {
                usage: finder.usage(),
                ..none
            },
            Reader::Events(events) => Count {
                usage: events.usage,
                parts: events.parts,
                is_stream: true,
                first_part: events.first_part,
                ..none
            },
            Reader::Other => none,
        };
        if let Some(settle) = self.settle.take() {
            settle(count);
        }
    }
}

impl Reader {
    /// Takes in a part of the body, and leaves in it what the client gets now.
    fn read(&mut self, part: &mut Bytes) {
        match self {
            Self::Whole(finder) => finder.read(part),
            Self::Events(events) => events.read(part),
            Self::Other => {}
        }
    }

    fn held(&self) -> &[u8] {
        match self {
            Self::Events(events) if events.removes_usage => &events.begun,
            _ => &[],
        }
    }

    /// Bytes that the client has not received when the body ends.
    fn rest(&mut self) -> Option<Bytes> {
        match self {
            Self::Events(events) if events.removes_usage && !events.begun.is_empty() => {
                Some(events.begun.split().freeze())
            }
            _ => None,
        }
    }
}

/// Events of a stream.
#[derive(Debug, Default)]
struct Events {
    removes_usage: bool,
    /// An event that is not complete. With `removes_usage`, the client gets it when it is.
    begun: BytesMut,
    is_too_long: bool,
    usage: Option<Usage>,
    parts: u64,
    first_part: Option<Instant>,
}

impl Events {
    fn read(&mut self, part: &mut Bytes) {
        if self.is_too_long {
            return;
        }
        let text = if self.begun.is_empty() {
            part.clone()
        } else {
            self.begun.extend_from_slice(part);
            self.begun.split().freeze()
        };
        let (mut removed, mut start) = (Vec::new(), 0);
        while let Some(end) = end_of_event(&text, start) {
            if self.count(&text[start..end]) {
                removed.push(start..end);
            }
            start = end;
        }
        self.is_too_long = text.len() - start > LONGEST_EVENT;
        // The client waits for the rest of an event only while that is kept.
        let passed_on = if self.is_too_long { text.len() } else { start };
        self.begun.extend_from_slice(&text[passed_on..]);
        if self.removes_usage {
            *part = without(&text.slice(..passed_on), &removed);
        }
    }

    /// Counts an event. Whether it has only tokens.
    fn count(&mut self, event: &[u8]) -> bool {
        let event = usage::event(event);
        self.parts += u64::from(event.is_part);
        if self.parts == 1 {
            self.first_part.get_or_insert_with(Instant::now);
        }
        if let Some(usage) = event.usage {
            // Numbers are those so far, and some events have only one of them.
            let before = self.usage.unwrap_or_default();
            self.usage = Some(Usage {
                input: usage.input.max(before.input),
                output: usage.output.max(before.output),
            });
        }
        event.only_usage
    }
}

/// A text without these parts, which are in order. It is copied only if there are any.
fn without(text: &Bytes, removed: &[Range<usize>]) -> Bytes {
    if removed.is_empty() {
        return text.clone();
    }
    let mut rest = BytesMut::new();
    let mut end = 0;
    for part in removed {
        rest.extend_from_slice(&text[end..part.start]);
        end = part.end;
    }
    rest.extend_from_slice(&text[end..]);
    rest.freeze()
}

/// The end of the event that begins here: after an empty line.
fn end_of_event(text: &[u8], start: usize) -> Option<usize> {
    let mut at = start;
    loop {
        at += text.get(at..)?.iter().position(|byte| *byte == b'\n')? + 1;
        match text.get(at..)? {
            [b'\n', ..] => return Some(at + 1),
            [b'\r', b'\n', ..] => return Some(at + 2),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::http::HeaderValue;
    use futures::stream;
    use http_body_util::{BodyExt as _, StreamBody};
    use parking_lot::Mutex;

    use super::*;

    const STREAM: &str = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}]}\r\n\r\n";
    const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\n";
    const DONE: &str = "data: [DONE]\n\n";

    fn headers(content: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content))])
    }

    /// The text that a client gets of a body in such parts, and the count; the client leaves after some parts, or the engine fails.
    async fn passed_on(
        content: &'static str,
        parts: Vec<&[u8]>,
        added: bool,
        leaves_after: Option<usize>,
    ) -> (String, Count) {
        let settled = Arc::new(Mutex::new(None));
        let parts: Vec<_> = parts
            .into_iter()
            .map(|part| Ok::<_, String>(Frame::data(Bytes::copy_from_slice(part))))
            .collect();
        let mut body = Metered::new(&headers(content), StreamBody::new(stream::iter(parts)), added, {
            let settled = Arc::clone(&settled);
            move |count| *settled.lock() = Some(count)
        });
        let mut text = Vec::new();
        let mut left = leaves_after.unwrap_or(usize::MAX);
        while left > 0
            && let Some(frame) = body.frame().await
        {
            text.extend_from_slice(&frame.unwrap().into_data().unwrap());
            left -= 1;
        }
        drop(body);
        let count = settled.lock().take().unwrap();
        (String::from_utf8(text).unwrap(), count)
    }

    #[tokio::test]
    async fn event_that_the_router_requested_is_removed() {
        let whole = [STREAM, USAGE, DONE].concat();
        for size in [1, 3, 50, 80, 1000] {
            let parts = || whole.as_bytes().chunks(size).collect();
            let (text, count) = passed_on("text/event-stream; charset=utf-8", parts(), true, None).await;
            assert_eq!(text, [STREAM, DONE].concat(), "parts of {size} bytes");
            let expected = Count {
                usage: Some(Usage { input: 7, output: 2 }),
                parts: 2,
                is_stream: true,
                first_part: None,
                end: End::Complete,
            };
            let without_time = |count: Count| {
                assert!(count.first_part.is_some());
                Count {
                    first_part: None,
                    ..count
                }
            };
            assert_eq!(without_time(count), expected);
            let (text, count) = passed_on("text/event-stream", parts(), false, None).await;
            assert_eq!(
                (text, without_time(count)),
                (whole.clone(), expected),
                "the client requested it"
            );
        }
    }

    #[tokio::test]
    async fn stream_that_ends_early_has_parts_and_no_tokens() {
        let parts = [STREAM, USAGE, DONE].map(str::as_bytes).to_vec();
        let (text, count) = passed_on("text/event-stream", parts, true, Some(1)).await;
        assert_eq!(text, STREAM);
        assert_eq!((count.usage, count.parts, count.end), (None, 2, End::Left));
    }

    #[tokio::test]
    async fn last_event_without_its_end_is_passed_on() {
        let cut = [STREAM, "data: {\"cho"].concat();
        let (text, count) = passed_on("text/event-stream", vec![cut.as_bytes()], true, None).await;
        assert_eq!((text, count.end), (cut, End::Complete));
    }

    #[tokio::test]
    async fn event_without_an_end_passes_unread_and_takes_no_memory() {
        let parts = vec![b'x'; 300 * 1024];
        let parts: Vec<&[u8]> = [STREAM.as_bytes()]
            .into_iter()
            .chain((0..8).map(|_| parts.as_slice()))
            .collect();
        let expected: usize = parts.iter().map(|part| part.len()).sum();
        let (text, count) = passed_on("text/event-stream", parts, true, None).await;
        assert_eq!((text.len(), count.parts), (expected, 2));
    }

    #[tokio::test]
    async fn tokens_of_a_whole_response_are_counted_and_other_content_is_not() {
        let json = br#"{"choices":[{}],"usage":{"prompt_tokens":7,"completion_tokens":2}}"#;
        let (_, count) = passed_on("application/json", json.chunks(9).collect(), false, None).await;
        assert_eq!(
            (count.usage, count.end),
            (Some(Usage { input: 7, output: 2 }), End::Complete)
        );
        let (_, count) = passed_on("audio/mpeg", vec![json], false, None).await;
        assert_eq!(count.usage, None);
    }
}
