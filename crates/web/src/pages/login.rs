//! Signing in, with a token or at the issuer, and out.

use std::collections::BTreeMap;
use std::sync::Arc;

use askama::Template;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};

use crate::app::App;
use crate::form::Pairs;
use crate::guard::{self, Asker};
use crate::oidc::Issuer;
use crate::refusal::{self, asset_path};
use crate::sessions::Refused;
use crate::site::Site;

#[derive(Template)]
#[template(path = "login.html")]
struct Page {
    style: String,
    /// The issuer's name, empty if there is none.
    issuer: String,
    error: String,
}

/// A page that forwards automatically, if a redirect is not possible.
#[derive(Template)]
#[template(path = "onward.html")]
struct Onward<'a> {
    style: String,
    heading: &'a str,
    url: &'a str,
}

/// The form.
pub async fn show(State(app): State<Arc<App>>) -> Response {
    if app.sessions.by_login() {
        form(&app, StatusCode::OK, String::new())
    } else {
        Redirect::to("/").into_response()
    }
}

fn form(app: &App, status: StatusCode, error: String) -> Response {
    let page = Page {
        style: asset_path("console.css"),
        issuer: app.sessions.issuer().map_or("", |issuer| issuer.name()).to_owned(),
        error,
    };
    refusal::status_html(status, &page)
}

fn refuse(app: &App, refused: &Refused) -> Response {
    let status = match refused {
        Refused::Full => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::UNAUTHORIZED,
    };
    form(app, status, refused.to_string())
}

/// A page that leads on to another.
pub fn onward(heading: &str, url: &str) -> Response {
    let style = asset_path("console.css");
    refusal::html(&Onward { style, heading, url })
}

/// Signs a user in with a token.
pub async fn enter(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let pairs = Pairs::parse(&body);
    match app
        .sessions
        .enter_with_token(pairs.get("token").unwrap_or_default())
        .await
    {
        Ok(id) => ([(SET_COOKIE, guard::set_cookie(&app, &id))], Redirect::to("/")).into_response(),
        Err(refused) => refuse(&app, &refused),
    }
}

/// Redirects a user to the issuer.
pub async fn go_to_issuer(State(app): State<Arc<App>>, Extension(site): Extension<Site>) -> Response {
    let Some(issuer) = app.sessions.issuer() else {
        return Redirect::to("/login").into_response();
    };
    match issuer.begin(&site.to_string()).await {
        Ok(begun) => (
            [(SET_COOKIE, guard::set_flow_cookie(&app, &begun.flow))],
            Redirect::to(&begun.url),
        )
            .into_response(),
        Err(error) => refuse(&app, &error.into()),
    }
}

/// Signs a user in after the redirect from the issuer.
pub async fn come_from_issuer(
    State(app): State<Arc<App>>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let Some(issuer) = app.sessions.issuer() else {
        return Redirect::to("/login").into_response();
    };
    let over = guard::set_flow_cookie(&app, "");
    match let_in(&app, issuer, &query, &headers).await {
        Ok(id) => {
            let cookies = [(SET_COOKIE, over), (SET_COOKIE, guard::set_cookie(&app, &id))];
            // After a redirect the browser would still be on its way from the issuer's site, and keep a Strict cookie back.
            (AppendHeaders(cookies), onward("Signed in", "/")).into_response()
        }
        Err(refused) => (AppendHeaders([(SET_COOKIE, over)]), refuse(&app, &refused)).into_response(),
    }
}

async fn let_in(
    app: &App,
    issuer: &Issuer,
    query: &BTreeMap<String, String>,
    headers: &HeaderMap,
) -> Result<String, Refused> {
    let flow = guard::flow_cookie(app, headers);
    let tokens = issuer.finish(flow.as_deref(), query).await?;
    app.sessions.enter_from_issuer(tokens).await
}

/// Signs out, at the issuer too if that can be.
pub async fn leave(
    State(app): State<Arc<App>>,
    Asker(session): Asker,
    Extension(site): Extension<Site>,
    headers: HeaderMap,
) -> Response {
    if let Some(id) = guard::cookie(&app, &headers) {
        app.sessions.end(&id);
    }
    let cookie = [(SET_COOKIE, guard::set_cookie(&app, ""))];
    if let (Some(issuer), Some(tokens)) = (app.sessions.issuer(), session.tokens())
        && let Some(url) = issuer.end_session(&tokens, &site.to_string()).await
    {
        // Our policy lets no form of ours end at another site, not even by a redirect.
        return (cookie, onward("Signed out of the console", &url)).into_response();
    }
    (cookie, Redirect::to("/login")).into_response()
}
