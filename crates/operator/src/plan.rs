//! What a pure planner returns. The executor in [`crate::apply`] is left with nothing to choose.

use std::time::Duration;

use kube::core::{ApiResource, DynamicObject};
use serde_json::Value;

/// Everything a controller wants done about one object, in the order in which it is done:
/// finalizer added, deletions, objects, status, finalizer removed.
///
/// ```
/// use runway_operator::plan::{Note, Plan};
///
/// assert!(Plan::default().is_silent());
/// let plan = Plan {
///     events: vec![Note::normal("ResourceCreated", "Created Deployment 'web'")],
///     ..Plan::default()
/// };
/// assert!(!plan.is_silent());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What happens to our finalizer.
    pub finalizer: Finalizer,
    /// Objects that must go.
    pub delete: Vec<Delete>,
    /// Objects that must exist, in apply order.
    pub apply: Vec<Apply>,
    /// Changes of objects of others where server-side apply cannot say what is meant; after the objects.
    pub edit: Vec<Edit>,
    /// The objects may come one by one: they are not tried on the server before the first is sent.
    pub unrehearsed: bool,
    /// The whole of what this controller owns in the status, as it must be; `None` leaves the status alone.
    pub status: Option<Value>,
    /// Write the status only if the object is still as observed: for a claim that somebody else may be taking away.
    pub status_guarded: bool,
    /// The part of another field manager in the status, where it cannot write it itself; before ours.
    pub status_of: Option<StatusOf>,
    /// What people should hear of, once per change.
    pub events: Vec<Note>,
    /// When to look again without being woken by a change.
    pub look_again: Option<Duration>,
}

impl Plan {
    /// Whether carrying it out would send nothing.
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

/// A part of the status that is written for another field manager.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusOf {
    /// The field manager.
    pub manager: String,
    /// The whole of its part; an empty object drops it.
    pub status: Value,
    /// Write it only if the object is still as observed: the manager may be writing it itself.
    pub guarded: bool,
}

impl StatusOf {
    /// Drops the part of a field manager that writes no more.
    pub fn dropped(manager: String) -> Self {
        Self {
            manager,
            status: Value::Object(serde_json::Map::new()),
            guarded: false,
        }
    }
}

/// What happens to our finalizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Finalizer {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is put on, before anything is made.
    Add,
    /// It is taken off, after everything is gone.
    Remove,
}

/// An object that must exist.
#[derive(Clone, Debug)]
pub struct Apply {
    /// Where it lives in the API.
    pub resource: ApiResource,
    /// The object, whole: what is absent here and was applied before is removed.
    pub object: DynamicObject,
    /// The uid of the live object that was observed, `None` where there is none. It guards the write: without a uid an object
    /// is only ever created, with one only that very object is changed.
    pub live: Option<String>,
    /// Put back what others changed in our fields. Otherwise their fields are left alone, and a difference is a conflict.
    pub force: bool,
    /// What webhooks say when it is tried on the server before anything is sent counts. Not so for an object whose admission
    /// looks for another one that is made by the same plan.
    pub rehearsed: bool,
    /// It is there as it should be: nothing is sent.
    pub unchanged: bool,
    /// Told when it was sent and changed something.
    pub note: Option<Note>,
}

/// A change of an object of somebody else's.
#[derive(Clone, Debug)]
pub struct Edit {
    /// Where it lives in the API.
    pub resource: ApiResource,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// A JSON merge patch. It carries the resource version that it was made for, so that nobody's change is lost.
    pub patch: Value,
    /// Told when it was sent.
    pub note: Option<Note>,
}

/// An object that must go.
#[derive(Clone, Debug)]
pub struct Delete {
    /// Where it lives in the API.
    pub resource: ApiResource,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The very object meant: a later one of the same name stays.
    pub uid: String,
}

/// Something people should hear of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether something is wrong.
    pub warning: bool,
    /// CamelCase, stable.
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

impl Note {
    /// Something went as it should.
    pub fn normal(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            warning: false,
            reason,
            message: message.into(),
        }
    }

    /// Something is wrong.
    pub fn warning(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            warning: true,
            reason,
            message: message.into(),
        }
    }
}
