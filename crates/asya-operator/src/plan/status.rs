//! The status. It is computed from the observed state each time, and written only if it differs. The holder of a binding stays in it
//! until the containers are removed.

use std::{iter, mem};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition as ConditionBefore, Time};
use kube::core::DynamicObject;
use runway_api::async_actor::{
    ActorState, BindingStatus, BrokerUser, CONDITIONS, Mode, RUNTIME_INJECTED, SCALING_READY, ScaleDirection,
    ScalingMode, TARGET_RESOLVED, TRANSPORT_READY, WARNING, WORKLOAD_READY,
};
use runway_api::condition::{self, Conditions as _, Draft as Condition, no, yes};
use runway_api::labels;
use runway_api::{ActorReason, AsyncActorStatus, CoreReason};
use runway_operator::apply;
use runway_operator::plan::{Apply, Note, Plan as KubePlan};
use serde_json::Value;

use super::binding::holder;
use super::part::{LOOK_AGAIN, Merged, Outcome, Part, Plan};
use super::transport::{Reading, broker_user};
use super::{objects, pods};
use crate::object::Key;
use crate::observe::Observed;
use crate::request::{Request, Work};
use crate::{names, needs};

/// The plan for an invalid spec, which bypassed the validation rules of the CRD. Existing objects stay as they are.
pub(super) fn invalid(seen: &Observed, wrong: &[String]) -> Plan {
    const REASON: &str = ActorState::Invalid.as_str();
    let before = seen.actor.status.clone().unwrap_or_default();
    let mode = if seen.actor.spec.workload_ref.is_some() {
        Mode::Binding
    } else {
        Mode::Standalone
    };
    let message = wrong.join("; ");
    let reported = before
        .conditions
        .iter()
        .any(|c| c.reason == REASON && c.message == message);
    let status = AsyncActorStatus {
        mode: Some(mode),
        observed_generation: seen.actor.metadata.generation,
        ..before
    };
    let drafts = vec![
        no(condition::READY, REASON, &message),
        yes(condition::STALLED, REASON, &message),
    ];
    let written = written(seen, status, drafts, ActorState::Invalid, message.clone());
    only(written, (!reported).then(|| Note::warning(REASON, message)))
}

/// The plan for a paused actor: only the status changes.
pub(super) fn paused(seen: &Observed) -> Plan {
    let paused = condition::paused(labels::ASYA_PAUSED);
    let word = paused.reason().to_owned();
    let message = paused.message().to_owned();
    let before = seen.actor.status.clone().unwrap_or_default();
    let is_news = !before.conditions.is_true(condition::PAUSED);
    let status = AsyncActorStatus {
        status: Some(word),
        message: Some(message.clone()),
        conditions: condition::settle_paused(paused, &before.conditions, seen.actor.metadata.generation, seen.now),
        ..before
    };
    let differs = seen.actor.status.as_ref() != Some(&status);
    only(
        differs.then(|| serde_json::to_value(&status).ok()).flatten(),
        is_news.then(|| Note::normal(CoreReason::Paused, message)),
    )
}

/// The status of a deleted actor that waits for something, if it differs from the present one.
pub(super) fn terminating(seen: &Observed, message: String) -> Option<Value> {
    let before = seen.actor.status.clone().unwrap_or_default();
    let mut drafts = kept(&before, &[condition::READY]);
    drafts.push(no(condition::READY, ActorState::Terminating.as_str(), &message));
    let status = AsyncActorStatus {
        observed_generation: seen.actor.metadata.generation,
        ..before
    };
    written(seen, status, drafts, ActorState::Terminating, message)
}

/// The status of a deleted actor whose cleanup the API server has refused. Empty for other errors.
pub(super) fn cleanup_refused(seen: &Observed, error: &apply::Error) -> Plan {
    let message = error.refusal();
    only(message.and_then(|message| terminating(seen, message)), None)
}

/// Conditions of a status as they are, except for some.
fn kept(before: &AsyncActorStatus, except: &[&str]) -> Vec<Condition> {
    let as_before = |c: &ConditionBefore| {
        let known = CONDITIONS.iter().find(|known| known.name == c.type_)?;
        let make = if c.status == "True" { yes } else { no };
        (!except.contains(&known.name)).then(|| make(known.name, &c.reason, &c.message))
    };
    before.conditions.iter().filter_map(as_before).collect()
}

/// A write that the API server rejected.
pub(super) struct Refusal {
    /// Condition that needs the object.
    type_: &'static str,
    state: ActorState,
    message: String,
}

impl Refusal {
    pub(super) fn new(seen: &Observed, (kind, name): (&str, &str), state: ActorState, message: String) -> Self {
        let type_ = match kind {
            "ScaledObject" | "TriggerAuthentication" => SCALING_READY,
            "ConfigMap" if name == names::authentication(&seen.name()) => SCALING_READY,
            "Secret" => TRANSPORT_READY,
            _ if seen.actor.spec.workload_ref.is_some() => RUNTIME_INJECTED,
            _ => WORKLOAD_READY,
        };
        Self { type_, state, message }
    }
}

/// The plan after the API server rejected an object: only the status of `planned` is written.
pub(super) fn refused(seen: &Observed, planned: Plan, refusal: Refusal) -> Plan {
    let Refusal { type_, state, message } = refusal;
    let reason = state.as_str();
    let mut conditions = seen.actor.conditions().iter();
    let reported = conditions.any(|c| c.type_ == type_ && c.reason == reason);
    only(planned.kube.status, (!reported).then(|| Note::warning(reason, message)))
}

/// Makes the plan: merges the parts of all steps, deletes children that no step wants, and settles the status.
pub(super) fn settle(
    seen: &Observed,
    request: &Request,
    transport: Reading<'_>,
    mut outcome: Outcome,
    refusal: Option<&Refusal>,
) -> Plan {
    let parts = iter::once(transport.part).chain(mem::take(&mut outcome.parts));
    let Merged {
        mut kube,
        mut conditions,
        warnings,
        wanted,
        keep_children,
    } = Part::merged(seen, parts);
    if !keep_children {
        let children = needs::children(&seen.actor).into_iter();
        kube.delete = children
            .filter(|key| !wanted.contains(key) && seen.live(key).is_some_and(|live| objects::is_leftover(seen, live)))
            .filter_map(|key| objects::deletion(seen, &key))
            .collect();
    }
    let shown = outcome.shown.clone();
    let shown = shown.as_ref().and_then(|key| Some((key, seen.live(key)?)));
    let broker_user = transport.usable.and_then(broker_user);
    let mut status = status(seen, request, (transport.queue, broker_user), outcome);
    if let Some(refusal) = refusal {
        conditions.retain(|condition| !condition.is(refusal.type_));
        conditions.push(no(refusal.type_, refusal.state.as_str(), &refusal.message));
    }
    if let Some(refusal) = refusal {
        let before = seen.actor.status.clone().unwrap_or_default();
        status.scaled_object_ref = before.scaled_object_ref;
        if refusal.type_ != SCALING_READY {
            // Nothing was written.
            status.binding = before.binding;
            status.workload_ref = before.workload_ref;
        }
    }
    let (word, ready, message) = match (refusal, problem(&conditions)) {
        (Some(refusal), _) => (refusal.state, false, refusal.message.clone()),
        (None, Some((word, message))) => (word, false, message),
        (None, None) => running(&status, shown, &kube.apply, seen.actor.status.as_ref()),
    };
    if word == ActorState::Updating {
        // In case the event at its end is lost.
        kube.look_again = Some(kube.look_again.map_or(LOOK_AGAIN, |after| after.min(LOOK_AGAIN)));
    }
    let make = if ready { yes } else { no };
    conditions.push(make(condition::READY, word.as_str(), &message));
    if !warnings.is_empty() {
        conditions.push(yes(WARNING, ActorReason::Warning, warnings.join("; ")));
    }
    kube.status = written(seen, status, conditions, word, message);
    Plan {
        kube,
        queue: transport.work,
    }
}

/// The status without what its conditions decide.
fn status(
    seen: &Observed,
    request: &Request,
    (queue, broker_user): (Option<String>, Option<BrokerUser>),
    outcome: Outcome,
) -> AsyncActorStatus {
    let live = outcome.shown.and_then(|key| seen.live(&key));
    let replicas = |path: &str| live.map(|live| count(live.data.pointer(path)));
    let desired_replicas = replicas("/spec/replicas").map(|count| count.unwrap_or(1));
    let (last_scale_time, last_scale_direction) = last_scale(seen, desired_replicas);
    let mode = match request.work {
        Work::Standalone(_) => Mode::Standalone,
        Work::Bound(_) => Mode::Binding,
    };
    AsyncActorStatus {
        mode: Some(mode),
        observed_generation: seen.actor.metadata.generation,
        queue,
        broker_user,
        workload_ref: outcome.workload_ref,
        resolved_target: outcome.resolved_target,
        binding: with_holder(seen, outcome.binding),
        conflict_count: Some(outcome.conflicts.count).filter(|count| *count > 0),
        last_conflict_time: outcome.conflicts.last_time,
        scaling_mode: outcome.scaled.mode,
        min_replicas: outcome.scaled.min,
        max_replicas: outcome.scaled.max,
        queue_active: outcome.scaled.queue_active,
        scaled_object_ref: outcome.scaled.reference,
        desired_replicas,
        total_replicas: replicas("/status/replicas").map(Option::unwrap_or_default),
        ready_replicas: replicas("/status/readyReplicas").map(Option::unwrap_or_default),
        last_scale_time,
        last_scale_direction,
        ..AsyncActorStatus::default()
    }
}

/// The binding with the holder of the containers, which stays in the status until the containers are out of it.
fn with_holder(seen: &Observed, binding: Option<BindingStatus>) -> Option<BindingStatus> {
    let recorded = seen.actor.status.as_ref().and_then(|s| s.binding.clone());
    let key = needs::previous_holder(&seen.actor).filter(|key| holder::held(seen, key).is_some());
    match (recorded, key) {
        (Some(recorded), Some(_)) if binding.as_ref().is_none_or(|b| b.holder.is_none()) => Some(BindingStatus {
            holder: recorded.holder,
            holder_uid: recorded.holder_uid,
            ..binding.unwrap_or_default()
        }),
        _ => binding,
    }
}

fn count(value: Option<&Value>) -> Option<i32> {
    value?.as_i64().and_then(|count| i32::try_from(count).ok())
}

/// Time and direction of the last change of the desired replicas. They are written together with the new number.
fn last_scale(seen: &Observed, desired: Option<i32>) -> (Option<Time>, Option<ScaleDirection>) {
    let before = seen.actor.status.as_ref();
    let direction = match (before.and_then(|s| s.desired_replicas), desired) {
        (Some(was), Some(is)) if is > was => ScaleDirection::Up,
        (Some(was), Some(is)) if is < was => ScaleDirection::Down,
        _ => {
            let time = before.and_then(|s| s.last_scale_time.clone());
            return (time, before.and_then(|s| s.last_scale_direction));
        }
    };
    (Some(Time(seen.now)), Some(direction))
}

/// State and message of an actor with a condition that does not hold. The first of these conditions counts.
fn problem(conditions: &[Condition]) -> Option<(ActorState, String)> {
    let bad = |type_: &str| conditions.iter().find(|c| c.is(type_) && !c.holds());
    let (state, condition) = if let Some(c) = bad(TARGET_RESOLVED) {
        let state = match ActorReason::of(c.reason()) {
            Some(ActorReason::TargetNotFound | ActorReason::TargetKindNotInstalled | ActorReason::TargetURLUnknown) => {
                ActorState::WaitingForTarget
            }
            _ => ActorState::BindingError,
        };
        (state, c)
    } else if let Some(c) = bad(TRANSPORT_READY) {
        let state = match ActorReason::of(c.reason()) {
            Some(ActorReason::QueuePending) => ActorState::Creating,
            _ => ActorState::TransportError,
        };
        (state, c)
    } else if let Some(c) = bad(RUNTIME_INJECTED) {
        let state = match ActorReason::of(c.reason()) {
            Some(ActorReason::ConflictDetected) => ActorState::Conflict,
            Some(ActorReason::ConflictLoopDetected) => ActorState::ConflictStopped,
            Some(ActorReason::AlreadyManaged) => ActorState::AlreadyManaged,
            Some(ActorReason::Leaving) => ActorState::Moving,
            _ => of_pods(c.reason()).unwrap_or(ActorState::BindingError),
        };
        (state, c)
    } else if let Some(c) = bad(WORKLOAD_READY).filter(|c| c.reason() != ActorReason::WorkloadCreated.as_str()) {
        (of_pods(c.reason()).unwrap_or(ActorState::WorkloadError), c)
    } else {
        let c = bad(SCALING_READY).filter(|c| c.reason() != ActorReason::ScaledObjectCreated.as_str())?;
        (ActorState::ScalingError, c)
    };
    Some((state, condition.message().to_owned()))
}

/// State of an actor whose pods fail, from the reason of the condition.
fn of_pods(reason: &str) -> Option<ActorState> {
    pods::WORDS.into_iter().find(|state| state.as_str() == reason)
}

/// State of an actor without problems, by its replicas: the state, whether the actor is ready, and the message.
fn running(
    status: &AsyncActorStatus,
    shown: Option<(&Key, &DynamicObject)>,
    applies: &[Apply],
    before: Option<&AsyncActorStatus>,
) -> (ActorState, bool, String) {
    let Some((what, live)) = shown else {
        return (ActorState::Creating, false, "The workload is being created".to_owned());
    };
    let desired = status.desired_replicas.unwrap_or(0);
    let (ready, total) = (status.ready_replicas.unwrap_or(0), status.total_replicas.unwrap_or(0));
    let scaled = status.scaling_mode == Some(ScalingMode::Keda);
    let updated = updated(live, total);
    let was = before.and_then(|s| ActorState::of(s.status.as_deref()?));
    match (desired, ready, total) {
        (0, _, 1..) => (
            ActorState::ScalingDown,
            true,
            format!("{what} is scaling down to 0 replicas"),
        ),
        (0, ..) if scaled => (
            ActorState::Napping,
            true,
            format!("{what} is scaled to zero until a message arrives"),
        ),
        (0, ..) => (ActorState::Stopped, true, format!("{what} has 0 replicas, as desired")),
        _ if updated < total
            && let Some(remedy) = held_back(live) =>
        {
            (
                ActorState::Updating,
                updated > 0 && ready > 0,
                format!("{what}: {updated} of {total} replicas are updated, and the others are not replaced: {remedy}"),
            )
        }
        _ if updated < total => (
            ActorState::Updating,
            ready > 0,
            format!("{what} is rolling out: {updated} of {total} replicas are updated, {ready} are ready"),
        ),
        _ if is_about_to_roll(what, live, applies, was) => {
            let message = format!("{what} is rolling out: its pods are being replaced");
            (ActorState::Updating, ready > 0, message)
        }
        _ if total > desired => (
            ActorState::ScalingDown,
            true,
            format!("{what}: {total} replicas, {desired} desired"),
        ),
        _ if ready >= desired => (
            ActorState::Running,
            true,
            format!("{what}: {ready} of {desired} replicas are ready"),
        ),
        (_, 0, _) => (
            match was {
                Some(ActorState::Napping | ActorState::ScalingUp | ActorState::WakingUp) => ActorState::WakingUp,
                _ => ActorState::Creating,
            },
            false,
            format!("{what}: 0 of {desired} replicas are ready"),
        ),
        _ => (
            ActorState::ScalingUp,
            true,
            format!("{what}: {ready} of {desired} replicas are ready"),
        ),
    }
}

/// Remedy for a workload that does not replace its pods by itself.
fn held_back(live: &DynamicObject) -> Option<&'static str> {
    let spec = &live.data["spec"];
    let strategy = &spec["updateStrategy"];
    if strategy["type"] == "OnDelete" {
        Some("spec.updateStrategy.type is OnDelete: delete the pods one by one, or set it to RollingUpdate")
    } else if strategy["rollingUpdate"]["partition"]
        .as_i64()
        .is_some_and(|partition| partition > 0)
    {
        Some("spec.updateStrategy.rollingUpdate.partition keeps the first pods: set it to 0")
    } else if spec["paused"] == true {
        Some("spec.paused is true: continue with kubectl rollout resume")
    } else {
        None
    }
}

/// Number of replicas with the current template.
fn updated(live: &DynamicObject, total: i32) -> i32 {
    let status = &live.data["status"];
    // The workload's controller omits a count of 0.
    match (
        count(status.get("updatedReplicas")),
        status["observedGeneration"].is_null(),
    ) {
        (Some(updated), _) => updated,
        (None, true) => total,
        (None, false) => 0,
    }
}

/// Whether this plan changes the workload, or an earlier one did and the workload's controller has not observed it yet.
fn is_about_to_roll(shown: &Key, live: &DynamicObject, applies: &[Apply], was: Option<ActorState>) -> bool {
    let is_changed = |apply: &Apply| {
        let name = apply.object.metadata.name.as_deref();
        apply.resource.kind == shown.kind.kind && name == Some(&shown.name) && !apply.unchanged
    };
    let observed = live.data["status"]["observedGeneration"].as_i64();
    let is_unseen = observed.is_some() && observed < live.metadata.generation;
    applies.iter().any(is_changed) || was == Some(ActorState::Updating) && is_unseen
}

/// The status with settled conditions, if it differs from the present one.
fn written(
    seen: &Observed,
    mut status: AsyncActorStatus,
    mut drafts: Vec<Condition>,
    state: ActorState,
    message: String,
) -> Option<Value> {
    drafts.sort_by_key(|draft| CONDITIONS.iter().position(|known| draft.is(known.name)));
    let before = seen.actor.status.as_ref();
    let conditions = before.map_or(&[][..], |status| &status.conditions);
    status.status = Some(state.to_string());
    status.message = Some(condition::shorten(message, condition::MAX_STATUS_MESSAGE));
    status.conditions = condition::settle(drafts, conditions, seen.actor.metadata.generation, seen.now);
    let same = before.is_some_and(|before| {
        let mut sorted = before.clone();
        sorted
            .conditions
            .sort_by_key(|c| CONDITIONS.iter().position(|known| known.name == c.type_));
        sorted == status
    });
    if same { None } else { serde_json::to_value(&status).ok() }
}

/// A plan that only writes the status and, if it is `news`, reports it in an Event.
fn only(status: Option<Value>, news: Option<Note>) -> Plan {
    Plan {
        kube: KubePlan {
            status,
            events: news.into_iter().collect(),
            ..KubePlan::default()
        },
        queue: None,
    }
}
