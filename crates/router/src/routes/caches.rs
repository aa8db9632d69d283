//! Watch caches of the routes controller. Of each object only what a plan reads is kept.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::core::DynamicObject;
use kube::runtime::watcher;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use runway_api::{ModelDeployment, labels};
use runway_operator::controller::Wake;
use runway_operator::destination::SERVICE_NAME;
use runway_operator::echo::{Echo, revision};
use runway_operator::object::{self, Kind};
use runway_operator::packed::{Packed, Text};
use runway_operator::process::Process;
use runway_operator::scope::{Apis, Namespaces};
use runway_operator::store::{Change, Kinds, Store};
use runway_operator::watch::{Guarded, crd, key, reporting_missed, watched};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::claims::{Claim, Claimant, Claims, standing};
use super::kinds::{ALL, GATEWAY, HTTP_ROUTE, model_name};
use super::pods::{Front, Pods, Slice, behind};
use super::settings::Settings;
use crate::table::Key;

/// Longest wait for a first list.
const FIRST_LIST: Duration = Duration::from_secs(30);

/// Everything that the routes controller reads, beside the ModelDeployments.
pub(super) struct Caches {
    client: Client,
    namespaces: Namespaces,
    settings: Arc<Settings>,
    wake: Wake<Packed<ModelDeployment>>,
    /// The controller's own writes.
    written: Arc<Echo<DynamicObject>>,
    kinds: Kinds<Kind, Kept>,
    services: Store<Front>,
    slices: Store<Slice>,
    claims: Arc<Mutex<Claims>>,
    /// Changes that concern all ModelDeployments.
    changes: watch::Sender<()>,
}

/// A Gateway, HTTPRoute or InferencePool, without what no plan reads.
pub(super) struct Kept {
    revision: u64,
    text: Text,
    /// Name of the model in a route.
    model: Option<String>,
}

/// The revision changes with every heartbeat of a Gateway's controller.
impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Kept {
    fn of(mut object: DynamicObject) -> Self {
        let revision = revision(&object);
        object.metadata.resource_version = None;
        let annotations = object.annotations_mut();
        annotations.retain(|key, _| key == labels::APPLIED_HASH);
        let status = &mut object.data["status"];
        without_times(&mut status["conditions"]);
        for parent in status["parents"].as_array_mut().into_iter().flatten() {
            without_times(&mut parent["conditions"]);
        }
        if let Some(status) = status.as_object_mut() {
            // The number of attached routes of a Gateway changes with each of them.
            status.remove("listeners");
            status.remove("attachedListenerSets");
        }
        Self {
            revision,
            model: model_name(&object).map(str::to_owned),
            text: Text::of(&object),
        }
    }

    /// The object, comparable with the answers to the controller's own writes.
    fn object(&self) -> Option<Arc<DynamicObject>> {
        let mut object: DynamicObject = self.text.read().ok()?;
        object.metadata.resource_version = Some(self.revision.to_string());
        Some(Arc::new(object))
    }
}

fn without_times(conditions: &mut Value) {
    for condition in conditions.as_array_mut().into_iter().flatten() {
        if let Some(fields) = condition.as_object_mut() {
            fields.remove("lastTransitionTime");
        }
    }
}

impl Caches {
    /// Caches that requeue ModelDeployments through `wake`, and show what was written before the watches do.
    pub(super) fn new(
        process: &Process,
        settings: Arc<Settings>,
        wake: Wake<Packed<ModelDeployment>>,
        written: Arc<Echo<DynamicObject>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client: process.client.clone(),
            namespaces: process.namespaces.clone(),
            settings,
            wake,
            written,
            kinds: Kinds::new(FIRST_LIST),
            services: Store::by_name(),
            slices: Store::by_label(SERVICE_NAME),
            claims: Arc::default(),
            changes: watch::Sender::new(()),
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(super) async fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        for kind in ALL {
            tasks.spawn(Arc::clone(self).follow_crd(kind));
        }
        if self.settings.picker.is_some() {
            let ours = || {
                let selector = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE);
                watcher::Config::default().labels(&selector)
            };
            let services = watched::<Service>(self.namespaces.apis(&self.client), ours());
            let wake = self.wake.clone();
            let changed = move |change: &Change<'_, Front>| wake.call(change.namespace, &change.kept.deployment);
            tasks.spawn(self.services.clone().follow(services, Front::of, changed));
            let slices = watched::<EndpointSlice>(self.namespaces.apis(&self.client), ours());
            let wake = self.wake.clone();
            let changed = move |change: &Change<'_, Slice>| wake.call(change.namespace, &change.kept.deployment);
            tasks.spawn(self.slices.clone().follow(slices, Slice::of, changed));
            tokio::join!(self.services.listed(), self.slices.listed());
        }
        self.kinds.known(&ALL).await;
    }

    /// Ticks when something changes that concerns all ModelDeployments: the Gateway, or the installed CRDs.
    pub(super) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::unfold(self.changes.subscribe(), |mut changes| async move {
            changes.changed().await.ok()?;
            Some(((), changes))
        })
    }

    /// Takes in a ModelDeployment, or that it is gone.
    pub(super) fn take_in(&self, md: &Packed<ModelDeployment>, is_gone: bool) {
        let key = (md.namespace().unwrap_or_default(), md.name_any());
        let claim = if is_gone { None } else { md.unpack().ok() };
        let concerned = self.claims.lock().set(&key, claim.and_then(|md| Claim::of(&md)));
        call(&self.wake, &concerned);
    }

    /// Whether a kind is installed in the version that is written.
    pub(super) fn is_installed(&self, kind: Kind) -> bool {
        self.kinds.get(kind).is_some()
    }

    /// The Gateway that the settings name.
    pub(super) fn gateway(&self) -> Option<Arc<DynamicObject>> {
        let gateway = self.settings.gateway()?;
        self.watched(GATEWAY, gateway.namespace.as_ref(), gateway.name.as_ref())
    }

    /// An object, as the watch or our last write shows it.
    pub(super) fn newest(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let watched = self.watched(kind, namespace, name);
        if !self.is_installed(kind) {
            return None;
        }
        self.written.newest(kind.kind, namespace, name, watched)
    }

    fn watched(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let (_, store) = self.kinds.get(kind)?;
        store.read(namespace, name, Kept::object)?
    }

    /// The pods behind the port of a Service.
    pub(super) fn pods(&self, namespace: &str, service: &str, port: i32) -> Option<Pods> {
        let front = self.services.read(namespace, service, Front::clone)?;
        let slices = self.slices.all(namespace, service, Slice::clone);
        behind(&front, &slices, port)
    }

    /// The other ModelDeployments that claim a model name.
    pub(super) fn rivals(&self, key: &Key, model: &str) -> Vec<Claimant> {
        let others = self.claims.lock().others(key, model);
        let claimants = others.into_iter().map(|(key, claim)| Claimant {
            standing: standing(self.route_of(&key, &claim).as_deref(), model, self.settings.gateway()),
            key,
            claim,
        });
        claimants.collect()
    }

    /// The route that was created for a ModelDeployment.
    fn route_of(&self, key: &Key, claim: &Claim) -> Option<Arc<DynamicObject>> {
        let route = self.newest(HTTP_ROUTE, &key.0, &key.1)?;
        let owner = object::controller(&route)?;
        let is_its_own = owner.uid == claim.uid && owner.kind == ModelDeployment::kind(&());
        is_its_own.then_some(route)
    }

    /// Keeps a kind watched while its CRD is installed.
    async fn follow_crd(self: Arc<Self>, kind: Kind) {
        let mut crds = pin!(crd(self.client.clone(), &kind.crd_name()));
        while let Some(crd) = crds.next().await {
            let versions = crd.iter().flat_map(|crd| &crd.spec.versions);
            let is_served = versions.filter(|v| v.served).any(|v| v.name == kind.version);
            let is_needed = kind != GATEWAY || self.settings.gateway().is_some();
            if self.set(kind, is_served && is_needed).await {
                self.changes.send_replace(());
            }
        }
    }

    /// Watches a kind or ends its watch; returns after the first list, with whether that is a change.
    async fn set(&self, kind: Kind, is_served: bool) -> bool {
        let follow = |_: &str, store: Store<Kept>| {
            let (api, config) = self.scope(kind);
            let (wake, written, claims) = (self.wake.clone(), self.written.clone(), self.claims.clone());
            let changes = self.changes.clone();
            let wake_concerned = move |key: (String, String), kept: &Kept| {
                let concerned = claims.lock().concerned(&key, kept.model.as_deref());
                call(&wake, &concerned);
            };
            let missed = {
                let wake_concerned = wake_concerned.clone();
                move |object: &DynamicObject| wake_concerned(key(object), &Kept::of(object.clone()))
            };
            store.follow(
                reporting_missed(
                    watched::<DynamicObject>(api, config),
                    written.clone(),
                    kind.kind,
                    missed,
                ),
                |object| Some(Kept::of(object)),
                move |change| {
                    if change.gone {
                        written.gone(kind.kind, change.namespace, change.name);
                    }
                    if kind == GATEWAY {
                        changes.send_replace(());
                        return;
                    }
                    let key = (change.namespace.to_owned(), change.name.to_owned());
                    wake_concerned(key, change.kept);
                },
            )
        };
        let version = is_served.then(|| kind.version.to_owned());
        self.kinds.set(kind, version, follow).await
    }

    /// Of Gateways, only the one that is named. Routes and pools of other owners are watched, because they may have the name of a
    /// ModelDeployment.
    fn scope(&self, kind: Kind) -> (Apis<Guarded<DynamicObject>>, watcher::Config) {
        let all = watcher::Config::default();
        match self.settings.gateway().filter(|_| kind == GATEWAY) {
            Some(gateway) => {
                let only = all.fields(&format!("metadata.name={}", gateway.name));
                let api = Api::namespaced_with(self.client.clone(), gateway.namespace.as_ref(), &kind.resource());
                (Apis::one(api), only)
            }
            None => (self.namespaces.apis_of(&self.client, &kind.resource()), all),
        }
    }
}

fn call(wake: &Wake<Packed<ModelDeployment>>, keys: &BTreeSet<Key>) {
    for (namespace, name) in keys {
        wake.call(namespace, name);
    }
}
