//! The provider's part of the status: computed from scratch each time, written only if it differs.
//!
//! | module | what |
//! |---|---|
//! | `self` | the status in each situation |
//! | `standing` | progress of a model that is being served |
//! | `staleness` | age of work in progress |
//! | `pace` | changes that wait |
//! | `write` | the write |

mod pace;
mod staleness;
mod standing;
mod write;

use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::condition::{self, Conditions, Draft, no, yes};
use runway_api::model_deployment::{DryRun, Phase, ProviderStatus, Replicas};
use runway_api::{CoreReason, EventReason, ModelDeploymentStatus, ProviderReason};
use runway_operator::object;
use runway_operator::plan::{Note, Plan, Rehearsal};
use serde_json::Value;

use self::pace::{begins_to_change, has_spoken, is_mere_progress, time_to_settle, was_rejected};
use self::staleness::{Staleness, stale, staleness};
use self::standing::{Standing, standing, still_serving};
use self::write::write;
use super::Decision;
use super::census;
use super::objects;
use super::pods::{self, Obstacle};
use super::prepare::{self, Blocked, Prepared};
use super::verify;
use crate::contract::{Provider, Reading};
use crate::observe::{Child, Observed};
use crate::request::Request;
use crate::settings::InvalidSettings;
use crate::upstream::State;

pub(super) use self::write::cleared;
pub use self::write::owned;

/// Interval of checks while the result of a write or request is pending, in case the watch misses it.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

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
    let reported_at_once = event.is_some();
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
        && !reported_at_once
        && !begins_to_change(seen, &reason)
        && is_mere_progress(seen, &plan)
    {
        plan.status = None;
        plan.look_again = Some(left);
    }
    standing.decide(plan)
}

/// Reads the status of the main object, and of the objects of its replicas.
fn read(provider: &dyn Provider, seen: &Observed, request: &Request, live: &DynamicObject) -> Reading {
    let value = |object: &DynamicObject| serde_json::to_value(object).unwrap_or_default();
    let replicas = provider.replica_objects();
    let replicas: Vec<Value> = replicas.into_iter().flat_map(|o| seen.replicas(o)).map(value).collect();
    provider.read_replicas(request, &value(live), &replicas)
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
