//! Responses that end when their caller loses the right to the model.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::BoxError;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use futures::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use runway_http::refusal;

use crate::paths;

const MESSAGE: &str = "you may not use this model any more";

/// The body of a response until a right is lost. A stream of events then ends with an error, and another response is cut off.
pub struct Revocable<B> {
    /// `None` at its end.
    body: Option<B>,
    lost: BoxFuture<'static, ()>,
    is_stream: bool,
    is_anthropic: bool,
}

impl<B: Body> Revocable<B> {
    /// This body of a response at a path, until `lost` is ready.
    pub fn new(path: &str, headers: &HeaderMap, body: B, lost: impl Future<Output = ()> + Send + 'static) -> Self {
        let content = headers.get(header::CONTENT_TYPE);
        let is_stream = content.is_some_and(|content| content.as_bytes().starts_with(b"text/event-stream"));
        Self {
            lost: Box::pin(lost),
            is_stream: is_stream && body.size_hint().exact().is_none(),
            is_anthropic: paths::is_anthropic(path),
            body: Some(body),
        }
    }
}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin> Body for Revocable<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if this.lost.as_mut().poll(cx).is_ready() {
            // Closes the connection to the engine.
            this.body = None;
            let last = if this.is_stream {
                Ok(Frame::data(farewell(this.is_anthropic)))
            } else {
                Err(MESSAGE.into())
            };
            return Poll::Ready(Some(last));
        }
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if frame.is_none() {
            this.body = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

/// The last event. The one before may be incomplete.
fn farewell(is_anthropic: bool) -> Bytes {
    if is_anthropic {
        let error = refusal::anthropic_json(StatusCode::FORBIDDEN, MESSAGE);
        return format!("\n\nevent: error\ndata: {error}\n\n").into();
    }
    format!("\n\ndata: {}\n\n", refusal::openai_json("access_revoked", MESSAGE)).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;
    use futures::{StreamExt as _, stream};
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use tokio::time::sleep;

    use super::*;

    const CHAT: &str = "/v1/chat/completions";

    /// The text of a response with one event a second, whose right is lost in between; and whether it ended as it should.
    async fn received(path: &str, content_type: &'static str, lost_after: Duration) -> (String, bool) {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let events = stream::iter(0..3).then(|n| async move {
            sleep(Duration::from_secs(1)).await;
            Ok::<_, std::io::Error>(Frame::data(Bytes::from(format!("data: {n}\n\n"))))
        });
        let mut body = Revocable::new(path, &headers, StreamBody::new(Box::pin(events)), sleep(lost_after));
        let mut text = String::new();
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => text += std::str::from_utf8(&frame.into_data().unwrap()).unwrap(),
                Err(_) => return (text, false),
            }
        }
        (text, true)
    }

    #[tokio::test(start_paused = true)]
    async fn stream_ends_with_an_error_when_the_right_is_lost() {
        let lost = Duration::from_millis(1500);
        let (text, is_whole) = received(CHAT, "text/event-stream; charset=utf-8", lost).await;
        let event = text.strip_prefix("data: 0\n\n\n\ndata: ").unwrap();
        let event: serde_json::Value = serde_json::from_str(event).unwrap();
        assert_eq!(event["error"]["code"], "access_revoked");
        assert!(is_whole);
        let (text, _) = received("/v1/messages", "text/event-stream", lost).await;
        assert!(
            text.contains("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"permission_error\""),
            "{text}"
        );
        let (text, is_whole) = received(CHAT, "application/json", lost).await;
        assert_eq!((text.as_str(), is_whole), ("data: 0\n\n", false));
        let (text, is_whole) = received(CHAT, "text/event-stream", Duration::from_mins(1)).await;
        assert!(text.ends_with("data: 2\n\n") && is_whole, "{text}");
    }

    #[test]
    fn length_of_a_response_stays() {
        let body = Revocable::new("", &HeaderMap::new(), Full::new(Bytes::from_static(b"{}")), async {});
        assert_eq!(body.size_hint().exact(), Some(2));
    }
}
