//! Responses that need no session: rendering, embedded assets, and pages that refuse a request.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::LazyLock;

use askama::Template;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};

const CSS: &str = include_str!("../assets/console.css");
const SCRIPT: &str = include_str!("../assets/console.js");
const THEME: &str = include_str!("../assets/theme.js");
const ICON: &str = include_str!("../assets/icon.svg");

/// Changes with what the files hold.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    (CSS, SCRIPT, THEME, ICON).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
});

/// A file of ours: its type and text.
pub fn asset(name: &str) -> Option<(&'static str, &'static str)> {
    match name {
        "console.css" => Some(("text/css; charset=utf-8", CSS)),
        "console.js" => Some(("text/javascript; charset=utf-8", SCRIPT)),
        "theme.js" => Some(("text/javascript; charset=utf-8", THEME)),
        "icon.svg" => Some(("image/svg+xml", ICON)),
        _ => None,
    }
}

/// The address of a file of ours.
pub fn asset_path(name: &str) -> String {
    format!("/assets/{}/{name}", *VERSION)
}

/// A page, or an apology.
pub fn html(template: &impl Template) -> Response {
    status_html(StatusCode::OK, template)
}

/// Like [`html`], with a status.
pub fn status_html(status: StatusCode, template: &impl Template) -> Response {
    match template.render() {
        Ok(text) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "cannot render a page");
            (StatusCode::INTERNAL_SERVER_ERROR, "cannot render this page").into_response()
        }
    }
}

#[derive(Template)]
#[template(path = "refusal.html")]
struct Refusal<'a> {
    heading: &'a str,
    text: &'a str,
    style: String,
    back: bool,
}

/// Page that refuses a request.
pub fn refuse(status: StatusCode, text: &str) -> Response {
    let page = Refusal {
        heading: status.canonical_reason().unwrap_or("No"),
        text,
        style: asset_path("console.css"),
        back: status != StatusCode::UNAUTHORIZED,
    };
    status_html(status, &page)
}

/// Page for an object that does not exist, or that the user may not see.
pub fn absent(kind: &str) -> Response {
    refuse(
        StatusCode::NOT_FOUND,
        &format!("{kind} not found, or you may not read it."),
    )
}

/// Page not found.
pub async fn nowhere() -> Response {
    refuse(StatusCode::NOT_FOUND, "Page not found.")
}
