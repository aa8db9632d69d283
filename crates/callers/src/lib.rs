//! Callers of a program's HTTP API: their identity by the tokens of the cluster, and their rights by its authorizers.
//!
//! The API server answers both questions (TokenReview, SubjectAccessReview). An answer is used again for [`Options::brief`], so
//! that a busy caller does not ask the API server with each request, and a deleted token or right ends soon. Caches and
//! questions in progress are bounded. Of several requests at once with the same question, one asks.
//!
//! A client without credentials can invent tokens as fast as it can send them, so tokens have three ways: those that were valid
//! lately have turns of their own; those that are certain to be refused ([`token`]) are not asked about; all others have few
//! turns, at most [`NEW_IN_A_SECOND`] in a second, and one address leaves half of them to others.
//!
//! | module | what |
//! |---|---|
//! | [`brief`] | a bounded cache whose entries expire |
//! | [`places`] | places for requests, bounded for each holder |
//! | [`tenant`] | units of limits |
//! | [`token`] | tokens that are certain to be refused |
//! | `live` | values that exist while they are in use |
//! | `pace` | questions in one second, bounded for each address |

pub mod brief;
mod live;
mod pace;
pub mod places;
pub mod tenant;
pub mod token;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::{Api, Client};
use parking_lot::Mutex;
use runway_operator::access::rule;
use runway_operator::telemetry::chain;
use runway_operator::{audit, clock};
use sha2::{Digest as _, Sha256};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout};

use brief::Brief;
use live::Live;
use pace::Pace;
use places::{Place, Places};
use tenant::Tenant;

/// Header with the bearer token of a request through the API server's proxy, which removes `Authorization`.
pub const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-authorization");

/// Largest token, in bytes. Tokens of ServiceAccounts have about 1 KiB; those of issuers with many groups have more.
const LARGEST_TOKEN: usize = 16 * 1024;
/// Time for which a token that was valid is asked about before those of strangers.
const LATELY: Duration = Duration::from_hours(1);
/// Most questions in one second about tokens that were not valid lately.
pub const NEW_IN_A_SECOND: usize = 50;
/// Most requests that wait for the answer to such a question, in all and of one address.
const NEW_AT_ONCE: (usize, usize) = (128, 32);

/// Limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Audiences of accepted tokens. If empty, tokens for the API server itself.
    pub audiences: Vec<String>,
    /// Whether requests through the API server's proxy ([`FORWARDED`]) may have tokens for the API server, too: that is all that people
    /// have, and the API server has seen it already.
    pub people: bool,
    /// Time for which an answer of the API server is used again.
    pub brief: Duration,
    /// Largest number of answers of each kind.
    pub known: usize,
    /// Largest number of questions about rights in progress; one tenant has a quarter of them. As many as a quarter are about tokens
    /// that were valid lately, and as many again about others. Further ones wait, and are refused after `patience`.
    pub asking: usize,
    /// Timeout of a question, and of the wait for a turn.
    pub patience: Duration,
}

impl Options {
    /// Accepts tokens with these audiences. Empty ones do not count: a flag without a value means tokens for the API server.
    pub fn of_audiences(audiences: &[String]) -> Self {
        Self {
            audiences: audiences
                .iter()
                .filter(|audience| !audience.is_empty())
                .cloned()
                .collect(),
            ..Self::default()
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            audiences: Vec::new(),
            people: false,
            brief: Duration::from_secs(10),
            known: 4096,
            asking: 32,
            patience: Duration::from_secs(5),
        }
    }
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Name of the user, as the API server reports it.
    pub user: String,
    /// Unique id of the user, if the cluster has one, as it has for ServiceAccounts.
    pub uid: String,
    /// Unit of limits.
    pub tenant: Tenant,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
    /// Hash of all of the above: the same for callers with the same rights.
    hash: [u8; 32],
}

impl Caller {
    fn new(info: UserInfo) -> Self {
        let user = info.username.unwrap_or_default();
        let mut caller = Self {
            tenant: Tenant::of_user(&user),
            user,
            uid: info.uid.unwrap_or_default(),
            groups: info.groups.unwrap_or_default(),
            extra: info.extra.unwrap_or_default(),
            hash: [0; 32],
        };
        let whole = format!("{:?}", (&caller.user, &caller.uid, &caller.groups, &caller.extra));
        caller.hash = Sha256::digest(whole).into();
        caller
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|one| one == group)
    }
}

/// An action on an object, as in a rule of RBAC.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Action<'a> {
    /// Verb.
    pub verb: &'a str,
    /// API group.
    pub group: &'a str,
    /// Resource.
    pub resource: &'a str,
    /// Subresource.
    pub subresource: &'a str,
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
}

/// Reason for rejecting a caller.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no bearer token.
    #[error("the request has no bearer token: set the header `Authorization: Bearer TOKEN`")]
    NoToken,
    /// The cluster does not accept the token.
    #[error("the cluster does not accept the token: it is invalid, expired, or for another audience; get a new one")]
    Refused,
    /// Too many questions are in progress.
    #[error("too many callers are being checked at once; try again")]
    Busy,
    /// The API server gives no answer.
    #[error("cannot check the caller: {0}")]
    Unavailable(String),
}

/// Hash of a question.
type Question = [u8; 32];

/// Identifies callers and checks their rights.
pub struct Callers {
    client: Client,
    options: Options,
    valid: Brief<Question, Valid>,
    invalid: Brief<Question, ()>,
    rights: Brief<Question, bool>,
    /// One asks, and others with the same question wait for the answer.
    lines: Live<Question, tokio::sync::Mutex<()>>,
    again: Semaphore,
    strangers: Strangers,
    asking: Semaphore,
    tenants: Live<Tenant, Semaphore>,
}

/// A token that was valid.
#[derive(Clone)]
struct Valid {
    caller: Arc<Caller>,
    since: Instant,
}

/// Turns for tokens that were not valid lately.
struct Strangers {
    places: Places<IpAddr>,
    pace: Mutex<Pace>,
    asking: Semaphore,
}

impl Strangers {
    /// A turn for a client at this address, as soon as there is one.
    async fn turn(&self, client: IpAddr) -> Option<(Place<IpAddr>, SemaphorePermit<'_>)> {
        let place = self.places.take(&client)?;
        loop {
            let turn = self.asking.acquire().await.ok()?;
            let begun = self.pace.lock().begin(client, Instant::now());
            let Err(later) = begun else {
                return Some((place, turn));
            };
            drop(turn);
            sleep_until(later).await;
        }
    }
}

impl Callers {
    /// Asks with this client, which needs the permissions of [`access`].
    pub fn new(client: Client, options: Options) -> Self {
        let of_tokens = (options.asking / 4).max(1);
        let (at_once, of_address) = NEW_AT_ONCE;
        Self {
            client,
            valid: Brief::new(options.known, LATELY.max(options.brief)),
            invalid: Brief::new(options.known, options.brief),
            rights: Brief::new(options.known, options.brief),
            lines: Live::default(),
            again: Semaphore::new(of_tokens),
            strangers: Strangers {
                places: Places::new(at_once, of_address),
                pace: Mutex::new(Pace::new(NEW_IN_A_SECOND)),
                asking: Semaphore::new(of_tokens),
            },
            asking: Semaphore::new(options.asking),
            tenants: Live::default(),
            options,
        }
    }

    /// The caller with the bearer token of a request from this address.
    ///
    /// # Errors
    /// If there is no token, or the cluster does not accept it, or does not answer.
    pub async fn identify(&self, headers: &HeaderMap, client: IpAddr) -> Result<Arc<Caller>, Error> {
        let caller = self.find(headers, client).await?;
        audit::user("token", &caller.user);
        Ok(caller)
    }

    async fn find(&self, headers: &HeaderMap, client: IpAddr) -> Result<Arc<Caller>, Error> {
        let token = bearer(headers).ok_or(Error::NoToken)?;
        if token.len() > LARGEST_TOKEN {
            return Err(Error::Refused);
        }
        let audiences = self.audiences(token, headers);
        // One token may be asked about for two lists of audiences: ours and the API server's own, which is empty.
        let hash = Sha256::new_with_prefix([u8::from(audiences.is_empty())]);
        let question: Question = hash.chain_update(token).finalize().into();
        if let Some(known) = self.known(&question) {
            return known;
        }
        if token::is_hopeless(token, clock::now().as_second()) {
            return Err(Error::Refused);
        }
        let line = self.lines.of(question, Default::default);
        let _first = self.patient(line.lock()).await?;
        if let Some(known) = self.known(&question) {
            return known;
        }
        let reviewed = if self.valid.get(&question).is_some() {
            let _turn = acquired(self.patient(self.again.acquire()).await?)?;
            self.review(token, audiences).await?
        } else {
            let turn = self.patient(self.strangers.turn(client)).await?;
            let _turn = turn.ok_or(Error::Busy)?;
            self.review(token, audiences).await?
        };
        let Some(caller) = reviewed.map(Arc::new) else {
            self.valid.remove(&question);
            self.invalid.insert(question, ());
            return Err(Error::Refused);
        };
        let valid = Valid {
            caller: Arc::clone(&caller),
            since: Instant::now(),
        };
        self.valid.insert(question, valid);
        Ok(caller)
    }

    /// The answer about a token that is used again.
    fn known(&self, token: &Question) -> Option<Result<Arc<Caller>, Error>> {
        let valid = self.valid.get(token);
        if let Some(valid) = valid.filter(|valid| valid.since.elapsed() < self.options.brief) {
            return Some(Ok(valid.caller));
        }
        self.invalid.get(token).map(|()| Err(Error::Refused))
    }

    /// The audiences of which a token must have one. If empty, the API server's own.
    fn audiences(&self, token: &str, headers: &HeaderMap) -> &[String] {
        let ours = &self.options.audiences;
        let is_forwarded = !headers.contains_key(AUTHORIZATION);
        if self.options.people && is_forwarded && !token::has_audience(token, ours) {
            return &[];
        }
        ours
    }

    async fn review(&self, token: &str, audiences: &[String]) -> Result<Option<Caller>, Error> {
        let question = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: (!audiences.is_empty()).then(|| audiences.to_vec()),
            },
            ..TokenReview::default()
        };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let status = self.answer(reviews.create(&PostParams::default(), &question)).await?;
        let status = status.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        // An authenticator that does not know audiences leaves them out.
        let meant = status.audiences.unwrap_or_default();
        let is_for_us = audiences.is_empty() || audiences.iter().any(|audience| meant.contains(audience));
        let caller = Caller::new(status.user.unwrap_or_default());
        Ok(Some(caller).filter(|caller| is_for_us && !caller.user.is_empty()))
    }

    /// Whether a caller may do this.
    ///
    /// # Errors
    /// If the cluster does not answer.
    pub async fn may(&self, caller: &Caller, action: &Action<'_>) -> Result<bool, Error> {
        let key: Question = Sha256::digest(format!("{:?} {action:?}", caller.hash)).into();
        if let Some(known) = self.rights.get(&key) {
            return Ok(known);
        }
        let line = self.lines.of(key, Default::default);
        let _first = self.patient(line.lock()).await?;
        if let Some(known) = self.rights.get(&key) {
            return Ok(known);
        }
        let of_one = (self.options.asking / 4).max(1);
        let tenant = self.tenants.of(caller.tenant.clone(), || Semaphore::new(of_one));
        let turns = async { (tenant.acquire().await, self.asking.acquire().await) };
        let (own, turn) = self.patient(turns).await?;
        let _turns = (acquired(own)?, acquired(turn)?);
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let question = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: some(&caller.user),
                uid: some(&caller.uid),
                groups: Some(caller.groups.clone()),
                extra: Some(caller.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: some(action.verb),
                    group: some(action.group),
                    resource: some(action.resource),
                    subresource: some(action.subresource),
                    namespace: some(action.namespace),
                    name: some(action.name),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = self.answer(reviews.create(&PostParams::default(), &question)).await?;
        let allowed = review.status.is_some_and(|status| status.allowed);
        self.rights.insert(key, allowed);
        Ok(allowed)
    }

    /// Waits for a turn.
    async fn patient<T>(&self, turn: impl Future<Output = T>) -> Result<T, Error> {
        timeout(self.options.patience, turn).await.map_err(|_| Error::Busy)
    }

    async fn answer<T>(&self, question: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
        match timeout(self.options.patience, question).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Error::Unavailable(chain(&error))),
            Err(_) => Err(Error::Unavailable(format!(
                "the API server does not answer within {:?}",
                self.options.patience
            ))),
        }
    }
}

/// Semaphores are not closed.
fn acquired<T>(turn: Result<T, AcquireError>) -> Result<T, Error> {
    turn.map_err(|_| Error::Busy)
}

/// Permissions to ask about callers.
pub fn access() -> Vec<PolicyRule> {
    vec![
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

/// The bearer token of a request.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(AUTHORIZATION).or_else(|| headers.get(FORWARDED))?;
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_forwarded_token_counts_only_without_authorization() {
        let mut headers = HeaderMap::from_iter([(FORWARDED, HeaderValue::from_static("Bearer abc"))]);
        assert_eq!(bearer(&headers), Some("abc"));
        headers.insert(AUTHORIZATION, HeaderValue::from_static("Basic x"));
        assert_eq!(bearer(&headers), None);
    }

    #[test]
    fn only_a_bearer_token_is_a_token() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_str(value).unwrap())]);
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of("Bearer abc"), Some("abc".to_owned()));
        assert_eq!(of("bearer  abc "), Some("abc".to_owned()));
        for none in ["Bearer", "Bearer ", "Basic abc", "abc", ""] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }

    #[test]
    fn callers_with_other_groups_have_other_rights() {
        let caller = |groups: &[&str]| {
            Caller::new(UserInfo {
                username: Some("ada".to_owned()),
                groups: Some(groups.iter().map(ToString::to_string).collect()),
                ..UserInfo::default()
            })
        };
        assert_eq!(caller(&["a"]).hash, caller(&["a"]).hash);
        assert_ne!(caller(&["a"]).hash, caller(&["a", "b"]).hash);
        assert_ne!(caller(&["a, b"]).hash, caller(&["a", "b"]).hash);
    }
}
