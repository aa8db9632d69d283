//! The few requests to the issuer.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::ACCEPT;
use axum::http::{HeaderValue, Request, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use runway_operator::telemetry::chain;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::error::Error;

/// Timeout; a user is waiting.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer: the keys of a large issuer are some ten KiB.
const LARGEST: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct Http(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Http {
    /// Trusts who is in the file, or else the public authorities.
    pub(super) fn new(authorities: Option<&Path>) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = HttpsConnectorBuilder::new();
        let builder = match authorities {
            None => builder
                .with_provider_and_webpki_roots(provider)
                .map_err(|error| Error::Setup(chain(&error)))?,
            Some(path) => {
                let config = ClientConfig::builder_with_provider(provider)
                    .with_safe_default_protocol_versions()
                    .map_err(|error| Error::Setup(chain(&error)))?
                    .with_root_certificates(read_authorities(path)?)
                    .with_no_client_auth();
                builder.with_tls_config(config)
            }
        };
        let connector = builder.https_or_http().enable_http1().build();
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }

    pub(super) async fn send(&self, mut request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes), Error> {
        request
            .headers_mut()
            .insert(ACCEPT, HeaderValue::from_static("application/json"));
        let place = request.uri().to_string();
        let away = |why: String| Error::Away {
            place: place.clone(),
            why,
        };
        let ask = async {
            let answer = self.0.request(request).await.map_err(|error| away(chain(&error)))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), LARGEST).collect().await;
            Ok((status, body.map_err(|error| away(error.to_string()))?.to_bytes()))
        };
        let late = || away(format!("no response within {} seconds", PATIENCE.as_secs()));
        tokio::time::timeout(PATIENCE, ask).await.map_err(|_| late())?
    }
}

fn read_authorities(path: &Path) -> Result<RootCertStore, Error> {
    let unread = |why: String| Error::Setup(format!("cannot read CA certificates in {}: {why}", path.display()));
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unread(chain(&error)))? {
        let certificate = certificate.map_err(|error| unread(chain(&error)))?;
        store.add(certificate).map_err(|error| unread(chain(&error)))?;
    }
    if store.is_empty() {
        return Err(unread("it contains no certificate".to_owned()));
    }
    Ok(store)
}
