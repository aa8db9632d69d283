//! Who asks: sessions live in the memory of the server, a cookie only holds their key.
//!
//! On loopback a key in the address that is printed opens a session with the rights of the kubeconfig: other users of the
//! machine do not have it. As a deployment the server has no rights at all: a user gives a token or signs in at the issuer,
//! the cluster says who that is, and every call is made with that token. Or, where that is configured, the server has the one
//! right to impersonate, and every call is made in the name of the user whom the issuer has named.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, Request};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::client::{Body, ClientBuilder};
use kube::{Api, Client, Config};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use tokio_util::task::AbortOnDropHandle;
use tower::util::MapRequestLayer;

use crate::oidc::{self, Identity, Impersonation, Issuer, Tokens};
use crate::watches::Lens;

/// A session that nobody used for so long is over.
const IDLE: Duration = Duration::from_hours(8);
/// Sessions at a time; the one that was longest idle makes room.
const MAX_SESSIONS: usize = 1000;
/// Longest token that is tried.
const MAX_TOKEN: usize = 16 * 1024;
/// So long before its end an ID token is refreshed.
const REFRESH_BEFORE: Duration = Duration::from_mins(1);
/// When the issuer does not answer.
const RETRY: Duration = Duration::from_secs(5);

/// How users come in.
pub enum Door {
    /// With the key of the address that was printed; all see through one lens.
    Key {
        /// The key.
        key: String,
        /// What the kubeconfig sees.
        lens: Arc<Lens>,
    },
    /// As themselves, one by one.
    Login(Box<Login>),
}

/// How users sign in.
pub struct Login {
    /// The cluster, without any credentials.
    pub cluster: Config,
    /// Where they sign in, beside with a token.
    pub issuer: Option<Arc<Issuer>>,
    /// If the cluster does not know the issuer: the cluster with the server's own credentials, and whom it may impersonate.
    pub impersonate: Option<(Config, Impersonation)>,
}

/// Somebody who is in.
pub struct Session {
    /// What goes into every form, and must come back with it.
    pub csrf: String,
    /// What the user sees.
    pub lens: Arc<Lens>,
    /// The token that was given; who gives it again shares what is watched.
    token: Option<String>,
    /// What the issuer gave, always the newest.
    at_issuer: Option<AtIssuer>,
}

/// A session that was begun at the issuer.
struct AtIssuer {
    tokens: Arc<ArcSwap<Tokens>>,
    _keeper: AbortOnDropHandle<()>,
}

impl Session {
    /// What the issuer gave.
    pub fn tokens(&self) -> Option<Arc<Tokens>> {
        self.at_issuer.as_ref().map(|at| at.tokens.load_full())
    }

    fn is_over(&self) -> bool {
        self.tokens().is_some_and(|tokens| tokens.expires <= clock::now())
    }
}

/// Why somebody is not let in.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is not the key that was printed.
    #[error("this is not the address that `kubeairunway ui` printed: its key is missing or old")]
    Key,
    /// There is no token in it.
    #[error("paste a token: the form was empty, or what was pasted is no token")]
    NoToken,
    /// The cluster does not know the token.
    #[error("the cluster does not accept this token: it is wrong, or no longer valid ({0})")]
    Unknown(String),
    /// The cluster does not know the issuer.
    #[error(
        "the issuer knows you, but the cluster does not take its word: it must trust the same issuer and client ({0}). Tell who runs this console"
    )]
    Distrusted(String),
    /// The server may not impersonate the user.
    #[error(
        "the issuer says that you are {user}, whom this console may not impersonate ({why}). Tell who runs this console"
    )]
    NotYou {
        /// The user.
        user: String,
        /// What the cluster says.
        why: String,
    },
    /// The issuer does not let them in.
    #[error(transparent)]
    Issuer(#[from] oidc::Error),
    /// The issuer names nobody.
    #[error(transparent)]
    Nobody(#[from] oidc::Nobody),
    /// The cluster does not answer.
    #[error("the cluster cannot be asked whose token this is: {0}")]
    Away(String),
    /// No key can be made.
    #[error("there is no randomness for a session's key: {0}")]
    Random(String),
}

struct Held {
    session: Arc<Session>,
    used: Instant,
}

/// All sessions.
pub struct Sessions {
    door: Door,
    held: Mutex<BTreeMap<String, Held>>,
}

impl Sessions {
    /// Nobody is in yet.
    pub fn new(door: Door) -> Self {
        Self {
            door,
            held: Mutex::new(BTreeMap::new()),
        }
    }

    /// Whether users sign in, each as themselves.
    pub fn by_login(&self) -> bool {
        matches!(self.door, Door::Login(_))
    }

    /// Where users sign in, beside with a token.
    pub fn issuer(&self) -> Option<&Arc<Issuer>> {
        match &self.door {
            Door::Login(login) => login.issuer.as_ref(),
            Door::Key { .. } => None,
        }
    }

    /// The session of a cookie.
    pub fn find(&self, id: &str) -> Option<Arc<Session>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, h| h.used.elapsed() < IDLE && !h.session.is_over());
        let found = held.get_mut(id)?;
        found.used = Instant::now();
        Some(found.session.clone())
    }

    /// Ends a session.
    pub fn end(&self, id: &str) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// Opens a session with the printed key. Returns its id.
    pub fn enter_with_key(&self, given: &str) -> Result<String, Refused> {
        match &self.door {
            Door::Key { key, lens } if same(key, given) => self.admit(lens.clone(), None, None),
            _ => Err(Refused::Key),
        }
    }

    /// Opens a session with a token. Returns its id.
    pub async fn enter_with_token(&self, token: &str) -> Result<String, Refused> {
        let token = token.trim();
        let Door::Login(login) = &self.door else {
            return Err(Refused::NoToken);
        };
        let plain = token.bytes().all(|b| b.is_ascii_graphic());
        if token.is_empty() || token.len() > MAX_TOKEN || !plain {
            return Err(Refused::NoToken);
        }
        let mut config = login.cluster.clone();
        config.auth_info.token = Some(token.to_owned().into());
        let client = Client::try_from(config).map_err(|e| Refused::Away(chain(&e)))?;
        let user = whoami(&client).await?;
        // The same token again: the same watches.
        let lens = self.lens_of(token).unwrap_or_else(|| login.lens(client, user));
        self.admit(lens, Some(token.to_owned()), None)
    }

    /// Opens a session for somebody whom the issuer has let in. Returns its id.
    pub async fn enter_from_issuer(&self, tokens: Tokens) -> Result<String, Refused> {
        let Door::Login(login) = &self.door else {
            return Err(Refused::NoToken);
        };
        let Some(issuer) = &login.issuer else {
            return Err(Refused::NoToken);
        };
        let tokens = Arc::new(ArcSwap::from_pointee(tokens));
        let (client, user, keeper) = match &login.impersonate {
            Some((own, may)) => login.in_their_name(own, may, issuer, &tokens).await?,
            None => login.with_their_token(issuer, &tokens).await?,
        };
        let at_issuer = AtIssuer {
            tokens,
            _keeper: keeper,
        };
        self.admit(login.lens(client, user), None, Some(at_issuer))
    }

    fn lens_of(&self, token: &str) -> Option<Arc<Lens>> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sessions = held.values().map(|h| &h.session);
        let same = sessions.find(|s| s.token.as_deref().is_some_and(|t| same(t, token)))?;
        Some(same.lens.clone())
    }

    fn admit(&self, lens: Arc<Lens>, token: Option<String>, at_issuer: Option<AtIssuer>) -> Result<String, Refused> {
        let (id, csrf) = (random_key()?, random_key()?);
        let session = Arc::new(Session {
            csrf,
            lens,
            token,
            at_issuer,
        });
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.len() >= MAX_SESSIONS {
            let idlest = held.iter().min_by_key(|(_, h)| h.used).map(|(id, _)| id.clone());
            idlest.and_then(|id| held.remove(&id));
        }
        held.insert(
            id.clone(),
            Held {
                session,
                used: Instant::now(),
            },
        );
        Ok(id)
    }
}

impl Login {
    fn lens(&self, client: Client, user: String) -> Arc<Lens> {
        let known = home(&user).unwrap_or_else(|| self.cluster.default_namespace.clone());
        let url = self.cluster.cluster_url.to_string();
        Arc::new(Lens::new(client, url, user, vec![known]))
    }
}

/// What is asked with, who that is, and what keeps it valid.
type Entered = (Client, String, AbortOnDropHandle<()>);

impl Login {
    /// The cluster trusts the issuer: it reads the ID token itself.
    async fn with_their_token(&self, issuer: &Arc<Issuer>, tokens: &Arc<ArcSwap<Tokens>>) -> Result<Entered, Refused> {
        let client = bearing(self.cluster.clone(), tokens.clone())?;
        let user = whoami(&client).await.map_err(|refused| match refused {
            Refused::Unknown(why) => Refused::Distrusted(why),
            other => other,
        })?;
        Ok((client, user, keep(issuer.clone(), tokens.clone(), |_| true)))
    }

    /// The cluster does not know the issuer: it takes the console's word for who asks.
    async fn in_their_name(
        &self,
        own: &Config,
        may: &Impersonation,
        issuer: &Arc<Issuer>,
        tokens: &Arc<ArcSwap<Tokens>>,
    ) -> Result<Entered, Refused> {
        let identity = issuer.identity(&tokens.load(), may)?;
        let client = impersonating(own.clone(), &identity)?;
        let user = whoami(&client).await.map_err(|refused| match refused {
            Refused::Unknown(why) => Refused::NotYou {
                user: identity.user.clone(),
                why,
            },
            other => other,
        })?;
        let (named, may) = (issuer.clone(), may.clone());
        let is_same = move |new: &Tokens| named.identity(new, &may).is_ok_and(|now| now == identity);
        Ok((client, user, keep(issuer.clone(), tokens.clone(), is_same)))
    }
}

/// A client with the newest ID token, whichever that is when it asks.
fn bearing(cluster: Config, tokens: Arc<ArcSwap<Tokens>>) -> Result<Client, Refused> {
    let bear = MapRequestLayer::new(move |mut request: Request<Body>| {
        let bearer = HeaderValue::from_str(&format!("Bearer {}", tokens.load().id_token));
        if let Ok(mut bearer) = bearer {
            bearer.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, bearer);
        }
        request
    });
    let builder = ClientBuilder::try_from(cluster).map_err(|e| Refused::Away(chain(&e)))?;
    Ok(builder.with_layer(&bear).build())
}

/// A client of the server's own, in the name of somebody else.
fn impersonating(mut own: Config, identity: &Identity) -> Result<Client, Refused> {
    own.auth_info.impersonate = Some(identity.user.clone());
    own.auth_info.impersonate_groups = Some(identity.groups.clone());
    Client::try_from(own).map_err(|e| Refused::Away(chain(&e)))
}

/// Fetches new tokens before the old ones end, as long as the issuer gives any and they are for the same user. The session
/// ends with the last.
fn keep(
    issuer: Arc<Issuer>,
    tokens: Arc<ArcSwap<Tokens>>,
    is_same: impl Fn(&Tokens) -> bool + Send + 'static,
) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let old = tokens.load_full();
            let left = Duration::try_from(old.expires.duration_since(clock::now())).unwrap_or_default();
            if !Issuer::is_refreshable(&old) || left.is_zero() {
                return;
            }
            // Early enough for a second try and for clocks that differ, and not all the time where tokens live for seconds.
            tokio::time::sleep((left / 2).max(left.saturating_sub(REFRESH_BEFORE))).await;
            match issuer.refresh(&old).await {
                Ok(new) if is_same(&new) => tokens.store(Arc::new(new)),
                Ok(_) => {
                    return tracing::info!(
                        "the issuer names another user or other groups: the session ends with its token"
                    );
                }
                Err(error @ oidc::Error::Away { .. }) => {
                    tracing::warn!(error = chain(&error), "an ID token is not refreshed yet");
                    tokio::time::sleep(RETRY).await;
                }
                Err(error) => {
                    return tracing::info!(error = chain(&error), "the session ends with its ID token");
                }
            }
        }
    }))
}

/// Whose credentials these are.
pub async fn whoami(client: &Client) -> Result<String, Refused> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    match reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await
    {
        Ok(review) => {
            let user = review
                .status
                .and_then(|s| s.user_info)
                .and_then(|u| u.username)
                .unwrap_or_default();
            if user == "system:anonymous" {
                return Err(Refused::Unknown("it is nobody's".to_owned()));
            }
            Ok(user)
        }
        Err(kube::Error::Api(status)) => Err(Refused::Unknown(status.message.clone())),
        Err(error) => Err(Refused::Away(chain(&error))),
    }
}

/// The namespace of a service account.
fn home(user: &str) -> Option<String> {
    let (namespace, _) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    Some(namespace.to_owned())
}

/// 256 random bits, in hexadecimal digits.
pub fn random_key() -> Result<String, Refused> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes).map_err(|e| Refused::Random(e.to_string()))?;
    let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or('0');
    Ok(bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect())
}

/// Equality that takes as long for a near miss as for a wild guess.
pub fn same(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_account_is_at_home_in_its_namespace() {
        assert_eq!(home("system:serviceaccount:team-a:viewer").as_deref(), Some("team-a"));
        assert_eq!(home("jane"), None);
    }

    #[test]
    fn keys_differ_and_are_compared_whole() {
        let (a, b) = (random_key().unwrap(), random_key().unwrap());
        assert_eq!(a.len(), 64);
        assert!(same(&a, &a.clone()) && !same(&a, &b) && !same(&a, &a[1..]));
    }
}
