//! The request that shows whether a model answers, and the decision to send it.

use std::time::Duration;

use runway_operator::services::ServicePort;

/// Longest time limit of a request: the time that an engine has to start.
const MOST_PATIENCE: Duration = Duration::from_hours(1);

/// The request that shows whether an endpoint serves its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// ID of the rollout and the attempt.
    pub id: String,
    /// ID of the rollout: the generation and the objects created for it.
    pub about: String,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// Time limit of each request.
    pub patience: Duration,
    /// Service and port of the model.
    pub at: ServicePort,
    /// Name that the list of models must contain; `None` if the image decides it.
    pub model: Option<String>,
    /// Whether the engine generates text. If so, one token is requested.
    pub generates: bool,
}

/// Decision on the request to an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProbeDecision {
    /// No request is needed, and an earlier response is dropped.
    #[default]
    Forget,
    /// Keep the latest response. No request is needed.
    Keep,
    /// Send this request, unless it is already being sent.
    Send(Probe),
}

impl Probe {
    /// The request of an attempt, with its own ID. An engine may need long for its first answer, so that the time limit, `first`
    /// for the first attempt, doubles with each of them.
    pub(crate) fn attempt(self, attempt: u32, first: Duration) -> Self {
        let doubled = 2_u32.checked_pow(attempt.saturating_sub(1));
        let patience = doubled
            .and_then(|factor| first.checked_mul(factor))
            .unwrap_or(MOST_PATIENCE);
        Self {
            id: format!("{}#{attempt}", self.about),
            attempt,
            patience: patience.clamp(first, MOST_PATIENCE.max(first)),
            ..self
        }
    }
}
