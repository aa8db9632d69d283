//! The objects that the plan for an actor reads. Pure.

use kube::ResourceExt;
use runway_api::AsyncActor;
use runway_operator::object::Kind;

use crate::names;
use crate::object::{CONFIG_MAP, Found, Key, Objects, SCALED_OBJECT, SECRET, TRIGGER_AUTHENTICATION};
use crate::targets::{self, DEPLOYMENT, KNOWN, STATEFUL_SET};

/// Kinds that are created for actors and are never a target.
pub const MADE: [Kind; 4] = [CONFIG_MAP, SECRET, SCALED_OBJECT, TRIGGER_AUTHENTICATION];

/// All kinds that plans read: those created for actors, and all targets.
pub fn kinds() -> Vec<Kind> {
    MADE.into_iter().chain(KNOWN).collect()
}

/// A source of objects, such as the watch caches.
pub trait Lookup {
    /// Looks up an object in the namespace of the actor.
    fn find(&self, key: &Key) -> Found;
}

/// Looks up all objects that the plan for an actor reads. One object can lead to the next, such as a Workspace to its
/// StatefulSet.
pub fn objects(actor: &AsyncActor, lookup: &impl Lookup) -> Objects {
    let mut found = Objects::new();
    loop {
        let missing = missing(actor, &found);
        if missing.is_empty() {
            return found;
        }
        for key in missing {
            let object = lookup.find(&key);
            found.insert(key, object);
        }
    }
}

/// Keys of the objects that the plan for an actor reads and that are not in `found`. An object that is found can lead to more, so
/// callers look up until none is missing.
pub fn missing(actor: &AsyncActor, found: &Objects) -> Vec<Key> {
    let mut all = children(actor);
    if let Some(reference) = &actor.spec.workload_ref {
        all.extend(targets::needs(reference, found));
    }
    all.extend(previous_holder(actor));
    all.retain(|key| !found.contains_key(key));
    all
}

/// Keys of all objects that can be created for an actor.
pub(crate) fn children(actor: &AsyncActor) -> Vec<Key> {
    let name = actor.name_any();
    vec![
        Key::new(CONFIG_MAP, names::RUNTIME_CONFIG_MAP),
        Key::new(SECRET, names::BROKER_SECRET),
        Key::new(DEPLOYMENT, &name),
        Key::new(STATEFUL_SET, &name),
        Key::new(DEPLOYMENT, names::proxy(&name)),
        Key::new(SCALED_OBJECT, names::scaler(&name)),
        Key::new(SCALED_OBJECT, names::target_scaler(&name)),
        Key::new(CONFIG_MAP, names::authentication(&name)),
        Key::new(TRIGGER_AUTHENTICATION, names::authentication(&name)),
    ]
}

/// The object that holds the containers of a binding, according to the actor's status.
pub(crate) fn previous_holder(actor: &AsyncActor) -> Option<Key> {
    let holder = actor.status.as_ref()?.binding.as_ref()?.holder.as_ref()?;
    let kind = targets::known(&holder.api_version, &holder.kind)?;
    Some(Key::new(kind, &holder.name))
}
