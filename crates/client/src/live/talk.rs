//! A talk with a model through the API server's proxy, so that no port has to be forwarded: as the user, who needs the right
//! to create `services/proxy`.

use futures::{AsyncBufReadExt, Stream, StreamExt};
use kube::api::{GetParams, PostParams, Request};
use serde_json::Value;

use crate::live::cluster::{self, Cluster};
use crate::view::chat::{self, Message, Options, Piece};
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
    ) -> Result<impl Stream<Item = Result<String, Error>> + Send + use<>, Error> {
        let body = chat::body(&self.model, messages, options);
        let path = format!("{}/v1/chat/completions", self.access.proxy_path);
        let doing = format!("send a request to {} at service {}", self.model, self.access.service);
        let request = Request::new(path).create(&PostParams::default(), body.to_string().into_bytes());
        let request = request.map_err(|e| refused(doing.clone(), e.to_string()))?;
        let stream = self.cluster.client().request_stream(request).await;
        let stream = stream.map_err(|e| explain(self.cluster, &self.access, e, doing.clone()))?;
        let heard = Heard {
            lines: Box::pin(stream.lines()),
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

/// An answer that is being heard.
struct Heard<L> {
    lines: L,
    doing: String,
    spoke: bool,
}

impl<L: Stream<Item = std::io::Result<String>> + Unpin> Heard<L> {
    async fn next(&mut self) -> Option<Result<String, Error>> {
        loop {
            let piece = match self.lines.next().await {
                Some(Ok(line)) => chat::piece(&line),
                Some(Err(error)) => Piece::Failed(format!("the response ended early: {error}")),
                None => Piece::Done,
            };
            match piece {
                Piece::Nothing => {}
                Piece::Text(text) => {
                    self.spoke = true;
                    return Some(Ok(text));
                }
                Piece::Failed(message) => return Some(Err(refused(self.doing.clone(), message))),
                Piece::Done if self.spoke => return None,
                Piece::Done => return Some(Err(refused(self.doing.clone(), "the response is empty".to_owned()))),
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
