//! Sessions, kept in the memory of the server. A cookie holds only their key.
//!
//! On loopback, a key in the printed address opens a session with the rights of the kubeconfig. Other users of the machine do
//! not have the key. In a cluster, the server has no rights of its own. A user enters a token or signs in at the issuer, the
//! cluster identifies the user, and every call uses that token. If impersonation is configured, the server has only the right
//! to impersonate, and every call impersonates the user that the issuer has named.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use kube::Client;
use parking_lot::Mutex;
use runway_api::Namespace;
use runway_callers::tenant::Tenant;
use runway_operator::telemetry::chain;
use runway_operator::{audit, clock};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::AbortOnDropHandle;

use crate::caches::Users;
use crate::credentials::{Credential, Unknown, Who, whoami};
use crate::crypto::{random_key, same};
use crate::health::FIRST_LIST;
use crate::oidc::{self, Impersonation, Issuer, Tokens};
use crate::session_view::SessionView;

/// Idle time after which a session ends.
const IDLE: Duration = Duration::from_hours(8);
/// Default of the longest lifetime of a session.
pub const LIFETIME: Duration = Duration::from_hours(12);
/// Most sessions at a time. Further sign-ins are rejected, so that no user loses a session.
const MAX_SESSIONS: usize = 1000;
/// Sessions of one tenant at a time; the one that was longest idle makes room.
const MAX_OF_A_TENANT: usize = 64;
/// For so long the cluster's word that it accepts a credential counts.
const COUNTS: Duration = Duration::from_secs(1);
/// Interval at which ended sessions are removed.
const SWEEP: Duration = Duration::from_secs(1);
/// Longest token that is tried.
const MAX_TOKEN: usize = 16 * 1024;
/// Time before its expiry at which an ID token is refreshed.
const REFRESH_BEFORE: Duration = Duration::from_mins(1);
/// Time in which a one-time key opens a session.
const ONE_TIME: Duration = Duration::from_mins(1);
/// Interval of retries if the issuer does not respond.
const RETRY: Duration = Duration::from_secs(5);

/// Kind of sign-in.
pub enum Door {
    /// By the key of the printed address; all sessions share one view.
    Key {
        /// The key.
        key: String,
        /// SessionView with the permissions of the kubeconfig.
        view: Arc<SessionView>,
        /// One-time key, until it is used.
        one_time: Mutex<Option<OneTime>>,
    },
    /// Each user with their own credentials.
    Login(Box<Login>),
}

/// A key that opens one session.
pub struct OneTime {
    key: String,
    made: Instant,
    /// Cancelled when it is used.
    used: CancellationToken,
}

/// Settings of sign-in.
pub struct Login {
    /// The cluster, without any credentials.
    pub cluster: Client,
    /// The address of the cluster.
    pub url: String,
    /// The namespace of the console's own context.
    pub namespace: Namespace,
    /// Caches of all users.
    pub users: Arc<Users>,
    /// Issuer, in addition to tokens.
    pub issuer: Option<Arc<Issuer>>,
    /// Client with the console's own credentials and the users that it may impersonate, for clusters that do not trust the
    /// issuer.
    pub impersonate: Option<(Client, Impersonation)>,
}

/// An open session.
pub struct Session {
    /// Token that every form must contain.
    pub csrf: String,
    /// The cluster as the user sees it.
    pub view: Arc<SessionView>,
    /// The user; `None` behind a key, where it is the kubeconfig's.
    who: Option<Who>,
    /// Cancelled when it is over, whatever the reason.
    over: CancellationToken,
    /// End of its lifetime.
    ends: Timestamp,
    /// Tokens of the issuer, always the newest.
    at_issuer: Option<AtIssuer>,
    /// Time at which the cluster last accepted its credential for the same user.
    accepted: tokio::sync::Mutex<Option<Instant>>,
}

/// A session that was begun at the issuer.
struct AtIssuer {
    tokens: Arc<ArcSwap<Tokens>>,
    _keeper: AbortOnDropHandle<()>,
}

impl Session {
    /// Tokens of the issuer.
    pub fn tokens(&self) -> Option<Arc<Tokens>> {
        self.at_issuer.as_ref().map(|at| at.tokens.load_full())
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        let now = clock::now();
        self.over.is_cancelled() || self.ends <= now || self.tokens().is_some_and(|tokens| tokens.expires <= now)
    }

    /// Resolves when the session ends, for streaming responses.
    pub fn over(&self) -> WaitForCancellationFutureOwned {
        self.over.clone().cancelled_owned()
    }

    /// Asks the cluster whether it still accepts the credential for the same user; if not, the session ends. While the cluster is
    /// unavailable, the session continues.
    pub async fn is_accepted(&self) -> bool {
        if self.is_over() {
            return false;
        }
        let Some(who) = self.who.as_ref().filter(|_| !self.view.is_down()) else {
            return true;
        };
        let mut accepted = self.accepted.lock().await;
        if accepted.is_some_and(|at| at.elapsed() < COUNTS) {
            return !self.is_over();
        }
        match tokio::time::timeout(FIRST_LIST, whoami(&self.view.client())).await {
            Ok(Ok(now)) if now == *who => *accepted = Some(Instant::now()),
            Ok(Ok(_) | Err(Unknown::Refused(_))) => self.over.cancel(),
            // Then it may see nothing either, and each page asks for that.
            Ok(Err(Unknown::Forbidden(_))) => {}
            Ok(Err(Unknown::Away(why))) => self.view.lost(why),
            Err(_) => self.view.lost("no response within 5 seconds".to_owned()),
        }
        !self.is_over()
    }
}

/// Reason why a sign-in is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The key is not the printed one.
    #[error("missing or outdated key: open the address that `kubeairunway ui` printed")]
    Key,
    /// The form contains no token.
    #[error("no bearer token found in the form: paste a token")]
    NoToken,
    /// The cluster does not know the token.
    #[error("the cluster rejects this token: it is invalid or expired ({0})")]
    Unknown(String),
    /// The cluster does not know the issuer.
    #[error(
        "the cluster rejects the ID token: it must trust the same issuer and client ({0}). Contact the administrator of this console"
    )]
    Distrusted(String),
    /// The server may not impersonate the user.
    #[error("this console may not impersonate user {user} ({why}). Contact the administrator of this console")]
    NotYou {
        /// The user.
        user: String,
        /// Message of the cluster.
        why: String,
    },
    /// The issuer does not let them in.
    #[error(transparent)]
    Issuer(#[from] oidc::Error),
    /// The ID token identifies no user.
    #[error(transparent)]
    NoIdentity(#[from] oidc::NoIdentity),
    /// The cluster does not answer.
    #[error("cannot verify the token at the cluster: {0}")]
    Away(String),
    /// No key can be made.
    #[error("cannot generate a session key: {0}")]
    Random(#[from] getrandom::Error),
    /// There are too many sessions.
    #[error(
        "the limit of {MAX_SESSIONS} sessions is reached: try again later, or contact the administrator of this console"
    )]
    Full,
}

impl From<Unknown> for Refused {
    fn from(unknown: Unknown) -> Self {
        match unknown {
            Unknown::Refused(why) | Unknown::Forbidden(why) => Self::Unknown(why),
            Unknown::Away(why) => Self::Away(why),
        }
    }
}

struct Kept {
    session: Arc<Session>,
    used: Instant,
}

/// Sessions by their ids.
type ById = BTreeMap<String, Kept>;

/// All sessions.
pub struct Sessions {
    door: Door,
    lifetime: Duration,
    end: CancellationToken,
    entries: Arc<Mutex<ById>>,
    _sweeper: AbortOnDropHandle<()>,
}

/// Data of a new session.
struct Entry {
    view: Arc<SessionView>,
    who: Option<Who>,
    over: CancellationToken,
    /// Expiry of the credential, if known.
    expires: Option<Timestamp>,
    at_issuer: Option<AtIssuer>,
}

impl Sessions {
    /// Creates it without sessions. A session lasts at most `lifetime`, and until `end`.
    pub fn new(door: Door, lifetime: Duration, end: CancellationToken) -> Self {
        let entries = Arc::<Mutex<ById>>::default();
        let swept = entries.clone();
        let sweeper = tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                sweep(&mut swept.lock());
            }
        });
        Self {
            door,
            lifetime,
            end,
            entries,
            _sweeper: AbortOnDropHandle::new(sweeper),
        }
    }

    /// Whether users sign in with their own credentials.
    pub fn by_login(&self) -> bool {
        matches!(self.door, Door::Login(_))
    }

    /// OpenID Connect issuer, in addition to tokens.
    pub fn issuer(&self) -> Option<&Arc<Issuer>> {
        match &self.door {
            Door::Login(login) => login.issuer.as_ref(),
            Door::Key { .. } => None,
        }
    }

    /// The session of a cookie.
    pub fn find(&self, id: &str) -> Option<Arc<Session>> {
        let mut entries = self.entries.lock();
        sweep(&mut entries);
        let found = entries.get_mut(id)?;
        found.used = Instant::now();
        Some(found.session.clone())
    }

    /// Ends a session and its streaming responses.
    pub fn end(&self, id: &str) {
        if let Some(entry) = self.entries.lock().remove(id) {
            entry.session.over.cancel();
        }
    }

    /// Opens a session with the printed key. Returns its id.
    ///
    /// # Errors
    /// The credential is rejected, or there are too many sessions.
    pub fn enter_with_key(&self, given: &str) -> Result<String, Refused> {
        match &self.door {
            Door::Key { key, view, .. } if same(key, given) => self.admit(Entry {
                view: view.clone(),
                who: None,
                over: self.end.child_token(),
                expires: None,
                at_issuer: None,
            }),
            _ => Err(Refused::Key),
        }
    }

    /// Makes a key that opens one session within a minute. The second value resolves when it no longer does. `None` if users sign
    /// in.
    ///
    /// # Errors
    /// The operating system provides no random bytes.
    pub fn one_time_key(&self) -> Result<Option<(String, impl Future<Output = ()> + Send + 'static)>, Refused> {
        let Door::Key { one_time, .. } = &self.door else {
            return Ok(None);
        };
        let (key, used) = (random_key()?, self.end.child_token());
        *one_time.lock() = Some(OneTime {
            key: key.clone(),
            made: Instant::now(),
            used: used.clone(),
        });
        let over = async move {
            let _ = tokio::time::timeout(ONE_TIME, used.cancelled()).await;
        };
        Ok(Some((key, over)))
    }

    /// Opens a session with a one-time key. Returns its id.
    ///
    /// # Errors
    /// The key is unknown, used or too old, or there are too many sessions.
    pub fn enter_once(&self, given: &str) -> Result<String, Refused> {
        let Door::Key { key, one_time, .. } = &self.door else {
            return Err(Refused::Key);
        };
        let used = one_time.lock().take_if(|one_time| same(&one_time.key, given));
        let used = used.filter(|used| used.made.elapsed() < ONE_TIME).ok_or(Refused::Key)?;
        used.used.cancel();
        self.enter_with_key(key)
    }

    /// Opens a session with a token. Returns its id.
    ///
    /// # Errors
    /// The credential is rejected, or there are too many sessions.
    pub async fn enter_with_token(&self, token: &str) -> Result<String, Refused> {
        let token = token.trim();
        let Door::Login(login) = &self.door else {
            return Err(Refused::NoToken);
        };
        let plain = token.bytes().all(|b| b.is_ascii_graphic());
        if token.is_empty() || token.len() > MAX_TOKEN || !plain {
            return Err(Refused::NoToken);
        }
        let over = self.end.child_token();
        let credential = Credential::of_token(login.cluster.clone(), token, over.clone()).ok_or(Refused::NoToken)?;
        let who = whoami(&credential.client()).await?;
        self.admit(Entry {
            view: login.view(credential, &who),
            who: Some(who),
            over,
            expires: expiry(token),
            at_issuer: None,
        })
    }

    /// Opens a session for a user of the issuer. Returns its ID.
    ///
    /// # Errors
    /// The credential is rejected, or there are too many sessions.
    pub async fn enter_from_issuer(&self, tokens: Tokens) -> Result<String, Refused> {
        let Door::Login(login) = &self.door else {
            return Err(Refused::NoToken);
        };
        let Some(issuer) = &login.issuer else {
            return Err(Refused::NoToken);
        };
        let tokens = Arc::new(ArcSwap::from_pointee(tokens));
        let over = self.end.child_token();
        let (credential, who, keeper) = match &login.impersonate {
            Some((own, may)) => in_their_name(own, may, issuer, &tokens, &over).await?,
            None => with_their_token(&login.cluster, issuer, &tokens, &over).await?,
        };
        let at_issuer = AtIssuer {
            tokens,
            _keeper: keeper,
        };
        self.admit(Entry {
            view: login.view(credential, &who),
            who: Some(who),
            over,
            // The tokens say so, always the newest.
            expires: None,
            at_issuer: Some(at_issuer),
        })
    }

    fn admit(&self, entry: Entry) -> Result<String, Refused> {
        audit::user("session", &entry.view.user);
        let (id, csrf) = (random_key()?, random_key()?);
        let lifetime = SignedDuration::try_from(self.lifetime).unwrap_or(SignedDuration::MAX);
        let longest = clock::now().saturating_add(lifetime).unwrap_or(Timestamp::MAX);
        let session = Session {
            csrf,
            view: entry.view,
            who: entry.who,
            over: entry.over,
            ends: entry.expires.map_or(longest, |expires| expires.min(longest)),
            at_issuer: entry.at_issuer,
            accepted: tokio::sync::Mutex::new(Some(Instant::now())),
        };
        let mut entries = self.entries.lock();
        make_room(&mut entries, session.who.as_ref())?;
        entries.insert(
            id.clone(),
            Kept {
                session: Arc::new(session),
                used: Instant::now(),
            },
        );
        Ok(id)
    }
}

/// Ends the sessions that are over or idle.
fn sweep(entries: &mut ById) {
    entries.retain(|_, h| {
        let stays = h.used.elapsed() < IDLE && !h.session.is_over();
        if !stays {
            h.session.over.cancel();
        }
        stays
    });
}

/// Ends the longest idle session of a tenant that has too many.
fn make_room(entries: &mut ById, who: Option<&Who>) -> Result<(), Refused> {
    sweep(entries);
    let tenant = |who: Option<&Who>| who.map(|who| Tenant::of_user(&who.name));
    let own_tenant = tenant(who);
    let own = || {
        entries
            .iter()
            .filter(|(_, h)| tenant(h.session.who.as_ref()) == own_tenant)
    };
    if own().count() < MAX_OF_A_TENANT && entries.len() < MAX_SESSIONS {
        return Ok(());
    }
    let idlest = own().min_by_key(|(_, h)| h.used).map(|(id, _)| id.clone());
    let ended = idlest.and_then(|id| entries.remove(&id)).ok_or(Refused::Full)?;
    ended.session.over.cancel();
    Ok(())
}

/// Expiry of a token by its own claim; the cluster verifies the signature.
fn expiry(token: &str) -> Option<Timestamp> {
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Value = serde_json::from_slice(&claims).ok()?;
    Timestamp::from_second(claims.get("exp")?.as_i64()?).ok()
}

impl Login {
    fn view(&self, credential: Arc<Credential>, who: &Who) -> Arc<SessionView> {
        let home = home(&who.name).unwrap_or_else(|| self.namespace.clone());
        let caches = self.users.caches(who);
        Arc::new(SessionView::new(
            credential,
            caches,
            self.url.clone(),
            who.name.clone(),
            home,
        ))
    }
}

/// Credential, user, and the task that renews it.
type Entered = (Arc<Credential>, Who, AbortOnDropHandle<()>);

/// The cluster trusts the issuer: it reads the ID token itself.
async fn with_their_token(
    cluster: &Client,
    issuer: &Arc<Issuer>,
    tokens: &Arc<ArcSwap<Tokens>>,
    over: &CancellationToken,
) -> Result<Entered, Refused> {
    let credential = Credential::of_issuer(cluster.clone(), tokens.clone(), over.clone());
    let who = whoami(&credential.client()).await.map_err(|unknown| match unknown {
        Unknown::Refused(why) | Unknown::Forbidden(why) => Refused::Distrusted(why),
        Unknown::Away(why) => Refused::Away(why),
    })?;
    let keeper = keep(issuer.clone(), tokens.clone(), over.clone(), |_| true);
    Ok((credential, who, keeper))
}

/// The cluster does not know the issuer: it trusts the identity that the console sends.
async fn in_their_name(
    own: &Client,
    may: &Impersonation,
    issuer: &Arc<Issuer>,
    tokens: &Arc<ArcSwap<Tokens>>,
    over: &CancellationToken,
) -> Result<Entered, Refused> {
    let identity = issuer.identity(&tokens.load(), may)?;
    let refused = |why: String| Refused::NotYou {
        user: identity.user.clone(),
        why,
    };
    let credential = Credential::in_the_name_of(own.clone(), &identity, over.clone())
        .ok_or_else(|| refused("the user name cannot be sent in a header".to_owned()))?;
    let who = whoami(&credential.client()).await.map_err(|unknown| match unknown {
        Unknown::Refused(why) | Unknown::Forbidden(why) => refused(why),
        Unknown::Away(why) => Refused::Away(why),
    })?;
    let (named, may) = (issuer.clone(), may.clone());
    let is_same = move |new: &Tokens| named.identity(new, &may).is_ok_and(|now| now == identity);
    let keeper = keep(issuer.clone(), tokens.clone(), over.clone(), is_same);
    Ok((credential, who, keeper))
}

/// Fetches new tokens before the old ones end, as long as the issuer gives any and they are for the same user. The session
/// ends with the last, or as soon as the issuer has ended its own.
fn keep(
    issuer: Arc<Issuer>,
    tokens: Arc<ArcSwap<Tokens>>,
    over: CancellationToken,
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
                    over.cancel();
                    return tracing::info!("the issuer reports another user or other groups: the session is closed");
                }
                Err(error @ oidc::Error::Ended(_)) => {
                    over.cancel();
                    return tracing::info!(error = chain(&error), "the issuer has ended the session: it is closed");
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

/// The namespace of a service account.
fn home(user: &str) -> Option<Namespace> {
    let (namespace, _) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    namespace.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_of_a_service_account_is_its_namespace() {
        assert_eq!(home("system:serviceaccount:team-a:viewer").as_deref(), Some("team-a"));
        assert_eq!(home("jane"), None);
        assert_eq!(home("system:serviceaccount:../x:viewer"), None);
    }

    #[test]
    fn keys_differ_and_are_compared_whole() {
        let (a, b) = (random_key().unwrap(), random_key().unwrap());
        assert_eq!(a.len(), 64);
        assert!(same(&a, &a.clone()) && !same(&a, &b) && !same(&a, &a[1..]));
    }
}
