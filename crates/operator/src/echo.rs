//! The controller's own writes that the watch has not delivered yet. A reconcile that runs before the watch event reads them
//! here, and does not write the same object again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::{Resource, ResourceExt};
use parking_lot::Mutex;

/// Time for which an answer of the server counts if the watch does not show the object.
pub(crate) const LIFE: Duration = Duration::from_secs(10);

/// Answers of the server to our writes, by the kind, namespace and name of the object.
#[derive(Debug)]
pub struct Echo<K> {
    answers: Mutex<HashMap<Key, (Instant, Arc<K>)>>,
}

/// Kind, namespace, name.
pub(crate) type Key = (String, String, String);

impl<K> Default for Echo<K> {
    fn default() -> Self {
        Self {
            answers: Mutex::default(),
        }
    }
}

impl<K: Resource> Echo<K> {
    /// Remembers an answer.
    pub fn wrote(&self, kind: &str, object: K) {
        let key = key(kind, &object.namespace().unwrap_or_default(), &object.name_any());
        let mut answers = self.answers.lock();
        // By then the watch has shown them, or shows that they are gone.
        answers.retain(|_, (when, _)| when.elapsed() < LIFE);
        answers.insert(key, (Instant::now(), Arc::new(object)));
    }

    /// Forgets an object, because the watch says that it is gone.
    pub fn gone(&self, kind: &str, namespace: &str, name: &str) {
        self.answers.lock().remove(&key(kind, namespace, name));
    }

    /// The answers about objects of a kind.
    pub fn all(&self, kind: &str) -> Vec<Arc<K>> {
        let answers = self.answers.lock();
        let of_kind = answers.iter().filter(|((of, ..), _)| of == kind);
        of_kind.map(|(_, (_, answer))| answer.clone()).collect()
    }

    /// Forgets an answer, unless there is a later one.
    pub fn forget(&self, kind: &str, answer: &Arc<K>) {
        let key = key(kind, &answer.namespace().unwrap_or_default(), &answer.name_any());
        let mut answers = self.answers.lock();
        if answers.get(&key).is_some_and(|(_, last)| Arc::ptr_eq(last, answer)) {
            answers.remove(&key);
        }
    }

    /// The newer of an object and the server's answer to the last write.
    pub fn latest(&self, kind: &str, object: Arc<K>) -> Arc<K> {
        let key = key(kind, &object.namespace().unwrap_or_default(), &object.name_any());
        match self.answers.lock().get(&key) {
            Some((_, answer)) if is_newer(answer.as_ref(), object.as_ref()) => answer.clone(),
            _ => object,
        }
    }

    /// The newer of what the watch shows and the server's answer to the last write, which is forgotten once the watch shows it.
    pub fn newest(&self, kind: &str, namespace: &str, name: &str, watched: Option<Arc<K>>) -> Option<Arc<K>> {
        let key = key(kind, namespace, name);
        let mut answers = self.answers.lock();
        let Some((when, answer)) = answers.get(&key) else {
            return watched;
        };
        let believed = match &watched {
            Some(watched) => is_newer(answer.as_ref(), watched.as_ref()),
            None => when.elapsed() < LIFE,
        };
        if believed {
            return Some(answer.clone());
        }
        answers.remove(&key);
        watched
    }
}

/// Deletions that the server has accepted and the watch has not shown yet, by the uid of the object.
#[derive(Debug, Default)]
pub struct Deletions(Mutex<HashMap<String, Instant>>);

impl Deletions {
    /// Remembers an accepted deletion.
    pub fn accepted(&self, uid: &str) {
        let mut all = self.0.lock();
        all.retain(|_, when| when.elapsed() < LIFE);
        all.insert(uid.to_owned(), Instant::now());
    }

    /// Whether the object's deletion was accepted less than `LIFE` ago.
    pub fn is_under_way(&self, uid: &str) -> bool {
        let all = self.0.lock();
        all.get(uid).is_some_and(|when| when.elapsed() < LIFE)
    }
}

pub(crate) fn key(kind: &str, namespace: &str, name: &str) -> Key {
    (kind.to_owned(), namespace.to_owned(), name.to_owned())
}

/// The answer to the removal of the last finalizer keeps the resource version of what was deleted with it.
fn is_newer(answer: &impl Resource, watched: &impl Resource) -> bool {
    let (reported, seen) = (revision(answer), revision(watched));
    reported > seen || reported == seen && answer.meta().finalizers != watched.meta().finalizers
}

/// The resource version as a number. Those of one kind grow (Kubernetes 1.35, KEP-5504; true of etcd before).
pub fn revision(object: &impl Resource) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn at(revision: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.name = Some("a".to_owned());
        object.metadata.namespace = Some("ns".to_owned());
        object.metadata.resource_version = Some(revision.to_owned());
        object
    }

    #[test]
    fn the_last_finalizer_is_not_removed_twice() {
        let echo = Echo::default();
        let mut watched = at("10");
        watched.metadata.finalizers = Some(vec!["a.example/b".to_owned()]);
        echo.wrote("ConfigMap", at("10"));
        let newest = echo.newest("ConfigMap", "ns", "a", Some(Arc::new(watched))).unwrap();
        assert_eq!(newest.metadata.finalizers, None);
    }

    #[test]
    fn the_newer_one_wins() {
        let echo = Echo::default();
        let read = |watched: Option<&str>| {
            echo.newest("ConfigMap", "ns", "a", watched.map(|v| Arc::new(at(v))))
                .and_then(|o| o.metadata.resource_version.clone())
        };
        assert_eq!(read(None), None);
        echo.wrote("ConfigMap", at("10"));
        assert_eq!(read(None).as_deref(), Some("10"));
        assert_eq!(read(Some("9")).as_deref(), Some("10"));
        assert_eq!(read(Some("10")).as_deref(), Some("10"));
        assert_eq!(
            read(Some("9")).as_deref(),
            Some("9"),
            "forgotten once the watch caught up"
        );
        echo.wrote("ConfigMap", at("11"));
        echo.gone("ConfigMap", "ns", "a");
        assert_eq!(read(None), None);
    }
}
