//! Requests of pages to asya-gateway, as the user.

use std::time::Duration;

use axum::http::StatusCode;
use axum::response::Response;
use runway_client::asya_gateway::AsyaGateway;
use runway_client::proxied::{ASYA_GATEWAY, Error, Place, Proxied, without_token};
use runway_operator::telemetry::chain;
use tokio::time::timeout;

use crate::pages::actions;
use crate::refusal;
use crate::session_view::SessionView;

/// Time limit of a request that reads.
pub const LOOK: Duration = Duration::from_secs(5);
/// Time limit of a request that redrives or deletes.
pub const WORK: Duration = Duration::from_mins(1);

/// Failed request, for the page.
pub struct Failed {
    /// Status of the page.
    pub status: StatusCode,
    /// Message.
    pub message: String,
}

impl Failed {
    fn because(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// Page for a failed action.
    pub fn page(&self) -> Response {
        refusal::refuse(self.status, &self.message)
    }
}

impl From<Error> for Failed {
    /// The command's hints name its options, which the console does not have.
    fn from(error: Error) -> Self {
        match &error {
            Error::NoToken(_) => Self::because(
                StatusCode::FORBIDDEN,
                "asya-gateway identifies users by a token, and you are signed in without one: sign in with the token of a ServiceAccount, from `kubectl create token NAME`",
            ),
            Error::Unreachable { place, message, .. } => {
                let text = format!(
                    "cannot reach asya-gateway at service {place}: {message}; install it or allow the API server to reach it"
                );
                Self::because(StatusCode::BAD_GATEWAY, text)
            }
            Error::Refused { status, .. } => Self::because(*status, chain(&error)),
            Error::Cluster(cause) => Self::because(actions::status(cause), chain(&error)),
            Error::Token | Error::NotHad(_) => Self::because(StatusCode::BAD_GATEWAY, chain(&error)),
        }
    }
}

/// Sends a request to asya-gateway.
///
/// # Errors
/// The gateway does not answer within `limit`, cannot be reached, or rejects the request.
pub async fn ask<T>(
    view: &SessionView,
    limit: Duration,
    question: impl AsyncFnOnce(&AsyaGateway<'_>) -> Result<T, Error>,
) -> Result<T, Failed> {
    let cluster = view.cluster();
    let place: Place = ASYA_GATEWAY
        .place
        .parse()
        .map_err(|invalid: String| Failed::because(StatusCode::INTERNAL_SERVER_ERROR, invalid))?;
    let asked = async {
        let authorization = match view.credential().authorization().await {
            Err(Error::NoToken(_)) => return Err(without_token(&cluster, &ASYA_GATEWAY, &place).await),
            had => had?,
        };
        question(&AsyaGateway(Proxied::with(
            &ASYA_GATEWAY,
            &cluster,
            &place,
            authorization,
        )))
        .await
    };
    let Ok(answer) = timeout(limit, asked).await else {
        let text = format!("asya-gateway does not answer within {} s", limit.as_secs());
        return Err(Failed::because(StatusCode::GATEWAY_TIMEOUT, text));
    };
    Ok(answer?)
}
