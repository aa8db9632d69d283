//! Watch caches of the autoscalers that scale ModelDeployments. Of each only what a plan reads is kept, so that the current
//! metrics in their status, which change all the time, requeue nothing.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use kube::core::DynamicObject;
use kube::runtime::watcher;
use kube::{Client, ResourceExt};
use runway_api::ModelDeployment;
use runway_operator::controller::Wake;
use runway_operator::echo::{Echo, revision};
use runway_operator::object::Kind;
use runway_operator::packed::Packed;
use runway_operator::process::Process;
use runway_operator::scope::Namespaces;
use runway_operator::store::{Kinds, Store};
use runway_operator::watch::{crd, reporting_missed, watched};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::autoscalers::{Autoscaler, Autoscalers, HORIZONTAL_POD_AUTOSCALER, KINDS, SCALED_OBJECT, target};

/// Longest wait for a first list.
const FIRST_LIST: Duration = Duration::from_secs(30);

/// Everything that the core reads of autoscalers.
pub(crate) struct Caches {
    client: Client,
    namespaces: Namespaces,
    wake: Wake<Packed<ModelDeployment>>,
    /// The core's own writes.
    written: Arc<Echo<DynamicObject>>,
    kinds: Kinds<Kind, Kept>,
    keda_changes: watch::Sender<()>,
}

/// An autoscaler, without what no plan reads.
struct Kept {
    revision: u64,
    object: Arc<DynamicObject>,
}

/// The revision changes with every metric.
impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.object == other.object
    }
}

impl Kept {
    /// The kept form of an autoscaler of a ModelDeployment.
    fn of(mut object: DynamicObject) -> Option<Self> {
        target(&object)?;
        let revision = revision(&object);
        object.metadata.resource_version = None;
        object.metadata.generation = None;
        let mut conditions = object.data["status"]["conditions"].take();
        for condition in conditions.as_array_mut().into_iter().flatten() {
            if let Some(fields) = condition.as_object_mut() {
                fields.remove("lastTransitionTime");
            }
        }
        object.data["status"] = serde_json::json!({ "conditions": conditions });
        Some(Self {
            revision,
            object: Arc::new(object),
        })
    }

    /// The object, comparable with the answers to the core's own writes.
    fn object(&self) -> Arc<DynamicObject> {
        let mut object = DynamicObject::clone(&self.object);
        object.metadata.resource_version = Some(self.revision.to_string());
        Arc::new(object)
    }
}

impl Caches {
    /// Caches that requeue ModelDeployments through `wake`, and show what was written before the watches do.
    pub(crate) fn new(
        process: &Process,
        wake: Wake<Packed<ModelDeployment>>,
        written: Arc<Echo<DynamicObject>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            client: process.client.clone(),
            namespaces: process.namespaces.clone(),
            wake,
            written,
            kinds: Kinds::new(FIRST_LIST),
            keda_changes: watch::Sender::new(()),
        })
    }

    /// Starts watching, and returns when everything has been listed once.
    pub(crate) async fn start(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        tasks.spawn(self.clone().follow_keda());
        self.set(HORIZONTAL_POD_AUTOSCALER, true).await;
        self.kinds.known(&KINDS).await;
    }

    /// Ticks when KEDA is installed or removed.
    pub(crate) fn keda_changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::unfold(self.keda_changes.subscribe(), |mut changes| async move {
            changes.changed().await.ok()?;
            Some(((), changes))
        })
    }

    /// The autoscalers that concern a ModelDeployment.
    pub(crate) fn autoscalers(&self, namespace: &str, md: &ModelDeployment) -> Autoscalers {
        let mut autoscalers = Autoscalers {
            without_keda: self.kinds.get(SCALED_OBJECT).is_none(),
            found: Vec::new(),
        };
        let name = md.metadata.name.as_deref().unwrap_or_default();
        // Those of others matter only next to one of ours.
        let is_autoscaled = md.spec.scaling.as_ref().is_some_and(|s| s.autoscaling.is_some());
        for kind in KINDS {
            let store = self.kinds.get(kind).map(|(_, store)| store);
            let watched = store.as_ref().and_then(|s| s.read(namespace, name, Kept::object));
            let own = self.written.newest(kind.kind, namespace, name, watched);
            let others = store.filter(|_| is_autoscaled).into_iter().flat_map(|store| {
                let scales_it = |kept: &Kept| {
                    let metadata = &kept.object.metadata;
                    let is_other = metadata.name.as_deref() != Some(name);
                    let is_here = metadata.namespace.as_deref() == Some(namespace);
                    (is_here && is_other && target(&kept.object) == Some(name)).then(|| kept.object())
                };
                store.every(scales_it).into_iter().flatten()
            });
            let all = own.into_iter().chain(others);
            autoscalers.found.extend(all.map(|object| Autoscaler { kind, object }));
        }
        autoscalers
    }

    /// Keeps ScaledObjects watched while their CRD is installed.
    async fn follow_keda(self: Arc<Self>) {
        let mut crds = pin!(crd(self.client.clone(), &SCALED_OBJECT.crd_name()));
        while let Some(crd) = crds.next().await {
            let versions = crd.iter().flat_map(|crd| &crd.spec.versions);
            let is_served = versions.filter(|v| v.served).any(|v| v.name == SCALED_OBJECT.version);
            if self.set(SCALED_OBJECT, is_served).await {
                self.keda_changes.send_replace(());
            }
        }
    }

    /// Watches a kind or ends its watch; returns after the first list, with whether that is a change.
    async fn set(&self, kind: Kind, is_served: bool) -> bool {
        let follow = |_: &str, store: Store<Kept>| {
            let api = self.namespaces.apis_of(&self.client, &kind.resource());
            let (wake, written) = (self.wake.clone(), self.written.clone());
            let wake_target = move |namespace: &str, object: &DynamicObject| {
                if let Some(name) = target(object) {
                    wake.call(namespace, name);
                }
            };
            let missed = {
                let wake_target = wake_target.clone();
                move |object: &DynamicObject| wake_target(&object.namespace().unwrap_or_default(), object)
            };
            let objects = watched::<DynamicObject>(api, watcher::Config::default());
            store.follow(
                reporting_missed(objects, written.clone(), kind.kind, missed),
                Kept::of,
                move |change| {
                    if change.gone {
                        written.gone(kind.kind, change.namespace, change.name);
                    }
                    wake_target(change.namespace, &change.kept.object);
                },
            )
        };
        let version = is_served.then(|| kind.version.to_owned());
        self.kinds.set(kind, version, follow).await
    }
}
