//! The watch caches. Of what may be a target only metadata is watched, and of that only names, uids and versions are kept; an object is
//! read whole when an actor looks for it and it has changed since. What no actor looks for costs nothing. Of what is made for actors, which
//! carries our label, everything is watched.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use futures::channel::mpsc;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::{AsyncActor, labels};
use runway_operator::crd::Crd;
use runway_operator::echo::Echo;
use runway_operator::pods::Pods;
use runway_operator::watch::crd;
use tokio::task::JoinSet;

use crate::observe::{Found, Key, Kind, Objects};
use crate::plan;
use crate::queues::Id;
use crate::targets::KNOWN;

/// Who is to be looked at again.
pub(crate) type Wake = mpsc::UnboundedSender<ObjectRef<AsyncActor>>;

/// Namespace and name.
type Place = (String, String);

/// Everything the operator reads, beside the actors.
pub(crate) struct Caches {
    client: Client,
    wake: Wake,
    echo: Arc<Echo<DynamicObject>>,
    kinds: RwLock<HashMap<Kind, Arc<KindCache>>>,
    /// Kinds of which is known whether they are installed.
    settled: tokio::sync::watch::Sender<HashSet<Kind>>,
    interest: Mutex<Interest>,
    pods: Arc<Pods>,
}

/// Who looks for what.
#[derive(Default)]
struct Interest {
    of: HashMap<(Kind, Place), BTreeSet<String>>,
    by: HashMap<Id, BTreeSet<Key>>,
}

/// One kind that is watched. Dropping it ends the watch.
struct KindCache {
    version: String,
    seen: Mutex<HashMap<Place, Sighting>>,
    listed: tokio::sync::watch::Sender<bool>,
    task: Mutex<JoinSet<()>>,
}

/// An object as it was seen last.
#[derive(Clone)]
struct Sighting {
    revision: u64,
    /// The whole, where somebody looked for it.
    whole: Option<Arc<DynamicObject>>,
}

impl Caches {
    /// Caches that wake reconciles through `wake`; `echo` is what we wrote ourselves.
    pub(crate) fn new(client: Client, wake: Wake, echo: Arc<Echo<DynamicObject>>) -> Arc<Self> {
        Arc::new(Self {
            client,
            wake,
            echo,
            kinds: RwLock::default(),
            settled: tokio::sync::watch::Sender::new(HashSet::new()),
            interest: Mutex::default(),
            pods: Arc::new(Pods::new(labels::ASYA_ACTOR)),
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(crate) async fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let (built_in, by_crd): (Vec<Kind>, Vec<Kind>) = plan::kinds().into_iter().partition(|kind| kind.is_built_in());
        let count = by_crd.len();
        let woken = self.clone();
        let changed = move |namespace: &str, actor: &str| woken.wake(&(namespace.to_owned(), actor.to_owned()));
        let selector = labels::ASYA_ACTOR.to_owned();
        tasks.spawn(self.pods.clone().follow(self.client.clone(), selector, changed));
        for kind in by_crd {
            tasks.spawn(self.clone().follow_crd(kind));
        }
        for kind in built_in {
            self.install(kind, kind.version.to_owned()).await;
        }
        // The sender lives as long as we do.
        let _ = self
            .settled
            .subscribe()
            .wait_for(|settled| settled.len() >= count)
            .await;
        self.pods.listed().await;
    }

    /// The pods that have the containers of an actor.
    pub(crate) fn pods(&self, namespace: &str, actor: &str) -> Vec<Arc<Pod>> {
        self.pods.of(namespace, actor)
    }

    /// Everything that a plan for the actor looks for. Reads from the server only what changed since it was read.
    pub(crate) async fn objects(&self, actor: &AsyncActor) -> Result<Objects, kube::Error> {
        let id = (actor.namespace().unwrap_or_default(), actor.name_any());
        let mut found = Objects::new();
        loop {
            let missing: Vec<Key> = plan::needs(actor, &found)
                .into_iter()
                .filter(|key| !found.contains_key(key))
                .collect();
            if missing.is_empty() {
                self.lock().looks_for(&id, found.keys());
                return Ok(found);
            }
            // Before they are looked at: what changes meanwhile must wake the actor.
            self.lock().also_looks_for(&id, &missing);
            for key in missing {
                let object = self.find(&id.0, &key).await?;
                found.insert(key, object);
            }
        }
    }

    async fn find(&self, namespace: &str, key: &Key) -> Result<Found, kube::Error> {
        let cache = self
            .kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&key.kind)
            .cloned();
        let Some(cache) = cache else {
            return Ok(Found::NotInstalled);
        };
        let version = cache.version.clone();
        let watched = cache.whole(self, key.kind, namespace, &key.name).await?;
        let newest = self.echo.newest(key.kind.kind, namespace, &key.name, watched);
        Ok(match newest {
            Some(object) => Found::Here { version, object },
            None => Found::Absent { version },
        })
    }

    /// Keeps one kind watched while its CRD is installed.
    async fn follow_crd(self: Arc<Self>, kind: Kind) {
        let mut crds = pin!(crd(self.client.clone(), format!("{}.{}", kind.plural, kind.group)));
        while let Some(crd) = crds.next().await {
            match crd.as_ref().and_then(|crd| version(kind, crd)) {
                Some(version) => self.install(kind, version).await,
                None => self.uninstall(kind),
            }
            self.settled.send_modify(|settled| {
                settled.insert(kind);
            });
        }
    }

    /// Watches a kind; returns after the first list.
    async fn install(self: &Arc<Self>, kind: Kind, version: String) {
        let there = self
            .kinds
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&kind)
            .cloned();
        if there.is_some_and(|cache| cache.version == version) {
            return;
        }
        let cache = Arc::new(KindCache {
            version: version.clone(),
            seen: Mutex::default(),
            listed: tokio::sync::watch::Sender::new(false),
            task: Mutex::default(),
        });
        let follow = self.clone().follow(kind, version, Arc::downgrade(&cache));
        cache.task.lock().unwrap_or_else(PoisonError::into_inner).spawn(follow);
        let _ = cache.listed.subscribe().wait_for(|listed| *listed).await;
        self.kinds
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(kind, cache);
        self.wake_all_of(kind);
    }

    fn uninstall(&self, kind: Kind) {
        let removed = self.kinds.write().unwrap_or_else(PoisonError::into_inner).remove(&kind);
        if removed.is_some() {
            self.wake_all_of(kind);
        }
    }

    async fn follow(self: Arc<Self>, kind: Kind, version: String, cache: std::sync::Weak<KindCache>) {
        let mut events = self.events(kind, &version);
        let mut listing: Option<HashSet<Place>> = None;
        while let Some(event) = events.next().await {
            let Some(cache) = cache.upgrade() else { return };
            match event {
                Ok(Event::Init) => listing = Some(HashSet::new()),
                Ok(Event::InitApply(object)) => {
                    if let Some(listing) = &mut listing {
                        listing.insert(place(&object));
                    }
                    self.seen(kind, &cache, object);
                }
                Ok(Event::Apply(object)) => self.seen(kind, &cache, object),
                Ok(Event::Delete(object)) => self.gone(kind, &cache, &place(&object)),
                Ok(Event::InitDone) => {
                    let listed = listing.take().unwrap_or_default();
                    let vanished: Vec<Place> = cache
                        .lock()
                        .keys()
                        .filter(|place| !listed.contains(*place))
                        .cloned()
                        .collect();
                    for place in vanished {
                        self.gone(kind, &cache, &place);
                    }
                    cache.listed.send_replace(true);
                }
                Err(error) => tracing::warn!(kind = kind.kind, %error, "watch interrupted"),
            }
        }
    }

    fn events(&self, kind: Kind, version: &str) -> BoxStream<'static, watcher::Result<Event<DynamicObject>>> {
        let (client, resource) = (self.client.clone(), kind.resource(version));
        if plan::MADE.contains(&kind) {
            let ours = format!("{}={}", labels::RECOMMENDED_MANAGED_BY, labels::ASYA_MANAGER);
            let api: Api<DynamicObject> = Api::all_with(client, &resource);
            return watch(api, watcher::Config::default().labels(&ours))
                .default_backoff()
                .boxed();
        }
        let bare = |meta: PartialObjectMeta<DynamicObject>| DynamicObject {
            types: None,
            metadata: meta.metadata,
            data: serde_json::Value::Null,
        };
        let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client, &resource);
        watch(api, watcher::Config::default())
            .default_backoff()
            .map_ok(move |event| match event {
                Event::Apply(object) => Event::Apply(bare(object)),
                Event::Delete(object) => Event::Delete(bare(object)),
                Event::InitApply(object) => Event::InitApply(bare(object)),
                Event::Init => Event::Init,
                Event::InitDone => Event::InitDone,
            })
            .boxed()
    }

    fn seen(&self, kind: Kind, cache: &KindCache, object: DynamicObject) {
        let place = place(&object);
        let revision = revision(&object);
        {
            let mut seen = cache.lock();
            let entry = seen.entry(place.clone()).or_insert(Sighting { revision, whole: None });
            entry.revision = revision;
            if !object.data.is_null() {
                entry.whole = Some(Arc::new(object));
            }
        }
        self.wake_interested(kind, &place);
    }

    fn gone(&self, kind: Kind, cache: &KindCache, place: &Place) {
        cache.lock().remove(place);
        self.echo.gone(kind.kind, &place.0, &place.1);
        self.wake_interested(kind, place);
    }

    fn wake_interested(&self, kind: Kind, place: &Place) {
        let names = self.lock().of.get(&(kind, place.clone())).cloned().unwrap_or_default();
        for name in names {
            self.wake(&(place.0.clone(), name));
        }
    }

    fn wake_all_of(&self, kind: Kind) {
        let ids: BTreeSet<Id> = {
            let interest = self.lock();
            let of_kind = interest.of.iter().filter(|((k, _), _)| *k == kind);
            of_kind
                .flat_map(|((_, place), names)| names.iter().map(|name| (place.0.clone(), name.clone())))
                .collect()
        };
        for id in &ids {
            self.wake(id);
        }
    }

    /// Wakes the actors that look for a target that this one looks for, too.
    pub(crate) fn wake_rivals(&self, id: &Id) {
        let rivals: BTreeSet<String> = {
            let interest = self.lock();
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
            self.wake(&(id.0.clone(), name));
        }
    }

    /// Forgets an actor.
    pub(crate) fn forget(&self, id: &Id) {
        self.lock().looks_for(id, std::iter::empty());
    }

    pub(crate) fn wake(&self, (namespace, name): &Id) {
        // Fails only while shutting down.
        let _ = self.wake.unbounded_send(ObjectRef::new(name).within(namespace));
    }

    fn lock(&self) -> MutexGuard<'_, Interest> {
        self.interest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interest {
    fn also_looks_for(&mut self, id: &Id, keys: &[Key]) {
        for key in keys {
            let place = (id.0.clone(), key.name.clone());
            self.of.entry((key.kind, place)).or_default().insert(id.1.clone());
        }
        self.by.entry(id.clone()).or_default().extend(keys.iter().cloned());
    }

    /// These and no others.
    fn looks_for<'a>(&mut self, id: &Id, keys: impl Iterator<Item = &'a Key>) {
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

impl KindCache {
    /// The whole object, read if it changed since it was read last.
    async fn whole(
        &self,
        caches: &Caches,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<DynamicObject>>, kube::Error> {
        let at = (namespace.to_owned(), name.to_owned());
        let Some(sighting) = self.lock().get(&at).cloned() else {
            return Ok(None);
        };
        if let Some(whole) = sighting
            .whole
            .filter(|whole| revision(whole.as_ref()) >= sighting.revision)
        {
            return Ok(Some(whole));
        }
        let api: Api<DynamicObject> =
            Api::namespaced_with(caches.client.clone(), namespace, &kind.resource(&self.version));
        let read = api.get_opt(name).await?.map(Arc::new);
        if let (Some(read), Some(entry)) = (&read, self.lock().get_mut(&at)) {
            entry.whole = Some(read.clone());
        }
        Ok(read)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Sighting>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(object: &DynamicObject) -> Place {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Resource versions of one kind are numbers that grow.
fn revision(object: &impl Resource) -> u64 {
    object
        .meta()
        .resource_version
        .as_deref()
        .and_then(|v| v.parse().ok())
        .unwrap_or(0)
}

/// The version in which a kind is read: ours if it is served, else the one that is stored.
fn version(kind: Kind, crd: &Crd) -> Option<String> {
    let served = || crd.spec.versions.iter().filter(|v| v.served);
    let ours = served().find(|v| v.name == kind.version);
    let stored = || served().find(|v| v.storage);
    ours.or_else(stored).or_else(|| served().next()).map(|v| v.name.clone())
}
