//! The status: computed from what is seen, from scratch, each time; written only when it differs. What must be taken out of objects of
//! others is carried on until it is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use runway_api::AsyncActorStatus;
use runway_api::async_actor::{
    ActorState, BindingStatus, Mode, RUNTIME_INJECTED, SCALING_READY, ScaleDirection, ScalingMode, TARGET_RESOLVED,
    TRANSPORT_READY, WARNING, WORKLOAD_READY,
};
use runway_api::condition::{self, Conditions as _, Draft as Condition, no, yes};
use runway_api::labels;
use runway_operator::plan::{Apply, Note};
use serde_json::Value;

use super::pods::{self, Trouble};
use super::{Draft, LOOK_AGAIN, Plan, binding};
use crate::names;
use crate::observe::{Key, Observed};

/// Longest message of a status, in bytes.
const MAX_MESSAGE: usize = 4096;

/// The order in which conditions are told.
const ORDER: [&str; 9] = [
    TARGET_RESOLVED,
    RUNTIME_INJECTED,
    WORKLOAD_READY,
    TRANSPORT_READY,
    SCALING_READY,
    condition::READY,
    condition::STALLED,
    condition::PAUSED,
    WARNING,
];

/// Whether a workload of ours is well.
pub(super) fn workload(draft: &mut Draft<'_>, key: &Key) {
    let condition = match trouble(draft, key) {
        Some(trouble) => bad_news(draft, WORKLOAD_READY, &trouble, key),
        None if draft.seen.live(key).is_none() => no(
            WORKLOAD_READY,
            "WorkloadCreated",
            format!("{} is being made", key.told()),
        ),
        None => yes(WORKLOAD_READY, "WorkloadCreated", format!("{} exists", key.told())),
    };
    draft.conditions.push(condition);
}

/// What keeps a workload of ours from working: no pod may be made, or those made do not work, or they never become ready.
pub(super) fn trouble(draft: &mut Draft<'_>, key: &Key) -> Option<Trouble> {
    let live = draft.seen.live(key)?;
    let conditions = live.data["status"]["conditions"].as_array();
    let said = |type_: &str, status: &str| {
        let found = conditions
            .into_iter()
            .flatten()
            .find(|c| c["type"] == type_ && c["status"] == status)?;
        let part = |key: &str| found[key].as_str().unwrap_or_default();
        Some(Trouble {
            word: ActorState::WorkloadError,
            message: format!("{} ({})", part("message"), part("reason")),
        })
    };
    said("ReplicaFailure", "True")
        .or_else(|| pods::judge(draft, true))
        .or_else(|| said("Progressing", "False"))
}

/// The condition that tells of a trouble; an Event does the first time.
pub(super) fn bad_news(draft: &mut Draft<'_>, type_: &'static str, trouble: &Trouble, key: &Key) -> Condition {
    let message = format!("{}: {}", key.told(), trouble.message);
    let word = trouble.word.as_str();
    draft.news(type_, Note::warning(word, &message));
    no(type_, word, message)
}

/// The schema's rules were bypassed. Nothing is done; what an earlier spec asked for goes on.
pub(super) fn invalid(seen: &Observed, wrong: &[String]) -> Plan {
    const REASON: &str = ActorState::Invalid.as_str();
    let before = seen.actor.status.clone().unwrap_or_default();
    let mode = if seen.actor.spec.workload_ref.is_some() {
        Mode::Binding
    } else {
        Mode::Standalone
    };
    let message = wrong.join("; ");
    let told = before
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
    let mut plan = write(seen, status, drafts, ActorState::Invalid, message.clone());
    if !told {
        plan.kube.events.push(Note::warning(REASON, message));
    }
    plan
}

/// Nothing changes but that it says so.
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
    let mut plan = Plan::default();
    if seen.actor.status.as_ref() != Some(&status) {
        plan.kube.status = serde_json::to_value(&status).ok();
    }
    if is_news {
        plan.kube.events.push(Note::normal("Paused", message));
    }
    plan
}

/// An object of this kind was not accepted: what was said stays, but for the part that this is about.
pub(super) fn refused(seen: &Observed, (kind, name): (&str, &str), state: ActorState, message: String) -> Plan {
    let reason = state.as_str();
    let before = seen.actor.status.clone().unwrap_or_default();
    let type_ = match kind {
        "ScaledObject" | "TriggerAuthentication" => SCALING_READY,
        "ConfigMap" if name == names::authentication(&seen.name()) => SCALING_READY,
        _ if seen.actor.spec.workload_ref.is_some() => RUNTIME_INJECTED,
        _ => WORKLOAD_READY,
    };
    let told = before.conditions.iter().any(|c| c.type_ == type_ && c.reason == reason);
    let mut drafts: Vec<Condition> = before
        .conditions
        .iter()
        .filter_map(|c| {
            let known = ORDER
                .into_iter()
                .find(|t| *t == c.type_ && *t != type_ && *t != condition::READY)?;
            let make = if c.status == "True" { yes } else { no };
            Some(make(known, &c.reason, &c.message))
        })
        .collect();
    drafts.push(no(type_, reason, &message));
    drafts.push(no(condition::READY, reason, &message));
    let status = AsyncActorStatus {
        observed_generation: seen.actor.metadata.generation,
        ..before
    };
    let mut plan = write(seen, status, drafts, state, message.clone());
    if !told {
        plan.kube.events.push(Note::warning(reason, message));
    }
    plan
}

/// Puts a plan's status together.
pub(super) fn settle(mut draft: Draft<'_>) -> Plan {
    let seen = draft.seen;
    not_forgotten(&mut draft);
    count_replicas(&mut draft);
    remember_scaling(&mut draft);
    let (word, ready, message) = in_a_word(&draft);
    if word == ActorState::Updating {
        // In case its end is not seen.
        draft.look_again(LOOK_AGAIN);
    }
    let mut drafts = std::mem::take(&mut draft.conditions);
    drafts.push(if ready {
        yes(condition::READY, word.as_str(), &message)
    } else {
        no(condition::READY, word.as_str(), &message)
    });
    if !draft.warnings.is_empty() {
        drafts.push(yes(WARNING, "Warning", draft.warnings.join("; ")));
    }
    let written = write(seen, std::mem::take(&mut draft.status), drafts, word, message);
    let mut plan = Plan {
        kube: draft.kube,
        queue: draft.queue,
    };
    plan.kube.status = written.kube.status;
    plan
}

/// While an object of somebody else's holds what is ours, the status says which.
fn not_forgotten(draft: &mut Draft<'_>) {
    let recorded = draft.seen.actor.status.as_ref().and_then(|s| s.binding.clone());
    let Some((recorded, key)) = recorded.zip(binding::previous_holder(&draft.seen.actor)) else {
        return;
    };
    let names_one = draft.status.binding.as_ref().is_some_and(|b| b.holder.is_some());
    if !names_one && binding::held(draft.seen, &key).is_some() {
        let binding = draft.status.binding.get_or_insert_with(BindingStatus::default);
        binding.holder = recorded.holder;
        binding.holder_uid = recorded.holder_uid;
    }
}

fn count_replicas(draft: &mut Draft<'_>) {
    let Some(live) = draft.shown.as_ref().and_then(|key| draft.seen.live(key)) else {
        return;
    };
    let count = |path: &str| {
        live.data
            .pointer(path)
            .and_then(Value::as_i64)
            .and_then(|n| i32::try_from(n).ok())
    };
    draft.status.desired_replicas = count("/spec/replicas").or(Some(1));
    draft.status.total_replicas = count("/status/replicas").or(Some(0));
    draft.status.ready_replicas = count("/status/readyReplicas").or(Some(0));
}

/// When the replicas asked for were others last, and which way that went. Written with the new number, so with nothing else.
fn remember_scaling(draft: &mut Draft<'_>) {
    let before = draft.seen.actor.status.as_ref();
    let count = |status: &AsyncActorStatus| status.desired_replicas;
    let (was, is) = (before.and_then(count), count(&draft.status));
    let direction = match (was, is) {
        (Some(was), Some(is)) if is > was => Some(ScaleDirection::Up),
        (Some(was), Some(is)) if is < was => Some(ScaleDirection::Down),
        _ => None,
    };
    draft.status.last_scale_time = before.and_then(|s| s.last_scale_time.clone());
    draft.status.last_scale_direction = before.and_then(|s| s.last_scale_direction);
    if direction.is_some() {
        draft.status.last_scale_time = Some(Time(draft.seen.now));
        draft.status.last_scale_direction = direction;
    }
}

/// What is going on: a word, whether that is well, and a sentence.
fn in_a_word(draft: &Draft<'_>) -> (ActorState, bool, String) {
    let bad = |type_: &str| draft.conditions.iter().find(|c| c.is(type_) && !c.holds());
    let problem = |word: ActorState, c: &Condition| (word, false, c.message().to_owned());
    if let Some(c) = bad(TARGET_RESOLVED) {
        let waits = ["TargetNotFound", "TargetKindNotInstalled", "TargetURLUnknown"].contains(&c.reason());
        return problem(
            if waits {
                ActorState::WaitingForTarget
            } else {
                ActorState::BindingError
            },
            c,
        );
    }
    if let Some(c) = bad(TRANSPORT_READY) {
        return problem(
            if c.reason() == "QueuePending" {
                ActorState::Creating
            } else {
                ActorState::TransportError
            },
            c,
        );
    }
    if let Some(c) = bad(RUNTIME_INJECTED) {
        return problem(
            match c.reason() {
                "ConflictDetected" => ActorState::Conflict,
                "ConflictLoopDetected" => ActorState::ConflictStopped,
                "AlreadyManaged" => ActorState::AlreadyManaged,
                "Leaving" => ActorState::Moving,
                reason => of_pods(reason).unwrap_or(ActorState::BindingError),
            },
            c,
        );
    }
    if let Some(c) = bad(WORKLOAD_READY).filter(|c| c.reason() != "WorkloadCreated") {
        return problem(of_pods(c.reason()).unwrap_or(ActorState::WorkloadError), c);
    }
    if let Some(c) = bad(SCALING_READY).filter(|c| c.reason() != "ScaledObjectCreated") {
        return problem(ActorState::ScalingError, c);
    }
    replicas_in_a_word(draft)
}

/// The state of an actor whose pods do not work, by the reason of its condition.
fn of_pods(reason: &str) -> Option<ActorState> {
    pods::WORDS.into_iter().find(|state| state.as_str() == reason)
}

fn replicas_in_a_word(draft: &Draft<'_>) -> (ActorState, bool, String) {
    let status = &draft.status;
    let Some(shown) = draft.shown.as_ref().filter(|key| draft.seen.live(key).is_some()) else {
        return (ActorState::Creating, false, "The workload is being made".to_owned());
    };
    let desired = status.desired_replicas.unwrap_or(0);
    let (ready, total) = (status.ready_replicas.unwrap_or(0), status.total_replicas.unwrap_or(0));
    let scaled = status.scaling_mode == Some(ScalingMode::Keda);
    let what = shown.told();
    let updated = draft.seen.live(shown).map_or(total, |live| updated(live, total));
    match (desired, ready, total) {
        (0, _, 1..) => (ActorState::ScalingDown, true, format!("{what} goes to 0 replicas")),
        (0, ..) if scaled => (
            ActorState::Napping,
            true,
            format!("{what} sleeps until a message comes"),
        ),
        (0, ..) => (
            ActorState::Stopped,
            true,
            format!("{what} has 0 replicas, as asked for"),
        ),
        _ if updated < total => (
            ActorState::Updating,
            ready > 0,
            format!("{what} is rolled out: {updated} of {total} replicas are new, {ready} are ready"),
        ),
        _ if is_about_to_roll(draft, shown) => {
            let message = format!("{what} is rolled out: its pods give way to new ones");
            (ActorState::Updating, ready > 0, message)
        }
        _ if total > desired => (
            ActorState::ScalingDown,
            true,
            format!("{what}: {total} replicas, {desired} asked for"),
        ),
        _ if ready >= desired => (
            ActorState::Running,
            true,
            format!("{what}: {ready} of {desired} replicas are ready"),
        ),
        (_, 0, _)
            if status_was(
                draft,
                &[ActorState::Napping, ActorState::ScalingUp, ActorState::WakingUp],
            ) =>
        {
            (
                ActorState::WakingUp,
                false,
                format!("{what}: 0 of {desired} replicas are ready"),
            )
        }
        (_, 0, _) => (
            ActorState::Creating,
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

/// How many of the replicas there are have the present template.
fn updated(live: &DynamicObject, total: i32) -> i32 {
    let status = &live.data["status"];
    let count = |count: &Value| count.as_i64().and_then(|n| i32::try_from(n).ok());
    // A controller that has looked counts, and leaves out a count of 0.
    match (
        count(&status["updatedReplicas"]),
        status["observedGeneration"].is_null(),
    ) {
        (Some(updated), _) => updated,
        (None, true) => total,
        (None, false) => 0,
    }
}

/// Whether this plan changes the workload, or one did and the workload's controller has not seen it yet.
fn is_about_to_roll(draft: &Draft<'_>, shown: &Key) -> bool {
    let is_it = |apply: &&Apply| {
        let name = apply.object.metadata.name.as_deref();
        apply.resource.kind == shown.kind.kind && name == Some(&shown.name) && !apply.unchanged
    };
    let not_seen = |live: &DynamicObject| {
        let observed = live.data["status"]["observedGeneration"].as_i64();
        observed.is_some() && observed < live.metadata.generation
    };
    draft.kube.apply.iter().any(|apply| is_it(&apply))
        || status_was(draft, &[ActorState::Updating]) && draft.seen.live(shown).is_some_and(not_seen)
}

fn status_was(draft: &Draft<'_>, states: &[ActorState]) -> bool {
    let before = draft.seen.actor.status.as_ref().and_then(|s| s.status.as_deref());
    before
        .and_then(ActorState::of)
        .is_some_and(|state| states.contains(&state))
}

/// Settles conditions and writes only what differs.
fn write(
    seen: &Observed,
    mut status: AsyncActorStatus,
    mut drafts: Vec<Condition>,
    state: ActorState,
    message: String,
) -> Plan {
    drafts.sort_by_key(|draft| ORDER.iter().position(|type_| draft.is(type_)));
    let before = seen.actor.status.clone().unwrap_or_default();
    status.status = Some(state.to_string());
    status.message = Some(condition::shorten(message, MAX_MESSAGE));
    status.conditions = condition::settle(drafts, &before.conditions, seen.actor.metadata.generation, seen.now);
    let same = seen.actor.status.as_ref().is_some_and(|before| {
        let mut sorted = before.clone();
        sorted
            .conditions
            .sort_by_key(|c| ORDER.iter().position(|type_| *type_ == c.type_));
        sorted == status
    });
    let mut plan = Plan::default();
    if !same {
        plan.kube.status = serde_json::to_value(&status).ok();
    }
    plan
}
