//! Credential of a session, and the user that the cluster reports for it.
//!
//! All sessions share the connections to the cluster: a credential is a header of each request, not a client of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use axum::body::Body as Answer;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use futures::StreamExt;
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use kube::api::PostParams;
use kube::client::Body;
use kube::{Api, Client, Config};
use parking_lot::Mutex;
use runway_client::proxied::{self, ASYA_GATEWAY};
use runway_operator::telemetry::chain;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, service_fn};

use crate::oidc::{Identity, Tokens};

/// Names the token rather than the user: every token of a ServiceAccount has one of its own. No authorizer of Kubernetes
/// looks at it.
const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Largest part of a list, which is read a hundred objects at a time.
const LARGEST: usize = 64 * 1024 * 1024;

/// A user, as the API server sees them. Two credentials with the same answer have the same rights.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Who {
    /// The name of the user.
    pub name: String,
    uid: String,
    groups: BTreeSet<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl From<UserInfo> for Who {
    fn from(user: UserInfo) -> Self {
        let mut extra = user.extra.unwrap_or_default();
        extra.remove(CREDENTIAL_ID);
        Self {
            name: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default().into_iter().collect(),
            extra,
        }
    }
}

/// Reason why the user of a credential is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// The cluster does not accept it.
    #[error("{0}")]
    Refused(String),
    /// The request is forbidden. A server that has just started responds like this as well.
    #[error("{0}")]
    Forbidden(String),
    /// The cluster does not answer.
    #[error("{0}")]
    Away(String),
}

/// User of a credential, by a SelfSubjectReview.
///
/// # Errors
/// The cluster rejects the credential, or cannot be reached.
pub async fn whoami(client: &Client) -> Result<Who, Unknown> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let (params, empty) = (PostParams::default(), SelfSubjectReview::default());
    let user = match reviews.create(&params, &empty).await {
        Ok(review) => review.status.and_then(|status| status.user_info).unwrap_or_default(),
        Err(kube::Error::Api(status)) if status.code == 401 => return Err(Unknown::Refused(status.message.clone())),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
            return Err(Unknown::Forbidden(status.message.clone()));
        }
        Err(error) => return Err(Unknown::Away(chain(&error))),
    };
    if user.username.as_deref() == Some("system:anonymous") {
        return Err(Unknown::Refused("it belongs to no user".to_owned()));
    }
    Ok(user.into())
}

/// Authentication of requests.
enum How {
    /// The connections do: those of a kubeconfig.
    Connection(Box<Config>),
    /// Constant headers.
    Headers(HeaderMap),
    /// The newest ID token at the time of the request.
    Newest(Arc<ArcSwap<Tokens>>),
}

/// Credential of a session.
pub struct Credential {
    cluster: Client,
    how: How,
    /// Cancelled when the cluster no longer accepts it, or its session is over for another reason.
    over: CancellationToken,
}

impl Credential {
    /// Credential of a client with its own authentication.
    pub fn of_connection(cluster: Client, config: Config) -> Arc<Self> {
        Self::new(cluster, How::Connection(Box::new(config)), CancellationToken::new())
    }

    /// A bearer token; `None` if it cannot be sent.
    pub fn of_token(cluster: Client, token: &str, over: CancellationToken) -> Option<Arc<Self>> {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, bearer(token)?)]);
        Some(Self::new(cluster, How::Headers(headers), over))
    }

    /// Credential from the issuer, always the newest.
    pub fn of_issuer(cluster: Client, tokens: Arc<ArcSwap<Tokens>>, over: CancellationToken) -> Arc<Self> {
        Self::new(cluster, How::Newest(tokens), over)
    }

    /// That of the console, in the name of a user; `None` if the name cannot be sent.
    pub fn in_the_name_of(cluster: Client, user: &Identity, over: CancellationToken) -> Option<Arc<Self>> {
        let name = HeaderName::from_static("impersonate-user");
        let mut headers = HeaderMap::from_iter([(name, HeaderValue::from_str(&user.user).ok()?)]);
        for group in &user.groups {
            let name = HeaderName::from_static("impersonate-group");
            headers.append(name, HeaderValue::from_str(group).ok()?);
        }
        Some(Self::new(cluster, How::Headers(headers), over))
    }

    fn new(cluster: Client, how: How, over: CancellationToken) -> Arc<Self> {
        Arc::new(Self { cluster, how, over })
    }

    /// A client that calls with it.
    pub fn client(self: &Arc<Self>) -> Client {
        let (credential, namespace) = (self.clone(), self.cluster.default_namespace().to_owned());
        let service = service_fn(move |request| {
            let credential = credential.clone();
            async move { credential.send(request).await }
        });
        Client::new(service, namespace)
    }

    /// `Authorization` with the user's token, for servers behind a proxy subresource that identify the user themselves.
    ///
    /// # Errors
    /// The credential has no token, such as that of a user with a certificate or an impersonated one.
    pub async fn authorization(&self) -> Result<HeaderValue, proxied::Error> {
        match &self.how {
            How::Connection(config) => proxied::authorization(config, &ASYA_GATEWAY).await,
            _ => self
                .headers()
                .remove(AUTHORIZATION)
                .ok_or(proxied::Error::NoToken(ASYA_GATEWAY.name)),
        }
    }

    /// Sends a request. An answer that refuses the credential ends it, and so its session.
    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        // Behind a proxy subresource another server answers, whose 401 says nothing of this credential.
        let proxied = request.uri().path().contains("/proxy");
        let headers = self.headers();
        request.headers_mut().extend(headers.clone());
        let answer = self.cluster.send(request).await?;
        let refused = answer.status() == StatusCode::UNAUTHORIZED && !proxied;
        // A token that was renewed meanwhile is not refused by what is said of the one before.
        if refused && !matches!(self.how, How::Connection(_)) && self.headers() == headers {
            self.over.cancel();
        }
        Ok(answer)
    }

    fn headers(&self) -> HeaderMap {
        match &self.how {
            How::Connection(_) => HeaderMap::new(),
            How::Headers(headers) => headers.clone(),
            How::Newest(tokens) => {
                let bearer = bearer(&tokens.load().id_token);
                bearer.map(|bearer| (AUTHORIZATION, bearer)).into_iter().collect()
            }
        }
    }
}

fn bearer(token: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// No session is left whose credential a watch could use.
#[derive(Debug, thiserror::Error)]
#[error("no session of this user is left")]
struct NoneLeft;

/// The credentials of a user's sessions. Watches of the user call with the first that the cluster still accepts.
#[derive(Default)]
pub struct Holders(Mutex<Vec<Weak<Credential>>>);

impl Holders {
    /// Adds a session.
    pub fn add(&self, credential: &Arc<Credential>) {
        let mut all = self.0.lock();
        all.retain(|held| held.strong_count() > 0);
        all.push(Arc::downgrade(credential));
    }

    /// A credential that is not over.
    pub fn pick(&self) -> Option<Arc<Credential>> {
        let all = self.0.lock();
        let mut held = all.iter().filter_map(Weak::upgrade);
        held.find(|credential| !credential.over.is_cancelled())
    }

    /// Whether another credential may be accepted after one was rejected.
    pub fn has_another(&self) -> bool {
        let picked = self.pick();
        picked.is_some_and(|credential| !matches!(credential.how, How::Connection(_)))
    }

    /// Creates a client for watches. `lists` limits concurrent lists, since each is briefly held in memory as a whole. A watch
    /// ends with its credential, and continues with another.
    pub fn client(self: &Arc<Self>, namespace: &str, lists: Arc<Semaphore>) -> Client {
        let holders = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let (holders, lists) = (holders.clone(), lists.clone());
            async move {
                let credential = holders.pick().ok_or(NoneLeft)?;
                if is_list(&request) {
                    let _turn = lists.acquire().await?;
                    let (parts, body) = credential.send(request).await?.into_parts();
                    let body = Limited::new(body, LARGEST).collect().await?.to_bytes();
                    return Ok::<_, BoxError>(Response::from_parts(parts, Answer::from(body)));
                }
                let (parts, body) = credential.send(request).await?.into_parts();
                let over = credential.over.clone().cancelled_owned();
                let body = Answer::from_stream(body.into_data_stream().take_until(over));
                Ok(Response::from_parts(parts, body))
            }
        });
        Client::new(service, namespace)
    }
}

/// Lists are read in parts, and watches say that they are such.
fn is_list(request: &Request<Body>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.contains("limit=") && !query.contains("watch=")
}
