//! Refused requests, in the form of OpenAI's errors.

use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use runway_http::body::{TooLarge, TooSlow};
use runway_http::refusal;

use crate::limits::Beyond;
use crate::metrics::Refusal;
use crate::model::Model;
use crate::paths::ENDPOINTS;
use crate::requested;
use crate::table::NotOne;

/// Reason for refusing a request.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Refused {
    /// Reason as a label of metrics.
    pub reason: Refusal,
    /// Status of the response.
    pub status: StatusCode,
    code: &'static str,
    message: String,
    /// More headers of the response.
    headers: Option<Box<HeaderMap>>,
}

impl Refused {
    fn new(reason: Refusal, status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            reason,
            status,
            code,
            message: message.into(),
            headers: None,
        }
    }

    /// The model does not serve; a repeated request may be answered.
    pub(crate) fn not_serving(message: impl Into<String>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(Refusal::not_serving, status, "model_not_serving", message)
    }

    /// The router has no place for the request.
    pub(crate) fn busy(message: impl Into<String>) -> Self {
        Self::new(
            Refusal::busy,
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_requests",
            message,
        )
    }

    /// The router, or what it depends on, cannot answer.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Self::new(Refusal::unavailable, status, "unavailable", message)
    }

    /// The engine broke off before its response.
    pub(crate) fn broken(message: impl Into<String>) -> Self {
        Self::new(Refusal::broken, StatusCode::BAD_GATEWAY, "model_broke_off", message)
    }

    /// The caller may not see the replicas of a model.
    pub(crate) fn choice_is_not_shown(model: &Model) -> Self {
        let text = format!(
            "you may not see which pod of model '{}' answers: this requires a token of the cluster, and permission to get pods in namespace '{}'",
            model.full_name(),
            model.namespace
        );
        Self::new(Refusal::forbidden, StatusCode::FORBIDDEN, "forbidden", text)
    }

    /// The request cannot be routed.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self::new(Refusal::invalid, status, "invalid_request", message)
    }

    /// The body is larger than this many bytes.
    pub(crate) fn too_large(limit: usize) -> Self {
        let text = TooLarge { limit }.to_string();
        Self::new(Refusal::invalid, StatusCode::PAYLOAD_TOO_LARGE, "too_large", text)
    }

    /// The body was not sent in time.
    pub(crate) fn too_slow(limit: Duration) -> Self {
        let text = TooSlow { limit }.to_string();
        Self::new(Refusal::invalid, StatusCode::REQUEST_TIMEOUT, "too_slow", text)
    }

    /// No model has the name.
    pub(crate) fn no_model(message: impl Into<String>) -> Self {
        let status = StatusCode::NOT_FOUND;
        Self::new(Refusal::not_found, status, "model_not_found", message)
    }

    /// The name does not lead to one model.
    pub(crate) fn ambiguous(message: impl Into<String>) -> Self {
        let status = StatusCode::BAD_REQUEST;
        Self::new(Refusal::ambiguous, status, "model_ambiguous", message)
    }

    /// No such path of the router.
    pub(crate) fn no_route() -> Self {
        Self::no_path(&format!("GET /v1/models, or POST {}", paths()))
    }

    /// No such path behind the endpoint picker, which lists no models.
    pub(crate) fn not_picked() -> Self {
        Self::no_path(&format!("POST {}", paths()))
    }

    fn no_path(known: &str) -> Self {
        let text = format!("no such path: use {known}");
        Self::new(Refusal::invalid, StatusCode::NOT_FOUND, "not_found", text)
    }
}

/// Paths that are passed on to engines.
fn paths() -> String {
    ENDPOINTS.map(|endpoint| endpoint.path).join(", ")
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = refusal::openai(self.status, self.code, &self.message);
        for (name, value) in self.headers.iter().flat_map(|headers| headers.iter()) {
            response.headers_mut().insert(name, value.clone());
        }
        response
    }
}

impl From<Box<Beyond>> for Refused {
    fn from(beyond: Box<Beyond>) -> Self {
        let status = StatusCode::TOO_MANY_REQUESTS;
        Self {
            headers: Some(Box::new(beyond.headers())),
            ..Self::new(Refusal::limited, status, "rate_limit_exceeded", beyond.message())
        }
    }
}

impl From<requested::Error> for Refused {
    fn from(error: requested::Error) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<NotOne> for Refused {
    fn from(error: NotOne) -> Self {
        match error {
            NotOne::None(_) => Self::no_model(error.to_string()),
            NotOne::Gone(..) => Self::ambiguous(error.to_string()),
        }
    }
}

impl From<runway_callers::Error> for Refused {
    fn from(error: runway_callers::Error) -> Self {
        use runway_callers::Error::{Busy, NoToken, Refused as NotAccepted, Unavailable};
        match error {
            NoToken | NotAccepted => {
                let status = StatusCode::UNAUTHORIZED;
                Self::new(Refusal::unauthenticated, status, "unauthenticated", error.to_string())
            }
            Busy | Unavailable(_) => Self::unavailable(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_the_picker_names_no_path_that_it_refuses() {
        let (router, picker) = (Refused::no_route().to_string(), Refused::not_picked().to_string());
        assert!(
            router.contains("GET /v1/models, or POST /v1/chat/completions"),
            "{router}"
        );
        assert!(
            picker.contains("use POST /v1/chat/completions") && !picker.contains("GET"),
            "{picker}"
        );
    }
}
