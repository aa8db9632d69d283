//! View of a cluster for one session: the caches that the user's sessions share, restricted to objects that this session's
//! credential may list and watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1;
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, Namespace};
use runway_client::access::{self, Right};
use runway_client::cluster::Cluster;
use tokio::sync::{broadcast, watch as latest};

use crate::caches::{Cached, Caches, Scope};
use crate::credentials::Credential;
use crate::gauges::Gauges;
use crate::health::{Connection, FIRST_LIST};
use crate::history::History;
use crate::seen::{Change, News, Seen, Trouble};

/// Most namespaces that are checked one by one if the user may not list the whole cluster.
const MAX_NAMESPACES: usize = 500;
/// Questions about namespaces that are asked at a time.
const AT_A_TIME: usize = 16;
/// For so long the cluster's answer counts where a session may look; for longer where that takes many questions.
const COUNTS: Duration = Duration::from_secs(1);
/// Time that an answer is valid, per namespace.
const COUNTS_EACH: Duration = Duration::from_millis(100);
/// Longest time that an answer is valid.
const COUNTS_AT_MOST: Duration = Duration::from_secs(30);
/// Interval at which permissions in other namespaces are checked.
const DISCOVERY: Duration = Duration::from_mins(1);
/// While the cluster does not respond, for so long a session sees what it was last allowed to see.
const GRACE: Duration = Duration::from_mins(15);

/// Permission of a session to read a kind.
#[derive(Clone)]
struct Pass {
    scope: Scope,
    confirmed: Instant,
    discovered: Instant,
}

impl Pass {
    fn counts(&self) -> bool {
        let each = match &self.scope {
            Scope::Everywhere => Duration::ZERO,
            Scope::In(namespaces) => COUNTS_EACH.saturating_mul(u32::try_from(namespaces.len()).unwrap_or(u32::MAX)),
        };
        self.confirmed.elapsed() < each.clamp(COUNTS, COUNTS_AT_MOST)
    }
}

/// The cluster as one session sees it.
pub struct SessionView {
    client: Client,
    /// The address of the cluster.
    pub url: String,
    /// Context of the kubeconfig; empty if there is none.
    pub context: String,
    /// Name of the user.
    pub user: String,
    /// The namespace that is looked into when none is named: that of the kubeconfig's context, or of the service account.
    pub home: Namespace,
    caches: Arc<Caches>,
    /// Permissions by plural of the kind.
    passes: Mutex<BTreeMap<String, Pass>>,
    /// Metrics of engines, read for the pages of this session.
    pub gauges: Gauges,
    /// The caches call with it too, for as long as there is a session.
    credential: Arc<Credential>,
}

impl SessionView {
    /// Creates it without sending a request.
    pub fn new(credential: Arc<Credential>, caches: Arc<Caches>, url: String, user: String, home: Namespace) -> Self {
        caches.holders.add(&credential);
        Self {
            client: credential.client(),
            url,
            context: String::new(),
            user,
            home,
            caches,
            passes: Mutex::default(),
            gauges: Gauges::default(),
            credential,
        }
    }

    /// The same, with the context of a kubeconfig.
    #[must_use]
    pub fn in_context(mut self, context: Option<String>) -> Self {
        self.context = context.unwrap_or_default();
        self
    }

    /// The cluster, read and written as the user.
    pub fn cluster(&self) -> Cluster {
        Cluster::of(self.client(), &self.url, self.home.clone())
    }

    /// A client that acts as the user.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The user's credential.
    pub fn credential(&self) -> &Credential {
        &self.credential
    }

    /// Subscribes to changes of the user's watches, regardless of what this session may see.
    pub fn news(&self) -> broadcast::Receiver<News> {
        self.caches.changes.subscribe()
    }

    /// Whether this session may see a change.
    pub async fn may_hear(&self, change: &Change) -> bool {
        // After a new list any object may have changed, so the change reveals nothing.
        if change.name.is_empty() {
            return true;
        }
        let kind = change.kind.as_str();
        let scope = if kind == ModelDeployment::plural(&()) {
            self.scope::<ModelDeployment>().await
        } else if kind == AsyncActor::plural(&()) {
            self.scope::<AsyncActor>().await
        } else if kind == LlamaStackDistribution::plural(&()) {
            self.scope::<LlamaStackDistribution>().await
        } else {
            self.scope::<InferenceProviderConfig>().await
        };
        scope.is_ok_and(|scope| scope.holds(&change.namespace))
    }

    /// Health of the connection.
    pub fn connection(&self) -> latest::Receiver<Connection> {
        self.caches.health.connection()
    }

    /// Whether the connection is known to be down.
    pub fn is_down(&self) -> bool {
        matches!(*self.connection().borrow(), Connection::Down(..))
    }

    /// The cluster has not answered.
    pub fn lost(&self, why: String) {
        self.caches.health.lost(why);
    }

    /// The ModelDeployments that the user may see.
    pub async fn deployments(&self) -> Seen<ModelDeployment> {
        self.seen().await
    }

    /// A ModelDeployment, if it exists and the session may see it.
    pub async fn deployment(&self, namespace: &str, name: &str) -> Option<Arc<ModelDeployment>> {
        self.one(namespace, name).await
    }

    /// The replicas of a ModelDeployment since its kind is watched.
    pub fn deployment_history(&self, namespace: &str, name: &str) -> History {
        self.history::<ModelDeployment>(namespace, name)
    }

    /// The registered providers.
    pub async fn providers(&self) -> Seen<InferenceProviderConfig> {
        self.seen().await
    }

    /// The AsyncActors that the user may see.
    pub async fn actors(&self) -> Seen<AsyncActor> {
        self.seen().await
    }

    /// An AsyncActor, if it exists and the session may see it.
    pub async fn actor(&self, namespace: &str, name: &str) -> Option<Arc<AsyncActor>> {
        self.one(namespace, name).await
    }

    /// The replicas of an AsyncActor since its kind is watched.
    pub fn actor_history(&self, namespace: &str, name: &str) -> History {
        self.history::<AsyncActor>(namespace, name)
    }

    /// The LlamaStackDistributions that the user may see.
    pub async fn distributions(&self) -> Seen<LlamaStackDistribution> {
        self.seen().await
    }

    /// A LlamaStackDistribution, if it exists and the session may see it.
    pub async fn distribution(&self, namespace: &str, name: &str) -> Option<Arc<LlamaStackDistribution>> {
        self.one(namespace, name).await
    }

    async fn seen<K: Cached>(&self) -> Seen<K> {
        let scope = match self.scope::<K>().await {
            Ok(scope) => scope,
            Err(trouble) => return Seen::nothing(trouble),
        };
        let watched = self.caches.watched::<K>(&scope);
        let troubles = join_all(watched.iter().map(|watched| watched.trouble())).await;
        let mut items: Vec<Arc<K>> = watched.iter().flat_map(|watched| watched.all()).collect();
        items.sort_by_cached_key(|object| (object.namespace(), object.name_any()));
        Seen {
            items,
            trouble: troubles.into_iter().flatten().next(),
            only_in: scope.namespaces(),
        }
    }

    async fn one<K: Cached>(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let scope = self.scope::<K>().await.ok()?;
        let watched = self.caches.watched::<K>(&scope);
        join_all(watched.iter().map(|watched| watched.trouble())).await;
        watched
            .iter()
            .find_map(|watched| watched.one(namespace, name))
            .map(Arc::new)
    }

    fn history<K: Cached>(&self, namespace: &str, name: &str) -> History {
        let watched = self.caches.running::<K>(namespace);
        watched
            .iter()
            .find_map(|watched| watched.histories.of(namespace, name))
            .unwrap_or_default()
    }

    /// Namespaces that the session may read. Answers of the cluster are valid for about one second.
    async fn scope<K: Cached>(&self) -> Result<Scope, Trouble> {
        let plural = K::plural(&()).into_owned();
        let last = self.passes.lock().get(&plural).cloned();
        if let Some(pass) = last.as_ref().filter(|pass| pass.counts()) {
            return Ok(pass.scope.clone());
        }
        let granted = last.clone().filter(|pass| pass.confirmed.elapsed() < GRACE);
        if let Some(pass) = granted.as_ref().filter(|_| self.is_down()) {
            return Ok(pass.scope.clone());
        }
        let known = last.as_ref().filter(|pass| pass.discovered.elapsed() < DISCOVERY);
        let asked = async {
            match known {
                Some(pass) => self.confirm::<K>(pass).await,
                None => self.discover::<K>().await,
            }
        };
        let late = || Err(Trouble::Away("no response within 5 seconds".to_owned()));
        match tokio::time::timeout(FIRST_LIST, asked).await.unwrap_or_else(|_| late()) {
            Ok(pass) => {
                self.passes.lock().insert(plural, pass.clone());
                Ok(pass.scope)
            }
            Err(Trouble::Away(why)) => {
                self.lost(why.clone());
                granted.map(|pass| pass.scope).ok_or(Trouble::Away(why))
            }
            Err(trouble) => {
                self.passes.lock().remove(&plural);
                // Of no use for other sessions of the user either, unless it is this credential alone that is refused.
                if matches!(trouble, Trouble::Forbidden(_)) || !self.caches.holders.has_another() {
                    self.caches.drop_kind::<K>();
                }
                Err(trouble)
            }
        }
    }

    /// Asks once more where the session was allowed to look before.
    async fn confirm<K: Cached>(&self, pass: &Pass) -> Result<Pass, Trouble> {
        let scope = match &pass.scope {
            Scope::Everywhere if self.may_watch::<K>(None).await? => Some(Scope::Everywhere),
            Scope::Everywhere => None,
            Scope::In(namespaces) => self.allowed::<K>(namespaces.clone()).await?,
        };
        match scope {
            Some(scope) => Ok(Pass {
                scope,
                confirmed: Instant::now(),
                discovered: pass.discovered,
            }),
            None => self.discover::<K>().await,
        }
    }

    /// Looks everywhere, or else for namespaces where the session may.
    async fn discover<K: Cached>(&self) -> Result<Pass, Trouble> {
        let scope = if self.may_watch::<K>(None).await? {
            Some(Scope::Everywhere)
        } else if K::within(self.client.clone(), "").is_some() {
            self.allowed::<K>(self.namespaces().await).await?
        } else {
            None
        };
        let plural = K::plural(&());
        let scope = scope.ok_or_else(|| Trouble::Forbidden(format!("{} may not list {plural}", self.user)))?;
        let now = Instant::now();
        Ok(Pass {
            scope,
            confirmed: now,
            discovered: now,
        })
    }

    /// The namespaces in which the session may list and watch a kind; `None` if there are none.
    async fn allowed<K: Cached>(&self, namespaces: Vec<String>) -> Result<Option<Scope>, Trouble> {
        let asked = namespaces.into_iter().map(|namespace| async move {
            let may = self.may_watch::<K>(Some(namespace.clone())).await?;
            Ok::<_, Trouble>(may.then_some(namespace))
        });
        let answers: Vec<Result<Option<String>, Trouble>> = stream::iter(asked).buffered(AT_A_TIME).collect().await;
        let allowed: Result<Vec<Option<String>>, Trouble> = answers.into_iter().collect();
        let allowed: Vec<String> = allowed?.into_iter().flatten().collect();
        Ok((!allowed.is_empty()).then_some(Scope::In(allowed)))
    }

    /// Whether the session may list and watch a kind, in a namespace or in all.
    async fn may_watch<K: Cached>(&self, namespace: Option<String>) -> Result<bool, Trouble> {
        let plural = K::plural(&()).into_owned();
        let may = async |verb: &str| {
            let right = Right {
                group: K::group(&()).into_owned(),
                plural: plural.clone(),
                namespace: namespace.clone(),
                verb: verb.to_owned(),
            };
            let allowed = access::may(&self.client, &right).await;
            allowed.map_err(|error| Trouble::of(&plural, &error))
        };
        let (list, watch) = tokio::join!(may("list"), may("watch"));
        Ok(list? && watch?)
    }

    /// The namespaces of the cluster, or the one that is known without asking.
    pub async fn namespaces(&self) -> Vec<String> {
        let all: Api<v1::Namespace> = Api::all(self.client.clone());
        let listed = all
            .list(&ListParams::default())
            .await
            .map(|list| list.items)
            .unwrap_or_default();
        let mut names: BTreeSet<String> = listed.iter().map(ResourceExt::name_any).collect();
        names.insert(self.home.to_string());
        names.into_iter().take(MAX_NAMESPACES).collect()
    }
}
