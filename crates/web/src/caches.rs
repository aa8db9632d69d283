//! Watches and their objects, shared by the sessions of one user.
//!
//! A user is what the cluster says of a credential, by name, uid, groups and extra. The caches of all users together take a
//! bounded number of bytes: where there is no room, those go that were not used for longest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use kube::Client;
use parking_lot::Mutex;
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment};
use tokio::sync::{Semaphore, broadcast};

use crate::credentials::{Holders, Who};
use crate::health::Health;
use crate::kind::Kind;
use crate::seen::News;
use crate::store::Used;
use crate::watches::{Feed, Owner, Watched};

/// Bytes of all caches together.
const ROOM: usize = 32 * 1024 * 1024;
/// Lists that are read at a time.
const LISTS: usize = 4;
/// Buffered changes per browser; a browser that lags further behind reloads the page.
const BACKLOG: usize = 256;

/// Namespaces in which a session may list and watch a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In all namespaces.
    Everywhere,
    /// Only these namespaces.
    In(Vec<String>),
}

impl Scope {
    /// The namespaces to watch; `None` is all.
    pub fn places(&self) -> BTreeSet<Option<String>> {
        match self {
            Self::Everywhere => BTreeSet::from([None]),
            Self::In(namespaces) => namespaces.iter().cloned().map(Some).collect(),
        }
    }

    /// Whether it includes a namespace.
    pub fn holds(&self, namespace: &str) -> bool {
        match self {
            Self::Everywhere => true,
            Self::In(namespaces) => namespaces.iter().any(|allowed| allowed == namespace),
        }
    }

    /// The namespaces, unless it is all.
    pub fn namespaces(&self) -> Option<Vec<String>> {
        match self {
            Self::Everywhere => None,
            Self::In(namespaces) => Some(namespaces.clone()),
        }
    }
}

/// The caches of all users.
pub struct Users {
    namespace: String,
    room: usize,
    /// The bytes in use, of all users together.
    pub(crate) used: Used,
    lists: Arc<Semaphore>,
    known: Mutex<BTreeMap<Who, Weak<Caches>>>,
}

impl Users {
    /// Creates it without users. `namespace` is that of the console's own context.
    pub fn new(namespace: &str) -> Arc<Self> {
        Self::with_room(namespace, ROOM)
    }

    pub(crate) fn with_room(namespace: &str, room: usize) -> Arc<Self> {
        Arc::new(Self {
            namespace: namespace.to_owned(),
            room,
            used: Arc::new(AtomicUsize::new(0)),
            lists: Arc::new(Semaphore::new(LISTS)),
            known: Mutex::default(),
        })
    }

    /// The caches of a user, for as long as a session holds them.
    pub fn caches(self: &Arc<Self>, who: &Who) -> Arc<Caches> {
        let mut known = self.known.lock();
        known.retain(|_, caches| caches.strong_count() > 0);
        if let Some(caches) = known.get(who).and_then(Weak::upgrade) {
            return caches;
        }
        let caches = Arc::new(Caches::new(self.clone()));
        known.insert(who.clone(), Arc::downgrade(&caches));
        caches
    }

    /// Drops the caches of others until there is room. `false` if there is none even so.
    fn make_room(&self, asking: &Caches) -> bool {
        while self.used.load(Ordering::Relaxed) > self.room {
            let Some(victim) = self.least_used(asking) else {
                return false;
            };
            tracing::info!("dropping the caches of one user to make room for another user");
            victim.drop_all();
        }
        true
    }

    /// The caches to drop first: those without listening browsers, then the least recently used.
    fn least_used(&self, asking: &Caches) -> Option<Arc<Caches>> {
        let known = self.known.lock();
        let others = known.values().filter_map(Weak::upgrade);
        others
            .filter(|caches| !std::ptr::eq(caches.as_ref(), asking) && !caches.is_empty())
            .min_by_key(|caches| (caches.changes.receiver_count() > 0, caches.last_use()))
    }
}

/// The watches of a kind: by namespace, or of all.
pub type Slot<K> = Mutex<BTreeMap<Option<String>, Arc<Watched<K>>>>;

/// A kind with a slot in the caches.
pub trait Cached: Kind {
    /// The watches of this kind.
    fn slot(caches: &Caches) -> &Slot<Self>;
}

impl Cached for ModelDeployment {
    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.deployments
    }
}

impl Cached for InferenceProviderConfig {
    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.providers
    }
}

impl Cached for AsyncActor {
    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.actors
    }
}

impl Cached for LlamaStackDistribution {
    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.distributions
    }
}

/// Watches and their results, shared by the sessions of one user.
pub struct Caches {
    users: Arc<Users>,
    /// Credentials of the watches.
    pub holders: Arc<Holders>,
    /// Calls with one of them.
    pub client: Client,
    /// News for browsers.
    pub changes: broadcast::Sender<News>,
    /// Health of the connection.
    pub health: Arc<Health>,
    used_at: Mutex<Instant>,
    /// ModelDeployments.
    pub deployments: Slot<ModelDeployment>,
    /// InferenceProviderConfigs.
    pub providers: Slot<InferenceProviderConfig>,
    /// AsyncActors.
    pub actors: Slot<AsyncActor>,
    /// LlamaStackDistributions.
    pub distributions: Slot<LlamaStackDistribution>,
}

impl Caches {
    fn new(users: Arc<Users>) -> Self {
        let holders = Arc::new(Holders::default());
        let client = holders.client(&users.namespace, users.lists.clone());
        Self {
            users,
            holders,
            health: Health::new(client.clone()),
            client,
            changes: broadcast::channel(BACKLOG).0,
            used_at: Mutex::new(Instant::now()),
            deployments: Mutex::default(),
            providers: Mutex::default(),
            actors: Mutex::default(),
            distributions: Mutex::default(),
        }
    }

    /// The watches of a kind where `scope` says; they start with the first request. Watches elsewhere end: the user
    /// may no longer see what they show.
    pub fn watched<K: Cached>(self: &Arc<Self>, scope: &Scope) -> Vec<Arc<Watched<K>>> {
        *self.used_at.lock() = Instant::now();
        let mut slot = K::slot(self).lock();
        let places = scope.places();
        slot.retain(|place, watched| places.contains(place) && !watched.is_over());
        let begin = |place: Option<String>| {
            let begun = slot.entry(place.clone());
            begun
                .or_insert_with(|| Arc::new(Watched::start(self.feed(), place.as_deref())))
                .clone()
        };
        places.into_iter().map(begin).collect()
    }

    /// The watches of a kind that there are, in a namespace or in all.
    pub fn running<K: Cached>(&self, namespace: &str) -> Vec<Arc<Watched<K>>> {
        let slot = K::slot(self).lock();
        let places = [None, Some(namespace.to_owned())];
        places.iter().filter_map(|place| slot.get(place).cloned()).collect()
    }

    /// Ends the watches of a kind, and forgets what they have shown.
    pub fn drop_kind<K: Cached>(&self) {
        let mut slot = K::slot(self).lock();
        for watched in std::mem::take(&mut *slot).into_values() {
            watched.end();
        }
    }

    fn drop_all(&self) {
        self.drop_kind::<ModelDeployment>();
        self.drop_kind::<InferenceProviderConfig>();
        self.drop_kind::<AsyncActor>();
        self.drop_kind::<LlamaStackDistribution>();
        // There may be no receiver.
        let _ = self.changes.send(News::Dropped);
    }

    fn is_empty(&self) -> bool {
        fn has_none<K: Kind>(slot: &Slot<K>) -> bool {
            slot.lock().is_empty()
        }
        has_none(&self.deployments)
            && has_none(&self.providers)
            && has_none(&self.actors)
            && has_none(&self.distributions)
    }

    fn last_use(&self) -> Instant {
        *self.used_at.lock()
    }

    fn feed(self: &Arc<Self>) -> Feed {
        let owner: Weak<Self> = Arc::downgrade(self);
        Feed {
            owner,
            client: self.client.clone(),
            used: self.users.used.clone(),
            changes: self.changes.clone(),
            health: self.health.clone(),
        }
    }
}

impl Owner for Caches {
    fn has_another_holder(&self) -> bool {
        self.holders.has_another()
    }

    fn make_room(&self) -> bool {
        self.users.make_room(self)
    }
}
