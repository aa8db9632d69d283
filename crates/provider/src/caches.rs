//! The watch caches of a provider. Upstream kinds come and go while we run: a kind is watched while its CRD is installed
//! with a schema that the provider knows.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::{ModelDeployment, labels};
use runway_operator::kubelet::Unready;
use runway_operator::packed::Packed;
use runway_operator::texts::{Texts, follow, texts};
use runway_operator::watch::crd;
use tokio::task::JoinSet;

use crate::contract::{Kind, Provider};
use crate::pods::UnreadyPods;
use crate::upstream::{Installed, State, Upstream, api_resource, crd_name, detect_in};

/// A first list that takes longer than this is not waited for: objects found twice are applied twice, which changes nothing.
const FIRST_LIST: Duration = Duration::from_secs(30);

/// Who is to be looked at again.
type Wake = mpsc::UnboundedSender<ObjectRef<Packed<ModelDeployment>>>;

/// Told of objects whose end was seen.
type OnGone = dyn Fn(Kind, &PartialObjectMeta) + Send + Sync;

/// Everything a provider reads.
pub(crate) struct Caches {
    client: Client,
    wake: Wake,
    stores: RwLock<HashMap<Kind, KindCache>>,
    installed: tokio::sync::watch::Sender<HashMap<Kind, State>>,
    pods: Vec<UnreadyPods>,
    on_gone: Box<OnGone>,
}

/// One kind that is watched. Dropping it ends the watch.
struct KindCache {
    texts: Texts,
    _watch: JoinSet<()>,
}

impl Caches {
    /// Caches that wake reconciles through `wake`, and tell `on_gone` of every object whose end was seen.
    pub(crate) fn new(
        client: Client,
        pod_labels: Vec<&'static str>,
        wake: Wake,
        on_gone: impl Fn(Kind, &PartialObjectMeta) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            client,
            wake,
            stores: RwLock::default(),
            installed: tokio::sync::watch::Sender::new(HashMap::new()),
            pods: pod_labels.into_iter().map(UnreadyPods::new).collect(),
            on_gone: Box::new(on_gone),
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(crate) async fn start(self: &Arc<Self>, provider: &dyn Provider, tasks: &mut JoinSet<()>) {
        let upstreams = provider.upstreams();
        let (built_in, by_crd): (Vec<_>, Vec<_>) = upstreams.iter().cloned().partition(|u| u.kind.is_built_in());
        for upstream in by_crd {
            tasks.spawn(self.clone().follow_crd(upstream));
        }
        for upstream in built_in {
            self.set_state(upstream.kind, detect_in(&upstream, None)).await;
        }
        // Of what only serves the upstream objects, ours is all we look at.
        let ours = format!(
            "{}={},{}={}",
            labels::MANAGED_BY,
            labels::MANAGED_BY_VALUE,
            labels::PROVIDER,
            provider.name()
        );
        for kind in auxiliary(provider) {
            let cache = self
                .watch_kind(
                    kind,
                    &api_resource(kind, "v1"),
                    watcher::Config::default().labels(&ours),
                )
                .await;
            self.write_stores().insert(kind, cache);
        }
        for index in 0..self.pods.len() {
            tasks.spawn(self.clone().follow_pods(index));
        }
        let mut installed = self.installed.subscribe();
        // The sender lives as long as we do.
        let _ = installed
            .wait_for(|states| upstreams.iter().all(|u| states.contains_key(&u.kind)))
            .await;
    }

    /// What is installed.
    pub(crate) fn installed(&self) -> Installed {
        Installed::new(self.installed.borrow().clone())
    }

    /// Changes of what is installed.
    pub(crate) fn installed_changes(&self) -> tokio::sync::watch::Receiver<HashMap<Kind, State>> {
        self.installed.subscribe()
    }

    /// The object of this kind, namespace and name, as the watch showed it.
    pub(crate) fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let stores = self.stores.read().unwrap_or_else(PoisonError::into_inner);
        stores.get(&kind)?.texts.get(namespace, name)
    }

    /// The pods of a ModelDeployment that are not ready.
    pub(crate) fn unready(&self, namespace: &str, deployment: &str) -> Vec<Unready> {
        self.pods
            .iter()
            .flat_map(|pods| pods.of(namespace, deployment))
            .collect()
    }

    /// Keeps one kind watched while its CRD has a known schema.
    async fn follow_crd(self: Arc<Self>, upstream: Upstream) {
        let mut crds = pin!(crd(self.client.clone(), crd_name(upstream.kind)));
        while let Some(crd) = crds.next().await {
            self.set_state(upstream.kind, detect_in(&upstream, crd.as_ref().map(|crd| &crd.spec)))
                .await;
        }
    }

    async fn set_state(self: &Arc<Self>, kind: Kind, state: State) {
        if self.installed.borrow().get(&kind) == Some(&state) {
            return;
        }
        tracing::info!(kind = kind.kind, ?state, "upstream schema");
        // Also with a schema that nobody knows: what we made must be seen to be deleted.
        let version = Installed::new([(kind, state.clone())]).visible_version(kind);
        let cache = match version {
            Some(version) => Some(
                self.watch_kind(kind, &api_resource(kind, &version), watcher::Config::default())
                    .await,
            ),
            None => None,
        };
        match cache {
            Some(cache) => self.write_stores().insert(kind, cache),
            None => self.write_stores().remove(&kind),
        };
        self.installed.send_modify(|states| {
            states.insert(kind, state);
        });
    }

    /// Watches a kind; returns after the first list.
    async fn watch_kind(self: &Arc<Self>, kind: Kind, resource: &ApiResource, config: watcher::Config) -> KindCache {
        let (texts, writer) = texts();
        let api = Api::all_with(self.client.clone(), resource);
        let caches = self.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            follow(api, config, writer, |object, gone| {
                caches.child_changed(kind, object, gone);
            })
            .await;
        });
        if tokio::time::timeout(FIRST_LIST, texts.listed()).await.is_err() {
            tracing::warn!(kind = kind.kind, "the first list takes long");
        }
        KindCache { texts, _watch: task }
    }

    fn child_changed(&self, kind: Kind, object: &PartialObjectMeta, gone: bool) {
        if gone {
            (self.on_gone)(kind, object);
        }
        self.wake(&object.namespace().unwrap_or_default(), &owner_name(object));
    }

    async fn follow_pods(self: Arc<Self>, index: usize) {
        let Some(unready) = self.pods.get(index) else { return };
        let pods: Api<Pod> = Api::all(self.client.clone());
        let ours = watcher::Config::default().labels(unready.label());
        let mut events = watch(pods, ours).default_backoff().boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if let Some((namespace, name)) = unready.take_in(&event) {
                        self.wake(&namespace, &name);
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot watch pods"),
            }
        }
    }

    /// Has a ModelDeployment reconciled.
    pub(crate) fn wake(&self, namespace: &str, name: &str) {
        // Fails only while shutting down.
        let _ = self.wake.unbounded_send(ObjectRef::new(name).within(namespace));
    }

    fn write_stores(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<Kind, KindCache>> {
        self.stores.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kinds that only serve the upstream objects.
fn auxiliary(provider: &dyn Provider) -> BTreeSet<Kind> {
    let upstreams: Vec<Kind> = provider.upstreams().iter().map(|u| u.kind).collect();
    provider
        .children("any")
        .into_iter()
        .map(|c| c.kind)
        .filter(|k| !upstreams.contains(k))
        .collect()
}

/// The ModelDeployment an object belongs to; one that was made by somebody else stands in the way of its namesake.
fn owner_name(object: &PartialObjectMeta) -> String {
    let owner = object
        .owner_references()
        .iter()
        .find(|o| o.controller == Some(true) && o.kind == ModelDeployment::kind(&()));
    owner.map_or_else(|| object.name_any(), |o| o.name.clone())
}
