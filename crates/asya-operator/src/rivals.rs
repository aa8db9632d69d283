//! Bindings of the actors of a namespace. Two actors that claim the same object cannot both be bound to it in place.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use runway_api::AsyncActor;
use runway_api::async_actor::{AskedStrategy, WorkloadRef};
use runway_operator::watch::key;

use crate::queues::Id;

/// The binding of an AsyncActor, as far as the plans of other actors depend on it.
#[derive(Clone, Debug)]
pub struct Rival {
    /// Name of the actor.
    pub name: String,
    /// UID of the actor.
    pub uid: Option<String>,
    /// Creation time of the actor. The older of two actors has the right to a target.
    pub created: Option<Timestamp>,
    /// Whether the actor is being deleted.
    pub is_deleting: bool,
    /// Whether the strategy permits a binding in place.
    pub in_place: bool,
    /// The target.
    pub reference: WorkloadRef,
}

impl Rival {
    /// The binding of an actor. `None` if the actor has a workload of its own.
    pub fn of(actor: &AsyncActor) -> Option<Self> {
        let reference = actor.spec.workload_ref.clone()?;
        Some(Self {
            name: actor.name_any(),
            uid: actor.metadata.uid.clone(),
            created: actor.metadata.creation_timestamp.as_ref().map(|time| time.0),
            is_deleting: actor.metadata.deletion_timestamp.is_some(),
            in_place: actor.spec.strategy() != AskedStrategy::Proxy,
            reference,
        })
    }

    /// Order of the right to a target: the oldest actor first, then by UID.
    pub fn age(&self) -> (Option<Timestamp>, Option<&str>) {
        (self.created, self.uid.as_deref())
    }
}

/// The bindings of all actors, as the watch reported them last.
#[derive(Default)]
pub(crate) struct Rivals {
    known: Mutex<BTreeMap<Id, Known>>,
}

struct Known {
    generation: Option<i64>,
    is_deleting: bool,
    binding: Option<Arc<Rival>>,
}

impl Rivals {
    /// Records an actor. Returns whether its spec changed since it was recorded last.
    pub(crate) fn record(&self, actor: &AsyncActor) -> bool {
        // A deletion is a new generation.
        let generation = actor.metadata.generation;
        let binding = Rival::of(actor).map(Arc::new);
        let known = Known {
            generation,
            is_deleting: actor.metadata.deletion_timestamp.is_some(),
            binding,
        };
        let before = self.known.lock().insert(key(actor), known);
        before.is_none_or(|before| before.generation != generation)
    }

    /// Forgets an actor. Returns whether it was recorded.
    pub(crate) fn forget(&self, id: &Id) -> bool {
        self.known.lock().remove(id).is_some()
    }

    /// Whether no other actor of the namespace remains: of those that are being deleted, the last one in order counts.
    pub(crate) fn is_last(&self, namespace: &str, actor: &str) -> bool {
        let known = self.known.lock();
        let from = (namespace.to_owned(), String::new());
        let mut of_namespace = known.range(from..).take_while(|(id, _)| id.0 == namespace);
        of_namespace.all(|(id, other)| other.is_deleting && id.1.as_str() <= actor || id.1 == actor)
    }

    /// The bindings of the other actors in the namespace of an actor.
    pub(crate) fn of(&self, namespace: &str, actor: &str) -> Vec<Arc<Rival>> {
        let known = self.known.lock();
        let from = (namespace.to_owned(), String::new());
        let of_namespace = known.range(from..).take_while(|(id, _)| id.0 == namespace);
        let others = of_namespace.filter(|(id, _)| id.1 != actor);
        others.filter_map(|(_, known)| known.binding.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn actor(namespace: &str, name: &str, generation: i64, target: Option<&str>) -> AsyncActor {
        let reference = target.map(|name| json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name}));
        serde_json::from_value(json!({
            "apiVersion": "asya.sh/v1alpha1",
            "kind": "AsyncActor",
            "metadata": {"namespace": namespace, "name": name, "generation": generation},
            "spec": {"transport": "rabbitmq", "workloadRef": reference},
        }))
        .unwrap()
    }

    #[test]
    fn bindings_are_those_of_other_actors_in_the_namespace() {
        let rivals = Rivals::default();
        for actor in [
            actor("a", "own", 1, Some("vllm")),
            actor("a", "other", 1, Some("vllm")),
            actor("a", "standalone", 1, None),
            actor("ab", "elsewhere", 1, Some("vllm")),
        ] {
            assert!(rivals.record(&actor));
        }
        let names: Vec<String> = rivals.of("a", "own").iter().map(|rival| rival.name.clone()).collect();
        assert_eq!(names, ["other"]);
    }

    #[test]
    fn one_actor_is_the_last_of_its_namespace() {
        let rivals = Rivals::default();
        let deleting = |name: &str| {
            let mut actor = actor("a", name, 2, None);
            actor.metadata.deletion_timestamp = Some(Timestamp::UNIX_EPOCH.into());
            actor
        };
        for name in ["first", "second"] {
            rivals.record(&actor("a", name, 1, None));
        }
        rivals.record(&actor("ab", "elsewhere", 1, None));
        rivals.record(&deleting("second"));
        assert!(!rivals.is_last("a", "second"));
        rivals.record(&deleting("first"));
        assert!(rivals.is_last("a", "second") && !rivals.is_last("a", "first"));
        rivals.forget(&("a".to_owned(), "second".to_owned()));
        assert!(rivals.is_last("a", "first"));
    }

    #[test]
    fn a_binding_follows_the_spec_and_the_deletion_of_its_actor() {
        let rivals = Rivals::default();
        let id = ("a".to_owned(), "other".to_owned());
        rivals.record(&actor("a", "other", 1, Some("vllm")));
        assert!(!rivals.record(&actor("a", "other", 1, Some("vllm"))));
        assert!(rivals.record(&actor("a", "other", 2, Some("sglang"))));
        assert_eq!(rivals.of("a", "own")[0].reference.name, "sglang");
        assert!(rivals.forget(&id));
        assert!(rivals.of("a", "own").is_empty());
        assert!(!rivals.forget(&id));
    }
}
