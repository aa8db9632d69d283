//! The watch caches. Of kinds that may be targets only metadata is watched, and only the revision of each object is kept: an
//! object is read whole when an actor needs it and it has changed since. Objects that no actor needs cost next to nothing. Of
//! the kinds that are made for actors, the objects with our label are watched whole.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use runway_api::{AsyncActor, labels};
use runway_operator::controller::Wake;
use runway_operator::crd::Crd;
use runway_operator::echo::{Echo, revision};
use runway_operator::kubelet;
use runway_operator::object::Kind;
use runway_operator::packed::{Packed, Text};
use runway_operator::process::Process;
use runway_operator::scope::{Apis, Namespaces};
use runway_operator::store::{Change, Kinds, Store};
use runway_operator::watch::{crd, events, reporting_missed, watched};
use tokio::task::JoinSet;

use crate::object::{Found, Key, Objects, SECRET};
use crate::queues::Id;
use crate::targets::KNOWN;
use crate::{names, needs};

/// Namespace and name.
type Place = (String, String);

/// Everything the operator reads, beside the actors.
pub(crate) struct Caches {
    client: Client,
    namespaces: Namespaces,
    wake: Wake<Packed<AsyncActor>>,
    /// Our own writes.
    written: Arc<Echo<DynamicObject>>,
    kinds: Kinds<Kind, Sighting>,
    /// Objects that were read whole.
    reads: Mutex<HashMap<(Kind, Place), Read>>,
    interest: Mutex<Interest>,
    pods: Store<Text>,
}

/// Actors by the objects that they need, and the reverse.
#[derive(Default)]
struct Interest {
    /// Names of actors by object.
    of: HashMap<(Kind, Place), BTreeSet<String>>,
    /// Objects by actor.
    by: HashMap<Id, BTreeSet<Key>>,
}

/// An object as its watch delivered it last.
#[derive(PartialEq)]
struct Sighting {
    revision: u64,
    /// The whole object, if objects of its kind are watched whole.
    whole: Option<Text>,
}

/// An object that was read whole.
struct Read {
    version: String,
    revision: u64,
    whole: Text,
}

impl Caches {
    /// Caches that requeue actors through `wake`, and show what was written before the watches do.
    pub(crate) fn new(
        process: &Process,
        wake: Wake<Packed<AsyncActor>>,
        written: Arc<Echo<DynamicObject>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client: process.client.clone(),
            namespaces: process.namespaces.clone(),
            wake,
            written,
            // Without its first list, a target that exists would be taken for missing.
            kinds: Kinds::new(Duration::MAX),
            reads: Mutex::default(),
            interest: Mutex::default(),
            pods: Store::by_label(labels::ASYA_ACTOR),
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(crate) async fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let kinds = needs::kinds();
        let wake = self.wake.clone();
        tasks.spawn(self.pods.clone().follow(
            watched::<Pod>(
                self.namespaces.apis(&self.client),
                watcher::Config::default().labels(labels::ASYA_ACTOR),
            ),
            |pod| Some(kubelet::without_spec(pod)),
            move |change| wake.call(change.namespace, change.name),
        ));
        for kind in kinds.iter().copied().filter(|kind| !kind.is_built_in()) {
            tasks.spawn(self.clone().follow_crd(kind));
        }
        for kind in kinds.iter().copied().filter(|kind| kind.is_built_in()) {
            self.set(kind, Some(kind.version.to_owned())).await;
        }
        self.kinds.known(&kinds).await;
        self.pods.listed().await;
    }

    /// The pods that have the containers of an actor.
    pub(crate) fn pods(&self, namespace: &str, actor: &str) -> Vec<Arc<Pod>> {
        self.pods.get_all(namespace, actor)
    }

    /// Everything that a plan for the actor needs. Reads from the server only what changed since it was read.
    pub(crate) async fn objects(&self, actor: &AsyncActor) -> Result<Objects, kube::Error> {
        let id = (actor.namespace().unwrap_or_default(), actor.name_any());
        let mut found = Objects::new();
        loop {
            let missing = needs::missing(actor, &found);
            if missing.is_empty() {
                self.interest.lock().needs(&id, found.keys());
                return Ok(found);
            }
            // Before they are looked at: what changes meanwhile must wake the actor.
            self.interest.lock().also_needs(&id, &missing);
            for key in missing {
                let object = self.find(&id.0, &key).await?;
                found.insert(key, object);
            }
        }
    }

    async fn find(&self, namespace: &str, key: &Key) -> Result<Found, kube::Error> {
        let Some((version, store)) = self.kinds.get(key.kind) else {
            return Ok(Found::NotInstalled);
        };
        let watched = self.whole(&version, &store, namespace, key).await?;
        let newest = self.written.newest(key.kind.kind, namespace, &key.name, watched);
        Ok(match newest {
            Some(object) => Found::Here { version, object },
            None => Found::Absent { version },
        })
    }

    /// The whole object, read if it changed since it was read last.
    async fn whole(
        &self,
        version: &str,
        store: &Store<Sighting>,
        namespace: &str,
        key: &Key,
    ) -> Result<Option<Arc<DynamicObject>>, kube::Error> {
        let unpack = |text: &Text| text.read().ok().map(Arc::new);
        let seen = |seen: &Sighting| (seen.revision, seen.whole.as_ref().and_then(unpack));
        let seen_at = match store.read(namespace, &key.name, seen) {
            None => return Ok(None),
            Some((_, Some(whole))) => return Ok(Some(whole)),
            Some((revision, None)) => revision,
        };
        let at = (key.kind, (namespace.to_owned(), key.name.clone()));
        let is_current = |read: &&Read| read.version == version && read.revision >= seen_at;
        let read = self
            .reads
            .lock()
            .get(&at)
            .filter(is_current)
            .and_then(|read| unpack(&read.whole));
        if read.is_some() {
            return Ok(read);
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &key.kind.resource_in(version));
        let read = api.get_opt(&key.name).await?;
        if let Some(object) = &read {
            let mut reads = self.reads.lock();
            // Otherwise it is gone, and would be kept for good.
            if store.read(namespace, &key.name, |_| ()).is_some() {
                let read = Read {
                    version: version.to_owned(),
                    revision: revision(object),
                    whole: Text::of(object),
                };
                reads.insert(at, read);
            }
        }
        Ok(read.map(Arc::new))
    }

    /// Keeps one kind watched while its CRD is installed.
    async fn follow_crd(self: Arc<Self>, kind: Kind) {
        let mut crds = pin!(crd(self.client.clone(), &kind.crd_name()));
        while let Some(crd) = crds.next().await {
            self.set(kind, crd.as_ref().and_then(|crd| version(kind, crd))).await;
        }
    }

    /// Watches a kind in this version, or not at all; returns after the first list.
    async fn set(self: &Arc<Self>, kind: Kind, version: Option<String>) {
        let follow = |version: &str, store: Store<Sighting>| self.clone().follow(kind, version, store);
        if self.kinds.set(kind, version, follow).await {
            self.reads.lock().retain(|(of, _), _| *of != kind);
            self.wake_all_of(kind);
        }
    }

    fn follow(self: Arc<Self>, kind: Kind, version: &str, store: Store<Sighting>) -> BoxFuture<'static, ()> {
        let (client, namespaces) = (self.client.clone(), self.namespaces.clone());
        let resource = kind.resource_in(version);
        let this = self.clone();
        let changed = move |change: &Change<'_, Sighting>| this.changed(kind, change);
        let written = self.written.clone();
        let missed = move |object: &DynamicObject| {
            self.wake_interested(kind, &object.namespace().unwrap_or_default(), &object.name_any());
        };
        if needs::MADE.contains(&kind) {
            let ours = format!("{}={}", labels::RECOMMENDED_MANAGED_BY, labels::ASYA_MANAGER);
            let apis: Apis<DynamicObject> = namespaces.apis_of(&client, &resource);
            let mut config = watcher::Config::default().labels(&ours);
            if kind == SECRET {
                // The operator may read no other.
                config = config.fields(&format!("metadata.name={}", names::BROKER_SECRET));
            }
            let events = events(apis, config);
            let events = reporting_missed(events, written, kind.kind, missed);
            let keep = |object: DynamicObject| {
                Some(Sighting {
                    revision: revision(&object),
                    whole: Some(Text::of(&object)),
                })
            };
            return store.follow(events, keep, changed).boxed();
        }
        let apis: Apis<PartialObjectMeta<DynamicObject>> = namespaces.apis_of(&client, &resource);
        let keep = |object: PartialObjectMeta<DynamicObject>| {
            Some(Sighting {
                revision: revision(&object),
                whole: None,
            })
        };
        let events = events(apis, watcher::Config::default());
        let events = reporting_missed(events, written, kind.kind, missed);
        store.follow(events, keep, changed).boxed()
    }

    fn changed(&self, kind: Kind, change: &Change<'_, Sighting>) {
        if change.gone {
            let at = (kind, (change.namespace.to_owned(), change.name.to_owned()));
            self.reads.lock().remove(&at);
            self.written.gone(kind.kind, change.namespace, change.name);
        }
        self.wake_interested(kind, change.namespace, change.name);
    }

    /// Wakes the actors that need an object.
    fn wake_interested(&self, kind: Kind, namespace: &str, name: &str) {
        let at = (kind, (namespace.to_owned(), name.to_owned()));
        let names = self.interest.lock().of.get(&at).cloned().unwrap_or_default();
        for name in names {
            self.wake.call(namespace, &name);
        }
    }

    fn wake_all_of(&self, kind: Kind) {
        let ids: BTreeSet<Id> = {
            let interest = self.interest.lock();
            let of_kind = interest.of.iter().filter(|((k, _), _)| *k == kind);
            of_kind
                .flat_map(|((_, place), names)| names.iter().map(|name| (place.0.clone(), name.clone())))
                .collect()
        };
        for (namespace, name) in &ids {
            self.wake.call(namespace, name);
        }
    }

    /// Wakes the other actors that need a target that this one needs.
    pub(crate) fn wake_rivals(&self, id: &Id) {
        let rivals: BTreeSet<String> = {
            let interest = self.interest.lock();
            let keys = interest
                .by
                .get(id)
                .into_iter()
                .flatten()
                .filter(|key| KNOWN.contains(&key.kind));
            keys.filter_map(|key| interest.of.get(&(key.kind, (id.0.clone(), key.name.clone()))))
                .flatten()
                .filter(|name| **name != id.1)
                .cloned()
                .collect()
        };
        for name in rivals {
            self.wake.call(&id.0, &name);
        }
    }

    /// Forgets an actor.
    pub(crate) fn forget(&self, id: &Id) {
        self.interest.lock().needs(id, std::iter::empty());
    }
}

impl Interest {
    fn also_needs(&mut self, id: &Id, keys: &[Key]) {
        for key in keys {
            let place = (id.0.clone(), key.name.clone());
            self.of.entry((key.kind, place)).or_default().insert(id.1.clone());
        }
        self.by.entry(id.clone()).or_default().extend(keys.iter().cloned());
    }

    /// These and no others.
    fn needs<'a>(&mut self, id: &Id, keys: impl Iterator<Item = &'a Key>) {
        let now: BTreeSet<Key> = keys.cloned().collect();
        let before = self.by.remove(id).unwrap_or_default();
        for key in before.difference(&now) {
            let at = (key.kind, (id.0.clone(), key.name.clone()));
            if let Some(names) = self.of.get_mut(&at) {
                names.remove(&id.1);
                if names.is_empty() {
                    self.of.remove(&at);
                }
            }
        }
        if !now.is_empty() {
            self.by.insert(id.clone(), now);
        }
    }
}

/// The version in which a kind is read: ours if it is served, else the one that is stored.
fn version(kind: Kind, crd: &Crd) -> Option<String> {
    let served = || crd.spec.versions.iter().filter(|v| v.served);
    let ours = served().find(|v| v.name == kind.version);
    let stored = || served().find(|v| v.storage);
    ours.or_else(stored).or_else(|| served().next()).map(|v| v.name.clone())
}

#[cfg(test)]
mod tests {
    use futures::future::{self, Either};
    use kube::client::Body;
    use runway_operator::controller;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;
    use tower::service_fn;

    use super::*;
    use crate::targets::STATEFUL_SET;

    /// A server without objects, whose watches stay silent.
    fn empty() -> Client {
        let service = service_fn(|request: http::Request<Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            if is_watch {
                return Either::Left(future::pending());
            }
            let list =
                json!({ "apiVersion": "v1", "kind": "List", "metadata": { "resourceVersion": "7" }, "items": [] });
            let response = http::Response::new(Body::from(list.to_string().into_bytes()));
            Either::Right(future::ready(Ok::<_, kube::Error>(response)))
        });
        Client::new(service, "ns")
    }

    /// Found by `storm --scenario actor-to-stateful-set --seed 46`: the StatefulSet was waited for, although it was gone.
    #[tokio::test]
    async fn a_workload_that_was_created_and_deleted_while_its_watch_was_away_is_noticed() {
        let (wake, mut woken) = controller::wake();
        let written = Arc::<Echo<DynamicObject>>::default();
        let caches = Caches::new(
            &Process::alone(empty(), CancellationToken::new()),
            wake,
            written.clone(),
        );
        let id = ("ns".to_owned(), "a".to_owned());
        caches.interest.lock().also_needs(&id, &[Key::new(STATEFUL_SET, "a")]);
        let mut workload = DynamicObject::new("a", &STATEFUL_SET.resource()).within("ns");
        workload.metadata.resource_version = Some("5".to_owned());
        written.wrote(STATEFUL_SET.kind, workload);

        let follow = caches.follow(STATEFUL_SET, STATEFUL_SET.version, Store::by_name());
        let noticed = future::select(follow, woken.next());
        let Ok(Either::Right((actor, _))) = tokio::time::timeout(Duration::from_mins(1), noticed).await else {
            panic!("the actor is not requeued");
        };
        assert_eq!(actor.map(|actor| actor.name).as_deref(), Some("a"));
        assert!(written.newest(STATEFUL_SET.kind, "ns", "a", None).is_none());
    }
}
