//! The objects of a kind that a watch has shown, kept small, and the room that all stores share.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;
use runway_operator::packed::Packed;
use runway_operator::watch::{Event, key};

use crate::kind::Kind;

/// Bytes that a watch takes beside its objects: its connection above all.
const OF_A_WATCH: usize = 64 * 1024;

/// Number of bytes in use by all stores.
pub type Used = Arc<AtomicUsize>;

/// Namespace and name.
pub type Key = (String, String);

/// An object as lists show it, and packed as a whole.
struct Kept<K> {
    brief: Arc<K>,
    whole: Packed<K>,
    size: usize,
}

impl<K: Kind> Kept<K> {
    fn of(mut object: K) -> Self {
        let whole = Packed::from(object.clone());
        // More than there is: what is packed is smaller than its text, and a list's tree takes about twice its own.
        let all = text(&object);
        object.shorten();
        Self {
            size: all + 2 * text(&object) + size_of::<K>() + size_of::<Self>(),
            brief: Arc::new(object),
            whole,
        }
    }
}

/// Bytes of the text of an object.
fn text<K: Kind>(object: &K) -> usize {
    serde_json::to_vec(object).map_or(0, |text| text.len())
}

/// Objects, and how many bytes they take.
struct Objects<K> {
    shown: HashMap<Key, Kept<K>>,
    /// Objects of an incomplete list.
    arriving: HashMap<Key, Kept<K>>,
    size: usize,
}

/// The objects of a kind in one place.
pub struct Store<K> {
    objects: RwLock<Objects<K>>,
    used: Used,
}

impl<K> Store<K> {
    /// An empty one.
    pub fn new(used: Used) -> Self {
        used.fetch_add(OF_A_WATCH, Ordering::Relaxed);
        let objects = Objects {
            shown: HashMap::new(),
            arriving: HashMap::new(),
            size: OF_A_WATCH,
        };
        Self {
            objects: RwLock::new(objects),
            used,
        }
    }

    /// Forgets all objects.
    pub fn clear(&self) {
        let mut objects = self.objects.write();
        objects.shown = HashMap::new();
        objects.arriving = HashMap::new();
        self.count(&mut objects, 0);
    }

    fn count(&self, objects: &mut Objects<K>, now: usize) {
        self.used.fetch_add(now, Ordering::Relaxed);
        self.used
            .fetch_sub(mem::replace(&mut objects.size, now), Ordering::Relaxed);
    }
}

impl<K> Drop for Store<K> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<K: Kind> Store<K> {
    /// Takes in what a watch shows. Returns the objects that are gone: those that a new list lacks, too.
    pub fn apply(&self, event: Event<K>) -> Vec<Key> {
        let mut objects = self.objects.write();
        let (mut size, mut gone) = (objects.size, Vec::new());
        match event {
            Event::Init(_) => {
                size -= sum(&objects.arriving);
                objects.arriving = HashMap::new();
            }
            Event::InitApply(object) => {
                let (key, kept) = (key(&object), Kept::of(object));
                size += kept.size;
                size -= objects.arriving.insert(key, kept).map_or(0, |old| old.size);
            }
            Event::InitDone(_) => {
                size -= sum(&objects.shown);
                let (now, before) = (mem::take(&mut objects.arriving), mem::take(&mut objects.shown));
                gone.extend(before.into_keys().filter(|key| !now.contains_key(key)));
                objects.shown = now;
            }
            Event::Apply(object) => {
                let (key, kept) = (key(&object), Kept::of(object));
                size += kept.size;
                size -= objects.shown.insert(key, kept).map_or(0, |old| old.size);
            }
            Event::Delete(object) => {
                let key = key(&object);
                size -= objects.shown.remove(&key).map_or(0, |old| old.size);
                gone.push(key);
            }
            Event::Listed => {}
        }
        self.count(&mut objects, size);
        gone
    }

    /// All objects, shortened for lists.
    pub fn all(&self) -> Vec<Arc<K>> {
        let objects = self.objects.read();
        objects.shown.values().map(|kept| kept.brief.clone()).collect()
    }

    /// One complete object.
    pub fn one(&self, namespace: &str, name: &str) -> Option<K> {
        let objects = self.objects.read();
        let kept = objects.shown.get(&(namespace.to_owned(), name.to_owned()))?;
        let whole = kept.whole.unpack();
        whole
            .inspect_err(|error| tracing::error!(%error, name, "an object that is kept cannot be read"))
            .ok()
    }
}

fn sum<K>(objects: &HashMap<Key, Kept<K>>) -> usize {
    objects.values().map(|kept| kept.size).sum()
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use runway_api::ModelDeployment;
    use runway_operator::watch::Part;
    use serde_json::json;

    use super::*;

    fn md(name: &str, replicas: i32) -> ModelDeployment {
        let value = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": name, "namespace": "default", "managedFields": [{"manager": "m"}],
                "annotations": {"example.org/long": "x".repeat(10_000), "kubeairunway.ai/reconcile-paused": "true"}},
            "spec": {"model": {"id": "org/a"}, "engine": {"type": "vllm"}, "scaling": {"replicas": replicas},
                "env": [{"name": "LONG", "value": "y".repeat(10_000)}]},
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn lists_show_objects_without_their_long_parts_and_one_is_shown_whole() {
        let store = Store::new(Used::default());
        store.apply(Event::Apply(md("a", 1)));
        let brief = &store.all()[0];
        assert!(brief.is_paused() && brief.spec.env.is_empty());
        assert!(!brief.annotations().contains_key("example.org/long"));
        let whole = store.one("default", "a").unwrap();
        assert_eq!(whole.spec.env.len(), 1);
        assert_eq!(whole.metadata.annotations.unwrap()["example.org/long"].len(), 10_000);
        assert_eq!(whole.metadata.managed_fields, None);
        assert!(store.one("other", "a").is_none());
    }

    #[test]
    fn a_list_counts_when_it_is_complete_and_every_byte_is_given_back() {
        let used = Used::default();
        let store = Store::new(used.clone());
        let empty = used.load(Ordering::Relaxed);
        store.apply(Event::Apply(md("a", 1)));
        let one = used.load(Ordering::Relaxed);
        assert!(one > empty);
        store.apply(Event::Apply(md("a", 2)));
        assert_eq!(used.load(Ordering::Relaxed), one);

        store.apply(Event::Init(Part::All));
        store.apply(Event::InitApply(md("b", 1)));
        assert_eq!(store.all()[0].name_any(), "a");
        assert_eq!(
            store.apply(Event::InitDone(Part::All)),
            [("default".to_owned(), "a".to_owned())]
        );
        assert_eq!(store.all()[0].name_any(), "b");
        assert_eq!(used.load(Ordering::Relaxed), one);

        let gone = store.apply(Event::Delete(md("b", 1)));
        assert_eq!(gone, [("default".to_owned(), "b".to_owned())]);
        assert_eq!(used.load(Ordering::Relaxed), empty);
        store.apply(Event::Apply(md("a", 1)));
        drop(store);
        assert_eq!(used.load(Ordering::Relaxed), 0);
    }
}
