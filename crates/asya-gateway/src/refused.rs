//! Refused requests, in the form of OpenAI's errors, which its clients show.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use runway_asya_transport::letters;
use runway_http::refusal;

use crate::gateway::Rejected;
use crate::{shown, store};

/// Reason for refusing a request.
#[derive(Debug)]
pub struct Refused {
    /// Status code.
    pub status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
        }
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
    }

    pub(crate) fn unknown_job() -> Self {
        let text = "job not found: it may have been removed, because results are kept for a limited time, or it belongs to another user";
        Self::new(StatusCode::NOT_FOUND, "not_found", text)
    }

    pub(crate) fn too_many_waits() -> Self {
        let text = "too many requests wait for results; submit without waiting, and ask with GET /jobs/ID";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_waits", text)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        refusal::openai(self.status, self.code, &self.message)
    }
}

impl From<store::Error> for Refused {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Full(_) => Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_jobs", error.to_string()),
            _ => Self::unavailable(error.to_string()),
        }
    }
}

impl From<shown::Error> for Refused {
    fn from(error: shown::Error) -> Self {
        Self::unavailable(error.to_string())
    }
}

impl From<Rejected> for Refused {
    fn from(rejected: Rejected) -> Self {
        match rejected {
            Rejected::NoActor { .. } => Self::new(StatusCode::NOT_FOUND, "no_actor", rejected.to_string()),
            Rejected::TooLarge(_) => Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", rejected.to_string()),
            Rejected::InProgress => Self::new(StatusCode::CONFLICT, "in_progress", rejected.to_string()),
            Rejected::OtherRequest => Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "key_of_another_request",
                rejected.to_string(),
            ),
            Rejected::NotConfirmed(_) => Self::unavailable(rejected.to_string()),
            Rejected::Store(error) => error.into(),
        }
    }
}

impl From<letters::Error> for Refused {
    fn from(error: letters::Error) -> Self {
        match error {
            letters::Error::NoQueue(_) => {
                let text = format!("{error}: the AsyncActor does not exist, or its transport has no such queue");
                Self::new(StatusCode::NOT_FOUND, "no_queue", text)
            }
            letters::Error::Unreachable(_) | letters::Error::Interrupted { .. } => Self::unavailable(error.to_string()),
        }
    }
}

impl From<runway_callers::Error> for Refused {
    fn from(error: runway_callers::Error) -> Self {
        use runway_callers::Error::{Busy, NoToken, Refused as NotAccepted, Unavailable};
        match error {
            NoToken | NotAccepted => Self::new(StatusCode::UNAUTHORIZED, "unauthenticated", error.to_string()),
            Busy | Unavailable(_) => Self::unavailable(error.to_string()),
        }
    }
}
