//! Result of a pure planner. The executor in [`crate::apply`] makes no decisions: it carries out [`Plan::steps`].

use std::time::Duration;

use kube::core::{ApiResource, DynamicObject};
use runway_api::EventReason;
use serde_json::Value;

/// Everything to do for one object. [`Plan::steps`] is the order in which it is done.
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
    /// Changes of other owners' objects that server-side apply cannot express.
    pub edit: Vec<Edit>,
    /// The dry run before the first object is applied.
    pub rehearsal: Rehearsal,
    /// Objects that other controllers would create in consequence. They are sent as a dry run, before all other objects.
    pub trials: Vec<Trial>,
    /// The complete status fields of this controller; `None` leaves the status unchanged.
    pub status: Option<Value>,
    /// Write the status only if the object is still as observed, because another writer may be changing it at the same time.
    pub status_guarded: bool,
    /// Write the status before other objects: it records an object that is about to be created, so that it is known also if the
    /// controller stops in between.
    pub status_first: bool,
    /// Status fields of another field manager that does not write them itself.
    pub status_of: Option<StatusOf>,
    /// Events, once per change.
    pub events: Vec<Note>,
    /// Time until the next reconcile, if no change triggers one earlier.
    pub look_again: Option<Duration>,
}

impl Plan {
    /// Whether carrying it out would send no request.
    pub fn is_silent(&self) -> bool {
        self.steps().is_empty()
    }

    /// The requests, in order: add the finalizer, delete, apply, edit, write the status, send Events, remove the finalizer. Objects
    /// that are as desired have none. Dry runs precede the first object. With `status_first` they and the status precede all deletions.
    pub fn steps(&self) -> Vec<Step<'_>> {
        let changed = self.apply.iter().filter(|apply| !apply.unchanged);
        let (apart, together): (Vec<_>, Vec<_>) = changed.partition(|apply| apply.admission == Admission::Apart);
        let own_status = self.status.as_ref().map(|fields| Step::Status {
            fields,
            guarded: self.status_guarded,
        });
        let rehearsed = self.rehearsal.of(&together).iter().copied().map(Step::DryRun);
        let dry_runs = self.trials.iter().map(Step::Trial).chain(rehearsed);

        let mut steps = Vec::new();
        steps.extend((self.finalizer == Finalizer::Add).then_some(Step::AddFinalizer));
        if self.status_first {
            steps.extend(dry_runs.clone());
            steps.extend(own_status);
        }
        steps.extend(self.delete.iter().map(Step::Delete));
        if !self.status_first {
            steps.extend(dry_runs);
        }
        steps.extend(together.iter().copied().map(Step::Apply));
        steps.extend(self.edit.iter().map(Step::Edit));
        steps.extend(Rehearsal::AllButFirst.of(&apart).iter().copied().map(Step::DryRun));
        steps.extend(apart.iter().copied().map(Step::Apply));
        steps.extend(self.status_of.as_ref().map(Step::StatusOf));
        if !self.status_first {
            steps.extend(own_status);
        }
        steps.extend(self.events.iter().map(Step::Event));
        steps.extend((self.finalizer == Finalizer::Remove).then_some(Step::RemoveFinalizer));
        steps
    }
}

/// One request of a plan.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// Add our finalizer to the owner.
    AddFinalizer,
    /// Apply an object as a dry run.
    DryRun(&'a Apply),
    /// Send an object as a dry run that is never applied.
    Trial(&'a Trial),
    /// Delete an object.
    Delete(&'a Delete),
    /// Apply an object.
    Apply(&'a Apply),
    /// Change another owner's object.
    Edit(&'a Edit),
    /// Write the status fields of another field manager.
    StatusOf(&'a StatusOf),
    /// Write the status fields of this controller.
    Status {
        /// All of its fields.
        fields: &'a Value,
        /// Only if the object is still as observed.
        guarded: bool,
    },
    /// Send an Event.
    Event(&'a Note),
    /// Remove our finalizer from the owner.
    RemoveFinalizer,
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

impl Rehearsal {
    /// Those of the changed objects that are sent as a dry run.
    fn of<'a, 'b>(self, changed: &'b [&'a Apply]) -> &'b [&'a Apply] {
        match self {
            Self::None => &[],
            Self::AllButFirst => changed.get(1..).unwrap_or_default(),
            Self::All => changed,
        }
    }
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
    /// Effect of its rejection on the other objects of the plan.
    pub admission: Admission,
    /// The live object is as desired: nothing is sent.
    pub unchanged: bool,
    /// Event to send if the write changed something.
    pub note: Option<Note>,
}

/// Effect of an object's rejection on the other objects of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// Nothing is applied if its dry run is rejected.
    #[default]
    Together,
    /// As `Together`, but webhooks that miss another object of the same plan do not count in the dry run.
    NeedsOthers,
    /// None: it is applied after all others, and has a dry run of its own.
    Apart,
}

/// An object that another controller would create, such as a pod of a changed template. The plan ends if it is refused.
#[derive(Clone, Debug)]
pub struct Trial {
    /// The object.
    pub object: Apply,
    /// Refusals that count.
    pub counts: Counts,
}

/// Refusals of a trial that count. Those of webhooks never do: they can reject every dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// All but those of an exhausted quota: old objects may go first.
    AllButQuota,
    /// Those of an exhausted quota only.
    Quota,
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn apply(name: &str, admission: Admission, unchanged: bool) -> Apply {
        let resource = ApiResource::erase::<ConfigMap>(&());
        Apply {
            object: DynamicObject::new(name, &resource).within("ns"),
            resource,
            live: None,
            force: false,
            admission,
            unchanged,
            note: None,
        }
    }

    fn full(status_first: bool) -> Plan {
        let resource = ApiResource::erase::<ConfigMap>(&());
        let (namespace, name) = ("ns".to_owned(), "toys".to_owned());
        Plan {
            finalizer: Finalizer::Add,
            delete: vec![Delete {
                resource: resource.clone(),
                namespace: namespace.clone(),
                name: name.clone(),
                uid: "7".to_owned(),
                foreground: false,
            }],
            apply: vec![
                apply("scaling", Admission::Apart, false),
                apply("main", Admission::NeedsOthers, false),
                apply("intact", Admission::Together, true),
                apply("service", Admission::Together, false),
            ],
            edit: vec![Edit {
                resource,
                namespace,
                name,
                patch: json!({}),
                note: None,
            }],
            status: Some(json!({})),
            status_first,
            status_of: Some(StatusOf::dropped("former".to_owned())),
            events: vec![Note::new(EventReason::ResourceCreated, "Created ConfigMap 'main'")],
            ..Plan::default()
        }
    }

    fn order(plan: &Plan) -> Vec<String> {
        let name = |apply: &Apply| apply.object.metadata.name.clone().unwrap();
        let steps = plan.steps().into_iter();
        let names = steps.map(|step| match step {
            Step::DryRun(apply) => format!("dry run {}", name(apply)),
            Step::Apply(apply) => format!("apply {}", name(apply)),
            other => format!("{other:?}").split([' ', '(']).next().unwrap().to_owned(),
        });
        names.collect()
    }

    #[test]
    fn status_follows_the_objects() {
        assert_eq!(
            order(&full(false)),
            [
                "AddFinalizer",
                "Delete",
                "dry run service",
                "apply main",
                "apply service",
                "Edit",
                "apply scaling",
                "StatusOf",
                "Status",
                "Event"
            ]
        );
    }

    #[test]
    fn status_that_records_an_object_precedes_it_and_follows_the_dry_run() {
        let expected = ["AddFinalizer", "dry run service", "Status", "Delete", "apply main"];
        assert_eq!(order(&full(true))[..5], expected);
    }
}
