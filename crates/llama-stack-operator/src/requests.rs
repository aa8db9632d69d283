//! Bounded HTTP requests to Llama Stack servers.

use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use runway_operator::telemetry::chain;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Timeout of a connection, and of a request for the state of a server. A busy server may take some seconds.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;
/// Longest part of an answer that an error contains, in bytes.
const MAX_SHOWN: usize = 1024;

/// Reason why there is no answer, with the URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    text: String,
    /// Status of the response, if there is one and it is not 2xx.
    pub status: Option<StatusCode>,
}

impl Failure {
    fn new(text: String) -> Self {
        Self { text, status: None }
    }

    /// Whether the server requires credentials for this request.
    pub fn requires_authentication(&self) -> bool {
        matches!(self.status, Some(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN))
    }
}

/// A client for servers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Requests {
    client: Client<HttpConnector, String>,
}

impl Default for Requests {
    fn default() -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(PATIENCE));
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
        }
    }
}

impl Requests {
    /// Sends a GET request.
    ///
    /// # Errors
    /// No answer in time, a status other than 2xx, or an answer of another form.
    pub async fn get<T: DeserializeOwned>(&self, url: &str) -> Result<T, Failure> {
        self.send(Method::GET, url, String::new(), PATIENCE).await
    }

    /// Sends a POST request with a JSON document.
    ///
    /// # Errors
    /// Same as [`get`](Self::get).
    pub async fn post<T: DeserializeOwned>(&self, url: &str, body: &Value, patience: Duration) -> Result<T, Failure> {
        self.send(Method::POST, url, body.to_string(), patience).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        url: &str,
        body: String,
        patience: Duration,
    ) -> Result<T, Failure> {
        let late = |_| {
            Err(Failure::new(format!(
                "{url} did not answer within {} seconds",
                patience.as_secs()
            )))
        };
        let exchange = self.exchange(method, url, body);
        tokio::time::timeout(patience, exchange).await.unwrap_or_else(late)
    }

    async fn exchange<T: DeserializeOwned>(&self, method: Method, url: &str, body: String) -> Result<T, Failure> {
        let said = |error: &(dyn std::error::Error + 'static)| Failure::new(format!("{url}: {}", chain(error)));
        let request = Request::builder().method(method).uri(url);
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let request = request.map_err(|_| Failure::new(format!("{url} is not a URL")))?;
        let response = self.client.request(request).await.map_err(|e| said(&e))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => Failure::new(format!("{url} answered with more than {MAX_ANSWER} bytes")),
            None => said(error.as_ref()),
        })?;
        let body = body.to_bytes();
        if !status.is_success() {
            let shown = body.get(..MAX_SHOWN).unwrap_or(&body);
            return Err(Failure {
                text: format!("{url} answered {status}: {}", String::from_utf8_lossy(shown).trim()),
                status: Some(status),
            });
        }
        serde_json::from_slice(&body).map_err(|e| said(&e))
    }
}
