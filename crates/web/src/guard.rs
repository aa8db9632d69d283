//! Checks of every request: the host name, the origin, the session and the form's token. Adds headers to every response.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
    REFERRER_POLICY, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{Method, StatusCode, request::Parts};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use runway_api::name::{Invalid, Name, Namespace};
use runway_operator::audit;

use crate::app::App;
use crate::crypto::same;
use crate::form::Pairs;
use crate::oidc::FLOW_TIME;
use crate::refusal;
use crate::sessions::Session;
use crate::site::{Site, Sites};

/// Largest form.
const MAX_FORM: usize = 1024 * 1024;
/// The field of every form that changes something.
pub const CSRF_FIELD: &str = "csrf";
/// Header with the form token, for scripts.
const CSRF_HEADER: &str = "x-csrf-token";

/// For a year, browsers that have seen the console over TLS use no clear HTTP for its host. Other hosts of the domain are not
/// the console's.
const TLS_ONLY: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// Content security policy: no external and no inline content, no frames.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Checks Host and Origin before all other checks.
pub async fn door(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let host = text(request.headers(), HOST).or_else(|| request.uri().authority().map(|a| a.as_str().to_owned()));
    let health = request.uri().path() == "/healthz";
    if health {
        return headed(next.run(request).await);
    }
    let Some(site) = host.and_then(|host| app.sites.find(&host)).cloned() else {
        let text = "Unknown host name. Open the console at the address that it printed.";
        return headed((StatusCode::MISDIRECTED_REQUEST, text).into_response());
    };
    if changes(request.method()) && !from_here(request.headers(), &site) {
        let text = "This request comes from another site. Nothing was changed.";
        return headed((StatusCode::FORBIDDEN, text).into_response());
    }
    let tls_only = site.is_tls_only();
    request.extensions_mut().insert(site);
    let mut response = headed(next.run(request).await);
    if tls_only {
        response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, TLS_ONLY);
    }
    response
}

/// Whether a form was sent from this site, by Origin and Sec-Fetch-Site. A request without Origin is rejected.
fn from_here(headers: &HeaderMap, here: &Site) -> bool {
    let origin = text(headers, ORIGIN).is_some_and(|origin| origin.eq_ignore_ascii_case(&here.to_string()));
    let site = text(headers, HeaderName::from_static("sec-fetch-site"));
    origin && site.is_none_or(|site| site == "same-origin")
}

fn changes(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_owned())
}

/// The headers of every answer.
fn headed(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    // Nothing but our own address: with no-referrer, browsers would not say where a form was either.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static("same-origin"));
    }
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Path of the sign-out form.
const LOGOUT: &str = "/logout";

/// Requires a session whose credential the cluster still accepts, and the form's token for changes. Handlers behind it receive
/// the [`Session`].
pub async fn session(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let outside = not_in(&app, &request);
    let Some(id) = cookie(&app, request.headers()) else {
        return outside;
    };
    let Some(session) = app.sessions.find(&id) else {
        return outside;
    };
    if !session.is_accepted().await {
        app.sessions.end(&id);
        return outside;
    }
    let leaves = request.uri().path() == LOGOUT;
    let answer = inside(session.clone(), request, next).await;
    if leaves || !session.is_over() {
        return answer;
    }
    // The cluster has refused the credential meanwhile.
    app.sessions.end(&id);
    outside
}

async fn inside(session: Arc<Session>, request: Request, next: Next) -> Response {
    audit::user("session", &session.view.user);
    let (mut parts, body) = request.into_parts();
    let mut pairs = Pairs::default();
    if changes(&parts.method) {
        let Ok(body) = axum::body::to_bytes(body, MAX_FORM).await else {
            return refusal::refuse(StatusCode::PAYLOAD_TOO_LARGE, "The form is larger than 1 MiB.");
        };
        let is_form =
            text(&parts.headers, CONTENT_TYPE).is_some_and(|t| t.starts_with("application/x-www-form-urlencoded"));
        if is_form {
            pairs = Pairs::parse(&body);
        }
        let given = text(&parts.headers, HeaderName::from_static(CSRF_HEADER));
        let given = given.or_else(|| pairs.get(CSRF_FIELD).map(str::to_owned));
        if !given.is_some_and(|given| same(&given, &session.csrf)) {
            let text = "The form is older than your session. Nothing was changed. Go back, reload the page, and submit the form again.";
            return refusal::refuse(StatusCode::FORBIDDEN, text);
        }
        parts.extensions.insert(pairs);
        parts.extensions.insert(session);
        return next.run(Request::from_parts(parts, Body::from(body))).await;
    }
    parts.extensions.insert(session);
    next.run(Request::from_parts(parts, body)).await
}

fn not_in(app: &App, request: &Request) -> Response {
    if !app.sessions.by_login() {
        let text = "Open the address that `kubeairunway ui` printed: it contains the key that is required to sign in.";
        return refusal::refuse(StatusCode::UNAUTHORIZED, text);
    }
    if changes(request.method()) || request.uri().path() == "/live" {
        return refusal::refuse(StatusCode::UNAUTHORIZED, "Your session has ended: sign in again.");
    }
    Redirect::to("/login").into_response()
}

/// Name of the session cookie of a console at a port. Over TLS, the prefix makes browsers refuse the cookie from other hosts of the
/// domain, and without `Secure` or with another path.
pub fn cookie_name(sites: &Sites, port: u16) -> String {
    let prefix = if sites.secure() { "__Host-" } else { "" };
    format!("{prefix}kubeairunway-{port}")
}

/// The key of a session in a request. Cookies know no ports: its name does, so that two consoles do not sign each other out.
pub fn cookie(app: &App, headers: &HeaderMap) -> Option<String> {
    named_cookie(&app.cookie, headers)
}

fn named_cookie(cookie: &str, headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(COOKIE).iter().filter_map(|v| v.to_str().ok());
    all.flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == cookie)
        .map(|(_, value)| value.to_owned())
}

/// Sets the cookie of a session, or with an empty id removes it.
pub fn set_cookie(app: &App, id: &str) -> HeaderValue {
    let age = if id.is_empty() { "; Max-Age=0" } else { "" };
    bake(app, &format!("{}={id}; Path=/; SameSite=Strict{age}", app.cookie))
}

/// The key of a sign-in that is under way at the issuer.
pub fn flow_cookie(app: &App, headers: &HeaderMap) -> Option<String> {
    named_cookie(&format!("{}-login", app.cookie), headers)
}

/// Sets the cookie of a sign-in, or with an empty id removes it. Lax, because the way back from the issuer is a navigation
/// from another site, which does not carry Strict cookies; it lives for minutes and opens nothing by itself.
pub fn set_flow_cookie(app: &App, id: &str) -> HeaderValue {
    let age = if id.is_empty() { 0 } else { FLOW_TIME.as_secs() };
    bake(
        app,
        &format!("{}-login={id}; Path=/; SameSite=Lax; Max-Age={age}", app.cookie),
    )
}

fn bake(app: &App, cookie: &str) -> HeaderValue {
    let secure = if app.sites.secure() { "; Secure" } else { "" };
    HeaderValue::from_str(&format!("{cookie}; HttpOnly{secure}")).unwrap_or(HeaderValue::from_static(""))
}

/// The session of a request.
pub struct Asker(pub Arc<Session>);

impl<S: Sync> FromRequestParts<S> for Asker {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let session = parts.extensions.get::<Arc<Session>>().cloned();
        session
            .map(Self)
            .ok_or_else(|| StatusCode::UNAUTHORIZED.into_response())
    }
}

/// The object that an address is about: `/PART/NAMESPACE/NAME/…`. Browsers and proxies decode differently, so what is not a name
/// once it is decoded is refused before anything is asked of the cluster.
pub struct Of {
    /// Namespace.
    pub namespace: Namespace,
    /// Name.
    pub name: Name,
}

impl<S: Send + Sync> FromRequestParts<S> for Of {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Path((namespace, name)): Path<(String, String)> = Path::from_request_parts(parts, state)
            .await
            .map_err(IntoResponse::into_response)?;
        Self::parse(namespace, name).map_err(|invalid| refusal::refuse(StatusCode::BAD_REQUEST, &invalid.to_string()))
    }
}

impl Of {
    /// Parses namespace and name.
    ///
    /// # Errors
    /// One of them is not a valid name.
    pub fn parse(namespace: String, name: String) -> Result<Self, Invalid> {
        Ok(Self {
            namespace: namespace.try_into()?,
            name: name.try_into()?,
        })
    }
}

/// The form of a request, its token checked.
pub struct Sent(pub Pairs);

impl<S: Sync> FromRequestParts<S> for Sent {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let pairs = parts.extensions.get::<Pairs>().cloned();
        pairs.map(Self).ok_or_else(|| StatusCode::FORBIDDEN.into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(k, v)| (HeaderName::from_static(k), HeaderValue::from_static(v)))
            .collect()
    }

    #[test]
    fn only_pages_of_ours_may_change_things() {
        let here: Site = "http://127.0.0.1:81".parse().unwrap();
        assert!(from_here(&headers(&[("origin", "http://127.0.0.1:81")]), &here));
        assert!(from_here(
            &headers(&[("origin", "http://127.0.0.1:81"), ("sec-fetch-site", "same-origin")]),
            &here
        ));
        for bad in [
            &[][..],
            &[("origin", "null")],
            &[("origin", "http://evil.example")],
            &[("origin", "https://127.0.0.1:81")],
            &[("origin", "http://127.0.0.1:82")],
            &[("origin", "http://127.0.0.1:81"), ("sec-fetch-site", "cross-site")],
            &[("origin", "http://127.0.0.1:81"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(!from_here(&headers(bad), &here), "{bad:?}");
        }
    }
}
