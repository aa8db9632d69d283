//! Everything the operator reads: its own objects by label, their pods, and what LlamaStackDistributions name.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::core::{DynamicObject, ObjectMeta};
use kube::runtime::reflector;
use kube::runtime::watcher;
use kube::{Client, CustomResourceExt, Resource, ResourceExt};
use runway_api::labels::llama_stack as labels;
use runway_api::model_deployment::Endpoint;
use runway_api::{LlamaStackDistribution, ModelDeployment};
use runway_operator::controller::Wake;
use runway_operator::echo::Echo;
use runway_operator::kubelet;
use runway_operator::packed::{Packed, Text};
use runway_operator::process::Process;
use runway_operator::scope::Namespaces;
use runway_operator::store::{Kinds, Store};
use runway_operator::watch::{crd, reporting_missed, watched};
use tokio::task::JoinSet;

use crate::config_maps::{self, ConfigMaps};
use crate::kinds::{self, Kind};
use crate::references;
use crate::servers::{Answer, Servers};

/// Everything the operator reads, beside the LlamaStackDistributions.
pub(crate) struct Caches {
    client: Client,
    namespaces: Namespaces,
    wake: Wake<Packed<LlamaStackDistribution>>,
    /// Our own writes.
    written: Arc<Echo<DynamicObject>>,
    /// Our objects, and the endpoints of ModelDeployments.
    kinds: Kinds<Kind, Text>,
    pods: Store<Text>,
    config_maps: ConfigMaps,
    servers: Arc<Servers>,
    llsds: reflector::Store<Packed<LlamaStackDistribution>>,
}

impl Caches {
    /// Caches that requeue `llsds` through `wake`, and show what was written before the watches do.
    pub(crate) fn new(
        process: &Process,
        wake: Wake<Packed<LlamaStackDistribution>>,
        written: Arc<Echo<DynamicObject>>,
        llsds: reflector::Store<Packed<LlamaStackDistribution>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            config_maps: ConfigMaps::new(process.client.clone(), wake.clone()),
            client: process.client.clone(),
            namespaces: process.namespaces.clone(),
            wake,
            written,
            // Without its first list, what exists would be taken for missing.
            kinds: Kinds::new(Duration::MAX),
            pods: Store::by_label(labels::INSTANCE),
            servers: Arc::default(),
            llsds,
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(crate) async fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.clone().follow_models());
        let wake = self.wake.clone();
        tasks.spawn(self.pods.clone().follow(
            watched::<Pod>(self.namespaces.apis(&self.client), ours()),
            |pod| Some(kubelet::without_spec(pod)),
            move |change| wake.call(change.namespace, change.name),
        ));
        join_all(kinds::ALL.map(|kind| self.watch_kind(kind))).await;
        self.pods.listed().await;
        self.kinds.known(&[kinds::MODEL_DEPLOYMENT]).await;
    }

    /// An object of ours: the newer of what the watch delivered and our own last write.
    pub(crate) fn child(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let watched = self.kinds.get(kind).and_then(|(_, store)| store.get(namespace, name));
        self.written.newest(kind.kind, namespace, name, watched)
    }

    /// The pods of a LlamaStackDistribution.
    pub(crate) fn pods(&self, namespace: &str, llsd: &str) -> Vec<Arc<Pod>> {
        self.pods.get_all(namespace, llsd)
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
            let config_map = self.config_maps.get(namespace, &name, llsd).await?;
            found.extend(config_map.map(|c| (name, c)));
        }
        Ok(found)
    }

    /// The endpoints of those of these ModelDeployments that exist.
    pub(crate) fn endpoints(&self, namespace: &str, names: BTreeSet<String>) -> BTreeMap<String, Option<Endpoint>> {
        let Some((_, models)) = self.kinds.get(kinds::MODEL_DEPLOYMENT) else {
            return BTreeMap::new();
        };
        let endpoint = |name: &String| models.read(namespace, name, Text::read)?.ok();
        names
            .into_iter()
            .filter_map(|name| endpoint(&name).map(|endpoint| (name, endpoint)))
            .collect()
    }

    /// Answer of the server at `url` since its pods became ready. Without one, asks in the background and returns `None`.
    pub(crate) fn answer(&self, namespace: &str, name: &str, readiness: &str, url: &str) -> Option<Arc<Answer>> {
        let (wake, key) = (self.wake.clone(), (namespace.to_owned(), name.to_owned()));
        let id = key.clone();
        self.servers
            .answer(&key, readiness, url, move || wake.call(&id.0, &id.1))
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

    /// Watches a kind that the operator makes; returns after the first list.
    async fn watch_kind(&self, kind: Kind) {
        let follow = |_: &str, store: Store<Text>| {
            let api = self.namespaces.apis_of(&self.client, &kind.resource());
            let (wake, written) = (self.wake.clone(), self.written.clone());
            let wake_owner = move |namespace: &str, metadata: Option<ObjectMeta>| {
                if let Some(owner) = metadata.and_then(owner_name) {
                    wake.call(namespace, &owner);
                }
            };
            let missed = {
                let wake_owner = wake_owner.clone();
                move |object: &DynamicObject| {
                    wake_owner(&object.namespace().unwrap_or_default(), Some(object.metadata.clone()));
                }
            };
            let objects = watched::<Packed<DynamicObject>>(api, ours());
            store.follow(
                reporting_missed(objects, written.clone(), kind.kind, missed),
                |packed| Some(packed.into_text()),
                move |change| {
                    if change.gone {
                        written.gone(kind.kind, change.namespace, change.name);
                    }
                    wake_owner(change.namespace, change.kept.metadata());
                },
            )
        };
        self.kinds.set(kind, Some(kind.version.to_owned()), follow).await;
    }

    /// Keeps the endpoints of ModelDeployments watched while their CRD is installed.
    async fn follow_models(self: Arc<Self>) {
        let mut crds = pin!(crd(self.client.clone(), ModelDeployment::crd_name()));
        while let Some(crd) = crds.next().await {
            let follow = |_: &str, store: Store<Text>| {
                let models = watched::<ModelDeployment>(self.namespaces.apis(&self.client), watcher::Config::default());
                let (wake, llsds) = (self.wake.clone(), self.llsds.clone());
                store.follow(
                    models,
                    |model| Some(Text::of(&model.status.and_then(|status| status.endpoint))),
                    move |change| {
                        let in_namespace = |llsd: &ObjectMeta| llsd.namespace.as_deref() == Some(change.namespace);
                        let names_it =
                            |llsd: &LlamaStackDistribution| references::model_deployments(llsd).contains(change.name);
                        wake_those(&wake, &llsds, in_namespace, names_it);
                    },
                )
            };
            let version = crd.map(|_| kinds::MODEL_DEPLOYMENT.version.to_owned());
            let is_gone = version.is_none();
            if self.kinds.set(kinds::MODEL_DEPLOYMENT, version, follow).await && is_gone {
                let names_any = |llsd: &LlamaStackDistribution| !references::model_deployments(llsd).is_empty();
                wake_those(&self.wake, &self.llsds, |_| true, names_any);
            }
        }
    }
}

/// Requeues distributions. Only those that `may_concern` accepts are unpacked.
fn wake_those(
    wake: &Wake<Packed<LlamaStackDistribution>>,
    llsds: &reflector::Store<Packed<LlamaStackDistribution>>,
    may_concern: impl Fn(&ObjectMeta) -> bool,
    concerns: impl Fn(&LlamaStackDistribution) -> bool,
) {
    for llsd in llsds.state().iter().filter(|llsd| may_concern(llsd.meta())) {
        if !llsd.unpack().is_ok_and(|llsd| concerns(&llsd)) {
            continue;
        }
        wake.call(&llsd.namespace().unwrap_or_default(), &llsd.name_any());
    }
}

/// Only what carries our label.
fn ours() -> watcher::Config {
    watcher::Config::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGER))
}

/// The LlamaStackDistribution that an object was made for.
fn owner_name(object: ObjectMeta) -> Option<String> {
    object.labels?.remove(labels::INSTANCE)
}
