//! The values that the steps of planning return: [`Outcome`] and its [`Part`]s, of which `plan` makes one [`Plan`].

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runway_api::async_actor::{BindingStatus, ObjectRef, ScalingMode};
use runway_api::condition::{Draft as Condition, no};
use runway_operator::plan::{Apply, Edit, Finalizer, Note, Plan as KubePlan, Trial};

use crate::object::Key;
use crate::observe::Observed;
use crate::queue::QueueWork;

/// Time until the next look at an object that must go first, in case the event of its deletion is lost.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// Everything to do for one actor.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Writes to the cluster.
    pub kube: KubePlan,
    /// Work at the broker. It comes first; then everything is observed and planned again.
    pub queue: Option<QueueWork>,
}

impl Plan {
    /// Whether carrying it out would send nothing.
    pub fn is_silent(&self) -> bool {
        self.kube.is_silent() && self.queue.is_none()
    }
}

/// Result of planning an actor's work: fields of the status, and parts of the plan in the order in which they apply.
#[derive(Default)]
pub(super) struct Outcome {
    /// The workload whose replicas the status shows.
    pub(super) shown: Option<Key>,
    pub(super) workload_ref: Option<ObjectRef>,
    pub(super) resolved_target: Option<ObjectRef>,
    pub(super) binding: Option<BindingStatus>,
    pub(super) conflicts: Conflicts,
    pub(super) scaled: Scaled,
    pub(super) parts: Vec<Part>,
}

/// Conflicts with other writers about the target.
#[derive(Clone, Debug, Default)]
pub(super) struct Conflicts {
    pub(super) count: i32,
    pub(super) last_time: Option<Time>,
}

/// Scaling, as the status shows it.
#[derive(Default)]
pub(super) struct Scaled {
    pub(super) mode: Option<ScalingMode>,
    pub(super) min: Option<i32>,
    pub(super) max: Option<i32>,
    pub(super) queue_active: Option<bool>,
    /// The ScaledObject.
    pub(super) reference: Option<ObjectRef>,
}

/// Addition of one step of planning to the plan.
#[derive(Default)]
pub(super) struct Part {
    pub(super) conditions: Vec<Condition>,
    pub(super) events: Vec<Note>,
    pub(super) warnings: Vec<String>,
    /// Pods that a write to a pod template leads to.
    pub(super) trials: Vec<Trial>,
    /// Write to an object that the actor does not own, by server-side apply.
    pub(super) apply: Option<Apply>,
    /// Write to an object that the actor does not own, by a guarded merge patch.
    pub(super) edit: Option<Edit>,
    /// Objects that the actor owns. Others of its children are deleted, unless a part keeps them.
    pub(super) children: Vec<(Key, Apply)>,
    /// Whether children that are not wanted stay: what cannot be decided now is not torn down.
    pub(super) keep_children: bool,
    /// Whether the actor must not be deleted without cleaning up.
    pub(super) needs_finalizer: bool,
    pub(super) look_again: Option<Duration>,
}

impl Part {
    /// A condition.
    pub(super) fn says(condition: Condition) -> Self {
        Self {
            conditions: vec![condition],
            ..Self::default()
        }
    }

    /// A condition that does not hold, and an Event when it gets this reason.
    pub(super) fn fails(
        seen: &Observed,
        type_: &'static str,
        reason: impl Into<&'static str>,
        message: String,
    ) -> Self {
        let reason = reason.into();
        let mut conditions = seen.actor.conditions().iter();
        let is_new = !conditions.any(|c| c.type_ == type_ && c.reason == reason);
        Self {
            events: is_new.then(|| Note::warning(reason, &message)).into_iter().collect(),
            conditions: vec![no(type_, reason, message)],
            ..Self::default()
        }
    }

    /// A child of the actor.
    pub(super) fn child(key: Key, apply: Apply) -> Self {
        Self {
            children: vec![(key, apply)],
            ..Self::default()
        }
    }

    /// All parts as one, in this order.
    pub(super) fn merged(seen: &Observed, parts: impl IntoIterator<Item = Self>) -> Merged {
        let mut merged = Merged::default();
        let mut children = Vec::new();
        for part in parts {
            merged.conditions.extend(part.conditions);
            merged.warnings.extend(part.warnings);
            merged.keep_children |= part.keep_children;
            merged.kube.events.extend(part.events);
            merged.kube.look_again = [merged.kube.look_again, part.look_again].into_iter().flatten().min();
            if part.needs_finalizer && !seen.actor.has_finalizer() {
                merged.kube.finalizer = Finalizer::Add;
            }
            merged.kube.trials.extend(part.trials);
            merged.kube.apply.extend(part.apply);
            merged.kube.edit.extend(part.edit);
            for (key, apply) in part.children {
                merged.wanted.push(key);
                children.push(apply);
            }
        }
        merged.kube.apply.extend(children);
        merged
    }
}

/// All parts of a plan.
#[derive(Default)]
pub(super) struct Merged {
    pub(super) kube: KubePlan,
    pub(super) conditions: Vec<Condition>,
    pub(super) warnings: Vec<String>,
    pub(super) wanted: Vec<Key>,
    pub(super) keep_children: bool,
}
