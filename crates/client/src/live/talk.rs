//! A talk with a model through the API server's proxy, so that no port has to be forwarded: as the user, who needs the right
//! to create `services/proxy`.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use futures::future::{Either, ready};
use futures::stream::once;
use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, Stream, StreamExt, TryFutureExt, TryStreamExt};
use kube::api::{GetParams, PostParams, Request};
use serde_json::Value;
use sse_stream::SseByteStream;
use tokio_util::compat::FuturesAsyncReadCompatExt;
use tokio_util::io::ReaderStream;

use crate::live::cluster::{self, Cluster};
use crate::view::chat::{self, Message, Options, Part};
use crate::view::endpoint::Access;

/// Failure of a request to a model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model or a proxy rejected the request.
    #[error("cannot {doing}: {message}")]
    Refused {
        /// Action, as a phrase with a verb.
        doing: String,
        /// Text of the message.
        message: String,
    },
    /// The server reports no model name.
    #[error("service {0} does not report a model name: set --model")]
    Nameless(String),
    /// The cluster rejected the request.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
}

/// A model that can be asked.
pub struct Talk<'a> {
    cluster: &'a Cluster,
    access: Access,
    /// Name of the model at the server.
    pub model: String,
}

impl<'a> Talk<'a> {
    /// Asks the server for the name of its model, unless one is given. A server that does not say is asked by the name that
    /// the spec gives.
    ///
    /// # Errors
    /// The server cannot be reached, or reports no model name.
    pub async fn begin(cluster: &'a Cluster, access: Access, model: Option<String>) -> Result<Self, Error> {
        let model = match model {
            Some(model) => model,
            None => ask_for_model(cluster, &access).await?,
        };
        Ok(Self { cluster, access, model })
    }

    /// The parts of an answer, as they arrive. The stream ends with an error if the answer is incomplete or not an answer.
    ///
    /// # Errors
    /// The model cannot be reached, or rejects the request.
    pub async fn answer(
        &self,
        messages: &[Message],
        options: &Options,
    ) -> Result<impl Stream<Item = Result<Part, Error>> + Send + use<>, Error> {
        let body = chat::body(&self.model, messages, options);
        let path = format!("{}/v1/chat/completions", self.access.proxy_path);
        let doing = format!("send a request to {} at service {}", self.model, self.access.service);
        let request = Request::new(path).create(&PostParams::default(), body.to_string().into_bytes());
        let request = request.map_err(|e| refused(doing.clone(), e.to_string()))?;
        let stream = self.cluster.client().request_stream(request).await;
        let stream = stream.map_err(|e| explain(self.cluster, &self.access, e, doing.clone()))?;
        let heard = Heard {
            events: Box::pin(events(Box::pin(stream))),
            parts: VecDeque::new(),
            doing,
            spoke: false,
        };
        Ok(futures::stream::unfold(Some(heard), async |heard| {
            let mut heard = heard?;
            let said = heard.next().await?;
            let go_on = said.is_ok().then_some(heard);
            Some((said, go_on))
        }))
    }
}

/// Data of each event of a response. A server that does not stream sends one JSON object, also for an error.
fn events(mut body: impl AsyncBufRead + Send + Unpin) -> impl Stream<Item = Result<String, String>> + Send {
    let events = async move {
        let start = body.fill_buf().await?;
        if start.trim_ascii_start().starts_with(b"{") {
            let mut whole = String::new();
            body.read_to_string(&mut whole).await?;
            return Ok(Either::Left(once(ready(Ok(whole)))));
        }
        // Some servers omit the empty line after the last event.
        let end = once(ready(Ok(Bytes::from_static(b"\n\n"))));
        let events = SseByteStream::new(ReaderStream::new(body.compat()).chain(end));
        let data = events.try_filter_map(|event| ready(Ok(event.data.filter(|data| !data.is_empty()))));
        Ok(Either::Right(data.map_err(early)))
    };
    events
        .map_err(|error: io::Error| early(sse_stream::Error::Body(error.into())))
        .try_flatten_stream()
}

fn early(error: sse_stream::Error) -> String {
    match error {
        sse_stream::Error::Body(error) => format!("the response ended early: {error}"),
        error => format!("the response is not a stream of events: {error}"),
    }
}

/// An answer that is being heard.
struct Heard<E> {
    events: E,
    /// Parts of the last event.
    parts: VecDeque<Part>,
    doing: String,
    spoke: bool,
}

impl<E: Stream<Item = Result<String, String>> + Unpin> Heard<E> {
    async fn next(&mut self) -> Option<Result<Part, Error>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                self.spoke |= !matches!(part, Part::Note(_));
                return Some(Ok(part));
            }
            let parts = match self.events.next().await {
                Some(Ok(data)) if data != "[DONE]" => chat::parts(&data),
                Some(Err(error)) => Err(error),
                _ if self.spoke => return None,
                _ => Err("the response is empty".to_owned()),
            };
            match parts {
                Ok(parts) => self.parts = parts.into(),
                Err(message) => return Some(Err(refused(self.doing.clone(), message))),
            }
        }
    }
}

async fn ask_for_model(cluster: &Cluster, access: &Access) -> Result<String, Error> {
    let doing = || format!("list the models of service {}", access.service);
    let request = Request::new(format!("{}/v1", access.proxy_path)).get("models", &GetParams::default());
    let request = request.map_err(|e| refused(doing(), e.to_string()))?;
    let models = match cluster.client().request::<Value>(request).await {
        Ok(models) => models,
        Err(kube::Error::Api(status)) if status.code == 404 && access.model.is_some() => Value::Null,
        Err(error) => return Err(explain(cluster, access, error, doing())),
    };
    chat::model(access.model.as_deref(), &models).ok_or_else(|| Error::Nameless(access.service.to_string()))
}

/// Both the API server and the model may say no; the model's own words come first.
fn explain(cluster: &Cluster, access: &Access, error: kube::Error, doing: String) -> Error {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            let right = format!(
                "{doing} (requires permission to create services/proxy in namespace '{}')",
                access.namespace
            );
            cluster.explain(kube::Error::Api(status), right, "Service").into()
        }
        kube::Error::Api(status) if status.code != 401 => refused(doing, status.message.clone()),
        error => cluster.explain(error, doing, "Service").into(),
    }
}

fn refused(doing: String, message: String) -> Error {
    Error::Refused { doing, message }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;
    use futures::io::Cursor;

    use super::*;

    fn heard(body: &str) -> Vec<Result<String, String>> {
        block_on(events(Cursor::new(body.to_owned())).collect())
    }

    #[test]
    fn events_are_separated_as_in_the_standard() {
        let wanted = ["{\"a\":\n1}", "b", "[DONE]"].map(|data| Ok(data.to_owned()));
        let body = "\u{feff}: comment\nevent: x\ndata: {\"a\":\ndata: 1}\n\ndata:b\n\n\ndata:\n\ndata: [DONE]\n\n";
        assert_eq!(heard(body), wanted);
        for end in ["\r", "\r\n"] {
            assert_eq!(heard(&body.replace('\n', end)), wanted, "{end:?}");
        }
    }

    #[test]
    fn last_event_may_lack_its_empty_line() {
        for end in ["", "\n", "\r\n"] {
            assert_eq!(heard(&format!("data: a{end}")), [Ok("a".to_owned())], "{end:?}");
        }
    }

    #[test]
    fn response_that_is_not_a_stream_is_one_event() {
        assert_eq!(
            heard("\n{\n  \"error\": 1\n}\n"),
            [Ok("\n{\n  \"error\": 1\n}\n".to_owned())]
        );
        assert_eq!(heard(""), []);
    }
}
