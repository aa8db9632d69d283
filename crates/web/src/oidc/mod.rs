//! Sign-in at an issuer of OpenID Connect: authorization code with PKCE (S256), state and nonce.
//!
//! | module | content |
//! |---|---|
//! | [`identity`] | the user that claims identify, for impersonation |
//! | `flow` | sign-ins under way |
//! | `http` | the requests to the issuer |
//! | `signature` | signatures of ID tokens |

mod error;
mod flow;
mod http;
pub mod identity;
mod signature;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Request, StatusCode, Uri};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use form_urlencoded::Serializer;
use http_body_util::Full;
use jiff::Timestamp;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use runway_api::condition::shorten;
use runway_operator::clock;
use runway_operator::telemetry::chain;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use crate::crypto::{random_key, same};
use crate::site::is_loopback;
use http::Http;

pub use error::Error;
pub use flow::FLOW_TIME;
use flow::{Flow, Flows};
pub use identity::{ClaimNames, Identity, Impersonation, NoIdentity};

/// The path to which the issuer sends browsers back.
pub const CALLBACK: &str = "/login/callback";
/// Largest difference between two clocks.
const SKEW: Duration = Duration::from_mins(1);
/// Longest message of a parser, in bytes: it may repeat what it has read.
const LONGEST_WHY: usize = 300;
/// New keys of the issuer are fetched no more often.
const KEYS_PAUSE: Duration = Duration::from_secs(10);
/// Scope that is always requested.
const SCOPE: &str = "openid";

/// The issuer, and the console as its client.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Issuer URL, equal to `iss` of its tokens.
    pub issuer: String,
    /// The console's name there.
    pub client_id: String,
    /// A file with the secret; without one the client is public.
    pub client_secret: Option<PathBuf>,
    /// Scopes in addition to `openid`.
    pub scopes: Vec<String>,
    /// File with CA certificates for the issuer; the public CAs if absent.
    pub authorities: Option<PathBuf>,
    /// Claims that identify a user.
    pub claims: ClaimNames,
}

/// Discovery document of the issuer.
#[derive(Debug, Deserialize)]
struct Discovery {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    end_session_endpoint: Option<String>,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Vec<String>,
}

/// Start of a sign-in: redirect URL and cookie.
pub struct Begun {
    /// The address at the issuer.
    pub url: String,
    /// For the cookie.
    pub flow: String,
}

/// Tokens of a user.
#[derive(Clone)]
pub struct Tokens {
    /// The ID token, as it came.
    pub id_token: String,
    /// Claims of the ID token.
    pub claims: Map<String, Value>,
    /// Expiry of the ID token.
    pub expires: Timestamp,
    /// For another one.
    refresh_token: Option<String>,
}

/// Omits the tokens.
impl fmt::Debug for Tokens {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("Tokens");
        shown.field("expires", &self.expires).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: Option<String>,
    refresh_token: Option<String>,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
    error_description: Option<String>,
}

impl Refusal {
    fn text(&self) -> String {
        match &self.error_description {
            Some(why) => format!("{why} ({})", self.error),
            None => self.error.clone(),
        }
    }
}

/// Keys of the issuer, and when they were fetched.
type Keys = Option<(Instant, JwkSet)>;

/// An issuer of OpenID Connect.
pub struct Issuer {
    settings: Settings,
    secret: Option<String>,
    http: Http,
    discovery: OnceCell<Discovery>,
    keys: tokio::sync::Mutex<Keys>,
    flows: Flows,
}

impl Issuer {
    /// Creates it without a request, so that a console starts while its issuer is unavailable.
    ///
    /// # Errors
    /// A setting is invalid, or a file cannot be read.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        signature::install();
        check_place(&settings.issuer).map_err(|why| Error::Setup(format!("--oidc-issuer: {why}")))?;
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Error::Setup(format!(
                    "cannot read --oidc-client-secret-file {}: {error}",
                    path.display()
                ))
            })?;
            Ok::<_, Error>(text.trim().to_owned())
        };
        Ok(Self {
            secret: settings.client_secret.as_ref().map(read).transpose()?,
            http: Http::new(settings.authorities.as_deref())?,
            settings,
            discovery: OnceCell::new(),
            keys: tokio::sync::Mutex::new(None),
            flows: Flows::new()?,
        })
    }

    /// Name for display.
    pub fn name(&self) -> &str {
        let bare = self.settings.issuer.split_once("://").map_or("", |(_, rest)| rest);
        bare.trim_end_matches('/')
    }

    /// Identity of the tokens for impersonation.
    ///
    /// # Errors
    /// The claims identify no user that may be impersonated.
    pub fn identity(&self, tokens: &Tokens, may: &Impersonation) -> Result<Identity, NoIdentity> {
        self.settings.claims.read(&self.settings.issuer, &tokens.claims, may)
    }

    /// Starts a sign-in of a browser that uses the console at `site`.
    ///
    /// # Errors
    /// The issuer cannot be reached.
    pub async fn begin(&self, site: &str) -> Result<Begun, Error> {
        let discovery = self.discovery().await?;
        let key = || random_key().map_err(Error::from);
        let flow = Flow {
            state: key()?,
            nonce: key()?,
            verifier: key()?,
            redirect: format!("{site}{CALLBACK}"),
        };
        let scopes = self.settings.scopes.iter().map(String::as_str).filter(|s| *s != SCOPE);
        let scopes: Vec<&str> = [SCOPE].into_iter().chain(scopes).collect();
        let challenge = URL_SAFE_NO_PAD.encode(Sha256::digest(&flow.verifier));
        let url = with_query(
            &discovery.authorization_endpoint,
            &[
                ("response_type", "code"),
                ("client_id", &self.settings.client_id),
                ("redirect_uri", &flow.redirect),
                ("scope", &scopes.join(" ")),
                ("state", &flow.state),
                ("nonce", &flow.nonce),
                ("code_challenge", &challenge),
                ("code_challenge_method", "S256"),
            ],
        );
        Ok(Begun {
            url,
            flow: self.flows.seal(flow)?,
        })
    }

    /// Ends a sign-in with what the browser brings back from the issuer. It can be ended once.
    ///
    /// # Errors
    /// The sign-in is unknown or expired, or the issuer or its token is not accepted.
    pub async fn finish(&self, flow: Option<&str>, query: &BTreeMap<String, String>) -> Result<Tokens, Error> {
        let flow = flow.and_then(|cookie| self.flows.open(cookie)).ok_or(Error::NoFlow)?;
        let given = |name: &str| query.get(name).map(String::as_str);
        let is_its = given("state").is_some_and(|state| same(state, &flow.state));
        if !is_its || !self.flows.end(&flow) {
            return Err(Error::NoFlow);
        }
        // Where the issuer says who it is, an answer of another one is not mixed up with its own (RFC 9207).
        if given("iss").is_some_and(|iss| iss != self.settings.issuer) {
            return Err(Error::Refused("the response comes from another issuer".to_owned()));
        }
        if let Some(error) = given("error") {
            let refusal = Refusal {
                error: error.to_owned(),
                error_description: given("error_description").map(str::to_owned),
            };
            return Err(Error::Refused(refusal.text()));
        }
        let code = given("code").ok_or(Error::NoFlow)?;
        let answer = self
            .ask_token(&[
                ("grant_type", "authorization_code"),
                ("code", code),
                ("redirect_uri", &flow.redirect),
                ("code_verifier", &flow.verifier),
            ])
            .await?;
        let id_token = answer.id_token.ok_or_else(|| Error::Token("missing".to_owned()))?;
        let claims = self.verify(&id_token).await?;
        let nonce = claims.get("nonce").and_then(Value::as_str).unwrap_or_default();
        if !same(nonce, &flow.nonce) {
            return Err(Error::Token("it belongs to another sign-in (nonce)".to_owned()));
        }
        tokens(id_token, claims, answer.refresh_token)
    }

    /// Whether there is a refresh token.
    pub fn is_refreshable(tokens: &Tokens) -> bool {
        tokens.refresh_token.is_some()
    }

    /// Other tokens for the same user.
    ///
    /// # Errors
    /// The issuer cannot be reached, or has ended the session.
    pub async fn refresh(&self, old: &Tokens) -> Result<Tokens, Error> {
        let refresh = old.refresh_token.as_deref().unwrap_or_default();
        let answer = self
            .ask_token(&[("grant_type", "refresh_token"), ("refresh_token", refresh)])
            .await?;
        let id_token = answer.id_token.ok_or_else(|| Error::Token("missing".to_owned()))?;
        let claims = self.verify(&id_token).await?;
        if claims.get("sub") != old.claims.get("sub") {
            return Err(Error::Token("it belongs to another user (sub)".to_owned()));
        }
        tokens(
            id_token,
            claims,
            answer.refresh_token.or_else(|| old.refresh_token.clone()),
        )
    }

    /// URL that ends the session at the issuer, if it has one, and redirects to `site`.
    pub async fn end_session(&self, tokens: &Tokens, site: &str) -> Option<String> {
        let discovery = self.discovery().await.ok()?;
        let endpoint = discovery.end_session_endpoint.as_deref()?;
        check_place(endpoint).ok()?;
        let back = format!("{site}/login");
        Some(with_query(
            endpoint,
            &[
                ("id_token_hint", tokens.id_token.as_str()),
                ("client_id", &self.settings.client_id),
                ("post_logout_redirect_uri", &back),
            ],
        ))
    }

    async fn discovery(&self) -> Result<&Discovery, Error> {
        // Errors are not cached, so the next attempt asks the issuer again.
        self.discovery.get_or_try_init(|| self.discover()).await
    }

    async fn discover(&self) -> Result<Discovery, Error> {
        let issuer = &self.settings.issuer;
        let place = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let found: Discovery = self.get(&place).await?;
        let malformed = |why| Error::Malformed {
            place: place.clone(),
            why,
        };
        if found.issuer != *issuer {
            return Err(malformed(format!("its issuer is {}, not {issuer}", found.issuer)));
        }
        for endpoint in [&found.authorization_endpoint, &found.token_endpoint, &found.jwks_uri] {
            check_place(endpoint).map_err(|why| malformed(format!("{endpoint}: {why}")))?;
        }
        Ok(found)
    }

    /// The claims of an ID token that the issuer has signed, for this console, and not long ago.
    async fn verify(&self, token: &str) -> Result<Map<String, Value>, Error> {
        let header = decode_header(token).map_err(|error| self.settings.invalid(&error))?;
        let key = self.key(header.kid.as_deref(), header.alg).await?;
        self.settings.read(token, header.alg, &key)
    }

    /// The issuer's key of that name. One that is not known may be new.
    async fn key(&self, id: Option<&str>, algorithm: Algorithm) -> Result<DecodingKey, Error> {
        let mut keys = self.keys.lock().await;
        let known = keys.as_ref().and_then(|(_, set)| choose(set, id, algorithm));
        if let Some(key) = known {
            return Ok(key);
        }
        if keys.as_ref().is_none_or(|(since, _)| since.elapsed() > KEYS_PAUSE) {
            let set = self.get(&self.discovery().await?.jwks_uri).await?;
            *keys = Some((Instant::now(), set));
        }
        let found = keys.as_ref().and_then(|(_, set)| choose(set, id, algorithm));
        found.ok_or_else(|| Error::Token("it is signed with an unknown key".to_owned()))
    }

    async fn ask_token(&self, fields: &[(&str, &str)]) -> Result<TokenAnswer, Error> {
        let discovery = self.discovery().await?;
        let (status, body) = self.http.send(self.token_request(discovery, fields)?).await?;
        if status == StatusCode::OK {
            return parse(&discovery.token_endpoint, &body);
        }
        let refusal: Refusal = parse(&discovery.token_endpoint, &body)?;
        Err(match refusal.error.as_str() {
            "invalid_grant" => Error::Ended(refusal.text()),
            _ => Error::Refused(refusal.text()),
        })
    }

    fn token_request(&self, discovery: &Discovery, fields: &[(&str, &str)]) -> Result<Request<Full<Bytes>>, Error> {
        let mut form = Serializer::new(String::new());
        form.extend_pairs(fields);
        let mut request = Request::post(&discovery.token_endpoint);
        let methods = &discovery.token_endpoint_auth_methods_supported;
        let id = &self.settings.client_id;
        match &self.secret {
            // What every issuer takes that does not say otherwise.
            Some(secret) if methods.is_empty() || methods.iter().any(|m| m == "client_secret_basic") => {
                let pair = format!("{}:{}", encoded(id), encoded(secret));
                request = request.header(AUTHORIZATION, format!("Basic {}", STANDARD.encode(pair)));
            }
            Some(secret) => {
                form.append_pair("client_id", id).append_pair("client_secret", secret);
            }
            None => {
                form.append_pair("client_id", id);
            }
        }
        request
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::from(form.finish())))
            .map_err(|error| Error::Setup(chain(&error)))
    }

    async fn get<T: DeserializeOwned>(&self, place: &str) -> Result<T, Error> {
        let request = Request::get(place).body(Full::default());
        let (status, body) = self.http.send(request.map_err(|e| Error::Setup(chain(&e)))?).await?;
        if status != StatusCode::OK {
            return Err(Error::Malformed {
                place: place.to_owned(),
                why: status.to_string(),
            });
        }
        parse(place, &body)
    }
}

impl Settings {
    /// The claims of an ID token that is signed with a key, for this console, and not long ago.
    fn read(&self, token: &str, algorithm: Algorithm, key: &DecodingKey) -> Result<Map<String, Value>, Error> {
        let mut wanted = Validation::new(algorithm);
        wanted.leeway = SKEW.as_secs();
        wanted.validate_nbf = true;
        wanted.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        wanted.set_issuer(&[&self.issuer]);
        wanted.set_audience(&[&self.client_id]);
        let claims = decode::<Map<String, Value>>(token, key, &wanted)
            .map_err(|error| self.invalid(&error))?
            .claims;
        if claims.get("azp").is_some_and(|party| party != self.client_id.as_str()) {
            return Err(self.invalid(&ErrorKind::InvalidAudience.into()));
        }
        let issued = claims.get("iat").and_then(Value::as_f64).unwrap_or_default();
        let now = clock::now().as_second() + SKEW.as_secs().cast_signed();
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 are far below 2^52")]
        if issued > now as f64 {
            return Err(self.invalid(&ErrorKind::ImmatureSignature.into()));
        }
        Ok(claims)
    }

    /// Problem of a token.
    fn invalid(&self, error: &jsonwebtoken::errors::Error) -> Error {
        Error::Token(match error.kind() {
            ErrorKind::ExpiredSignature => {
                "it has expired (check the clocks of this console and of the issuer)".to_owned()
            }
            ErrorKind::ImmatureSignature => {
                "it is not valid yet (check the clocks of this console and of the issuer)".to_owned()
            }
            ErrorKind::InvalidAudience => format!("its audience is not '{}' (check --oidc-client-id)", self.client_id),
            ErrorKind::InvalidIssuer => format!("its issuer is not {}", self.issuer),
            ErrorKind::InvalidSignature => "invalid signature".to_owned(),
            ErrorKind::MissingRequiredClaim(claim) => format!("claim '{claim}' is missing"),
            ErrorKind::Json(error) => {
                format!(
                    "its header or claims cannot be read: {}",
                    shorten(error.to_string(), LONGEST_WHY)
                )
            }
            ErrorKind::InvalidAlgorithm => "its algorithm is not that of the issuer's key".to_owned(),
            ErrorKind::InvalidClaimFormat(claim) => format!("claim '{claim}' has the wrong type"),
            ErrorKind::InvalidToken | ErrorKind::Base64(_) | ErrorKind::Utf8(_) => {
                "it is not a signed JSON Web Token".to_owned()
            }
            _ => error.to_string(),
        })
    }
}

/// The claims of an ID token that one of the issuer's keys has signed, in the form of a JSON Web Key Set.
///
/// # Errors
/// The token or the keys cannot be read, or the token is not for this console.
pub fn claims(settings: &Settings, token: &str, keys: &[u8]) -> Result<Map<String, Value>, Error> {
    signature::install();
    let header = decode_header(token).map_err(|error| settings.invalid(&error))?;
    let set = parse(&settings.issuer, keys)?;
    let key = choose(&set, header.kid.as_deref(), header.alg);
    let key = key.ok_or_else(|| Error::Token("it is signed with an unknown key".to_owned()))?;
    settings.read(token, header.alg, &key)
}

fn tokens(id_token: String, claims: Map<String, Value>, refresh_token: Option<String>) -> Result<Tokens, Error> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "seconds since 1970; what is too large becomes the largest"
    )]
    let second = claims.get("exp").and_then(Value::as_f64).unwrap_or_default() as i64;
    let expires = Timestamp::from_second(second).map_err(|error| Error::Token(error.to_string()))?;
    Ok(Tokens {
        id_token,
        claims,
        expires,
        refresh_token,
    })
}

/// The key of that name, or of none where there is one only, if it fits and is for signatures.
fn choose(set: &JwkSet, id: Option<&str>, algorithm: Algorithm) -> Option<DecodingKey> {
    let signs = |key: &&Jwk| !matches!(key.common.public_key_use, Some(PublicKeyUse::Encryption));
    let key = match id {
        Some(id) => set
            .keys
            .iter()
            .filter(signs)
            .find(|key| key.common.key_id.as_deref() == Some(id))?,
        None => match set.keys.iter().filter(signs).collect::<Vec<_>>()[..] {
            [only] => only,
            _ => return None,
        },
    };
    let key = DecodingKey::from_jwk(key).ok()?;
    (key.family() == algorithm.family()).then_some(key)
}

/// Codes and tokens travel there.
fn check_place(place: &str) -> Result<(), String> {
    let uri: Uri = place.parse().map_err(|_| "it is not a URL".to_owned())?;
    let host = uri.host().unwrap_or_default();
    match uri.scheme_str() {
        Some("https") if !host.is_empty() => Ok(()),
        Some("http") if is_loopback(host) => Ok(()),
        _ => Err("it must begin with https://".to_owned()),
    }
}

fn parse<T: DeserializeOwned>(place: &str, body: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(body).map_err(|error| Error::Malformed {
        place: place.to_owned(),
        why: shorten(error.to_string(), LONGEST_WHY),
    })
}

fn with_query(place: &str, pairs: &[(&str, &str)]) -> String {
    let query = Serializer::new(String::new()).extend_pairs(pairs).finish();
    let joint = if place.contains('?') { '&' } else { '?' };
    format!("{place}{joint}{query}")
}

fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}
