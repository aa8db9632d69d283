//! The management API of RabbitMQ, for what AMQP does not tell: unacknowledged messages, and the version of the broker.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use crate::settings::{NoSecret, RabbitMq};

/// Timeout for a response.
const PATIENCE: Duration = Duration::from_secs(3);
/// Largest response, in bytes. One queue takes a few KiB.
const LARGEST: usize = 256 * 1024;
/// Longest version of a broker, in bytes.
const LONGEST_VERSION: usize = 64;

/// The client of the management API cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A Secret is missing.
    #[error(transparent)]
    NoSecret(#[from] NoSecret),
    /// The certificates cannot be used.
    #[error("tls: the certificates of the authority are invalid: {0}: they must be in PEM format")]
    Authority(String),
}

/// Client of the management API.
pub struct Management {
    base: String,
    authorization: String,
    client: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

impl Management {
    /// Client of the API of a broker, or `None` if its settings disable the API. `secrets` is the folder with mounted Secrets.
    ///
    /// # Errors
    /// A Secret is missing, or the certificates are invalid.
    pub fn of(broker: &RabbitMq, secrets: &Path) -> Result<Option<Self>, Error> {
        let Some(port) = broker.management_port() else {
            return Ok(None);
        };
        let authority = broker.authority(secrets)?;
        let scheme = if authority.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://{}:{port}", broker.host);
        let password = broker.password(secrets)?;
        Self::new(base, &broker.username, &password, authority.as_deref()).map(Some)
    }

    /// Client of the API at `base`, such as `http://rabbitmq:15672`. `authority` are the certificates for https, in PEM format.
    fn new(base: String, username: &str, password: &str, authority: Option<&str>) -> Result<Self, Error> {
        let credentials = STANDARD.encode(format!("{username}:{password}"));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls(authority.unwrap_or_default())?)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            base,
            authorization: format!("Basic {credentials}"),
            client: hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector),
        })
    }

    /// Number of messages of a queue that consumers have and have not acknowledged. That of a quorum queue can
    /// be some seconds old. `None` if the API is not available.
    pub async fn unacknowledged(&self, vhost: &str, queue: &str) -> Option<u64> {
        let part = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        // The page of a single queue shows statistics, which are older than the totals of a list.
        let (vhost, name) = (part(vhost), part(&format!("^{queue}$")));
        let path = format!(
            "/api/queues/{vhost}?disable_stats=true&enable_queue_totals=true&page=1&page_size=10&use_regex=true&name={name}"
        );
        unacknowledged_in(&self.get(&path).await?, queue)
    }

    /// Version of the broker, such as `3.10.8`. `None` if the API is not available.
    pub async fn version(&self) -> Option<String> {
        version_in(&self.get("/api/overview").await?)
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let request = Request::get(format!("{}{path}", self.base))
            .header(header::AUTHORIZATION, &self.authorization)
            .body(Empty::new())
            .ok()?;
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| error.to_string())?;
            if response.status() != StatusCode::OK {
                return Err(response.status().to_string());
            }
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            serde_json::from_slice(&body).map_err(|error| error.to_string())
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        match answer.unwrap_or_else(|_| Err("no response in time".to_owned())) {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::debug!(error, path, "the management API of RabbitMQ is not available");
                None
            }
        }
    }
}

/// Number of unacknowledged messages of a queue, in a page of queues.
pub fn unacknowledged_in(page: &Value, queue: &str) -> Option<u64> {
    let mut found = page["items"].as_array()?.iter();
    let found = found.find(|item| item["name"] == queue)?;
    Some(found["messages_unacknowledged"].as_u64().unwrap_or_default())
}

/// Version of the broker in its overview. It is shown in statuses, so that anything but a version is `None`.
pub fn version_in(overview: &Value) -> Option<String> {
    let version = overview["rabbitmq_version"].as_str()?;
    let is_version = version.len() <= LONGEST_VERSION
        && version.starts_with(|c: char| c.is_ascii_digit())
        && version.chars().all(|c| c.is_ascii_alphanumeric() || ".-+~".contains(c));
    is_version.then(|| version.to_owned())
}

/// TLS that trusts only these certificates.
fn tls(authority: &str) -> Result<ClientConfig, Error> {
    let invalid = |error: &dyn std::fmt::Display| Error::Authority(error.to_string());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        let certificate = certificate.map_err(|error| invalid(&error))?;
        roots.add(certificate).map_err(|error| invalid(&error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| invalid(&error))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn version_is_one_or_none() {
        let of = |version: &str| version_in(&json!({ "rabbitmq_version": version }));
        for version in ["3.10.8", "4.2.0-rc.1", "3.13.7+dev"] {
            assert_eq!(of(version).as_deref(), Some(version));
        }
        for bad in ["", "unknown", "3.1\n", &"3".repeat(LONGEST_VERSION + 1)] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }
}
