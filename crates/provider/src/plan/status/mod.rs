//! The provider's part of the status: computed from scratch each time, written only if it differs.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::condition::{self, Conditions, Draft, Owner, no, yes};
use runway_api::model_deployment::{DryRun, Phase, ProviderStatus, Replicas};
use runway_api::{CoreReason, EventReason, ModelDeploymentStatus, ProviderReason};
use runway_operator::object;
use runway_operator::plan::{Note, Plan, Rehearsal};
use serde_json::Value;

use super::Decision;
use super::census::{self, Census, Gap};
use super::objects;
use super::pods::{self, Obstacle};
use super::prepare::{self, Blocked, Prepared};
use super::verify::{self, Endpoint};
use crate::contract::{Provider, Reading};
use crate::observe::{Child, Observed, Verification};
use crate::probe::{Probe, ProbeDecision};
use crate::request::Request;
use crate::settings::InvalidSettings;
use crate::upstream::State;

/// Age after which the status of an upstream object in progress counts as stale.
const STALE_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// Time without changes after which a message about progress is written.
const SETTLED_AFTER: SignedDuration = SignedDuration::from_secs(5);

/// Interval of checks while the result of a write or request is pending, in case the watch misses it.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// Every write is guarded: the core may have removed this status and selected another provider, which could not write its own over
/// ours.
const GUARDED: bool = true;

/// Conditions about the spec of a generation, which are true as long as it is.
const OF_THE_SPEC: [&str; 4] = [
    condition::PROVIDER_COMPATIBLE,
    condition::OVERRIDES_IGNORED,
    condition::FIELDS_IGNORED,
    condition::SCALING_LIMITED,
];

/// Status while the settings of the installation are invalid.
pub(super) fn without_settings(provider: &dyn Provider, seen: &Observed, invalid: &InvalidSettings) -> Plan {
    let blocked = Blocked::by_settings(format!(
        "Settings of provider '{}' are invalid: {invalid}. Correct its InferenceProviderConfig",
        provider.name()
    ));
    if upstream_object(provider, seen).is_none() {
        return failed(provider, seen, &blocked);
    }
    let incompatible = no(condition::PROVIDER_COMPATIBLE, blocked.reason, &blocked.message);
    on_hold(
        provider,
        seen,
        vec![incompatible],
        Unready {
            phase: Phase::Deploying,
            reason: blocked.reason,
            message: blocked.message,
        },
    )
}

/// Status while the core controller rejects the spec, with its message.
pub(super) fn invalid(provider: &dyn Provider, seen: &Observed, message: &str) -> Plan {
    on_hold(
        provider,
        seen,
        Vec::new(),
        Unready {
            phase: Phase::Failed,
            reason: CoreReason::ValidationFailed.into(),
            message: format!("The spec is invalid: {message}"),
        },
    )
}

/// State of a model that does not serve the current generation.
struct Unready {
    phase: Phase,
    reason: &'static str,
    message: String,
}

impl From<Obstacle> for Unready {
    fn from(obstacle: Obstacle) -> Self {
        Self {
            phase: if obstacle.lasting {
                Phase::Failed
            } else {
                Phase::Deploying
            },
            reason: obstacle.reason.into(),
            message: obstacle.message,
        }
    }
}

/// Status while nothing may be created, changed or deleted. A model that serves the current generation stays Ready as long as a
/// replica is ready and its pods report no problem.
fn on_hold(provider: &dyn Provider, seen: &Observed, mut drafts: Vec<Draft>, otherwise: Unready) -> Plan {
    let before = seen.md.status.as_ref().map(owned).unwrap_or_default();
    let mut status = left_as_is(provider, seen);
    let exists = status.provider.is_some();
    let serves = exists && verify::is_verified(seen) && ready(&status) > 0;
    let kept = |type_: &'static str| {
        let kept = before.conditions.when_true(type_).filter(|_| exists)?;
        Some(yes(type_, &kept.reason, &kept.message))
    };
    drafts.extend(kept(condition::RESOURCE_CREATED));
    for type_ in OF_THE_SPEC {
        let says_it = before.conditions.get_condition(type_);
        let is_current = says_it.is_some_and(|c| c.observed_generation == seen.md.metadata.generation);
        if is_current && !drafts.iter().any(|draft| draft.is(type_)) {
            drafts.extend(kept(type_));
        }
    }
    let obstacle = pods::obstacle(provider, seen, &[]).map(Unready::from);
    if obstacle.is_none() && serves && census::all_ready(provider, seen) {
        drafts.extend(kept(condition::READY));
        (status.phase, status.message) = (before.phase, before.message.clone());
    } else {
        let Unready { phase, reason, message } = obstacle.unwrap_or(otherwise);
        drafts.push(no(condition::READY, reason, &message));
        if phase == Phase::Failed {
            drafts.push(yes(condition::STALLED, reason, &message));
        }
        status.phase = Some(phase);
        status.message = Some(message + &still_serving(ready(&status)));
    }
    write(seen, status, drafts, None)
}

/// The upstream object while it is left as it is, the replicas that it has, and the endpoint at which they serve.
fn left_as_is(provider: &dyn Provider, seen: &Observed) -> ModelDeploymentStatus {
    let before = seen.md.status.as_ref().map(owned).unwrap_or_default();
    let (resource, replicas) = match upstream_object(provider, seen) {
        Some(live) => (Some(named(live)), counted(provider, seen, live, before.replicas)),
        None if is_unwatched(provider, seen, before.provider.as_ref()) => (before.provider, before.replicas),
        None => return ModelDeploymentStatus::default(),
    };
    ModelDeploymentStatus {
        provider: resource,
        replicas,
        endpoint: before.endpoint,
        selector: before.selector,
        ..ModelDeploymentStatus::default()
    }
}

/// The replicas of an object that was made of an earlier spec, whose number of desired replicas was `before`.
fn counted(provider: &dyn Provider, seen: &Observed, live: &Child, before: Option<Replicas>) -> Option<Replicas> {
    let before = before?;
    let Ok(request) = prepare::request(provider, seen) else {
        return Some(before);
    };
    let reading = read(provider, seen, &request, &live.object);
    let ready = census::at_most_ready(provider, seen, reading.ready);
    Some(Replicas {
        desired: before.desired,
        ready: Some(ready),
        available: Some(reading.available.clamp(0, ready)),
    })
}

/// Whether the object's kind is not watched because its schema is unknown.
fn is_unwatched(provider: &dyn Provider, seen: &Observed, resource: Option<&ProviderStatus>) -> bool {
    let kind = resource.and_then(|resource| resource.resource_kind.as_deref());
    provider.upstreams().iter().any(|upstream| {
        Some(upstream.kind.kind) == kind && matches!(seen.installed.state(upstream.kind), State::Unknown { .. })
    })
}

/// Number of ready replicas.
fn ready(status: &ModelDeploymentStatus) -> i32 {
    let replicas = status.replicas.as_ref();
    replicas.and_then(|replicas| replicas.ready).unwrap_or(0)
}

/// Addition to the message of a model that is not Ready.
fn still_serving(ready: i32) -> String {
    match ready {
        0 => String::new(),
        ready => format!(". Replicas that still serve: {ready}"),
    }
}

fn compatible(provider: &dyn Provider) -> Draft {
    let message = format!("Configuration compatible with {}", provider.title());
    yes(
        condition::PROVIDER_COMPATIBLE,
        ProviderReason::CompatibilityVerified,
        message,
    )
}

/// Status for a ModelDeployment whose objects cannot be created.
pub(super) fn failed(provider: &dyn Provider, seen: &Observed, failure: &Blocked) -> Plan {
    let Blocked {
        phase,
        step,
        reason,
        message,
    } = failure;
    let mut drafts = vec![no(step, *reason, message), no(condition::READY, *reason, message)];
    if *step == condition::RESOURCE_CREATED {
        drafts.push(compatible(provider));
    }
    let stalled = *phase == Phase::Failed;
    if stalled {
        drafts.push(yes(condition::STALLED, *reason, message));
    }
    let mut status = left_as_is(provider, seen);
    status.phase = Some(*phase);
    status.message = Some(format!("{message}{}", still_serving(ready(&status))));
    // Without an upstream object there is no error state to report.
    let event_reason = if *step == condition::PROVIDER_COMPATIBLE {
        EventReason::ProviderIncompatible
    } else {
        EventReason::ProviderError
    };
    let event = stalled.then(|| Note::new(event_reason, message));
    write(seen, status, drafts, event)
}

/// Status for a ModelDeployment whose objects exist or are about to. `applied`: none of them has to change.
pub(super) fn serving(provider: &dyn Provider, seen: &Observed, prepared: &Prepared, applied: bool) -> Decision {
    let Some(main) = prepared.main() else {
        return Decision::default();
    };
    let live = seen.child(main.kind, &main.name);
    let reading = live.map_or_else(Reading::silent, |live| read(provider, seen, &prepared.request, live));
    let census = census::census(provider, seen, prepared, &reading);
    let (ready, available) = match &census {
        Some(census) => (census.ready, census.ready),
        None => (reading.ready.max(0), reading.available.max(0)),
    };
    let standing = standing(provider, seen, prepared, live, &reading, census, applied);
    let name = main.kind.named(&main.name);
    let (reason, message) = standing.words(seen, &reading, &name, ready);
    let phase = standing.phase(&reading);
    let is_ready = matches!(standing, Standing::Serves { .. });
    let draft = if is_ready { yes } else { no };
    let condition = draft(condition::READY, &reason, standing.ready_message(&message));
    let is_missing = live.is_none();
    let created = if is_missing {
        let message = format!("Creating {name}");
        no(condition::RESOURCE_CREATED, ProviderReason::Creating, message)
    } else {
        let message = format!("{} created successfully", main.kind.kind);
        yes(condition::RESOURCE_CREATED, ProviderReason::ResourceCreated, message)
    };
    let mut drafts = vec![compatible(provider), created, condition];
    if phase == Phase::Failed {
        drafts.push(yes(condition::STALLED, &reason, &message));
    }
    drafts.extend(ignored(prepared));
    // An object that is about to be created is not stale, however long the wait was.
    let created = live.map_or(Some(seen.now), |live| live.creation_timestamp().map(|t| t.0));
    let staleness = standing.staleness(seen, created, &reading);
    drafts.extend(stale(seen, &name, &staleness));
    let status = ModelDeploymentStatus {
        phase: Some(phase),
        message: Some(message.clone()),
        provider: Some(ProviderStatus {
            resource_kind: Some(main.kind.kind.to_owned()),
            resource_name: Some(main.name.clone()),
            ..ProviderStatus::default()
        }),
        replicas: Some(Replicas {
            desired: Some(prepared.translation.replicas),
            ready: Some(ready),
            available: Some(available),
        }),
        endpoint: prepared.translation.endpoint.clone(),
        selector: prepared
            .translation
            .pod_label
            .map(|label| format!("{label}={}", seen.md.name_any())),
        ..ModelDeploymentStatus::default()
    };
    let event = standing.event(phase, message);
    let told_at_once = event.is_some();
    let mut plan = write(seen, status, drafts, event);
    // The core selects no other provider while the status names an object, so the status names it before it is created.
    plan.status_first = is_missing;
    if is_missing && was_rejected(seen) {
        // Otherwise each attempt would change the status to Creating and back, and each change would trigger the next attempt.
        plan.rehearsal = Rehearsal::All;
    }
    plan.look_again = match staleness {
        Staleness::In(left) => Some(left),
        _ => None,
    };
    // A more precise status follows in a moment.
    if standing.passes() && has_spoken(seen) {
        plan = Plan {
            look_again: Some(LOOK_AGAIN),
            ..Plan::default()
        };
    } else if let Some(left) = time_to_settle(seen.now, reading.last_change.or(created))
        && !told_at_once
        && !begins_to_change(seen, &reason)
        && is_mere_progress(seen, &plan)
    {
        plan.status = None;
        plan.look_again = Some(left);
    }
    standing.decide(plan)
}

/// The condition of an object that makes no progress.
fn stale(seen: &Observed, name: &str, staleness: &Staleness) -> Option<Draft> {
    match &seen.outage {
        Some(why) if *staleness != Staleness::Settled => Some(yes(
            condition::STALE_STATUS,
            ProviderReason::OperatorUnavailable,
            format!("{name} makes no progress: {why}"),
        )),
        _ if *staleness == Staleness::Stale => Some(yes(
            condition::STALE_STATUS,
            ProviderReason::UpstreamSilent,
            format!("{name} has reported nothing for 5 minutes: is the upstream operator running?"),
        )),
        _ => None,
    }
}

/// Reads the status of the main object, and of the objects of its replicas.
fn read(provider: &dyn Provider, seen: &Observed, request: &Request, live: &DynamicObject) -> Reading {
    let value = |object: &DynamicObject| serde_json::to_value(object).unwrap_or_default();
    let replicas = provider.replica_objects();
    let replicas: Vec<Value> = replicas.into_iter().flat_map(|o| seen.replicas(o)).map(value).collect();
    provider.read_replicas(request, &value(live), &replicas)
}

/// Progress of the model.
enum Standing {
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
fn standing(
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
    if let Some(left) = reading.settled_at.and_then(|until| verify::left(seen, until))
        && !verify::is_verified(seen)
        && !has_begun_to_change(seen)
    {
        return Standing::Settling(left);
    }
    match verify::endpoint(seen, prepared, live) {
        Endpoint::Answered { message } => Standing::Serves { message },
        Endpoint::Asking(probe) => Standing::Asking(probe),
        Endpoint::NotAnswering { message, next } => Standing::NotAnswering { message, next },
    }
}

/// Whether the upstream was seen working on this generation: it has reported another state than the one before the change.
fn has_begun_to_change(seen: &Observed) -> bool {
    let ready = seen.md.conditions().when_false(condition::READY);
    ready.is_some_and(|c| c.observed_generation == seen.md.metadata.generation && c.reason != ProviderReason::Updating)
}

/// Whether the status says that the upstream has not seen the change yet, and `reason` that it works on it.
fn begins_to_change(seen: &Observed, reason: &str) -> bool {
    let ready = seen.md.conditions().when_false(condition::READY);
    ready.is_some_and(|c| c.reason == ProviderReason::Updating) && reason != ProviderReason::Updating.as_str()
}

impl Standing {
    /// Reason and message.
    fn words(&self, seen: &Observed, reading: &Reading, main: &str, ready: i32) -> (String, String) {
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
    fn ready_message<'a>(&'a self, message: &'a str) -> &'a str {
        match self {
            Self::Serves { message } => message,
            _ => message,
        }
    }

    /// Whether the state lasts only a moment.
    fn passes(&self) -> bool {
        matches!(self, Self::Applying | Self::Asking(_))
    }

    fn phase(&self, reading: &Reading) -> Phase {
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

    fn event(&self, phase: Phase, message: String) -> Option<Note> {
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
    fn staleness(&self, seen: &Observed, created: Option<Timestamp>, reading: &Reading) -> Staleness {
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
    fn decide(self, mut plan: Plan) -> Decision {
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

/// Whether the last attempt to create the upstream object was rejected.
fn was_rejected(seen: &Observed) -> bool {
    let created = seen.md.conditions().when_false(condition::RESOURCE_CREATED);
    created.is_some_and(|c| c.reason == ProviderReason::NameTaken || c.reason == ProviderReason::ResourceRejected)
}

/// Whether the provider has written a status.
fn has_spoken(seen: &Observed) -> bool {
    let phase = seen.md.status.as_ref().and_then(|status| status.phase);
    matches!(phase, Some(Phase::Pending | Phase::Deploying | Phase::Running))
}

/// Time until the upstream has been unchanged for [`SETTLED_AFTER`]. While it starts, it reports something new every second; a
/// phase is written at once, a message when it has settled.
fn time_to_settle(now: Timestamp, last_change: Option<Timestamp>) -> Option<Duration> {
    let since = now.duration_since(last_change?);
    Duration::try_from(SETTLED_AFTER - since)
        .ok()
        .filter(|left| !left.is_zero())
}

/// Whether a plan would change only messages and counts of work in progress, or report that the object which was being created
/// exists.
fn is_mere_progress(seen: &Observed, plan: &Plan) -> bool {
    let wanted = plan
        .status
        .clone()
        .and_then(|s| serde_json::from_value::<ModelDeploymentStatus>(s).ok());
    let (Some(before), Some(wanted)) = (seen.md.status.as_ref().map(owned), wanted) else {
        return false;
    };
    let created = before.conditions.get_condition(condition::RESOURCE_CREATED);
    let is_creation = created.is_some_and(|c| c.reason == ProviderReason::Creating);
    let wordless = |status: &ModelDeploymentStatus| {
        let conditions: Vec<_> = status
            .conditions
            .iter()
            .filter(|c| !(is_creation && c.type_ == condition::RESOURCE_CREATED))
            .map(|c| (c.type_.clone(), c.status.clone()))
            .collect();
        let rest = ModelDeploymentStatus {
            message: None,
            replicas: None,
            conditions: Vec::new(),
            ..status.clone()
        };
        (rest, conditions)
    };
    matches!(wanted.phase, Some(Phase::Pending | Phase::Deploying)) && wordless(&before) == wordless(&wanted)
}

/// Status while the old object is deleted, before the new one is created.
pub(super) fn recreating(provider: &dyn Provider, seen: &Observed, prepared: &Prepared, reasons: &[String]) -> Plan {
    let previous = seen.md.conditions().get_condition(condition::RESOURCE_CREATED);
    let message = if reasons.is_empty() {
        // Deletion is in progress: the message stays.
        previous.filter(|c| c.reason == ProviderReason::Recreating).map_or_else(
            || "Waiting for the old resource to be deleted".to_owned(),
            |c| c.message.clone(),
        )
    } else {
        format!("Recreating: {}", reasons.join("; "))
    };
    let mut drafts = vec![
        compatible(provider),
        no(condition::RESOURCE_CREATED, ProviderReason::Recreating, &message),
        no(condition::READY, ProviderReason::Recreating, &message),
    ];
    if let Some(child) = upstream_object(provider, seen)
        && let Some(since) = &child.object.metadata.deletion_timestamp
    {
        let name = child.kind.named(&child.object.name_any());
        drafts.extend(stale(seen, &name, &staleness(seen, [Some(since.0), None])));
    }
    let status = ModelDeploymentStatus {
        phase: Some(Phase::Deploying),
        message: Some(message),
        provider: resource_of(provider, seen),
        replicas: Some(Replicas {
            desired: Some(prepared.translation.replicas),
            ready: Some(0),
            available: Some(0),
        }),
        ..ModelDeploymentStatus::default()
    };
    write(seen, status, drafts, None)
}

/// Status with the objects that would be applied.
pub(super) fn dry_run(provider: &dyn Provider, seen: &Observed, prepared: &Prepared) -> Plan {
    let objects: Vec<Value> = prepared
        .translation
        .objects
        .iter()
        .map(|object| {
            let apply = objects::apply(&seen.md, provider.name(), object, None);
            serde_json::to_value(&apply.object).unwrap_or_default()
        })
        .collect();
    let names = prepared
        .translation
        .objects
        .iter()
        .map(|o| o.kind.named(&o.name))
        .collect::<Vec<_>>()
        .join(", ");
    let message = format!("Dry run: would apply {names}; see status.plan");
    let way_out = format!("Remove the annotation {} to continue", runway_api::labels::DRY_RUN);
    let mut drafts = vec![
        compatible(provider),
        yes(condition::DRY_RUN, ProviderReason::DryRun, way_out),
        no(
            condition::READY,
            ProviderReason::DryRun,
            "Nothing is applied in a dry run",
        ),
    ];
    drafts.extend(ignored(prepared));
    let status = ModelDeploymentStatus {
        phase: Some(Phase::Pending),
        message: Some(message),
        plan: Some(DryRun { objects }),
        ..left_as_is(provider, seen)
    };
    write(seen, status, drafts, None)
}

/// Status while all objects are deleted.
pub(super) fn terminating(provider: &dyn Provider, seen: &Observed, message: String) -> Plan {
    let drafts = vec![no(condition::READY, ProviderReason::Terminating, &message)];
    let status = ModelDeploymentStatus {
        phase: Some(Phase::Terminating),
        message: Some(message),
        provider: resource_of(provider, seen),
        ..ModelDeploymentStatus::default()
    };
    write(seen, status, drafts, None)
}

/// Removes the provider's part of the status.
pub(super) fn cleared(seen: &Observed) -> Plan {
    let ours = seen.md.status.as_ref().map(owned).unwrap_or_default();
    let status = (ours != ModelDeploymentStatus::default()).then(|| Value::Object(serde_json::Map::new()));
    Plan {
        status,
        status_guarded: GUARDED,
        ..Plan::default()
    }
}

/// The part of a status that a provider owns while it is selected.
pub fn owned(status: &ModelDeploymentStatus) -> ModelDeploymentStatus {
    let provider = status.provider.as_ref().map(|p| ProviderStatus {
        resource_kind: p.resource_kind.clone(),
        resource_name: p.resource_name.clone(),
        ..ProviderStatus::default()
    });
    ModelDeploymentStatus {
        provider: provider.filter(|p| *p != ProviderStatus::default()),
        conditions: condition::owned_by(&status.conditions, &[Owner::Provider, Owner::Shared]),
        ..status.clone()
    }
}

/// Settles conditions, and writes the status only if it differs. The Event is sent if its reason is new.
fn write(seen: &Observed, mut status: ModelDeploymentStatus, drafts: Vec<Draft>, event: Option<Note>) -> Plan {
    let md = &seen.md;
    let reason_before = md
        .conditions()
        .get_condition(condition::READY)
        .map(|c| c.reason.clone());
    let reason_now = drafts
        .iter()
        .find(|d| d.is(condition::READY))
        .map(|d| d.reason().to_owned());
    let event_is_new = reason_before != reason_now;
    status.observed_generation = md.metadata.generation;
    status.message = status
        .message
        .map(|text| condition::shorten(text, condition::MAX_STATUS_MESSAGE));
    status.conditions = condition::settle(drafts, md.conditions(), md.metadata.generation, seen.now);
    let wanted = owned(&status);
    let before = md.status.as_ref().map(owned).unwrap_or_default();
    let unchanged = before == wanted;
    let mut events: Vec<Note> = event.into_iter().filter(|_| event_is_new).collect();
    events.extend(news(&before.conditions, &wanted.conditions));
    Plan {
        status: if unchanged {
            None
        } else {
            serde_json::to_value(&wanted).ok()
        },
        status_guarded: GUARDED,
        events,
        ..Plan::default()
    }
}

/// Warnings that are new or have a new message.
fn news(before: &[Condition], now: &[Condition]) -> Vec<Note> {
    [
        (condition::OVERRIDES_IGNORED, EventReason::OverridesIgnored),
        (condition::FIELDS_IGNORED, EventReason::FieldsIgnored),
        (condition::STALE_STATUS, EventReason::StaleStatus),
    ]
    .into_iter()
    .filter_map(|(type_, reason)| {
        let said = now.get_condition(type_)?;
        let told = before.get_condition(type_).is_some_and(|c| c.message == said.message);
        (!told).then(|| Note::new(reason, &said.message))
    })
    .collect()
}

/// The upstream object, while it exists.
fn upstream_object<'a>(provider: &dyn Provider, seen: &'a Observed) -> Option<&'a Child> {
    let upstreams: Vec<_> = provider.upstreams().into_iter().map(|u| u.kind).collect();
    let mut ours = seen.children.iter();
    ours.find(|c| upstreams.contains(&c.kind) && object::is_ours(seen.md.as_ref(), &c.object))
}

/// Kind and name of the upstream object, while it exists.
fn resource_of(provider: &dyn Provider, seen: &Observed) -> Option<ProviderStatus> {
    upstream_object(provider, seen).map(named)
}

fn named(child: &Child) -> ProviderStatus {
    ProviderStatus {
        resource_kind: Some(child.kind.kind.to_owned()),
        resource_name: Some(child.object.name_any()),
        ..ProviderStatus::default()
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

fn ignored(prepared: &Prepared) -> Vec<Draft> {
    let mut drafts = Vec::new();
    if !prepared.unknown_overrides.is_empty() {
        drafts.push(yes(
            condition::OVERRIDES_IGNORED,
            ProviderReason::UnknownKeys,
            prepared.unknown_overrides.join("; "),
        ));
    }
    if !prepared.translation.ignored.is_empty() {
        drafts.push(yes(
            condition::FIELDS_IGNORED,
            ProviderReason::NotSupportedHere,
            prepared.translation.ignored.join("; "),
        ));
    }
    if let Some(limit) = &prepared.translation.scaling_limit {
        drafts.push(yes(condition::SCALING_LIMITED, ProviderReason::FixedReplicas, limit));
    }
    drafts
}

#[derive(PartialEq, Eq)]
enum Staleness {
    Settled,
    In(Duration),
    Stale,
}

fn has_unready(seen: &Observed) -> bool {
    seen.pods.iter().flatten().any(|pod| !pod.is_ready())
}

/// Whether work in progress that last changed at one of these times is stale.
fn staleness(seen: &Observed, changes: [Option<Timestamp>; 2]) -> Staleness {
    // A model that was ready until a moment ago is not stale yet.
    let not_ready_since = seen
        .md
        .conditions()
        .get_condition(condition::READY)
        .filter(|c| c.status != "True")
        .map_or(seen.now, |c| c.last_transition_time.0);
    let last = changes
        .into_iter()
        .flatten()
        .chain([not_ready_since])
        .max()
        .unwrap_or(seen.now);
    match Duration::try_from(STALE_AFTER - seen.now.duration_since(last)) {
        Ok(left) if !left.is_zero() => Staleness::In(left),
        _ => Staleness::Stale,
    }
}
