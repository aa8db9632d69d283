//! The watch caches of a provider. Upstream kinds come and go while we run: a kind is watched while its CRD is installed
//! with a schema that the provider knows.

use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::core::{ApiResource, DynamicObject, NotUsed, Object, ObjectMeta};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::{InferenceProviderConfig, ModelDeployment, labels};
use runway_operator::controller::Wake;
use runway_operator::echo::Echo;
use runway_operator::packed::{Packed, Text};
use runway_operator::process::Process;
use runway_operator::scope::Namespaces;
use runway_operator::store::{Kinds, Store};
use runway_operator::watch::{crd, reporting_missed, single, watched};
use semver::Version;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::configured::Configured;
use crate::contract::{CLAIM, Kind, Provider, ReplicaObjects};
use crate::model_pods::ModelPod;
use crate::upstream::{Installed, State, Upstream, api_resource, crd_name, detect_in};
use crate::upstream_operator::{Running, oldest_release, outage};

/// Longest wait for a first list: objects found twice are applied twice, which changes nothing.
const FIRST_LIST: Duration = Duration::from_secs(30);

/// Everything a provider reads, beside the ModelDeployments.
pub(crate) struct Caches {
    client: Client,
    namespaces: Namespaces,
    wake: Wake<Packed<ModelDeployment>>,
    /// Our own writes.
    written: Arc<Echo<DynamicObject>>,
    kinds: Kinds<Kind, Text>,
    /// Objects that the upstream creates for replicas.
    replicas: Option<(ReplicaObjects, Kinds<Kind, Text>)>,
    /// PersistentVolumeClaims for volumes, by the label that names their ModelDeployment.
    claims: Store<Text>,
    installed: watch::Sender<HashMap<Kind, State>>,
    /// The provider without settings, and as the installation configures it.
    provider: Arc<dyn Provider>,
    configured: watch::Sender<Configured>,
    /// Pods, by the label that names their ModelDeployment.
    pods: Vec<(&'static str, Store<ModelPod>)>,
    /// All pods have been listed.
    pods_listed: watch::Sender<bool>,
    operator: Operator,
}

/// The upstream operator.
struct Operator {
    deployments: Vec<(&'static str, Store<Running>)>,
    changed: watch::Sender<()>,
    /// Its release, as of the last heartbeat.
    release: watch::Sender<Option<Version>>,
    /// Reason why it does not act, as of the last heartbeat.
    outage: watch::Sender<Option<String>>,
}

impl Operator {
    /// Its Deployments.
    fn found(&self) -> Vec<Running> {
        let stores = self.deployments.iter();
        stores.flat_map(|(_, store)| store.every(Running::clone)).collect()
    }
}

impl Caches {
    /// Caches that requeue ModelDeployments through `wake`, and show what was written before the watches do.
    pub(crate) fn new(
        process: &Process,
        provider: Arc<dyn Provider>,
        wake: Wake<Packed<ModelDeployment>>,
        written: Arc<Echo<DynamicObject>>,
    ) -> Arc<Self> {
        let by_label = |label| (label, Store::by_label(label));
        Arc::new(Self {
            client: process.client.clone(),
            namespaces: process.namespaces.clone(),
            wake,
            written,
            kinds: Kinds::new(FIRST_LIST),
            replicas: provider
                .replica_objects()
                .map(|objects| (objects, Kinds::by_label(objects.label, FIRST_LIST))),
            claims: Store::by_label(labels::DEPLOYMENT),
            installed: watch::Sender::new(HashMap::new()),
            pods: provider.pod_labels().into_iter().map(by_label).collect(),
            pods_listed: watch::Sender::new(false),
            operator: Operator {
                deployments: provider
                    .operator_deployments()
                    .iter()
                    .map(|name| (*name, Store::by_name()))
                    .collect(),
                changed: watch::Sender::new(()),
                release: watch::Sender::new(None),
                outage: watch::Sender::new(None),
            },
            configured: watch::Sender::new(Configured::new(provider.clone(), None)),
            provider,
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(crate) async fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let provider = self.provider.as_ref();
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
            self.watch_kind(kind, Some("v1".to_owned()), watcher::Config::default().labels(&ours))
                .await;
        }
        tasks.spawn(self.clone().follow_claims());
        let mut earlier: Vec<&'static str> = Vec::new();
        for (label, store) in &self.pods {
            let (own, before) = (*label, earlier.clone());
            earlier.push(own);
            let pods = watched::<Pod>(
                self.namespaces.apis(&self.client),
                watcher::Config::default().labels(label),
            );
            let (wake, provider) = (self.wake.clone(), self.provider.clone());
            tasks.spawn(store.clone().follow(
                pods,
                // A pod with several of the labels is kept under the first.
                move |pod| {
                    let is_kept = before
                        .iter()
                        .any(|label| pod.labels().get(*label) == pod.labels().get(own));
                    let kept = || ModelPod::of(provider.component_labels(), provider.compared_containers(), &pod);
                    if is_kept { None } else { kept() }
                },
                move |change| wake.call(change.namespace, change.name),
            ));
        }
        tasks.spawn(self.clone().follow_first_list_of_pods());
        for (name, store) in &self.operator.deployments {
            let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
            let deployments = watched::<Deployment>(self.namespaces.apis(&self.client), only);
            let changed = self.operator.changed.clone();
            tasks.spawn(store.clone().follow(
                deployments,
                |deployment| Some(Running::of(&deployment)),
                move |_| {
                    changed.send_replace(());
                },
            ));
        }
        if tokio::time::timeout(FIRST_LIST, self.claims.listed()).await.is_err() {
            tracing::warn!("the first list of PersistentVolumeClaims takes long");
        }
        // Before the first plan: what is not known yet is not compared.
        let mut pods_listed = self.pods_changes();
        let has_labels = !self.pods.is_empty();
        if has_labels
            && tokio::time::timeout(FIRST_LIST, pods_listed.wait_for(|listed| *listed))
                .await
                .is_err()
        {
            tracing::warn!("the first list of pods takes long");
        }
        // Before the first plan: without the operator's release and its settings the provider would change every model.
        for (_, store) in &self.operator.deployments {
            store.listed().await;
        }
        self.operator
            .release
            .send_replace(oldest_release(&self.operator.found()));
        let (known, settings_known) = oneshot::channel();
        tasks.spawn(self.clone().follow_settings(known));
        let _ = settings_known.await;
        let mut installed = self.installed.subscribe();
        // The sender lives as long as we do.
        let _ = installed
            .wait_for(|states| upstreams.iter().all(|u| states.contains_key(&u.kind)))
            .await;
    }

    /// The installed upstream schemas, and the release of the upstream operator.
    pub(crate) fn installed(&self) -> Installed {
        Installed::new(self.installed.borrow().clone()).with_release(oldest_release(&self.operator.found()))
    }

    /// Changes of the installed upstream schemas.
    pub(crate) fn installed_changes(&self) -> watch::Receiver<HashMap<Kind, State>> {
        self.installed.subscribe()
    }

    /// Changes of the upstream operator's Deployment.
    pub(crate) fn operator_changes(&self) -> watch::Receiver<()> {
        self.operator.changed.subscribe()
    }

    /// Evaluates at `now` whether the upstream operator is down, and returns why.
    pub(crate) fn evaluate_operator(&self, now: Timestamp) -> Option<String> {
        let found = self.operator.found();
        let release = oldest_release(&found);
        self.operator.release.send_if_modified(|known| {
            let is_new = *known != release;
            *known = release;
            is_new
        });
        let outage = outage(&found, now);
        self.operator.outage.send_if_modified(|known| {
            let is_new = *known != outage;
            known.clone_from(&outage);
            is_new
        });
        outage
    }

    /// Reason why the upstream operator does not act, as of the last heartbeat.
    pub(crate) fn outages(&self) -> watch::Receiver<Option<String>> {
        self.operator.outage.subscribe()
    }

    /// Release of the upstream operator, as of the last heartbeat.
    pub(crate) fn releases(&self) -> watch::Receiver<Option<Version>> {
        self.operator.release.subscribe()
    }

    /// The provider as the installation configures it.
    pub(crate) fn configured(&self) -> Configured {
        self.configured.borrow().clone()
    }

    /// Changes of the settings of the installation.
    pub(crate) fn settings_changes(&self) -> watch::Receiver<Configured> {
        self.configured.subscribe()
    }

    /// The object of this kind, namespace and name: the newer of the watched object and the provider's last write.
    pub(crate) fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let watched = self.kinds.get(kind).and_then(|(_, store)| store.get(namespace, name));
        self.written.newest(kind.kind, namespace, name, watched)
    }

    /// The objects that the upstream created for the replicas of a ModelDeployment.
    pub(crate) fn replicas(&self, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>> {
        let watched = self
            .replicas
            .as_ref()
            .and_then(|(objects, kinds)| kinds.get(objects.kind));
        watched.map_or_else(Vec::new, |(_, store)| store.get_all(namespace, deployment))
    }

    /// The PersistentVolumeClaims with the label of a ModelDeployment, as [`find`](Self::find) returns each.
    pub(crate) fn claims(&self, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>> {
        let watched = self.claims.get_all::<DynamicObject>(namespace, deployment);
        let newest = watched.into_iter().filter_map(|claim| {
            self.written
                .newest(CLAIM.kind, namespace, &claim.name_any(), Some(claim.clone()))
        });
        newest.collect()
    }

    /// The pods of a ModelDeployment; `None` until they have been listed, and if the provider knows no label of theirs.
    pub(crate) fn pods(&self, namespace: &str, deployment: &str) -> Option<Vec<ModelPod>> {
        if !*self.pods_listed.borrow() {
            return None;
        }
        let pods = self.pods.iter();
        Some(
            pods.flat_map(|(_, store)| store.all(namespace, deployment, ModelPod::clone))
                .collect(),
        )
    }

    /// Changes when all pods have been listed.
    pub(crate) fn pods_changes(&self) -> watch::Receiver<bool> {
        self.pods_listed.subscribe()
    }

    async fn follow_first_list_of_pods(self: Arc<Self>) {
        for (_, store) in &self.pods {
            store.listed().await;
        }
        self.pods_listed.send_replace(!self.pods.is_empty());
    }

    /// Follows `spec.settings` of the provider's InferenceProviderConfig. `known`: it has been read once.
    async fn follow_settings(self: Arc<Self>, known: oneshot::Sender<()>) {
        let mut known = Some(known);
        let mut before = None;
        let resource = ApiResource::erase::<InferenceProviderConfig>(&());
        let api = Api::<Registration>::all_with(self.client.clone(), &resource);
        let mut registrations = pin!(single(api, self.provider.name()));
        while let Some(registration) = registrations.next().await {
            let settings = registration.and_then(|registration| registration.spec.settings);
            if settings != before {
                let configured = Configured::new(self.provider.clone(), settings.as_ref());
                match &configured.invalid {
                    None => tracing::info!("settings of the installation changed"),
                    Some(error) => tracing::warn!(%error, "settings of the installation are invalid"),
                }
                self.configured.send_replace(configured);
                before = settings;
            }
            if let Some(known) = known.take() {
                // The receiver is gone during a shutdown.
                let _ = known.send(());
            }
        }
    }

    /// Keeps one kind watched while its CRD has a known schema.
    async fn follow_crd(self: Arc<Self>, upstream: Upstream) {
        let mut crds = pin!(crd(self.client.clone(), &crd_name(upstream.kind)));
        while let Some(crd) = crds.next().await {
            self.set_state(upstream.kind, detect_in(&upstream, crd.as_ref().map(|crd| &crd.spec)))
                .await;
        }
    }

    /// Follows the claims of all providers: a retained one is used by whichever provider comes next.
    async fn follow_claims(self: Arc<Self>) {
        let ours = format!(
            "{}={},{}",
            labels::MANAGED_BY,
            labels::MANAGED_BY_VALUE,
            labels::DEPLOYMENT
        );
        let api = self.namespaces.apis_of(&self.client, &CLAIM.resource());
        let (store, wake, written) = (self.claims.clone(), self.wake.clone(), self.written.clone());
        let missed = {
            let wake = wake.clone();
            move |claim: &DynamicObject| {
                let model = claim.labels().get(labels::DEPLOYMENT).cloned().unwrap_or_default();
                wake.call(&claim.namespace().unwrap_or_default(), &model);
            }
        };
        // Packed objects have no labels to be filed by.
        let claims = watched::<DynamicObject>(api, watcher::Config::default().labels(&ours));
        let claims = reporting_missed(claims, written.clone(), CLAIM.kind, missed);
        store
            .follow(
                claims,
                |claim| Some(Packed::from(claim).into_text()),
                move |change| {
                    if change.gone
                        && let Some(name) = change.kept.metadata().and_then(|metadata| metadata.name)
                    {
                        written.gone(CLAIM.kind, change.namespace, &name);
                    }
                    wake.call(change.namespace, change.name);
                },
            )
            .await;
    }

    async fn set_state(&self, kind: Kind, state: State) {
        if self.installed.borrow().get(&kind) == Some(&state) {
            return;
        }
        tracing::info!(kind = kind.kind, ?state, "upstream schema");
        // Watched also with an unknown schema: created objects must be visible to be deleted.
        let version = Installed::new([(kind, state.clone())]).visible_version(kind);
        let mut objects = watcher::Config::default();
        if let Some((replicas, kinds)) = self.replicas.as_ref().filter(|(replicas, _)| replicas.kind == kind) {
            self.watch_replicas(*replicas, kinds, version.clone()).await;
            objects = objects.labels(&format!("!{}", replicas.label));
        }
        self.watch_kind(kind, version, objects).await;
        self.installed.send_modify(|states| {
            states.insert(kind, state);
        });
    }

    /// Watches the objects that the upstream creates for replicas, or ends their watch; returns after the first list.
    async fn watch_replicas(&self, objects: ReplicaObjects, kinds: &Kinds<Kind, Text>, version: Option<String>) {
        let follow = |version: &str, store: Store<Text>| {
            let api = self
                .namespaces
                .apis_of(&self.client, &api_resource(objects.kind, version));
            let wake = self.wake.clone();
            store.follow(
                // Packed objects have no labels to be filed by.
                watched::<DynamicObject>(api, watcher::Config::default().labels(objects.label)),
                |object| Some(Packed::from(object).into_text()),
                move |change| wake.call(change.namespace, change.name),
            )
        };
        kinds.set(objects.kind, version, follow).await;
    }

    /// Watches a kind, or ends its watch; returns after the first list.
    async fn watch_kind(&self, kind: Kind, version: Option<String>, config: watcher::Config) {
        let follow = |version: &str, store: Store<Text>| {
            let api = self.namespaces.apis_of(&self.client, &api_resource(kind, version));
            let (wake, written) = (self.wake.clone(), self.written.clone());
            let wake_owner = move |namespace: &str, name: &str, metadata: Option<ObjectMeta>| {
                let owner = metadata.and_then(owner_name);
                wake.call(namespace, owner.as_deref().unwrap_or(name));
            };
            let missed = {
                let wake_owner = wake_owner.clone();
                move |object: &DynamicObject| {
                    let namespace = object.namespace().unwrap_or_default();
                    wake_owner(&namespace, &object.name_any(), Some(object.metadata.clone()));
                }
            };
            let objects = watched::<Packed<DynamicObject>>(api, config);
            store.follow(
                reporting_missed(objects, written.clone(), kind.kind, missed),
                |packed| Some(packed.into_text()),
                move |change| {
                    if change.gone {
                        written.gone(kind.kind, change.namespace, change.name);
                    }
                    wake_owner(change.namespace, change.name, change.kept.metadata());
                },
            )
        };
        self.kinds.set(kind, version, follow).await;
    }
}

/// The part of an InferenceProviderConfig that its owner reads. Another version's fields do not matter.
type Registration = Object<RegistrationSpec, NotUsed>;

#[derive(Clone, Debug, Deserialize)]
struct RegistrationSpec {
    #[serde(default)]
    settings: Option<Map<String, Value>>,
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

/// The ModelDeployment that controls an object. An object without one is in the way of the ModelDeployment of its own name.
fn owner_name(object: ObjectMeta) -> Option<String> {
    let mut owners = object.owner_references.into_iter().flatten();
    let owner = owners.find(|o| o.controller == Some(true) && o.kind == ModelDeployment::kind(&()));
    owner.map(|owner| owner.name)
}
