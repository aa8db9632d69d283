//! Signing and sending of requests, and parsing of errors.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use reqsign_aws_v4::{
    Credential, DefaultCredentialProvider, EnvCredentialProvider, RequestSigner, StaticCredentialProvider,
};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, FileRead, HttpSend, OsEnv, ProvideCredential, Signer};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::Settings;

/// Timeout for a response.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest response: ten messages of 1 MiB each, with room for escapes.
const LARGEST_ANSWER: usize = 64 * 1024 * 1024;

/// Source of the credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The sources of the AWS SDKs: environment, profile, web identity (EKS), container, instance.
    Found,
    /// Static credentials in files, such as those of a mounted Secret. They are read for each request. Those in the environment take
    /// precedence.
    Files {
        /// File with the access key id.
        id: PathBuf,
        /// File with the secret access key.
        key: PathBuf,
    },
    /// Static credentials.
    Static {
        /// Access key id.
        id: String,
        /// Secret access key.
        key: String,
    },
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Found => "Found",
            Self::Files { .. } => "Files",
            Self::Static { .. } => "Static",
        })
    }
}

/// Failed request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not a URL.
    #[error("'{endpoint}' is not an HTTP URL")]
    Endpoint {
        /// The invalid endpoint.
        endpoint: String,
    },
    /// Loading credentials failed.
    #[error("no AWS credentials: {0}")]
    Credentials(#[source] reqsign_core::Error),
    /// The server cannot be reached, or did not respond in time.
    #[error("SQS at {place} does not answer: {why}")]
    Unreachable {
        /// Host of the server.
        place: String,
        /// Cause.
        why: String,
    },
    /// SQS rejected the request.
    #[error("SQS rejects the request: {code}: {message}")]
    Refused {
        /// Error code, such as `QueueDoesNotExist`.
        code: String,
        /// Message of SQS.
        message: String,
    },
    /// The response is not one of SQS.
    #[error("unexpected response from SQS: {0}")]
    Malformed(String),
}

impl Error {
    pub(crate) fn malformed(why: impl fmt::Display) -> Self {
        Self::Malformed(why.to_string())
    }

    fn says(&self, words: &[&str]) -> bool {
        matches!(self, Self::Refused { code, .. } if words.iter().any(|word| code.contains(word)))
    }

    /// Whether the queue does not exist.
    pub fn is_no_queue(&self) -> bool {
        self.says(&["QueueDoesNotExist", "NonExistentQueue"])
    }

    /// Whether SQS rejected the message itself, because it is too long or has invalid characters. A retry is useless.
    pub fn is_unfit_message(&self) -> bool {
        let is_long = |message: &str| message.contains("must be shorter than") || message.contains("longer than");
        self.says(&["InvalidMessageContents", "MessageTooLong"])
            || matches!(self, Self::Refused { code, message } if code.contains("InvalidParameterValue") && is_long(message))
    }

    /// Whether SQS rejects every request for this queue: the name is invalid, or the queue or its key may not be used. Errors of the
    /// credentials themselves, such as `ExpiredToken`, are not permanent. The codes are those of SendMessage in the API reference.
    pub fn is_permanent(&self) -> bool {
        self.says(&[
            "AccessDenied",
            "InvalidAddress",
            "InvalidParameterValue",
            "InvalidSecurity",
            "KmsDisabled",
            "KmsInvalidKeyUsage",
            "KmsInvalidState",
            "KmsNotFound",
            "KmsOptInRequired",
            "UnsupportedOperation",
        ])
    }

    /// Whether the receipt handle has expired.
    pub fn is_stale_receipt(&self) -> bool {
        self.says(&["ReceiptHandleIsInvalid", "MessageNotInflight"])
    }
}

type Hyper = hyper_util::client::legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

#[derive(Clone, Debug)]
struct Http(Hyper);

impl Http {
    fn new() -> Result<Self, Error> {
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(Arc::new(rustls::crypto::ring::default_provider()))
            .map_err(Error::malformed)?
            .https_or_http()
            .enable_http1()
            .build();
        let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new());
        Ok(Self(client.build(connector)))
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let response = self
            .0
            .request(request.map(Full::new))
            .await
            .map_err(|error| reported(&error))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect().await;
        Ok(Response::from_parts(
            parts,
            body.map_err(|error| error.to_string())?.to_bytes(),
        ))
    }
}

/// An error with its causes, because hyper puts the reason into the last one.
fn reported(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let all: Vec<String> = causes.map(ToString::to_string).collect();
    all.join(": ")
}

/// HTTP client that fetches tokens.
impl HttpSend for Http {
    async fn http_send(&self, request: Request<Bytes>) -> reqsign_core::Result<Response<Bytes>> {
        self.send(request).await.map_err(reqsign_core::Error::unexpected)
    }
}

/// Reader of mounted tokens.
#[derive(Debug)]
struct Files;

impl FileRead for Files {
    async fn file_read(&self, path: &str) -> reqsign_core::Result<Vec<u8>> {
        tokio::fs::read(path)
            .await
            .map_err(|error| reqsign_core::Error::unexpected(format!("cannot read {path}: {error}")))
    }
}

/// Validity of credentials from files. The signer requires ten seconds for a request, and keeps only credentials that are valid for two
/// minutes (reqsign-aws-v4 `sign_request.rs`, reqsign-aws-core `credential.rs`), so that these are read again for the next one.
const ONE_REQUEST: Duration = Duration::from_mins(1);

/// Static credentials in the environment, or else in files.
#[derive(Debug)]
struct KeyFiles {
    id: PathBuf,
    key: PathBuf,
}

impl ProvideCredential for KeyFiles {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> reqsign_core::Result<Option<Credential>> {
        // A ProvideCredentialChain would not report why a file cannot be read.
        if let Some(credential) = EnvCredentialProvider::new().provide_credential(context).await? {
            return Ok(Some(credential));
        }
        let read = async |path: &Path| {
            let text = context.file_read_as_string(&path.to_string_lossy()).await?;
            Ok::<_, reqsign_core::Error>(text.trim_end_matches(['\n', '\r']).to_owned())
        };
        Ok(Some(Credential {
            access_key_id: read(&self.id).await?,
            secret_access_key: read(&self.key).await?,
            session_token: None,
            expires_in: Some(Timestamp::now() + ONE_REQUEST),
        }))
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Wire {
    http: Http,
    signer: Signer<Credential>,
    endpoint: Uri,
}

impl Wire {
    pub(crate) fn new(settings: &Settings) -> Result<Self, Error> {
        let endpoint = settings
            .endpoint
            .clone()
            .unwrap_or_else(|| endpoint_of(&settings.region));
        let uri: Option<Uri> = endpoint.parse().ok();
        let uri = uri.filter(|uri: &Uri| uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https")));
        let http = Http::new()?;
        let context = Context::new()
            .with_file_read(Files)
            .with_http_send(http.clone())
            .with_env(OsEnv);
        let signing = RequestSigner::new("sqs", &settings.region);
        let signer = match &settings.credentials {
            Credentials::Found => Signer::new(context, DefaultCredentialProvider::new(), signing),
            Credentials::Files { id, key } => {
                let files = KeyFiles {
                    id: id.clone(),
                    key: key.clone(),
                };
                Signer::new(context, files, signing)
            }
            Credentials::Static { id, key } => Signer::new(context, StaticCredentialProvider::new(id, key), signing),
        };
        Ok(Self {
            http,
            signer,
            endpoint: uri.ok_or_else(|| Error::Endpoint {
                endpoint: without_login(&endpoint),
            })?,
        })
    }

    pub(crate) async fn ask(&self, action: &str, asked: &Value) -> Result<Value, Error> {
        self.ask_and_wait(action, asked, Duration::ZERO).await
    }

    /// Sends a request. The server may take `wait` longer than usual.
    pub(crate) async fn ask_and_wait(&self, action: &str, asked: &Value, wait: Duration) -> Result<Value, Error> {
        let place = || {
            self.endpoint
                .authority()
                .map(|at| without_login(at.as_str()))
                .unwrap_or_default()
        };
        let request = self.signed(action, asked).await?;
        let answer = tokio::time::timeout(PATIENCE + wait, self.http.send(request)).await;
        let response = answer
            .unwrap_or_else(|_| Err(format!("not within {PATIENCE:?}")))
            .map_err(|why| Error::Unreachable { place: place(), why })?;
        understood(&response)
    }

    async fn signed(&self, action: &str, asked: &Value) -> Result<Request<Bytes>, Error> {
        let body = Bytes::from(asked.to_string());
        let digest = hex::encode(Sha256::digest(&body));
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.endpoint.clone())
            .header(header::CONTENT_TYPE, "application/x-amz-json-1.0")
            .header("x-amz-target", format!("AmazonSQS.{action}"))
            .header("x-amz-content-sha256", digest)
            .body(body)
            .map_err(Error::malformed)?;
        let (mut parts, body) = request.into_parts();
        self.signer.sign(&mut parts, None).await.map_err(Error::Credentials)?;
        Ok(Request::from_parts(parts, body))
    }
}

/// The authority of a URL, without user and password.
fn without_login(url: &str) -> String {
    match url.rsplit_once('@') {
        Some((before, host)) => {
            let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://"));
            format!("{}{host}", scheme.unwrap_or_default())
        }
        None => url.to_owned(),
    }
}

/// Domain of a region. Regions in China have another one.
fn endpoint_of(region: &str) -> String {
    let tail = if region.starts_with("cn-") { ".cn" } else { "" };
    format!("https://sqs.{region}.amazonaws.com{tail}/")
}

/// Parses a response or an error of the server.
pub(crate) fn understood(response: &Response<Bytes>) -> Result<Value, Error> {
    let body = response.body();
    let json: Option<Value> = if body.is_empty() {
        Some(Value::Null)
    } else {
        serde_json::from_slice(body).ok()
    };
    if response.status().is_success() {
        return json.ok_or_else(|| Error::malformed("no JSON"));
    }
    let json = json.unwrap_or_default();
    let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
    // `com.amazonaws.sqs#QueueDoesNotExist`, and the older name in a header: `AWS.SimpleQueueService.NonExistentQueue;Sender`
    let code = match text("__type") {
        code if code.is_empty() => response.status().to_string(),
        code => code.rsplit('#').next().unwrap_or_default().to_owned(),
    };
    let older = response.headers().get("x-amzn-query-error");
    let older = older.and_then(|value| value.to_str().ok()?.split(';').next());
    let message = Some(text("message"))
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| text("Message"));
    Err(Error::Refused {
        code: older
            .filter(|older| !older.contains(&code))
            .map_or_else(|| code.clone(), |older| format!("{code} ({older})")),
        message,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn answer(status: u16, body: &'static str, header: Option<&'static str>) -> Result<Value, Error> {
        let mut response = Response::builder().status(status);
        if let Some(header) = header {
            response = response.header("x-amzn-query-error", header);
        }
        understood(&response.body(Bytes::from_static(body.as_bytes())).unwrap())
    }

    #[test]
    fn errors_do_not_contain_credentials_of_the_endpoint() {
        for (url, shown) in [
            ("http://app:pa/ss@w@queue:9324/x", "http://queue:9324/x"),
            ("app:pass@queue", "queue"),
            (
                "https://sqs.eu-west-1.amazonaws.com/",
                "https://sqs.eu-west-1.amazonaws.com/",
            ),
        ] {
            assert_eq!(without_login(url), shown);
        }
    }

    #[test]
    fn errors_are_classified() {
        let missing = answer(
            400,
            r#"{"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "no such queue"}"#,
            Some("AWS.SimpleQueueService.NonExistentQueue;Sender"),
        );
        let missing = missing.unwrap_err();
        assert!(
            missing.is_no_queue() && missing.to_string().contains("no such queue"),
            "{missing}"
        );
        let older = answer(
            400,
            r#"{"__type": "Sender"}"#,
            Some("AWS.SimpleQueueService.NonExistentQueue;Sender"),
        );
        assert!(older.unwrap_err().is_no_queue());
        let long = r#"{"__type": "com.amazonaws.sqs#InvalidParameterValueException",
            "message": "One or more parameters are invalid. Reason: Message must be shorter than 1048576 bytes."}"#;
        let long = answer(400, long, None).unwrap_err();
        assert!(long.is_unfit_message() && !long.is_no_queue());
        for (code, permanent) in [
            ("com.amazon.coral.service#AccessDeniedException", true),
            ("com.amazonaws.sqs#KmsAccessDenied", true),
            ("com.amazonaws.sqs#InvalidAddress", true),
            ("com.amazon.coral.service#ExpiredTokenException", false),
            ("com.amazon.coral.service#UnrecognizedClientException", false),
            ("com.amazonaws.sqs#RequestThrottled", false),
        ] {
            let body: &str = format!(r#"{{"__type": "{code}", "message": "no"}}"#).leak();
            assert_eq!(answer(400, body, None).unwrap_err().is_permanent(), permanent, "{code}");
        }
        let busy = answer(503, "<html>", None).unwrap_err();
        assert!(!busy.is_unfit_message() && busy.to_string().contains("503"), "{busy}");
        assert_eq!(answer(200, "", None).unwrap(), Value::Null);
    }

    #[tokio::test]
    async fn requests_are_signed_with_their_body() {
        let settings = Settings {
            region: "eu-central-1".to_owned(),
            endpoint: None,
            credentials: Credentials::Static {
                id: "AKIDEXAMPLE".to_owned(),
                key: "secret".to_owned(),
            },
        };
        let wire = Wire::new(&settings).unwrap();
        let request = wire.signed("SendMessage", &serde_json::json!({"a": 1})).await.unwrap();
        let authorization = request.headers()[header::AUTHORIZATION].to_str().unwrap();
        assert!(
            authorization.contains("/eu-central-1/sqs/aws4_request"),
            "{authorization}"
        );
        for name in ["host", "content-type", "x-amz-target", "x-amz-content-sha256"] {
            assert!(authorization.contains(name), "{authorization}");
        }
        assert_eq!(request.uri(), "https://sqs.eu-central-1.amazonaws.com/");
        assert!(!format!("{settings:?}").contains("secret\""));
    }

    #[tokio::test]
    async fn credentials_in_files_are_read_for_each_request() {
        let folder = tempfile::tempdir().unwrap();
        let (id, key) = (folder.path().join("id"), folder.path().join("key"));
        let settings = Settings {
            region: "eu-central-1".to_owned(),
            endpoint: None,
            credentials: Credentials::Files {
                id: id.clone(),
                key: key.clone(),
            },
        };
        let wire = Wire::new(&settings).unwrap();
        let sign = async || wire.signed("SendMessage", &serde_json::json!({"a": 1})).await;
        let missing = sign().await.unwrap_err().to_string();
        assert!(
            missing.contains("no AWS credentials") && missing.contains("cannot read"),
            "{missing}"
        );
        for current in ["AKIDFIRST", "AKIDSECOND"] {
            fs::write(&id, format!("{current}\n")).unwrap();
            fs::write(&key, "secret\n").unwrap();
            let request = sign().await.unwrap();
            let authorization = request.headers()[header::AUTHORIZATION].to_str().unwrap();
            assert!(
                authorization.contains(&format!("Credential={current}/")),
                "{authorization}"
            );
        }
    }
}
