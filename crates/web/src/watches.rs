//! One shared watch per kind, however many browsers look: a lens is what one identity sees of a cluster.
//!
//! A watch begins when the first page wants its kind, and reads as the user: in all namespaces if that is allowed, else in
//! those that are. A cluster that goes away is noticed by the watches and asked every second until it is back.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::ListParams;
use kube::runtime::reflector::{Store, store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment};
use runway_client::access::{self, Right};
use runway_client::cluster::Cluster;
use runway_operator::clock;
use runway_operator::telemetry::chain;
use runway_operator::watch::{Guarded, apply, readable};
use serde::de::DeserializeOwned;
use tokio::sync::{OnceCell, broadcast, watch as latest};
use tokio_util::task::AbortOnDropHandle;

use crate::history::{Histories, Replicas, Step};

/// How long a page waits for the first list.
const FIRST_LIST: Duration = Duration::from_secs(5);
/// Changes that a browser may lag behind before it is told to read the page again.
const BACKLOG: usize = 256;
/// Namespaces that are asked for one by one when the whole cluster is not allowed.
const MAX_NAMESPACES: usize = 500;
/// How often a cluster that is away is asked.
const PROBE: Duration = Duration::from_secs(1);

/// A kind that is watched.
pub trait Kind: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    /// Its objects in one namespace; `None` if they live in none.
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>>;

    /// Its replicas, if it has any.
    fn replicas(&self) -> Option<Replicas> {
        None
    }
}

impl Kind for ModelDeployment {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn replicas(&self) -> Option<Replicas> {
        let replicas = self.status.as_ref()?.replicas.as_ref()?;
        Some(Replicas {
            ready: replicas.ready.unwrap_or_default(),
            desired: replicas.desired?,
        })
    }
}
impl Kind for AsyncActor {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }

    fn replicas(&self) -> Option<Replicas> {
        let status = self.status.as_ref()?;
        Some(Replicas {
            ready: status.ready_replicas.unwrap_or_default(),
            desired: status.desired_replicas?,
        })
    }
}
impl Kind for LlamaStackDistribution {
    fn within(client: Client, namespace: &str) -> Option<Api<Guarded<Self>>> {
        Some(Api::namespaced(client, namespace))
    }
}
impl Kind for InferenceProviderConfig {
    fn within(_: Client, _: &str) -> Option<Api<Guarded<Self>>> {
        None
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
            404 => Self::NotInstalled(format!("the cluster does not know {kind}")),
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
    fn nothing(trouble: Trouble) -> Self {
        Self {
            items: Vec::new(),
            trouble: Some(trouble),
            only_in: None,
        }
    }
}

/// Where a kind is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope {
    Everywhere,
    In(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Standing {
    Starting,
    Listed,
    Failed(Trouble),
}

/// What the watches say, each with its number.
type Events<K> = SelectAll<BoxStream<'static, (usize, Result<Event<K>, watcher::Error>)>>;

/// A kind, watched.
struct Watched<K: Kind> {
    stores: Vec<Store<K>>,
    scope: Scope,
    standing: latest::Receiver<Standing>,
    histories: Arc<Histories>,
    _task: AbortOnDropHandle<()>,
}

impl<K: Kind> Watched<K> {
    fn start(lens: &Lens, scope: Scope) -> Self {
        let apis: Vec<Api<Guarded<K>>> = match &scope {
            Scope::Everywhere => vec![Api::all(lens.client.clone())],
            Scope::In(namespaces) => namespaces
                .iter()
                .filter_map(|n| K::within(lens.client.clone(), n))
                .collect(),
        };
        let mut shelves = Vec::new();
        let mut events: Events<K> = SelectAll::new();
        let histories = Arc::new(Histories::default());
        for (index, api) in apis.into_iter().enumerate() {
            let (held, mut writer) = store();
            shelves.push(held.clone());
            let config = watcher::Config::default();
            let stream = watch(api, config)
                .backoff(Patience::default())
                .filter_map(|event| async move { event.map(readable).transpose() });
            let seen = histories.clone();
            let stored = stream.inspect_ok(move |event| {
                for gone in apply(&held, &mut writer, event) {
                    remember(&seen, &Event::Delete(gone));
                }
                remember(&seen, event);
            });
            events.push(stored.map(move |event| (index, event)).boxed());
        }
        let (standing, seen) = latest::channel(Standing::Starting);
        let (changes, health) = (lens.changes.clone(), lens.health.clone());
        let to_list = shelves.len();
        let task = tokio::spawn(follow(events, to_list, standing, changes, health));
        Self {
            stores: shelves,
            scope,
            standing: seen,
            histories,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// How it stands, once that is known.
    async fn known(&self) -> Standing {
        let mut standing = self.standing.clone();
        let known = standing.wait_for(|s| *s != Standing::Starting);
        match tokio::time::timeout(FIRST_LIST, known).await {
            Ok(Ok(standing)) => standing.clone(),
            _ => Standing::Failed(Trouble::Away("no answer within 5 seconds".to_owned())),
        }
    }

    async fn seen(&self) -> Seen<K> {
        let now = self.known().await;
        let mut items: Vec<Arc<K>> = self.stores.iter().flat_map(Store::state).collect();
        items.sort_by_cached_key(|o| (o.namespace(), o.name_any()));
        Seen {
            items,
            trouble: match now {
                Standing::Failed(trouble) => Some(trouble),
                _ => None,
            },
            only_in: match &self.scope {
                Scope::Everywhere => None,
                Scope::In(namespaces) => Some(namespaces.clone()),
            },
        }
    }

    async fn one(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.known().await;
        let key = match namespace {
            "" => kube::runtime::reflector::ObjectRef::new(name),
            namespace => kube::runtime::reflector::ObjectRef::new(name).within(namespace),
        };
        self.stores.iter().find_map(|store| store.get(&key))
    }
}

/// Keeps the replicas of an object that was seen.
fn remember<K: Kind>(histories: &Histories, event: &Event<K>) {
    match event {
        Event::Apply(object) | Event::InitApply(object) => {
            if let Some(replicas) = object.replicas() {
                let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                histories.note(namespace, name, clock::now(), replicas);
            }
        }
        Event::Delete(object) => histories.forget(object.namespace().unwrap_or_default(), object.name_any()),
        Event::Init | Event::InitDone => {}
    }
}

/// Keeps the standing, and tells of changes once the first list is through.
async fn follow<K: Kind>(
    mut events: Events<K>,
    to_list: usize,
    standing: latest::Sender<Standing>,
    changes: broadcast::Sender<Change>,
    health: Arc<Health>,
) {
    let kind = K::plural(&()).into_owned();
    let mut listed = BTreeSet::new();
    while let Some((index, event)) = events.next().await {
        let change = match &event {
            Ok(Event::Apply(object) | Event::Delete(object)) => Some(change(&kind, object)),
            Ok(Event::InitDone) => {
                listed.insert(index);
                Some(Change {
                    kind: kind.clone(),
                    namespace: String::new(),
                    name: String::new(),
                })
            }
            Ok(Event::Init | Event::InitApply(_)) => None,
            Err(error) => {
                let trouble = Trouble::of_watch(&kind, error);
                // A watch that the server ends, as for an old version, begins anew by itself.
                let harmless = matches!(error, watcher::Error::WatchError(status) if status.code == 410);
                if matches!(trouble, Trouble::Away(_)) {
                    if !harmless {
                        health.lost(chain(error));
                    }
                    // Those that have been listed stay on show; the page says that the cluster is away.
                    if listed.len() < to_list {
                        standing.send_replace(Standing::Failed(trouble));
                    }
                } else {
                    standing.send_replace(Standing::Failed(trouble));
                }
                None
            }
        };
        if event.is_ok() {
            health.found();
            let now = if listed.len() == to_list {
                Standing::Listed
            } else {
                standing.borrow().clone()
            };
            standing.send_if_modified(|before| {
                let differs = *before != now;
                *before = now;
                differs
            });
        }
        if let Some(change) = change {
            // Nobody looks: nobody to tell.
            let _ = changes.send(change);
        }
    }
}

fn change<K: Kind>(kind: &str, object: &K) -> Change {
    Change {
        kind: kind.to_owned(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
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
struct Health {
    client: Client,
    connection: latest::Sender<Connection>,
}

impl Health {
    fn lost(self: &Arc<Self>, why: String) {
        let newly = self.connection.send_if_modified(|connection| {
            let newly = *connection == Connection::Up;
            if newly {
                *connection = Connection::Down(clock::now(), why);
            }
            newly
        });
        if newly {
            tokio::spawn(Arc::clone(self).probe());
        }
    }

    fn found(&self) {
        self.connection.send_if_modified(|connection| {
            let newly = *connection != Connection::Up;
            *connection = Connection::Up;
            newly
        });
    }

    async fn probe(self: Arc<Self>) {
        while *self.connection.borrow() != Connection::Up {
            tokio::time::sleep(PROBE).await;
            let answer = tokio::time::timeout(FIRST_LIST, self.client.apiserver_version()).await;
            // An answer that refuses is an answer.
            if matches!(answer, Ok(Ok(_) | Err(kube::Error::Api(_)))) {
                self.found();
            }
        }
    }
}

/// What one identity sees of a cluster.
pub struct Lens {
    client: Client,
    /// The address of the cluster.
    pub url: String,
    /// Who looks.
    pub user: String,
    /// The namespaces that are known without asking: the one of the kubeconfig's context, or of the service account.
    pub known: Vec<String>,
    changes: broadcast::Sender<Change>,
    connection: latest::Receiver<Connection>,
    health: Arc<Health>,
    deployments: OnceCell<Watched<ModelDeployment>>,
    providers: OnceCell<Watched<InferenceProviderConfig>>,
    actors: OnceCell<Watched<AsyncActor>>,
    distributions: OnceCell<Watched<LlamaStackDistribution>>,
}

impl Lens {
    /// Nothing is asked yet.
    pub fn new(client: Client, url: String, user: String, known: Vec<String>) -> Self {
        let (sender, connection) = latest::channel(Connection::Up);
        Self {
            health: Arc::new(Health {
                client: client.clone(),
                connection: sender,
            }),
            client,
            url,
            user,
            known,
            changes: broadcast::channel(BACKLOG).0,
            connection,
            deployments: OnceCell::new(),
            providers: OnceCell::new(),
            actors: OnceCell::new(),
            distributions: OnceCell::new(),
        }
    }

    /// The cluster, read and written as the user.
    pub fn cluster(&self) -> Cluster {
        // The API server has named it, or the kubeconfig that was read.
        let namespace = self.namespace().parse().unwrap_or_default();
        Cluster::of(self.client(), &self.url, namespace)
    }

    /// A client that acts as the user.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The namespace that is looked into when none is named.
    pub fn namespace(&self) -> &str {
        self.known.first().map_or("default", String::as_str)
    }

    /// Changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Whether the cluster answers.
    pub fn connection(&self) -> latest::Receiver<Connection> {
        self.connection.clone()
    }

    /// The ModelDeployments that the user may see.
    pub async fn deployments(&self) -> Seen<ModelDeployment> {
        self.seen(&self.deployments).await
    }

    /// One ModelDeployment, if it is there and may be seen.
    pub async fn deployment(&self, namespace: &str, name: &str) -> Option<Arc<ModelDeployment>> {
        self.one(&self.deployments, namespace, name).await
    }

    /// The replicas of a ModelDeployment since its kind is watched.
    pub fn deployment_history(&self, namespace: &str, name: &str) -> Vec<Step> {
        history(&self.deployments, namespace, name)
    }

    /// The registered providers.
    pub async fn providers(&self) -> Seen<InferenceProviderConfig> {
        self.seen(&self.providers).await
    }

    /// The AsyncActors that the user may see.
    pub async fn actors(&self) -> Seen<AsyncActor> {
        self.seen(&self.actors).await
    }

    /// One AsyncActor, if it is there and may be seen.
    pub async fn actor(&self, namespace: &str, name: &str) -> Option<Arc<AsyncActor>> {
        self.one(&self.actors, namespace, name).await
    }

    /// The replicas of an AsyncActor since its kind is watched.
    pub fn actor_history(&self, namespace: &str, name: &str) -> Vec<Step> {
        history(&self.actors, namespace, name)
    }

    /// The LlamaStackDistributions that the user may see.
    pub async fn distributions(&self) -> Seen<LlamaStackDistribution> {
        self.seen(&self.distributions).await
    }

    /// One LlamaStackDistribution, if it is there and may be seen.
    pub async fn distribution(&self, namespace: &str, name: &str) -> Option<Arc<LlamaStackDistribution>> {
        self.one(&self.distributions, namespace, name).await
    }

    async fn seen<K: Kind>(&self, cell: &OnceCell<Watched<K>>) -> Seen<K> {
        match self.watched(cell).await {
            Ok(watched) => watched.seen().await,
            Err(trouble) => Seen::nothing(trouble),
        }
    }

    async fn one<K: Kind>(&self, cell: &OnceCell<Watched<K>>, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.watched(cell).await.ok()?.one(namespace, name).await
    }

    /// The watch of a kind, begun when it is first asked for.
    async fn watched<'a, K: Kind>(&self, cell: &'a OnceCell<Watched<K>>) -> Result<&'a Watched<K>, Trouble> {
        let watched = cell.get_or_try_init(async || {
            let scope = self.scope::<K>().await?;
            Ok::<_, Trouble>(Watched::start(self, scope))
        });
        // Trouble is not kept: a right that is given, or a cluster that comes back, counts at the next look.
        watched.await.inspect_err(|trouble| {
            if let Trouble::Away(why) = trouble {
                self.health.lost(why.clone());
            }
        })
    }

    /// Where the user may list and watch a kind.
    async fn scope<K: Kind>(&self) -> Result<Scope, Trouble> {
        let plural = K::plural(&()).into_owned();
        if self.may_watch::<K>(None).await? {
            return Ok(Scope::Everywhere);
        }
        if K::within(self.client.clone(), "").is_some() {
            let candidates = self.namespaces().await.into_iter();
            let asked = candidates.map(|namespace| async move {
                let allowed = self.may_watch::<K>(Some(namespace.clone())).await;
                allowed.is_ok_and(|allowed| allowed).then_some(namespace)
            });
            let answers: Vec<Option<String>> = stream::iter(asked).buffered(16).collect().await;
            let allowed: Vec<String> = answers.into_iter().flatten().collect();
            if !allowed.is_empty() {
                return Ok(Scope::In(allowed));
            }
        }
        Err(Trouble::Forbidden(format!("{} may not list {plural}", self.user)))
    }

    /// Whether the user may list and watch a kind, in a namespace or in all.
    async fn may_watch<K: Kind>(&self, namespace: Option<String>) -> Result<bool, Trouble> {
        for verb in ["list", "watch"] {
            let right = Right {
                group: K::group(&()).into_owned(),
                plural: K::plural(&()).into_owned(),
                namespace: namespace.clone(),
                verb: verb.to_owned(),
            };
            let allowed = access::may(&self.client, &right).await;
            if !allowed.map_err(|e| Trouble::of(&right.plural, &e))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The namespaces of the cluster, or those that are known without asking.
    pub async fn namespaces(&self) -> Vec<String> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        let listed = all
            .list(&ListParams::default())
            .await
            .map(|list| list.items)
            .unwrap_or_default();
        let mut names: BTreeSet<String> = listed.iter().map(ResourceExt::name_any).collect();
        names.extend(self.known.iter().cloned());
        names.into_iter().take(MAX_NAMESPACES).collect()
    }
}

fn history<K: Kind>(cell: &OnceCell<Watched<K>>, namespace: &str, name: &str) -> Vec<Step> {
    cell.get()
        .map(|watched| watched.histories.of(namespace, name))
        .unwrap_or_default()
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
