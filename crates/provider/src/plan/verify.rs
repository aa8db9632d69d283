//! Decides whether the model has answered a request since its rollout, and which request to send if not.

use std::time::Duration;

use jiff::SignedDuration;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::condition::{self, Conditions};
use runway_api::labels::APPLIED_HASH;
use runway_operator::services::ServicePort;

use super::prepare::Prepared;
use crate::engine;
use crate::observe::{Observed, Verification};
use crate::probe::Probe;

/// Delay before an endpoint that did not answer is asked again; doubles with each attempt.
const FIRST_WAIT: SignedDuration = SignedDuration::from_secs(5);
/// Longest delay between two attempts.
const LONGEST_WAIT: SignedDuration = SignedDuration::from_mins(1);

/// Whether the model has answered.
pub(super) enum Endpoint {
    /// The model has answered, or need not be asked.
    Answered {
        /// Message of the condition Ready.
        message: &'static str,
    },
    /// The first request since the rollout is being sent.
    Asking(Probe),
    /// The model has not answered.
    NotAnswering {
        /// The request and the response.
        message: String,
        /// The next request, or the time until then.
        next: Result<Probe, Duration>,
    },
}

/// Evaluates the response of an endpoint whose main object, `live`, reports that it serves the current spec.
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
    let Some(first) = probe(seen, prepared, live) else {
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
                    None => Ok(first.attempt(answer.attempt.saturating_add(1), seen.answer_timeout)),
                },
            },
        },
    }
}

/// Whether Ready is already True for the current generation. If so, no request is sent.
pub(super) fn is_verified(seen: &Observed) -> bool {
    seen.md
        .conditions()
        .when_true(condition::READY)
        .is_some_and(|c| c.observed_generation == seen.md.metadata.generation)
}

fn probe(seen: &Observed, prepared: &Prepared, live: Option<&DynamicObject>) -> Option<Probe> {
    let endpoint = prepared.translation.endpoint.as_ref()?;
    let hash = live.and_then(|live| live.annotations().get(APPLIED_HASH).cloned());
    let about = format!(
        "{}/{}/{}",
        seen.md.metadata.generation.unwrap_or_default(),
        live.and_then(ResourceExt::uid).unwrap_or_default(),
        hash.unwrap_or_default(),
    );
    let probe = Probe {
        id: String::new(),
        about,
        attempt: 0,
        patience: seen.answer_timeout,
        at: ServicePort {
            namespace: seen.md.namespace()?.parse().ok()?,
            service: endpoint.service.as_deref()?.parse().ok()?,
            port: u16::try_from(endpoint.port?).ok()?,
        },
        model: prepared.translation.model_name.clone(),
        // The known engines generate text through the OpenAI API, except for models such as embedding models.
        generates: engine::find(&prepared.request.engine).is_some(),
    };
    Some(probe.attempt(1, seen.answer_timeout))
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

/// Time left until then; `None` if it has passed.
pub(super) fn left(seen: &Observed, until: jiff::Timestamp) -> Option<Duration> {
    Duration::try_from(until.duration_since(seen.now))
        .ok()
        .filter(|left| !left.is_zero())
}
