//! Responses to requests that are refused.

use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;

/// Seconds after which a client may repeat a request that was refused for lack of resources.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

/// Form of the refusals that a server sends on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line of text.
    Text,
    /// An error of OpenAI's API.
    OpenAi,
}

impl Form {
    /// A refusal in this form. `code` is for programs, `message` for people.
    pub(crate) fn refusal(self, status: StatusCode, code: &'static str, message: &str) -> Response {
        match self {
            Self::Text => with_headers(status, (status, format!("{message}\n")).into_response()),
            Self::OpenAi => openai(status, code, message),
        }
    }
}

/// Code of a refusal, as an extension of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub &'static str);

/// Message of a refusal, as an extension of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Message(String);

/// A refusal in the form of OpenAI's errors, which its clients show.
pub fn openai(status: StatusCode, code: &'static str, message: &str) -> Response {
    let json = openai_json(code, message);
    let mut response = (status, [(CONTENT_TYPE, "application/json")], json).into_response();
    response.extensions_mut().insert(Code(code));
    response.extensions_mut().insert(Message(message.to_owned()));
    with_headers(status, response)
}

/// Gives a refusal of [`openai`] the form of Anthropic's errors. Other responses stay as they are.
pub fn as_anthropic(response: Response) -> Response {
    let Some(Message(message)) = response.extensions().get() else {
        return response;
    };
    let json = anthropic_json(response.status(), message);
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, json.into())
}

/// An error of Anthropic's API, as a body or an event of a stream. Its clients know errors by a type that belongs to the status.
/// Source: <https://docs.anthropic.com/en/api/errors>.
pub fn anthropic_json(status: StatusCode, message: &str) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        r#type: &'static str,
        error: Error<'a>,
    }
    #[derive(Serialize)]
    struct Error<'a> {
        r#type: &'static str,
        message: &'a str,
    }
    let kind = match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..=499 => "invalid_request_error",
        503 => "overloaded_error",
        _ => "api_error",
    };
    let error = Error { r#type: kind, message };
    let body = Body { r#type: "error", error };
    serde_json::to_string(&body).unwrap_or_default()
}

/// An error of OpenAI's API, as a body or an event of a stream.
pub fn openai_json(code: &'static str, message: &str) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        error: Error<'a>,
    }
    #[derive(Serialize)]
    struct Error<'a> {
        message: &'a str,
        r#type: &'a str,
        code: &'a str,
    }
    let error = Error {
        message,
        r#type: code,
        code,
    };
    serde_json::to_string(&Body { error }).unwrap_or_default()
}

/// Adds what a status code requires: how to authenticate, or when to try again.
fn with_headers(status: StatusCode, mut response: Response) -> Response {
    let headers = response.headers_mut();
    match status {
        StatusCode::UNAUTHORIZED => headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            headers.insert(RETRY_AFTER, RETRY_AFTER_SECONDS)
        }
        _ => None,
    };
    response
}
