//! Everything the operator reads: its own objects by label, their pods, and what LlamaStackDistributions name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::channel::mpsc;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use runway_api::labels::llama_stack as labels;
use runway_api::{LlamaStackDistribution, ModelDeployment};
use runway_operator::pods::Pods;
use runway_operator::texts::{Texts, follow, texts};
use tokio::task::JoinSet;

use crate::config_maps::{self, ConfigMaps};
use crate::kinds::{self, Kind};
use crate::models::Models;
use crate::observe;
use crate::servers::{Answer, Servers};

/// Who is to be looked at again.
pub(crate) type Wake = mpsc::UnboundedSender<ObjectRef<LlamaStackDistribution>>;

/// Told of objects whose end was seen.
type OnGone = dyn Fn(Kind, &PartialObjectMeta) + Send + Sync;

/// Everything the operator reads.
pub(crate) struct Caches {
    client: Client,
    wake: Wake,
    stores: Mutex<HashMap<Kind, Texts>>,
    pods: Arc<Pods>,
    config_maps: ConfigMaps,
    models: Arc<Models>,
    servers: Arc<Servers>,
    on_gone: Box<OnGone>,
}

impl Caches {
    /// Caches that wake reconciles through `wake`, and tell `on_gone` of every object whose end was seen.
    pub(crate) fn new(
        client: Client,
        wake: Wake,
        on_gone: impl Fn(Kind, &PartialObjectMeta) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            config_maps: ConfigMaps::new(client.clone()),
            client,
            wake,
            stores: Mutex::default(),
            pods: Arc::new(Pods::new(labels::INSTANCE)),
            models: Arc::default(),
            servers: Arc::default(),
            on_gone: Box::new(on_gone),
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(crate) async fn start(self: &Arc<Self>, llsds: Store<LlamaStackDistribution>, tasks: &mut JoinSet<()>) {
        let mut stores = Vec::new();
        for kind in kinds::ALL {
            let (store, writer) = texts();
            stores.push(store.clone());
            lock(&self.stores).insert(kind, store);
            let api = Api::all_with(self.client.clone(), &kind.resource());
            let caches = self.clone();
            tasks.spawn(async move {
                follow(api, ours(), writer, |object, gone| {
                    caches.child_changed(kind, object, gone);
                })
                .await;
            });
        }
        let wake = self.wake.clone();
        let changed = move |namespace: &str, llsd: &str| send(&wake, namespace, llsd);
        tasks.spawn(self.pods.clone().follow(self.client.clone(), our_label(), changed));
        let wake = self.wake.clone();
        tasks.spawn(
            self.models
                .clone()
                .follow(self.client.clone(), move |namespace, model| {
                    for llsd in llsds
                        .state()
                        .iter()
                        .filter(|l| l.namespace().as_deref() == Some(namespace))
                    {
                        if observe::model_deployments(llsd).contains(model) {
                            send(&wake, namespace, &llsd.name_any());
                        }
                    }
                }),
        );
        for store in stores {
            store.listed().await;
        }
        self.pods.listed().await;
        self.models.listed().await;
    }

    /// An object of ours.
    pub(crate) fn child(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        lock(&self.stores).get(&kind)?.get(namespace, name)
    }

    /// The pods of a LlamaStackDistribution.
    pub(crate) fn pods(&self, namespace: &str, llsd: &str) -> Vec<Arc<Pod>> {
        self.pods.of(namespace, llsd)
    }

    /// Those of these ConfigMaps that exist. From now on exactly these are watched for this LlamaStackDistribution.
    pub(crate) async fn config_maps(
        &self,
        namespace: &str,
        llsd: &str,
        names: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Arc<ConfigMap>>, config_maps::Unknown> {
        self.config_maps.only(namespace, llsd, &names);
        let mut found = BTreeMap::new();
        for name in names {
            let wake = self.wake.clone();
            let config_map = self
                .config_maps
                .get(namespace, &name, llsd, move |ns, user| send(&wake, ns, user))
                .await?;
            found.extend(config_map.map(|c| (name, c)));
        }
        Ok(found)
    }

    /// Those of these ModelDeployments that exist.
    pub(crate) fn model_deployments(
        &self,
        namespace: &str,
        names: &BTreeSet<String>,
    ) -> BTreeMap<String, Arc<ModelDeployment>> {
        self.models.find(namespace, names)
    }

    /// What the server at `url` said since its pods became ready; `None` if it was not asked or has not answered yet.
    pub(crate) fn answer(&self, namespace: &str, name: &str, readiness: &str, url: &str) -> Option<Answer> {
        let (wake, key) = (self.wake.clone(), (namespace.to_owned(), name.to_owned()));
        let id = key.clone();
        self.servers
            .answer(&key, readiness, url, move || send(&wake, &id.0, &id.1))
    }

    /// Forgets what a server said: its pods are not ready, or it is gone.
    pub(crate) fn forget_answer(&self, namespace: &str, name: &str) {
        self.servers.forget(&(namespace.to_owned(), name.to_owned()));
    }

    /// Forgets one that is gone.
    pub(crate) fn forget(&self, namespace: &str, llsd: &str) {
        self.config_maps.only(namespace, llsd, &BTreeSet::new());
        self.forget_answer(namespace, llsd);
    }

    fn child_changed(&self, kind: Kind, object: &PartialObjectMeta, gone: bool) {
        if gone {
            (self.on_gone)(kind, object);
        }
        let Some(instance) = object.labels().get(labels::INSTANCE) else {
            return;
        };
        send(&self.wake, &object.namespace().unwrap_or_default(), instance);
    }
}

/// Only what carries our label.
fn ours() -> watcher::Config {
    watcher::Config::default().labels(&our_label())
}

fn our_label() -> String {
    format!("{}={}", labels::MANAGED_BY, labels::MANAGER)
}

fn send(wake: &Wake, namespace: &str, name: &str) {
    // Fails only while shutting down.
    let _ = wake.unbounded_send(ObjectRef::new(name).within(namespace));
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
