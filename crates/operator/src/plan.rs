//! Result of a pure planner. The executor in [`crate::apply`] makes no decisions.

use std::time::Duration;

use kube::core::{ApiResource, DynamicObject};
use runway_api::EventReason;
use serde_json::Value;

/// Everything to do for one object, in this order: add the finalizer, delete, apply, write the status, remove the finalizer.
/// With `status_first` the status is written before anything is deleted or applied.
///
/// ```
/// use runway_api::EventReason;
/// use runway_operator::plan::{Note, Plan};
///
/// assert!(Plan::default().is_silent());
/// let plan = Plan {
///     events: vec![Note::new(EventReason::ResourceCreated, "Created Deployment 'web'")],
///     ..Plan::default()
/// };
/// assert!(!plan.is_silent());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Change of our finalizer.
    pub finalizer: Finalizer,
    /// Objects to delete.
    pub delete: Vec<Delete>,
    /// Objects to apply, in order.
    pub apply: Vec<Apply>,
    /// Changes of other owners' objects that server-side apply cannot express; after `apply`.
    pub edit: Vec<Edit>,
    /// The dry run before the first object is applied.
    pub rehearsal: Rehearsal,
    /// The complete status fields of this controller; `None` leaves the status unchanged.
    pub status: Option<Value>,
    /// Write the status only if the object is still as observed, because another writer may be changing it at the same time.
    pub status_guarded: bool,
    /// Write the status before other objects: it records an object that is about to be created, so that it is known also if the
    /// controller stops in between.
    pub status_first: bool,
    /// Status fields of another field manager that does not write them itself; written before ours.
    pub status_of: Option<StatusOf>,
    /// Events, once per change.
    pub events: Vec<Note>,
    /// Time until the next reconcile, if no change triggers one earlier.
    pub look_again: Option<Duration>,
}

impl Plan {
    /// Whether carrying it out would send no request.
    pub fn is_silent(&self) -> bool {
        self.finalizer == Finalizer::Keep
            && self.delete.is_empty()
            && self.apply.iter().all(|a| a.unchanged)
            && self.edit.is_empty()
            && self.status.is_none()
            && self.status_of.is_none()
            && self.events.is_empty()
    }
}

/// Objects that are sent as a dry run before the first one is applied, so that a rejection leaves nothing half created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rehearsal {
    /// None: the objects may be applied one by one.
    None,
    /// All but the first: if that one is rejected, nothing has been applied.
    #[default]
    AllButFirst,
    /// All: nothing is written, not even a status that is written first. For a plan that was rejected before.
    All,
}

/// Status fields that are written for another field manager.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusOf {
    /// The field manager.
    pub manager: String,
    /// All of its fields; an empty object removes them.
    pub status: Value,
    /// Write them only if the object is still as observed: the manager may be writing them itself.
    pub guarded: bool,
}

impl StatusOf {
    /// Removes the fields of a field manager that no longer writes.
    pub fn dropped(manager: String) -> Self {
        Self {
            manager,
            status: Value::Object(serde_json::Map::new()),
            guarded: false,
        }
    }
}

/// Change of our finalizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finalizer {
    /// No change.
    #[default]
    Keep,
    /// Add it before any object is created.
    Add,
    /// Remove it after all objects are gone.
    Remove,
}

/// An object to apply.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent of each other")]
pub struct Apply {
    /// Location of its kind in the API.
    pub resource: ApiResource,
    /// The complete object: fields that were applied before and are absent here are removed.
    pub object: DynamicObject,
    /// UID of the observed live object, `None` if there is none. It guards the write: without a UID an object is only created,
    /// with one only this object is changed.
    pub live: Option<String>,
    /// Override other field managers in our fields. Otherwise a difference is a conflict.
    pub force: bool,
    /// Whether the result of webhooks counts in the dry run before the first write. False for an object whose admission needs
    /// another object of the same plan.
    pub rehearsed: bool,
    /// Its rejection does not stop the other writes: it is applied after all others, without the common dry run.
    pub alone: bool,
    /// The live object is as desired: nothing is sent.
    pub unchanged: bool,
    /// Event to send if the write changed something.
    pub note: Option<Note>,
}

/// A change of another owner's object.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Location of its kind in the API.
    pub resource: ApiResource,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// JSON merge patch with the resource version that it is based on, so that no other change is lost.
    pub patch: Value,
    /// Event to send after the write.
    pub note: Option<Note>,
}

/// An object to delete.
#[derive(Clone, Debug)]
pub struct Delete {
    /// Location of its kind in the API.
    pub resource: ApiResource,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object: a later one with the same name is not deleted.
    pub uid: String,
    /// Whether the object exists until its dependents are deleted, such as the pods of a workload (foreground deletion).
    pub foreground: bool,
}

/// An Event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether the type is Warning instead of Normal.
    pub warning: bool,
    /// Reason: CamelCase, stable.
    pub reason: &'static str,
    /// Message for the user.
    pub message: String,
}

impl Note {
    /// An Event of the type that belongs to its reason.
    pub fn new(reason: EventReason, message: impl Into<String>) -> Self {
        Self {
            warning: reason.severity() == "Warning",
            reason: reason.as_str(),
            message: message.into(),
        }
    }

    /// An Event of type Normal, with the reason of a condition.
    pub fn normal(reason: impl Into<&'static str>, message: impl Into<String>) -> Self {
        Self {
            warning: false,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// An Event of type Warning, with the reason of a condition.
    pub fn warning(reason: impl Into<&'static str>, message: impl Into<String>) -> Self {
        Self {
            warning: true,
            reason: reason.into(),
            message: message.into(),
        }
    }
}
