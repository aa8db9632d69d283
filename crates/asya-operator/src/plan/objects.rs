//! Objects that are ours, as they are sent.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use kube::{Resource, ResourceExt};
use runway_api::{AsyncActor, labels};
use runway_operator::plan::{Apply, Delete, Note};
use runway_operator::{child, json};
use serde_json::Value;

use super::fields;
use crate::names;
use crate::observe::{Found, Key, Kind, Observed};
use crate::request::Request;

/// A ConfigMap.
pub const CONFIG_MAP: Kind = Kind {
    group: "",
    kind: "ConfigMap",
    plural: "configmaps",
    version: "v1",
};
/// KEDA: what scales what.
pub const SCALED_OBJECT: Kind = Kind {
    group: "keda.sh",
    kind: "ScaledObject",
    plural: "scaledobjects",
    version: "v1alpha1",
};
/// KEDA: where credentials are.
pub const TRIGGER_AUTHENTICATION: Kind = Kind {
    group: "keda.sh",
    kind: "TriggerAuthentication",
    plural: "triggerauthentications",
    version: "v1alpha1",
};

/// Labels of everything made for an actor.
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

/// An object of the actor's own.
pub(super) fn owned(seen: &Observed, request: &Request, key: &Key, body: Value) -> Apply {
    let mut object = DynamicObject {
        types: None,
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(request.namespace.clone()),
            labels: Some(common_labels(&request.name)),
            owner_references: Some(vec![owner(&seen.actor)]),
            ..ObjectMeta::default()
        },
        data: body,
    };
    stamp(seen, key, &mut object);
    compared(seen, key, object, true)
}

/// An object of the namespace, which no actor owns.
pub(super) fn shared(seen: &Observed, key: &Key, body: Value) -> Apply {
    let labels = [
        (labels::MANAGED_BY, labels::MANAGED_BY_VALUE),
        (labels::RECOMMENDED_MANAGED_BY, labels::ASYA_MANAGER),
    ];
    let mut object = DynamicObject {
        types: None,
        metadata: ObjectMeta {
            name: Some(key.name.clone()),
            namespace: Some(seen.namespace()),
            labels: Some(labels.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()),
            ..ObjectMeta::default()
        },
        data: body,
    };
    stamp(seen, key, &mut object);
    compared(seen, key, object, false)
}

/// The type, and the hash of the whole.
fn stamp(seen: &Observed, key: &Key, object: &mut DynamicObject) {
    let version = seen.version(key).unwrap_or(key.kind.version);
    object.types = Some(TypeMeta {
        api_version: key.kind.api_version(version),
        kind: key.kind.kind.to_owned(),
    });
    let hash = json::hash(&object);
    object.annotations_mut().insert(labels::APPLIED_HASH.to_owned(), hash);
}

fn compared(seen: &Observed, key: &Key, object: DynamicObject, told: bool) -> Apply {
    let live = seen.live(key);
    let asked_before = |live: &DynamicObject| {
        live.annotations().get(labels::APPLIED_HASH) == object.annotations().get(labels::APPLIED_HASH)
    };
    let intact = live.is_some_and(|live| fields::is_intact(live, &object));
    let note = match live {
        None => Some(Note::normal("Created", format!("Created {}", key.told()))),
        Some(live) if asked_before(live) && !intact => Some(Note::warning(
            "DriftDetected",
            format!("{} was changed directly{}, putting it back", key.told(), by(live)),
        )),
        Some(_) => None,
    };
    Apply {
        resource: key.kind.resource(seen.version(key).unwrap_or(key.kind.version)),
        live: live.and_then(ResourceExt::uid),
        force: live.is_some(),
        rehearsed: true,
        unchanged: intact,
        note: note.filter(|_| told),
        object,
    }
}

/// ` by NAME`, if it is known.
pub(super) fn by(live: &DynamicObject) -> String {
    fields::last_writer(live).map_or_else(String::new, |who| format!(" by '{who}'"))
}

/// Whether a live object is one of ours: made for this very actor or, where no actor owns it, for the namespace.
pub(super) fn is_ours(seen: &Observed, key: &Key, live: &DynamicObject) -> bool {
    if *key != Key::new(CONFIG_MAP, names::RUNTIME_CONFIG_MAP) {
        return child::is_made_for(seen.actor.as_ref(), live);
    }
    let label = live.labels().get(labels::RECOMMENDED_MANAGED_BY).map(String::as_str);
    child::controller(live).is_none() && (label == Some(labels::ASYA_MANAGER) || fields::hold_something(live))
}

/// The message about a name that is taken by an object that is not ours.
pub(super) fn taken_text(kind: &str, name: &str, manager: &str) -> String {
    let taken = child::taken(&format!("{kind} '{name}'"), "AsyncActor", manager);
    let way_out = match (kind, name) {
        (_, names::RUNTIME_CONFIG_MAP) => "delete the other object",
        ("Deployment" | "StatefulSet", _) => {
            "rename the AsyncActor, delete the other object, or bind to it with workloadRef"
        }
        _ => "rename the AsyncActor, or delete the other object",
    };
    format!("{taken}: {way_out}")
}

/// The deletion of a live object.
pub(super) fn deletion(seen: &Observed, key: &Key) -> Option<Delete> {
    let Some(Found::Here { version, object }) = seen.objects.get(key) else {
        return None;
    };
    Some(Delete {
        resource: key.kind.resource(version),
        namespace: seen.namespace(),
        name: key.name.clone(),
        uid: object.uid()?,
    })
}

fn owner(actor: &AsyncActor) -> OwnerReference {
    OwnerReference {
        api_version: AsyncActor::api_version(&()).into_owned(),
        kind: AsyncActor::kind(&()).into_owned(),
        name: actor.name_any(),
        uid: actor.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
