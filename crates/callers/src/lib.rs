//! Callers of a program's HTTP API: their identity by the tokens of the cluster, and their rights by its authorizers.
//!
//! The API server answers both questions (TokenReview, SubjectAccessReview). An answer is used again for [`Options::brief`], so
//! that a busy caller does not ask the API server with each request, and a deleted token or right ends soon. Caches and
//! questions in progress are bounded.
//!
//! | module | what |
//! |---|---|
//! | [`brief`] | a bounded cache whose entries expire |
//! | [`places`] | places for requests, bounded for each holder |
//! | [`tenant`] | units of limits |

pub mod brief;
pub mod places;
pub mod tenant;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::api::PostParams;
use kube::{Api, Client};
use runway_operator::access::rule;
use runway_operator::audit;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use brief::Brief;
use tenant::Tenant;

/// Header with the bearer token of a request through the API server's proxy, which removes `Authorization`.
pub const FORWARDED: HeaderName = HeaderName::from_static("x-forwarded-authorization");

/// Largest token, in bytes. Tokens of ServiceAccounts have about 1 KiB; those of issuers with many groups have more.
const LARGEST_TOKEN: usize = 16 * 1024;

/// Limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Audiences of accepted tokens. If empty, tokens for the API server itself.
    pub audiences: Vec<String>,
    /// Time for which an answer of the API server is used again.
    pub brief: Duration,
    /// Largest number of answers of each kind.
    pub known: usize,
    /// Largest number of questions in progress. Others wait, and are refused after `patience`.
    pub asking: usize,
    /// Timeout of a question, and of the wait for a turn.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            audiences: Vec::new(),
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

/// Identifies callers and checks their rights.
pub struct Callers {
    client: Client,
    options: Options,
    identities: Brief<[u8; 32], Option<Arc<Caller>>>,
    rights: Brief<[u8; 32], bool>,
    asking: Semaphore,
}

impl Callers {
    /// Asks with this client, which needs the permissions of [`access`].
    pub fn new(client: Client, options: Options) -> Self {
        Self {
            client,
            identities: Brief::new(options.known, options.brief),
            rights: Brief::new(options.known, options.brief),
            asking: Semaphore::new(options.asking),
            options,
        }
    }

    /// The caller with the bearer token of a request.
    ///
    /// # Errors
    /// If there is no token, or the cluster does not accept it, or does not answer.
    pub async fn identify(&self, headers: &HeaderMap) -> Result<Arc<Caller>, Error> {
        let caller = self.known(headers).await?;
        audit::user("token", &caller.user);
        Ok(caller)
    }

    async fn known(&self, headers: &HeaderMap) -> Result<Arc<Caller>, Error> {
        let token = bearer(headers).ok_or(Error::NoToken)?;
        if token.len() > LARGEST_TOKEN {
            return Err(Error::Refused);
        }
        let key: [u8; 32] = Sha256::digest(token).into();
        if let Some(known) = self.identities.get(&key) {
            return known.ok_or(Error::Refused);
        }
        let _turn = self.turn().await?;
        if let Some(known) = self.identities.get(&key) {
            return known.ok_or(Error::Refused);
        }
        let caller = self.review(token).await?.map(Arc::new);
        self.identities.insert(key, caller.clone());
        caller.ok_or(Error::Refused)
    }

    async fn review(&self, token: &str) -> Result<Option<Caller>, Error> {
        let audiences = &self.options.audiences;
        let question = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: (!audiences.is_empty()).then(|| audiences.clone()),
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
        let key: [u8; 32] = Sha256::digest(format!("{:?} {action:?}", caller.hash)).into();
        if let Some(known) = self.rights.get(&key) {
            return Ok(known);
        }
        let _turn = self.turn().await?;
        if let Some(known) = self.rights.get(&key) {
            return Ok(known);
        }
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

    /// Waits for a turn to ask. Others may have asked the same in the meantime.
    async fn turn(&self) -> Result<SemaphorePermit<'_>, Error> {
        match timeout(self.options.patience, self.asking.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Error::Busy),
        }
    }

    async fn answer<T>(&self, question: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
        match timeout(self.options.patience, question).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Error::Unavailable(error.to_string())),
            Err(_) => Err(Error::Unavailable(format!(
                "the API server does not answer within {:?}",
                self.options.patience
            ))),
        }
    }
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
