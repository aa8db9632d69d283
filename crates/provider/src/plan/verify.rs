//! Whether the model has answered a request since its rollout, and what to ask if it has not.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::condition::{self, Conditions};
use runway_api::labels::APPLIED_HASH;
use runway_operator::services::ServicePort;

use super::serve::Prepared;
use crate::observe::{Observed, Verification};

/// Engines whose servers generate text by the OpenAI API, unless the model is one that cannot, such as an embedding model.
const GENERATE: [&str; 4] = ["llamacpp", "sglang", "trtllm", "vllm"];

/// Wait before an endpoint that did not answer is asked again; it doubles with each attempt.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(5);
/// Longest wait between two attempts.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(1);

/// The request by which an endpoint shows that its model serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// Names the question: the rollout and the attempt.
    pub id: String,
    /// Names the rollout: the generation, and the objects made for it.
    pub about: String,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// Where the model answers.
    pub at: ServicePort,
    /// The name under which it must be listed; `None` if the image decides it.
    pub model: Option<String>,
    /// Whether the engine generates text: then it is asked for one token.
    pub generates: bool,
}

/// What to do about the answer of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Inquiry {
    /// None is needed, and an earlier one counts no more.
    #[default]
    Forget,
    /// The one that is there counts for now.
    Keep,
    /// Ask, unless this is being asked.
    Ask(Question),
}

/// Whether the model has answered.
pub(super) enum Endpoint {
    /// It has, or it is not to be asked.
    Answered {
        /// Of the condition Ready.
        message: &'static str,
    },
    /// It is being asked for the first time since the rollout.
    Asking(Question),
    /// It has not.
    NotAnswering {
        /// The request and what came back.
        message: String,
        /// What to ask now, or how long to wait before.
        next: Result<Question, Duration>,
    },
}

/// Looks at the answer of an endpoint whose main object, `live`, says that it serves as asked for.
pub(super) fn endpoint(seen: &Observed, prepared: &Prepared, live: Option<&DynamicObject>) -> Endpoint {
    const READY: &str = "All replicas are ready";
    let answered = Endpoint::Answered { message: READY };
    let answer = match &seen.verification {
        Verification::Assumed => return answered,
        Verification::Off => {
            return Endpoint::Answered {
                message: "All replicas are ready; the endpoint was not verified (--verify-endpoints=false)",
            };
        }
        Verification::On(_) if is_verified(seen) => return answered,
        Verification::On(answer) => answer,
    };
    let Some(first) = question(seen, prepared, live) else {
        return answered;
    };
    match answer.as_ref().filter(|answer| answer.about == first.about) {
        None => Endpoint::Asking(first),
        Some(answer) => match &answer.outcome {
            Ok(()) => answered,
            Err(message) => Endpoint::NotAnswering {
                message: message.clone(),
                next: match left(seen, answer.at + wait(answer.attempt)) {
                    Some(left) => Err(left),
                    None => Ok(first.attempt(answer.attempt.saturating_add(1))),
                },
            },
        },
    }
}

/// Whether Ready is already true for this very generation: then nothing is asked again.
pub(super) fn is_verified(seen: &Observed) -> bool {
    seen.md
        .conditions()
        .when_true(condition::READY)
        .is_some_and(|c| c.observed_generation == seen.md.metadata.generation)
}

fn question(seen: &Observed, prepared: &Prepared, live: Option<&DynamicObject>) -> Option<Question> {
    let endpoint = prepared.translation.endpoint.as_ref()?;
    let hash = live.and_then(|live| live.annotations().get(APPLIED_HASH).cloned());
    let about = format!(
        "{}/{}/{}",
        seen.md.metadata.generation.unwrap_or_default(),
        live.and_then(ResourceExt::uid).unwrap_or_default(),
        hash.unwrap_or_default(),
    );
    let question = Question {
        id: String::new(),
        about,
        attempt: 0,
        at: ServicePort {
            namespace: seen.md.namespace()?.parse().ok()?,
            service: endpoint.service.as_deref()?.parse().ok()?,
            port: u16::try_from(endpoint.port?).ok()?,
        },
        model: prepared.translation.model_name.clone(),
        generates: GENERATE.contains(&prepared.request.engine.as_str()),
    };
    Some(question.attempt(1))
}

impl Question {
    fn attempt(self, attempt: u32) -> Self {
        Self {
            id: format!("{}#{attempt}", self.about),
            attempt,
            ..self
        }
    }
}

fn wait(attempt: u32) -> SignedDuration {
    let doubled = 1_i32
        .checked_shl(attempt.saturating_sub(1))
        .filter(|n| *n > 0)
        .unwrap_or(i32::MAX);
    FIRST_WAIT
        .checked_mul(doubled)
        .unwrap_or(LONGEST_WAIT)
        .min(LONGEST_WAIT)
}

/// How long until a time; `None` if it has come.
fn left(seen: &Observed, until: jiff::Timestamp) -> Option<Duration> {
    Duration::try_from(until.duration_since(seen.now))
        .ok()
        .filter(|left| !left.is_zero())
}
