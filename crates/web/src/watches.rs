//! One watch per kind and place, however many browsers look and however many sessions a user has.
//!
//! A watch reads as one of the user's sessions. A cluster that goes away is noticed by the watches and asked every second until
//! it is back.

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, labels};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use runway_operator::watch::{Guarded, readable};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{broadcast, watch as latest};
use tokio_util::task::AbortOnDropHandle;

use crate::caches::{Caches, Slot};
use crate::history::{Histories, Replicas};
use crate::store::Store;

/// How long a page waits for the first list.
pub const FIRST_LIST: Duration = Duration::from_secs(5);
/// Objects in one answer to a list.
const CHUNK: u32 = 100;
/// How often a cluster that is away is asked.
const PROBE: Duration = Duration::from_secs(1);
/// After so long a kind that was too much is tried again.
const TOO_MUCH_FOR: Duration = Duration::from_mins(1);
/// Annotations that lists show something of.
const SHOWN: [&str; 3] = [labels::PAUSED, labels::ASYA_PAUSED, labels::llama_stack::PAUSED];

/// A kind that is watched.
pub trait Kind:
    Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static
{
    /// Its objects in one namespace; `None` if they live in none.
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>>;

    /// The watches of this kind.
    fn slot(caches: &Caches) -> &Slot<Self>;

    /// Its replicas, if it has any.
    fn replicas(&self) -> Option<Replicas> {
        None
    }

    /// Leaves out what may be long and no list shows.
    fn shorten(&mut self) {
        if let Some(annotations) = &mut self.meta_mut().annotations {
            annotations.retain(|name, _| SHOWN.contains(&name.as_str()));
        }
        self.meta_mut().managed_fields = None;
        self.shorten_spec();
    }

    /// The same, of its spec.
    fn shorten_spec(&mut self) {}
}

impl Kind for ModelDeployment {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.deployments
    }

    fn replicas(&self) -> Option<Replicas> {
        let replicas = self.status.as_ref()?.replicas.as_ref()?;
        Some(Replicas {
            ready: replicas.ready.unwrap_or_default(),
            desired: replicas.desired?,
        })
    }

    fn shorten_spec(&mut self) {
        self.spec.env = Vec::new();
        self.spec.pod_template = None;
        self.spec.tolerations = Vec::new();
        if let Some(provider) = &mut self.spec.provider {
            provider.overrides = None;
        }
        if let Some(engine) = &mut self.spec.engine {
            engine.args.clear();
        }
        if let Some(status) = &mut self.status {
            status.plan = None;
        }
    }
}

impl Kind for AsyncActor {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.actors
    }

    fn replicas(&self) -> Option<Replicas> {
        let status = self.status.as_ref()?;
        Some(Replicas {
            ready: status.ready_replicas.unwrap_or_default(),
            desired: status.desired_replicas?,
        })
    }

    fn shorten_spec(&mut self) {
        self.spec.workload = None;
        self.spec.runtime = None;
        self.spec.sidecar = None;
    }
}

impl Kind for LlamaStackDistribution {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.distributions
    }

    fn shorten_spec(&mut self) {
        let server = &mut self.spec.server;
        server.container_spec = None;
        server.pod_overrides = None;
        server.external_providers = None;
    }
}

impl Kind for InferenceProviderConfig {
    fn within(_: Client, _: &str) -> Option<Api<Guarded<Self>>> {
        None
    }

    fn slot(caches: &Caches) -> &Slot<Self> {
        &caches.providers
    }
}

/// An object changed, was made, or is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The plural of its kind.
    pub kind: String,
    /// Its namespace, empty if it has none.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Change {
    fn of<K: Kind>(object: &K) -> Self {
        Self {
            kind: K::plural(&()).into_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        }
    }

    /// Any object of the kind may have changed.
    fn of_all<K: Kind>() -> Self {
        Self {
            kind: K::plural(&()).into_owned(),
            namespace: String::new(),
            name: String::new(),
        }
    }
}

/// What browsers are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Something changed.
    Changed(Change),
    /// The watches of the user were dropped to make room for others': the next request begins them anew.
    Dropped,
}

/// Why a kind cannot be shown, or only as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The user may not list it anywhere that is known.
    Forbidden(String),
    /// The cluster does not know the kind.
    NotInstalled(String),
    /// The user is no longer known to the cluster.
    SignedOut(String),
    /// The cluster does not answer.
    Away(String),
    /// There are more objects than the console has room for.
    TooMuch,
}

impl Trouble {
    /// What there is to say of an error.
    pub fn of(kind: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(kind, status),
            other => Self::Away(chain(other)),
        }
    }

    fn of_status(kind: &str, status: &kube::core::Status) -> Self {
        match status.code {
            401 => Self::SignedOut(status.message.clone()),
            403 => Self::Forbidden(status.message.clone()),
            404 => Self::NotInstalled(format!("the cluster does not serve {kind}")),
            _ => Self::Away(status.message.clone()),
        }
    }

    fn of_watch(kind: &str, error: &watcher::Error) -> Self {
        match error {
            watcher::Error::InitialListFailed(e)
            | watcher::Error::WatchStartFailed(e)
            | watcher::Error::WatchFailed(e) => Self::of(kind, e),
            watcher::Error::WatchError(status) => Self::of_status(kind, status),
            watcher::Error::NoResourceVersion => Self::Away(error.to_string()),
        }
    }
}

/// What is seen of a kind.
#[derive(Clone, Debug)]
pub struct Seen<K> {
    /// The objects, in the order of namespace and name.
    pub items: Vec<Arc<K>>,
    /// Why there are none, or none newer.
    pub trouble: Option<Trouble>,
    /// The namespaces that are looked into, if not all are.
    pub only_in: Option<Vec<String>>,
}

impl<K> Seen<K> {
    /// Nothing, and why.
    pub fn nothing(trouble: Trouble) -> Self {
        Self {
            items: Vec::new(),
            trouble: Some(trouble),
            only_in: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Starting,
    Listed,
    Failed(Trouble),
}

/// A kind, watched in one namespace or in all.
pub struct Watched<K: Kind> {
    store: Arc<Store<K>>,
    standing: latest::Receiver<Standing>,
    /// The replicas of its objects.
    pub histories: Arc<Histories>,
    task: AbortOnDropHandle<()>,
}

impl<K: Kind> Watched<K> {
    /// Begins to watch for `caches`, in a namespace or in all.
    pub fn start(caches: &Arc<Caches>, namespace: Option<&str>) -> Self {
        let api = match namespace {
            None => Some(Api::all(caches.client.clone())),
            Some(namespace) => K::within(caches.client.clone(), namespace),
        };
        let store = Arc::new(Store::new(caches.used()));
        let histories = Arc::new(Histories::default());
        let (standing, seen) = latest::channel(Standing::Starting);
        let follower = Follower {
            store: store.clone(),
            histories: histories.clone(),
            standing,
            caches: Arc::downgrade(caches),
            changes: caches.changes.clone(),
            health: caches.health.clone(),
        };
        let task = tokio::spawn(async move {
            if let Some(api) = api {
                follower.run(api).await;
            }
        });
        Self {
            store,
            standing: seen,
            histories,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Whether nothing is watched any more.
    pub fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it, and forgets what it has shown.
    pub fn end(&self) {
        self.task.abort();
        self.store.clear();
    }

    /// Why there is nothing, or nothing newer, once that is known.
    pub async fn trouble(&self) -> Option<Trouble> {
        let mut standing = self.standing.clone();
        let known = standing.wait_for(|standing| *standing != Standing::Starting);
        match tokio::time::timeout(FIRST_LIST, known).await {
            Ok(Ok(standing)) => match &*standing {
                Standing::Failed(trouble) => Some(trouble.clone()),
                Standing::Starting | Standing::Listed => None,
            },
            Ok(Err(_)) => None,
            Err(_) => Some(Trouble::Away("no response within 5 seconds".to_owned())),
        }
    }

    /// All objects, as lists show them.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.store.all()
    }

    /// One object, whole.
    pub fn one(&self, namespace: &str, name: &str) -> Option<K> {
        self.store.one(namespace, name)
    }
}

/// What becomes of a watch after an error.
enum After {
    /// It begins anew by itself.
    Again,
    /// It is over.
    Over,
}

/// Takes in what a watch shows, and tells browsers of it.
struct Follower<K: Kind> {
    store: Arc<Store<K>>,
    histories: Arc<Histories>,
    standing: latest::Sender<Standing>,
    caches: Weak<Caches>,
    changes: broadcast::Sender<News>,
    health: Arc<Health>,
}

impl<K: Kind> Follower<K> {
    async fn run(self, api: Api<Guarded<K>>) {
        let config = watcher::Config::default().page_size(CHUNK);
        let events = watch(api, config).backoff(Patience::default());
        let mut events = std::pin::pin!(events);
        let mut listed = false;
        while let Some(event) = events.next().await {
            match event.map(readable) {
                Ok(event) => {
                    self.health.found();
                    listed |= matches!(event, Some(Event::InitDone));
                    if let Some(event) = event {
                        self.take_in(event);
                    }
                    if listed {
                        self.stand(Standing::Listed);
                    }
                }
                Err(error) => {
                    if matches!(self.judge(&error, listed), After::Over) {
                        return;
                    }
                }
            }
            if !self.has_room() {
                return self.rest().await;
            }
        }
    }

    fn take_in(&self, event: Event<K>) {
        self.note(&event);
        let change = match &event {
            Event::Apply(object) | Event::Delete(object) => Some(Change::of(object)),
            Event::InitDone => Some(Change::of_all::<K>()),
            Event::Init | Event::InitApply(_) => None,
        };
        for (namespace, name) in self.store.apply(event) {
            self.histories.forget(namespace, name);
        }
        self.tell(change);
    }

    fn tell(&self, change: Option<Change>) {
        if let Some(change) = change {
            // Nobody looks: nobody to tell.
            let _ = self.changes.send(News::Changed(change));
        }
    }

    /// Keeps the replicas of an object that was seen.
    fn note(&self, event: &Event<K>) {
        let (Event::Apply(object) | Event::InitApply(object)) = event else {
            return;
        };
        if let Some(replicas) = object.replicas() {
            let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
            self.histories.note(namespace, name, clock::now(), replicas);
        }
    }

    fn stand(&self, now: Standing) {
        self.standing.send_if_modified(|before| {
            let differs = *before != now;
            *before = now;
            differs
        });
    }

    fn judge(&self, error: &watcher::Error, listed: bool) -> After {
        let trouble = Trouble::of_watch(&K::plural(&()), error);
        match trouble {
            // Another session of the user may still be accepted, and is asked with next.
            Trouble::SignedOut(_) if self.has_holder() => After::Again,
            Trouble::SignedOut(_) | Trouble::Forbidden(_) => {
                self.forget(trouble);
                After::Over
            }
            Trouble::NotInstalled(_) => {
                self.forget(trouble);
                After::Again
            }
            Trouble::Away(_) | Trouble::TooMuch => {
                // A watch that the server ends, as for an old version, begins anew by itself.
                let harmless = matches!(error, watcher::Error::WatchError(status) if status.code == 410);
                if !harmless {
                    self.health.lost(chain(error));
                }
                // What has been listed stays on show; the page says that the cluster is away.
                if !listed {
                    self.stand(Standing::Failed(trouble));
                }
                After::Again
            }
        }
    }

    fn has_holder(&self) -> bool {
        self.caches.upgrade().is_some_and(|caches| caches.holders.has_another())
    }

    /// The objects may not be shown any more, or do not exist.
    fn forget(&self, trouble: Trouble) {
        self.store.clear();
        if *self.standing.borrow() != Standing::Failed(trouble.clone()) {
            self.stand(Standing::Failed(trouble));
            self.tell(Some(Change::of_all::<K>()));
        }
    }

    fn has_room(&self) -> bool {
        self.caches.upgrade().is_none_or(|caches| caches.make_room())
    }

    /// Even alone, the user's objects are too many.
    async fn rest(&self) {
        self.forget(Trouble::TooMuch);
        tokio::time::sleep(TOO_MUCH_FOR).await;
    }
}

/// Whether the cluster answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    /// As far as is known.
    Up,
    /// Not since then, for this reason.
    Down(Timestamp, String),
}

/// The health of the connection, asked for only while it is bad.
pub struct Health {
    client: Client,
    connection: latest::Sender<Connection>,
}

impl Health {
    /// As far as is known, it answers.
    pub fn new(client: Client) -> Arc<Self> {
        let connection = latest::channel(Connection::Up).0;
        Arc::new(Self { client, connection })
    }

    /// Whether it answers, from now on.
    pub fn connection(&self) -> latest::Receiver<Connection> {
        self.connection.subscribe()
    }

    /// It has not answered.
    pub fn lost(self: &Arc<Self>, why: String) {
        let newly = self.connection.send_if_modified(|connection| {
            let newly = *connection == Connection::Up;
            if newly {
                *connection = Connection::Down(clock::now(), why);
            }
            newly
        });
        if newly {
            tokio::spawn(Self::probe(Arc::downgrade(self)));
        }
    }

    fn found(&self) {
        self.connection.send_if_modified(|connection| {
            let newly = *connection != Connection::Up;
            *connection = Connection::Up;
            newly
        });
    }

    /// Asks until there is an answer, or nobody is left who wants to know.
    async fn probe(health: Weak<Self>) {
        loop {
            tokio::time::sleep(PROBE).await;
            let Some(health) = health.upgrade() else { return };
            let answer = tokio::time::timeout(FIRST_LIST, health.client.apiserver_version()).await;
            // An answer that refuses is an answer.
            if matches!(answer, Ok(Ok(_) | Err(kube::Error::Api(_)))) {
                health.found();
            }
            if *health.connection.borrow() == Connection::Up {
                return;
            }
        }
    }
}

/// Waits a little longer each time, never longer than two seconds: somebody is looking.
#[derive(Default)]
struct Patience(u32);

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let wait = Duration::from_millis(250 << self.0.min(3));
        self.0 += 1;
        Some(wait)
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {
        self.0 = 0;
    }
}
