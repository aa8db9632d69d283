//! Progress of a model that is being served, from everything that was observed.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::Phase;
use runway_api::{EventReason, ProviderReason};
use runway_operator::plan::{Note, Plan};

use super::staleness::{Staleness, has_unready, staleness};
use crate::contract::{Provider, Reading};
use crate::observe::{Observed, Verification};
use crate::plan::Decision;
use crate::plan::census::{Census, Gap};
use crate::plan::pods::{self, Obstacle};
use crate::plan::prepare::Prepared;
use crate::plan::verify::{self, Endpoint};
use crate::probe::{Probe, ProbeDecision};

/// Progress of the model.
pub(super) enum Standing {
    /// It serves the current spec, and has answered a request.
    Serves { message: &'static str },
    /// It serves the current spec: no replica is desired, and no pod runs.
    ScaledToZero,
    /// No replica is desired; this number of pods still runs.
    ScalingToZero(usize),
    /// It serves an earlier generation; the objects of the current one are being applied.
    Applying,
    /// The upstream may report the state before the change, for this much longer.
    Settling(Duration),
    /// Its pods are ready; a request to the endpoint is in progress.
    Asking(Probe),
    /// Its pods are ready; the endpoint has not answered.
    NotAnswering {
        message: String,
        next: Result<Probe, Duration>,
    },
    /// Pods report why it does not serve.
    Obstructed(Obstacle),
    /// The upstream reports that it serves; its pods do not.
    Contradicted(Gap),
    /// It does not serve; the upstream may report why.
    NotServing,
}

/// The model serves only if everything agrees: the upstream, every component's pods, and an answer after that. No report of an
/// upstream counts against its pods.
pub(super) fn standing(
    provider: &dyn Provider,
    seen: &Observed,
    prepared: &Prepared,
    live: Option<&DynamicObject>,
    reading: &Reading,
    census: Option<Census>,
    applied: bool,
) -> Standing {
    let obstacle = || pods::obstacle(provider, seen, &prepared.translation.components).map(Standing::Obstructed);
    let existing = census.as_ref().map_or(0, |census| census.existing);
    if prepared.translation.replicas == 0 && existing > 0 && live.is_some() {
        return Standing::ScalingToZero(existing);
    }
    let settling = reading.settled_at.and_then(|until| verify::left(seen, until));
    let settling = settling.filter(|_| !verify::is_verified(seen) && !has_begun_to_change(seen));
    // The failure may be that of the spec before the change.
    if let (Phase::Failed, Some(left)) = (reading.phase, settling) {
        return Standing::Settling(left);
    }
    if reading.phase != Phase::Running {
        return obstacle().unwrap_or(Standing::NotServing);
    }
    // With an unchanged generation the change is a reverted drift, and the pods match the spec.
    if !applied && !verify::is_verified(seen) && seen.verification != Verification::Assumed {
        return Standing::Applying;
    }
    if prepared.translation.replicas == 0 {
        return Standing::ScaledToZero;
    }
    if let Some(gap) = census.and_then(|census| census.gap) {
        let obstacle = if gap.is_shortage { obstacle() } else { None };
        return obstacle.unwrap_or(Standing::Contradicted(gap));
    }
    if let Some(left) = settling {
        return Standing::Settling(left);
    }
    match verify::endpoint(seen, prepared, live) {
        Endpoint::Answered { message } => Standing::Serves { message },
        Endpoint::Asking(probe) => Standing::Asking(probe),
        Endpoint::NotAnswering { message, next } => Standing::NotAnswering { message, next },
    }
}

/// Whether the upstream was seen working on this generation: it has reported another state than the one before the change.
pub(super) fn has_begun_to_change(seen: &Observed) -> bool {
    let ready = seen.md.conditions().when_false(condition::READY);
    ready.is_some_and(|c| c.observed_generation == seen.md.metadata.generation && c.reason != ProviderReason::Updating)
}

impl Standing {
    /// Reason and message.
    pub(super) fn words(&self, seen: &Observed, reading: &Reading, main: &str, ready: i32) -> (String, String) {
        match self {
            Self::Serves { .. } => (ProviderReason::DeploymentReady.to_string(), message_of(reading, main)),
            Self::ScaledToZero => (
                ProviderReason::ScaledToZero.to_string(),
                "Scaled to zero: no replica is desired, so nothing serves".to_owned(),
            ),
            Self::ScalingToZero(pods) => (
                ProviderReason::ScalingToZero.to_string(),
                match pods {
                    1 => "Scaling to zero: 1 pod still runs".to_owned(),
                    pods => format!("Scaling to zero: {pods} pods still run"),
                },
            ),
            Self::Settling(_) => (
                ProviderReason::Updating.to_string(),
                format!("Waiting until {main} reports the latest change"),
            ),
            Self::Contradicted(gap) => (
                gap.reason.to_string(),
                if gap.is_shortage {
                    format!(
                        "{}, but {main} reports that it is ready{}",
                        gap.message,
                        still_serving(ready)
                    )
                } else {
                    gap.message.clone()
                },
            ),
            Self::Applying => (
                ProviderReason::Updating.to_string(),
                format!("Waiting for {main} to take the change"),
            ),
            Self::Asking(probe) => (
                ProviderReason::WaitingForAnswer.to_string(),
                format!("Pods are ready; waiting for the first answer of {}", probe.at),
            ),
            Self::NotAnswering { message, .. } => (
                ProviderReason::NotAnswering.to_string(),
                format!(
                    "Pods are ready, but the model does not answer: {message}. Check spec.image, spec.engine.args and spec.model.servedName; logs: kubeairunway logs {} -n {}. The request is retried",
                    seen.md.name_any(),
                    seen.md.namespace().unwrap_or_default(),
                ),
            ),
            Self::Obstructed(obstacle) => (
                obstacle.reason.to_string(),
                format!("{}{}", obstacle.message, still_serving(ready)),
            ),
            Self::NotServing => (reading.reason.clone(), message_of(reading, main)),
        }
    }

    /// Message of the condition Ready, if it differs from that of the status.
    pub(super) fn ready_message<'a>(&'a self, message: &'a str) -> &'a str {
        match self {
            Self::Serves { message } => message,
            _ => message,
        }
    }

    /// Whether the state lasts only a moment.
    pub(super) fn passes(&self) -> bool {
        matches!(self, Self::Applying | Self::Asking(_))
    }

    pub(super) fn phase(&self, reading: &Reading) -> Phase {
        match self {
            Self::Serves { .. } | Self::ScaledToZero => Phase::Running,
            Self::ScalingToZero(_)
            | Self::Applying
            | Self::Settling(_)
            | Self::Asking(_)
            | Self::NotAnswering { .. }
            | Self::Contradicted(_) => Phase::Deploying,
            Self::Obstructed(obstacle) if obstacle.lasting => Phase::Failed,
            Self::Obstructed(_) if reading.phase == Phase::Running => Phase::Deploying,
            Self::Obstructed(_) | Self::NotServing => reading.phase,
        }
    }

    pub(super) fn event(&self, phase: Phase, message: String) -> Option<Note> {
        match self {
            Self::Obstructed(obstacle) => Some(Note::warning(obstacle.reason, message)),
            Self::NotAnswering { .. } => Some(Note::warning(ProviderReason::NotAnswering, message)),
            Self::Contradicted(gap) if !gap.is_shortage => Some(Note::warning(gap.reason, message)),
            _ if phase == Phase::Failed => Some(Note::new(
                EventReason::ProviderError,
                format!("Provider resource in error state: {message}"),
            )),
            _ => None,
        }
    }

    /// Age of the state, if the upstream has to change it. A model that serves has nothing new to report, and pods that are not
    /// ready explain a delay.
    pub(super) fn staleness(&self, seen: &Observed, created: Option<Timestamp>, reading: &Reading) -> Staleness {
        let waits = match self {
            Self::NotServing => matches!(reading.phase, Phase::Pending | Phase::Deploying) && !has_unready(seen),
            Self::ScalingToZero(_) => true,
            Self::Contradicted(gap) if gap.is_shortage => !has_unready(seen),
            Self::Contradicted(gap) => gap.reason == ProviderReason::PodsOutdated,
            _ => false,
        };
        if waits {
            staleness(seen, [created, reading.last_change])
        } else {
            Staleness::Settled
        }
    }

    /// Adds the next request, or the time until then.
    pub(super) fn decide(self, mut plan: Plan) -> Decision {
        let probe = match self {
            Self::Asking(probe) | Self::NotAnswering { next: Ok(probe), .. } => ProbeDecision::Send(probe),
            Self::NotAnswering { next: Err(left), .. } => {
                plan.look_again = Some(left);
                ProbeDecision::Keep
            }
            Self::Settling(left) => {
                plan.look_again = Some(left);
                ProbeDecision::Forget
            }
            _ => ProbeDecision::Forget,
        };
        Decision { plan, probe }
    }
}

fn message_of(reading: &Reading, main: &str) -> String {
    match reading.phase {
        _ if !reading.message.is_empty() => reading.message.clone(),
        Phase::Running => "Deployment is healthy".to_owned(),
        Phase::Failed => format!("{main} has failed"),
        _ => format!("Waiting for {main} to become ready"),
    }
}

/// Addition to the message of a model that is not Ready.
pub(super) fn still_serving(ready: i32) -> String {
    match ready {
        0 => String::new(),
        ready => format!(". Replicas that still serve: {ready}"),
    }
}
