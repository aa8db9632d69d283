//! Objects made for another one: compared with what is there, so that only what differs is sent.

use kube::core::{ApiResource, DynamicObject};
use kube::{Resource, ResourceExt};

use crate::json;
use crate::plan::{Apply, Note};

/// A wanted object, compared with the live one, which must be ours. Its hash goes into the annotation `hash_key`: it says
/// after a restart what was asked for last.
pub fn wanted(
    resource: ApiResource,
    mut desired: DynamicObject,
    live: Option<&DynamicObject>,
    hash_key: &str,
    drift: &'static str,
) -> Apply {
    let hash = json::hash(&desired);
    desired.annotations_mut().insert(hash_key.to_owned(), hash);
    let same_request = live.is_some_and(|l| l.annotations().get(hash_key) == desired.annotations().get(hash_key));
    let intact = live.is_some_and(|l| is_intact(l, &desired));
    let note = match live {
        None => Some(Note::normal(
            "ResourceCreated",
            format!("Created {} '{}'", resource.kind, desired.name_any()),
        )),
        Some(_) if same_request && !intact => Some(Note::warning("DriftDetected", drift)),
        Some(_) => None,
    };
    Apply {
        resource,
        object: desired,
        force: live.is_some(),
        rehearsed: true,
        unchanged: same_request && intact,
        note,
    }
}

/// Whether a live object was made for the owner of this kind and uid.
pub fn is_made_for<K: Resource<DynamicType = ()>>(owner: &K, live: &DynamicObject) -> bool {
    let controller = live.owner_references().iter().find(|o| o.controller == Some(true));
    match (controller, &owner.meta().uid) {
        (Some(made_for), uid) => made_for.uid == uid.as_deref().unwrap_or_default() && made_for.kind == K::kind(&()),
        (None, Some(_)) => false,
        // Offline, where nothing has a uid yet.
        (None, None) => true,
    }
}

/// Whether everything we asked for is still there.
fn is_intact(live: &DynamicObject, desired: &DynamicObject) -> bool {
    let labels_kept = desired
        .labels()
        .iter()
        .all(|(key, value)| live.labels().get(key) == Some(value));
    let annotations_kept = desired
        .annotations()
        .iter()
        .all(|(key, value)| live.annotations().get(key) == Some(value));
    let owner_kept = desired
        .owner_references()
        .iter()
        .all(|owner| live.owner_references().contains(owner));
    labels_kept && annotations_kept && owner_kept && json::contains(&live.data, &desired.data)
}
