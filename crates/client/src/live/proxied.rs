//! Requests to programs of ours through the API server's proxy, so that no port has to be forwarded: as the user, who needs the right
//! to create and get `services/proxy`. The program identifies the user by the same token, because the proxy does not pass on who
//! calls.

use std::fmt;
use std::str::FromStr;

use futures::FutureExt as _;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::core::v1::Service;
use kube::client::{Body, ConfigExt as _};
use kube::core::Status;
use kube::{Api, Config};
use runway_api::{Name, Namespace, labels};
use runway_callers::FORWARDED;
use runway_operator::client::ClientArgs;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tower::{BoxError, Layer as _, ServiceExt as _};

use crate::live::cluster::{self, Cluster};
use crate::view::endpoint::proxy_path;

/// Largest response, in bytes.
const LARGEST: usize = 256 * 1024 * 1024;

/// A program that is asked in this way.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name, which is also that of its Service and the audience of its tokens.
    pub name: &'static str,
    /// Flag of the command that selects another Service.
    pub flag: &'static str,
    /// The [`Place`] of the Service that the manifests install.
    pub place: &'static str,
}

/// The gateway of AsyncActors.
pub static ASYA_GATEWAY: Program = Program {
    name: "asya-gateway",
    flag: "--gateway",
    place: "kubeairunway-system/asya-gateway",
};

/// The model router.
pub static ROUTER: Program = Program {
    name: labels::ROUTER_MANAGER,
    flag: "--router",
    place: "kubeairunway-system/kubeairunway-gateway",
};

/// Failed request to a program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig's user has no token.
    #[error(
        "the user of the kubeconfig has no token, by which {0} identifies callers: set one with --token, such as that of: kubectl create token NAME --audience {0}"
    )]
    NoToken(&'static str),
    /// The token is not text.
    #[error("the token cannot be sent: it contains a line break or another control character; remove it")]
    Token,
    /// The token cannot be had.
    #[error("cannot get the token of the kubeconfig's user")]
    NotHad(#[source] BoxError),
    /// The program is not installed or does not answer.
    #[error(
        "cannot reach {} at service {place}: {message}; install it, allow the API server to reach it, or select another with {}",
        .program.name, .program.flag
    )]
    Unreachable {
        /// The program.
        program: &'static Program,
        /// Service.
        place: Place,
        /// Message of the API server.
        message: String,
    },
    /// The program rejected the request.
    #[error("cannot {doing}: {message}")]
    Refused {
        /// Action, as a phrase with a verb.
        doing: String,
        /// Status of the response; 502 if the response cannot be read.
        status: StatusCode,
        /// Message of the program.
        message: String,
    },
    /// The cluster rejected the request.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
}

/// Service of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    namespace: Namespace,
    service: Name,
    /// `https` or `http`.
    scheme: &'static str,
    port: u16,
}

/// `NAMESPACE/SERVICE` for HTTPS at port 443, or `NAMESPACE/SCHEME:SERVICE:PORT`, as the API server's proxy names it.
impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const USAGE: &str = "use NAMESPACE/SERVICE, or NAMESPACE/http:SERVICE:PORT for a program with --plain-http";
        let (namespace, at) = text.split_once('/').ok_or(USAGE)?;
        let (scheme, service, port) = match at.split(':').collect::<Vec<_>>()[..] {
            [service] => ("https", service, "443"),
            ["http", service, port] => ("http", service, port),
            ["https", service, port] => ("https", service, port),
            _ => return Err(USAGE.to_owned()),
        };
        Ok(Self {
            namespace: namespace.parse().map_err(|error| format!("{error}"))?,
            service: service.parse().map_err(|error| format!("{error}"))?,
            scheme,
            port: port.parse().map_err(|_| USAGE)?,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            namespace,
            service,
            scheme,
            port,
        } = self;
        write!(f, "{namespace}/{scheme}:{service}:{port}")
    }
}

/// A program that can be asked.
pub struct Proxied<'a> {
    program: &'static Program,
    cluster: &'a Cluster,
    place: &'a Place,
    authorization: HeaderValue,
}

/// A request to a program.
pub struct Question<'a> {
    /// Action for messages, as a phrase with a verb.
    pub doing: String,
    /// Path and query.
    pub path: String,
    /// Headers.
    pub headers: &'a [(HeaderName, String)],
    /// Body of a POST; `None` is a GET.
    pub body: Option<Vec<u8>>,
}

impl<'a> Proxied<'a> {
    /// The program of a cluster, for a user with this token, or with that of the kubeconfig.
    ///
    /// # Errors
    /// The kubeconfig has no token, or the program is not installed.
    pub async fn of(
        program: &'static Program,
        cluster: &'a Cluster,
        client: &ClientArgs,
        place: &'a Place,
        token: Option<&str>,
    ) -> Result<Self, Error> {
        let authorization = match token {
            Some(token) => HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| Error::Token)?,
            None => match authorization(&client.config().await.map_err(cluster::Error::from)?, program).await {
                Err(Error::NoToken(_)) => return Err(without_token(cluster, program, place).await),
                had => had?,
            },
        };
        Ok(Self::with(program, cluster, place, authorization))
    }

    /// The program of a cluster, for a user with this `Authorization`.
    pub fn with(
        program: &'static Program,
        cluster: &'a Cluster,
        place: &'a Place,
        mut authorization: HeaderValue,
    ) -> Self {
        authorization.set_sensitive(true);
        Self {
            program,
            cluster,
            place,
            authorization,
        }
    }

    /// Asks with a GET.
    ///
    /// # Errors
    /// The program cannot be reached, or rejects the request.
    pub async fn get<T: DeserializeOwned>(&self, doing: String, path: String) -> Result<T, Error> {
        let question = Question {
            doing,
            path,
            headers: &[],
            body: None,
        };
        self.ask(question).await.map(|(answer, _)| answer)
    }

    /// Asks the program. Returns the text of its answer, too.
    ///
    /// # Errors
    /// The program cannot be reached, or rejects the request.
    pub async fn ask<T: DeserializeOwned>(&self, question: Question<'_>) -> Result<(T, String), Error> {
        let Question {
            doing,
            path,
            headers,
            body,
        } = question;
        let refused = |message: String| Error::Refused {
            doing: doing.clone(),
            status: StatusCode::BAD_GATEWAY,
            message,
        };
        let Place {
            namespace,
            service,
            scheme,
            port,
        } = self.place;
        let uri = proxy_path(scheme, namespace, service, *port) + &path;
        let method = if body.is_some() { Method::POST } else { Method::GET };
        let mut request = http::Request::builder().method(method).uri(uri);
        request = request.header(FORWARDED, self.authorization.clone());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(body.unwrap_or_default()));
        let request = request.map_err(|error| refused(error.to_string()))?;
        let sent = self.cluster.client().send(request).await;
        let response = sent.map_err(|error| self.cluster.explain(error, doing.clone(), "Service"))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body
            .map_err(|error| refused(format!("the response ended early: {error}")))?
            .to_bytes();
        let text = String::from_utf8_lossy(&body).into_owned();
        if !status.is_success() {
            return Err(self.failure(status, &text, doing));
        }
        let answer = serde_json::from_str(&text).map_err(|error| refused(format!("unexpected response: {error}")))?;
        Ok((answer, text))
    }

    /// Both the API server and the program may say no.
    fn failure(&self, code: StatusCode, text: &str, doing: String) -> Error {
        let body: Value = serde_json::from_str(text).unwrap_or_default();
        if let Some(message) = body["error"]["message"].as_str() {
            let message = message.to_owned();
            return Error::Refused {
                doing,
                status: code,
                message,
            };
        }
        let status: Option<Status> = serde_json::from_value(body).ok();
        let status = status.unwrap_or_else(|| Status::failure(text.trim(), "").with_code(code.as_u16()));
        let message = status.message.clone();
        let Place { namespace, .. } = self.place;
        match code {
            StatusCode::UNAUTHORIZED => self
                .cluster
                .explain(kube::Error::Api(status.boxed()), doing, "Service")
                .into(),
            StatusCode::FORBIDDEN => {
                let right = format!(
                    "{doing} (requires permission to create and get services/proxy in namespace '{namespace}')"
                );
                self.cluster
                    .explain(kube::Error::Api(status.boxed()), right, "Service")
                    .into()
            }
            _ => Error::Unreachable {
                program: self.program,
                place: self.place.clone(),
                message,
            },
        }
    }
}

/// Error of a user without a token: where the program is not installed, a token does not help.
pub async fn without_token(cluster: &Cluster, program: &'static Program, place: &Place) -> Error {
    let services: Api<Service> = Api::namespaced(cluster.client(), &place.namespace);
    match services.get(&place.service).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Error::Unreachable {
            program,
            place: place.clone(),
            message: status.message,
        },
        _ => Error::NoToken(program.name),
    }
}

/// `Authorization` with the token of the kubeconfig's user, as a request to the API server has it.
///
/// # Errors
/// The user has no token, or it cannot be had.
pub async fn authorization(config: &Config, program: &'static Program) -> Result<HeaderValue, Error> {
    let layer = config.auth_layer().map_err(|error| Error::NotHad(error.into()))?;
    let shown = tower::service_fn(|request: http::Request<Body>| async move {
        let value = request.headers().get(AUTHORIZATION).cloned();
        Ok::<_, BoxError>(http::Response::new(value))
    });
    let asked = layer
        .ok_or(Error::NoToken(program.name))?
        .layer(shown)
        .oneshot(http::Request::new(Body::empty()))
        .boxed();
    let value = asked.await.map_err(Error::NotHad)?.into_body();
    let is_bearer = |value: &HeaderValue| value.as_bytes().starts_with(b"Bearer ");
    value.filter(is_bearer).ok_or(Error::NoToken(program.name))
}
