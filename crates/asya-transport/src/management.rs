//! The management API of RabbitMQ, for what AMQP does not have: unacknowledged messages, the version of the broker, and users.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ring::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

use crate::settings::{NoSecret, RabbitMq, Tenants};
use crate::tenants::{Credentials, Permissions};

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
    /// A user cannot be created or deleted.
    #[error("user '{user}' of RabbitMQ: {why}")]
    User {
        /// Name of the user.
        user: String,
        /// Reason and remedy.
        why: String,
    },
}

/// Tag of the users of namespaces: others are left alone.
const TENANT: &str = "asya-tenant";
/// Tag with which KEDA may read the lengths of queues.
const READER: &str = "management";

/// Client of the management API.
pub struct Management {
    base: String,
    authorization: String,
    client: hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

impl Management {
    /// Client of the API of a broker, or `None` if its settings disable the API. `secrets` is the folder with mounted Secrets.
    ///
    /// # Errors
    /// A Secret is missing, or the certificates are invalid.
    pub fn of(broker: &RabbitMq, secrets: &Path) -> Result<Option<Self>, Error> {
        let password = || broker.password(secrets);
        Self::with_user(broker, secrets, &broker.username, password)
    }

    /// The same with the user that creates the users of namespaces.
    ///
    /// # Errors
    /// A Secret is missing, or the certificates are invalid.
    pub fn of_tenants(broker: &RabbitMq, tenants: &Tenants, secrets: &Path) -> Result<Option<Self>, Error> {
        let password = || tenants.password_secret_ref.read(secrets);
        Self::with_user(broker, secrets, &tenants.username, password)
    }

    fn with_user(
        broker: &RabbitMq,
        secrets: &Path,
        username: &str,
        password: impl FnOnce() -> Result<String, NoSecret>,
    ) -> Result<Option<Self>, Error> {
        let Some(port) = broker.management_port() else {
            return Ok(None);
        };
        let authority = broker.authority(secrets)?;
        let scheme = if authority.is_some() { "https" } else { "http" };
        let base = format!("{scheme}://{}:{port}", broker.host);
        Self::new(base, username, &password()?, authority.as_deref()).map(Some)
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

    /// Creates or corrects the user of a namespace with its permissions. Writes only what differs.
    ///
    /// # Errors
    /// The user has another owner, or the API refuses.
    pub async fn ensure_user(
        &self,
        vhost: &str,
        credentials: &Credentials,
        permissions: &Permissions,
    ) -> Result<(), Error> {
        let user = &credentials.username;
        let path = user_path(user);
        let found = self.user(user).await?;
        let is_current = |found: &Value| has_tag(found, READER) && has_password(found, &credentials.password);
        if !found.as_ref().is_some_and(is_current) {
            let body = json!({"password": credentials.password, "tags": format!("{READER},{TENANT}")});
            self.write(user, Method::PUT, &path, Some(&body)).await?;
        }
        let path = format!("/api/permissions/{}/{}", part(vhost), part(user));
        let wanted = json!({"configure": permissions.configure, "write": permissions.write, "read": permissions.read});
        let found = self.read(user, &path).await?;
        let is_current = |found: Value| {
            ["configure", "write", "read"]
                .iter()
                .all(|field| found[field] == wanted[field])
        };
        if !found.is_some_and(is_current) {
            self.write(user, Method::PUT, &path, Some(&wanted)).await?;
        }
        Ok(())
    }

    /// Deletes the user of a namespace. The broker then closes its connections.
    ///
    /// # Errors
    /// The user has another owner, or the API refuses.
    pub async fn remove_user(&self, user: &str) -> Result<(), Error> {
        match self.user(user).await {
            Ok(Some(_)) => self.write(user, Method::DELETE, &user_path(user), None).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A user, if it exists.
    async fn user(&self, user: &str) -> Result<Option<Value>, Error> {
        let found = self.read(user, &user_path(user)).await?;
        match found {
            Some(found) if !has_tag(&found, TENANT) => Err(Error::User {
                user: user.to_owned(),
                why: format!(
                    "it exists without the tag {TENANT}, so it is not that of a namespace: delete it, or set tenants.userPrefix"
                ),
            }),
            found => Ok(found),
        }
    }

    /// An object, if it exists.
    async fn read(&self, user: &str, path: &str) -> Result<Option<Value>, Error> {
        match self.ask(Method::GET, path, None).await {
            Ok((StatusCode::OK, found)) => Ok(Some(found)),
            Ok((StatusCode::NOT_FOUND, _)) => Ok(None),
            other => Err(refused(user, other)),
        }
    }

    async fn write(&self, user: &str, method: Method, path: &str, body: Option<&Value>) -> Result<(), Error> {
        match self.ask(method, path, body).await {
            Ok((status, _)) if status.is_success() => Ok(()),
            other => Err(refused(user, other)),
        }
    }

    async fn get(&self, path: &str) -> Option<Value> {
        let error = match self.ask(Method::GET, path, None).await {
            Ok((StatusCode::OK, found)) => return Some(found),
            Ok((status, _)) => status.to_string(),
            Err(error) => error,
        };
        tracing::debug!(error, path, "the management API of RabbitMQ is not available");
        None
    }

    /// Status and content of the response. Content that is not JSON is null.
    async fn ask(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(StatusCode, Value), String> {
        let body = body.map(|body| Bytes::from(body.to_string())).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::AUTHORIZATION, &self.authorization)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        let answer = async {
            let response = self.client.request(request).await.map_err(|error| error.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), LARGEST).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
        };
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        answer.unwrap_or_else(|_| Err("no response in time".to_owned()))
    }
}

/// A name as a part of a path.
fn part(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn user_path(user: &str) -> String {
    format!("/api/users/{}", part(user))
}

/// Whether a user has a tag. They are a list, before RabbitMQ 3.9 a text.
fn has_tag(user: &Value, tag: &str) -> bool {
    match &user["tags"] {
        Value::Array(tags) => tags.iter().any(|one| one == tag),
        Value::String(tags) => tags.split(',').any(|one| one == tag),
        _ => false,
    }
}

fn refused(user: &str, answer: Result<(StatusCode, Value), String>) -> Error {
    let why = match answer {
        Ok((StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _)) => {
            "the management API refuses the user of tenants.username: check its password, and give it the tag administrator"
                .to_owned()
        }
        Ok((status, said)) => match said["reason"].as_str() {
            Some(reason) => format!("the management API answers {status}: {reason}"),
            None => format!("the management API answers {status}"),
        },
        Err(error) => format!("the management API is not available: {error}"),
    };
    let user = user.to_owned();
    Error::User { user, why }
}

/// Whether a user has this password: its hash is four random bytes, and the SHA-256 of them and the password
/// (rabbit_password_hashing_sha256.erl).
fn has_password(user: &Value, password: &str) -> bool {
    let hash = user["password_hash"]
        .as_str()
        .and_then(|hash| STANDARD.decode(hash).ok());
    let Some((salt, hash)) = hash.as_ref().and_then(|hash| hash.split_at_checked(4)) else {
        return false;
    };
    let salted = [salt, password.as_bytes()].concat();
    digest::digest(&digest::SHA256, &salted).as_ref() == hash
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
