//! Objects that the operator creates: writes, deletions, and ownership.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::core::{ApiResource, DynamicObject, ObjectMeta, TypeMeta};
use runway_api::async_actor::{ActorState, ObjectRef};
use runway_api::{EventReason, labels};
use runway_operator::plan::{Admission, Apply, Delete, Note};
use runway_operator::{json, object};
use serde_json::Value;

use super::fields;
use super::part::Part;
use crate::names;
use crate::object::{CONFIG_MAP, Found, Key, SCALED_OBJECT, SECRET};
use crate::observe::Observed;

/// Labels of all objects that are created for an actor.
pub(super) fn common_labels(actor: &str) -> BTreeMap<String, String> {
    [
        (labels::MANAGED_BY, labels::MANAGED_BY_VALUE),
        (labels::ASYA_ACTOR, actor),
        (labels::ASYA_LEGACY, actor),
        ("app.kubernetes.io/name", actor),
        ("app.kubernetes.io/component", "asya-actor"),
        (labels::RECOMMENDED_MANAGED_BY, labels::ASYA_MANAGER),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// API resource of an object, in the installed version of its kind.
pub(super) fn resource(seen: &Observed, key: &Key) -> ApiResource {
    key.kind.resource_in(seen.version(key).unwrap_or(key.kind.version))
}

/// `apiVersion` and `kind` of an object.
pub(super) fn types(seen: &Observed, key: &Key) -> TypeMeta {
    let ApiResource { api_version, kind, .. } = resource(seen, key);
    TypeMeta { api_version, kind }
}

/// Reference to an object, for the status.
pub(super) fn reference(seen: &Observed, key: &Key) -> ObjectRef {
    let TypeMeta { api_version, kind } = types(seen, key);
    ObjectRef {
        api_version,
        kind,
        name: key.name.clone(),
        namespace: Some(seen.namespace()),
    }
}

/// The write of an object that the actor owns.
pub(super) fn owned(seen: &Observed, key: &Key, body: Value) -> Apply {
    let metadata = ObjectMeta {
        labels: Some(common_labels(&seen.name())),
        owner_references: Some(vec![object::owner(seen.actor.as_ref())]),
        ..ObjectMeta::default()
    };
    compared(seen, key, stamped(seen, key, metadata, body), true)
}

/// The write of an object that all actors of the namespace use, and none owns.
pub(super) fn shared(seen: &Observed, key: &Key, body: Value) -> Apply {
    let labels = [
        (labels::MANAGED_BY, labels::MANAGED_BY_VALUE),
        (labels::RECOMMENDED_MANAGED_BY, labels::ASYA_MANAGER),
    ];
    let metadata = ObjectMeta {
        labels: Some(labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
        ..ObjectMeta::default()
    };
    compared(seen, key, stamped(seen, key, metadata, body), false)
}

/// The object with its type, name and namespace, and an annotation with the hash of all of it.
fn stamped(seen: &Observed, key: &Key, metadata: ObjectMeta, body: Value) -> DynamicObject {
    let mut object = DynamicObject {
        types: Some(types(seen, key)),
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(seen.namespace()),
            ..metadata
        },
        data: body,
    };
    let hash = json::hash(&object);
    object.annotations_mut().insert(labels::APPLIED_HASH.to_owned(), hash);
    object
}

fn compared(seen: &Observed, key: &Key, mut object: DynamicObject, reported: bool) -> Apply {
    let live = seen.live(key);
    let asked_before = |live: &DynamicObject| {
        live.annotations().get(labels::APPLIED_HASH) == object.annotations().get(labels::APPLIED_HASH)
    };
    let intact = live.is_some_and(|live| fields::is_intact(live, &object));
    let note = match live {
        None => Some(Note::new(EventReason::Created, format!("Created {key}"))),
        Some(live) if asked_before(live) && !intact => Some(Note::new(
            EventReason::DriftDetected,
            format!("{key} was changed directly{}, reverting it", by(live)),
        )),
        Some(_) => None,
    };
    if let Some(live) = live.filter(|live| !asked_before(live)) {
        object::remove_service_account(&mut object, live);
    }
    Apply {
        resource: resource(seen, key),
        live: live.and_then(ResourceExt::uid),
        force: live.is_some(),
        admission: admission(seen, key),
        unchanged: intact,
        note: note.filter(|_| reported),
        object,
    }
}

/// Objects that KEDA reads do not stop the actor: without them it processes messages with the replicas that it has.
fn admission(seen: &Observed, key: &Key) -> Admission {
    let is_scaling =
        key.kind.group == SCALED_OBJECT.group || *key == Key::new(CONFIG_MAP, names::authentication(&seen.name()));
    if is_scaling {
        Admission::Apart
    } else {
        Admission::Together
    }
}

/// ` by NAME`, if it is known.
pub(super) fn by(live: &DynamicObject) -> String {
    fields::last_writer(live).map_or_else(String::new, |who| format!(" by '{who}'"))
}

/// Whether a live object was created for this actor or, if actors share it, for the namespace.
pub(super) fn is_ours(seen: &Observed, key: &Key, live: &DynamicObject) -> bool {
    let shared = [(CONFIG_MAP, names::RUNTIME_CONFIG_MAP), (SECRET, names::BROKER_SECRET)];
    if !shared.iter().any(|(kind, name)| *key == Key::new(*kind, *name)) {
        return object::is_ours(seen.actor.as_ref(), live);
    }
    let label = live.labels().get(labels::RECOMMENDED_MANAGED_BY).map(String::as_str);
    object::controller(live).is_none() && (label == Some(labels::ASYA_MANAGER) || fields::hold_something(live))
}

/// Whether an object that was created for this actor still exists, even if it is being deleted.
pub(super) fn exists(seen: &Observed, key: &Key) -> bool {
    seen.live(key)
        .is_some_and(|live| object::is_ours(seen.actor.as_ref(), live))
}

/// Whether a live object was created for this actor and is not being deleted yet.
pub(super) fn is_leftover(seen: &Observed, live: &DynamicObject) -> bool {
    object::is_ours(seen.actor.as_ref(), live) && live.metadata.deletion_timestamp.is_none()
}

/// If an object with another owner has the name of one that is needed: a part that reports it in a condition of this type and
/// in an Event, and leaves everything as it is.
pub(super) fn taken(seen: &Observed, key: &Key, type_: &'static str) -> Option<Part> {
    let live = seen.live(key).filter(|live| !is_ours(seen, key, live))?;
    let message = taken_text(key.kind.kind, &key.name, &object::manager_of(live));
    Some(Part {
        keep_children: true,
        ..Part::fails(seen, type_, ActorState::NameTaken.as_str(), message)
    })
}

/// Message for a name that an object with another owner has.
pub(super) fn taken_text(kind: &str, name: &str, manager: &str) -> String {
    let taken = object::taken(&format!("{kind} '{name}'"), "AsyncActor", manager);
    let way_out = match (kind, name) {
        (_, names::RUNTIME_CONFIG_MAP | names::BROKER_SECRET) => "delete the other object",
        ("Deployment" | "StatefulSet", _) => {
            "rename the AsyncActor, delete the other object, or bind to it with workloadRef"
        }
        _ => "rename the AsyncActor, or delete the other object",
    };
    format!("{taken}: {way_out}")
}

/// Deletion of a live object.
pub(super) fn deletion(seen: &Observed, key: &Key) -> Option<Delete> {
    let Some(Found::Here { version, object }) = seen.objects.get(key) else {
        return None;
    };
    object::deletion(key.kind.resource_in(version), object)
}
