//! Objects that a watch delivers, each kept in the least form that its readers need: as compressed text, as a part of it, or as
//! no more than a number.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::Hash;
use std::ops::Bound;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::ResourceExt;
use parking_lot::{RwLock, RwLockReadGuard};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::packed::Text;
use crate::watch::{Event, Part};

/// Objects by `namespace/name/`, or by `namespace/label value/name`. A name cannot contain a slash.
type Objects<T> = BTreeMap<Box<str>, T>;

/// The objects of one watch, each kept as a `T`. Cheap to clone.
pub struct Store<T>(Arc<Shared<T>>);

struct Shared<T> {
    label: Option<&'static str>,
    objects: RwLock<Objects<T>>,
    listed: watch::Sender<bool>,
}

/// A change of an object.
#[derive(Debug)]
pub struct Change<'a, T> {
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name that the object is filed under: its own, or the value of the label.
    pub name: &'a str,
    /// The object, or its last state if it is gone.
    pub kept: &'a T,
    /// The object is gone, or nothing of it is kept any more.
    pub gone: bool,
}

impl<T> Clone for Store<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Store<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl<T> Store<T> {
    /// An empty store that files objects by name.
    pub fn by_name() -> Self {
        Self::new(None)
    }

    /// An empty store that files objects by the value of a label, such as the name of their owner. Objects without the label are
    /// skipped.
    pub fn by_label(label: &'static str) -> Self {
        Self::new(Some(label))
    }

    fn new(label: Option<&'static str>) -> Self {
        Self(Arc::new(Shared {
            label,
            objects: RwLock::default(),
            listed: watch::Sender::new(false),
        }))
    }

    /// Reads the objects that are filed under a name, in the order of their own names.
    pub fn all<R>(&self, namespace: &str, name: &str, read: impl FnMut(&T) -> R) -> Vec<R> {
        let prefix = format!("{namespace}/{name}/");
        let objects = self.objects();
        let found = objects.range::<str, _>((Bound::Included(prefix.as_str()), Bound::Unbounded));
        found
            .take_while(|(key, _)| key.starts_with(&prefix))
            .map(|(_, kept)| kept)
            .map(read)
            .collect()
    }

    /// Reads all objects.
    pub fn every<R>(&self, read: impl FnMut(&T) -> R) -> Vec<R> {
        self.objects().values().map(read).collect()
    }

    /// Reads the object of this name.
    pub fn read<R>(&self, namespace: &str, name: &str, read: impl FnOnce(&T) -> R) -> Option<R> {
        self.objects().get(format!("{namespace}/{name}/").as_str()).map(read)
    }

    /// Waits for the first list.
    pub async fn listed(&self) {
        // The sender lives as long as the store.
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Whether the first list is complete and its changes are reported.
    pub fn is_listed(&self) -> bool {
        *self.0.listed.borrow()
    }

    fn objects(&self) -> RwLockReadGuard<'_, Objects<T>> {
        self.0.objects.read()
    }

    fn write<R>(&self, change: impl FnOnce(&mut Objects<T>) -> R) -> R {
        change(&mut self.0.objects.write())
    }

    fn key<K: ResourceExt>(&self, object: &K) -> Option<Box<str>> {
        let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
        Some(match self.0.label {
            None => format!("{namespace}/{name}/").into(),
            Some(label) => format!("{namespace}/{}/{name}", object.labels().get(label)?).into(),
        })
    }
}

impl<T: PartialEq> Store<T> {
    /// Takes in the events of a watch, for as long as it is polled. `keep` makes the kept form of an object, if anything of it is
    /// to be kept. `changed` is called after each change of a kept form, also of those that were missed while the watch was
    /// interrupted.
    pub async fn follow<K: ResourceExt>(
        self,
        events: impl Stream<Item = Event<K>>,
        keep: impl Fn(K) -> Option<T>,
        changed: impl Fn(&Change<'_, T>),
    ) {
        let mut events = pin!(events);
        // A list counts when it is complete.
        let mut arriving = Objects::new();
        while let Some(event) = events.next().await {
            self.take_in(&mut arriving, event, &keep, &changed);
        }
    }

    fn take_in<K: ResourceExt>(
        &self,
        arriving: &mut Objects<T>,
        event: Event<K>,
        keep: impl Fn(K) -> Option<T>,
        changed: impl Fn(&Change<'_, T>),
    ) {
        match event {
            Event::Init(part) => arriving.retain(|key, _| !is_in(&part, key)),
            Event::InitApply(object) => {
                let key = self.key(&object);
                arriving.extend(key.and_then(|key| Some((key, keep(object)?))));
            }
            Event::InitDone(part) => {
                let listed = arriving.extract_if(.., |key, _| is_in(&part, key)).collect();
                self.replace(&part, listed, changed);
            }
            Event::Listed => {
                self.0.listed.send_replace(true);
            }
            Event::Apply(object) => {
                let Some(key) = self.key(&object) else { return };
                let Some(kept) = keep(object) else {
                    return self.remove(&key, changed);
                };
                let before = self.write(|objects| objects.insert(key.clone(), kept));
                // This task is the only writer, so the object is still there.
                if let Some(now) = self.objects().get(&key).filter(|now| before.as_ref() != Some(*now)) {
                    changed(&change(&key, now, false));
                }
            }
            Event::Delete(object) => {
                if let Some(key) = self.key(&object) {
                    self.remove(&key, changed);
                }
            }
        }
    }

    fn remove(&self, key: &str, changed: impl Fn(&Change<'_, T>)) {
        if let Some(gone) = self.write(|objects| objects.remove(key)) {
            changed(&change(key, &gone, true));
        }
    }

    fn replace(&self, part: &Part, mut listed: Objects<T>, changed: impl Fn(&Change<'_, T>)) {
        let before: Objects<T> = self.write(|objects| {
            let before = objects.extract_if(.., |key, _| is_in(part, key)).collect();
            objects.append(&mut listed);
            before
        });
        let now = self.objects();
        let of_part = now.iter().filter(|(key, _)| is_in(part, key));
        for (key, kept) in of_part.filter(|(key, kept)| before.get(*key) != Some(*kept)) {
            changed(&change(key, kept, false));
        }
        for (key, kept) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
            changed(&change(key, kept, true));
        }
    }
}

/// Whether a list of this part covers a key.
fn is_in(part: &Part, key: &str) -> bool {
    *part == Part::All || key.split_once('/').is_some_and(|(namespace, _)| part.covers(namespace))
}

fn change<'a, T>(key: &'a str, kept: &'a T, gone: bool) -> Change<'a, T> {
    let mut parts = key.split('/');
    let mut part = || parts.next().unwrap_or_default();
    Change {
        namespace: part(),
        name: part(),
        kept,
        gone,
    }
}

impl Store<Text> {
    /// The object of this name.
    pub fn get<K: DeserializeOwned>(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read(namespace, name, Text::read)?.ok().map(Arc::new)
    }

    /// The objects that are filed under a name.
    pub fn get_all<K: DeserializeOwned>(&self, namespace: &str, name: &str) -> Vec<Arc<K>> {
        let all = self.all(namespace, name, Text::read);
        all.into_iter().filter_map(Result::ok).map(Arc::new).collect()
    }
}

/// Stores of kinds that come and go, each in the version that is watched. A kind is watched until it is set to another version,
/// or to none.
pub struct Kinds<I, T> {
    watched: RwLock<HashMap<I, Watched<T>>>,
    known: watch::Sender<HashSet<I>>,
    patience: Duration,
    label: Option<&'static str>,
}

struct Watched<T> {
    version: String,
    store: Store<T>,
    _watch: AbortOnDropHandle<()>,
}

impl<I: Copy + Eq + Hash + fmt::Debug, T> Kinds<I, T> {
    /// No kinds yet. The first list of a kind is waited for, at most as long as `patience`.
    pub fn new(patience: Duration) -> Self {
        Self {
            watched: RwLock::default(),
            known: watch::Sender::default(),
            patience,
            label: None,
        }
    }

    /// As [`new`](Self::new), with objects that are filed by the value of a label.
    pub fn by_label(label: &'static str, patience: Duration) -> Self {
        Self {
            label: Some(label),
            ..Self::new(patience)
        }
    }

    /// The version and the store of a kind that is watched.
    pub fn get(&self, kind: I) -> Option<(String, Store<T>)> {
        let watched = self.watched.read();
        watched
            .get(&kind)
            .map(|kind| (kind.version.clone(), kind.store.clone()))
    }

    /// Waits until each of these kinds was set once.
    pub async fn known(&self, kinds: &[I]) {
        // The sender lives as long as we do.
        let all = |known: &HashSet<I>| kinds.iter().all(|kind| known.contains(kind));
        let _ = self.known.subscribe().wait_for(all).await;
    }

    /// Watches a kind in this version, by a future that fills a store, or ends its watch. Returns after the first list, with
    /// whether another version is watched than before.
    pub async fn set<F>(&self, kind: I, version: Option<String>, follow: impl FnOnce(&str, Store<T>) -> F) -> bool
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let is_new = self.get(kind).map(|(version, _)| version) != version;
        if is_new {
            let watched = match version {
                Some(version) => Some(self.watch(kind, version, follow).await),
                None => None,
            };
            let mut all = self.watched.write();
            match watched {
                Some(watched) => all.insert(kind, watched),
                None => all.remove(&kind),
            };
        }
        self.known.send_if_modified(|known| known.insert(kind));
        is_new
    }

    async fn watch<F>(&self, kind: I, version: String, follow: impl FnOnce(&str, Store<T>) -> F) -> Watched<T>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let store = Store::new(self.label);
        let watch = AbortOnDropHandle::new(tokio::spawn(follow(&version, store.clone())));
        if tokio::time::timeout(self.patience, store.listed()).await.is_err() {
            tracing::warn!(?kind, "the first list takes long");
        }
        Watched {
            version,
            store,
            _watch: watch,
        }
    }
}

impl<I, T> fmt::Debug for Kinds<I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kinds").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use k8s_openapi::api::core::v1::Pod;
    use kube::core::ObjectMeta;

    use super::*;

    /// A pod of this name that belongs to `owner`, and runs on `node`.
    fn pod(name: &str, owner: Option<&str>, node: &str) -> Pod {
        let mut pod = Pod {
            metadata: ObjectMeta {
                namespace: Some("ns".to_owned()),
                name: Some(name.to_owned()),
                labels: owner.map(|owner| [("owner".to_owned(), owner.to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Pod::default()
        };
        pod.spec.get_or_insert_default().node_name = Some(node.to_owned());
        pod
    }

    /// Keeps the node of a pod, if it is on one.
    fn node(pod: Pod) -> Option<String> {
        pod.spec?.node_name.filter(|node| !node.is_empty())
    }

    /// Changes by these events; a removed object starts with `-`.
    fn changes(store: &Store<String>, events: impl IntoIterator<Item = Event<Pod>>) -> Vec<String> {
        let noted = RefCell::new(Vec::new());
        let mut arriving = Objects::new();
        for event in events {
            store.take_in(&mut arriving, event, node, |change| {
                let sign = if change.gone { "-" } else { "" };
                let Change {
                    namespace, name, kept, ..
                } = change;
                noted.borrow_mut().push(format!("{sign}{namespace}/{name} {kept}"));
            });
        }
        let mut noted = noted.into_inner();
        noted.sort();
        noted
    }

    #[test]
    fn store_reads_what_the_watch_delivered() {
        let store = Store::by_name();
        changes(&store, [Event::Apply(pod("a", None, "1"))]);
        assert_eq!(store.read("ns", "a", String::clone).as_deref(), Some("1"));
        assert_eq!(store.read("ns", "b", String::clone), None);
        assert_eq!(changes(&store, [Event::Delete(pod("a", None, "1"))]), ["-ns/a 1"]);
        assert_eq!(store.read("ns", "a", String::clone), None);
    }

    #[test]
    fn list_is_taken_over_when_it_is_complete() {
        let store = Store::by_name();
        let begin = [Event::Init(Part::All), Event::InitApply(pod("a", None, "1"))];
        assert!(changes(&store, begin.clone()).is_empty() && !store.is_listed());
        assert_eq!(store.read("ns", "a", String::clone), None);
        let end = [Event::InitDone(Part::All), Event::Listed];
        assert_eq!(changes(&store, begin.into_iter().chain(end)), ["ns/a 1"]);
        assert!(store.is_listed());
    }

    #[test]
    fn second_list_reports_missed_changes() {
        let store = Store::by_name();
        let first = ["kept", "changed", "gone"].map(|name| Event::Apply(pod(name, None, "1")));
        changes(&store, first);
        let second = [
            Event::Init(Part::All),
            Event::InitApply(pod("kept", None, "1")),
            Event::InitApply(pod("changed", None, "2")),
            Event::InitApply(pod("new", None, "3")),
            Event::InitDone(Part::All),
        ];
        assert_eq!(changes(&store, second), ["-ns/gone 1", "ns/changed 2", "ns/new 3"]);
    }

    #[test]
    fn list_of_a_namespace_leaves_the_others_alone() {
        let of = |namespace: &str, name: &str| {
            let mut pod = pod(name, None, "1");
            pod.metadata.namespace = Some(namespace.to_owned());
            pod
        };
        let part = |namespace: &str| Part::Of(namespace.into());
        let store = Store::by_name();
        // Two lists at once; a namespace whose name begins like another one's.
        let first = [
            Event::Init(part("a")),
            Event::Init(part("a-b")),
            Event::InitApply(of("a", "x")),
            Event::InitApply(of("a-b", "y")),
            Event::InitDone(part("a")),
        ];
        assert_eq!(changes(&store, first), ["a/x 1"]);
        let both = ["a", "a-b"].map(|namespace| Event::Apply(of(namespace, "y")));
        assert_eq!(changes(&store, both), ["a-b/y 1", "a/y 1"]);
        assert!(!store.is_listed());
        let empty = [Event::Init(part("a")), Event::InitDone(part("a")), Event::Listed];
        assert_eq!(changes(&store, empty), ["-a/x 1", "-a/y 1"]);
        assert!(store.is_listed());
        assert_eq!(store.read("a-b", "y", String::clone).as_deref(), Some("1"));
    }

    #[test]
    fn only_changes_of_what_is_kept_are_reported() {
        let store = Store::by_name();
        let on = |node: &str| Event::Apply(pod("a", None, node));
        assert_eq!(changes(&store, [on("1"), on("1")]), ["ns/a 1"]);
        assert_eq!(changes(&store, [on("")]), ["-ns/a 1"]);
        assert_eq!(changes(&store, [on(""), Event::Delete(pod("a", None, ""))]), [""; 0]);
    }

    #[test]
    fn objects_are_filed_by_a_label() {
        let store = Store::by_label("owner");
        let noted = changes(
            &store,
            [
                Event::Apply(pod("b", Some("x"), "2")),
                Event::Apply(pod("a", Some("x"), "1")),
                Event::Apply(pod("c", Some("xy"), "3")),
                Event::Apply(pod("d", None, "4")),
            ],
        );
        assert_eq!(noted, ["ns/x 1", "ns/x 2", "ns/xy 3"]);
        assert_eq!(store.all("ns", "x", String::clone), ["1", "2"]);
        assert_eq!(store.all("ns", "y", String::clone), [""; 0]);
    }

    #[tokio::test]
    async fn kind_is_watched_until_its_version_changes() {
        let kinds: Kinds<&str, String> = Kinds::new(Duration::from_mins(1));
        let follow = |version: &str, store: Store<String>| {
            let listed = [
                Event::Init(Part::All),
                Event::InitApply(pod("a", None, version)),
                Event::InitDone(Part::All),
                Event::Listed,
            ];
            let events = futures::stream::iter(listed).chain(futures::stream::pending());
            store.follow(events, node, |_| {})
        };
        let seen = || {
            let (version, store) = kinds.get("Pod")?;
            Some((version, store.read("ns", "a", String::clone)?))
        };
        let at = |version: &str| Some((version.to_owned(), version.to_owned()));
        assert!(kinds.set("Pod", Some("v1".to_owned()), follow).await);
        kinds.known(&["Pod"]).await;
        assert_eq!(seen(), at("v1"));
        assert!(!kinds.set("Pod", Some("v1".to_owned()), follow).await);
        assert!(kinds.set("Pod", Some("v2".to_owned()), follow).await);
        assert_eq!(seen(), at("v2"));
        assert!(kinds.set("Pod", None, follow).await);
        assert_eq!(seen(), None);
    }
}
