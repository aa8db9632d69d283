//! The input of a plan, read from watch caches. The only live request reads an object that an actor needs and that has changed
//! since it was read.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::runtime::reflector::Store;
use runway_api::AsyncActor;
use runway_operator::apply::Executor;
use runway_operator::clock;

use crate::caches::Caches;
use crate::configuration::Configuration;
use crate::object::{Key, Objects};
use crate::plan;
use crate::queues::Keeper;
use crate::transports::Transports;

/// How the queue stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum QueueState {
    /// Nobody has looked.
    #[default]
    Unknown,
    /// It is there, and this is worth knowing of it.
    Ready {
        /// How it differs from what is configured.
        drift: Option<String>,
    },
    /// It could not be made, or looked at.
    Failed {
        /// Why not.
        message: String,
    },
    /// It was removed, or left because it holds messages.
    Removed {
        /// Messages that it holds.
        left: Option<u64>,
    },
}

/// How the operator is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of asya-sidecar where an actor names none.
    pub sidecar_image: String,
    /// The gateway that is told of progress.
    pub gateway_url: Option<String>,
    /// Whether queues are made and removed here.
    pub manages_queues: bool,
    /// The wait after the first conflict; it doubles with every further one.
    pub conflict_wait: Duration,
    /// The runtime for standalone actors: a Python script.
    pub runtime_script: String,
}

/// What a reconcile reads from, and the executor of its plan, which knows our own writes.
pub(crate) struct Context {
    pub(crate) caches: Arc<Caches>,
    pub(crate) actors: Store<AsyncActor>,
    pub(crate) queues: Arc<Keeper>,
    pub(crate) configuration: Arc<Configuration>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) executor: Executor<AsyncActor>,
}

/// Everything known about one AsyncActor at one time.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The AsyncActor.
    pub actor: Arc<AsyncActor>,
    /// What it looks for in its namespace.
    pub objects: Objects,
    /// The pods that have its containers, by their label.
    pub pods: Vec<Arc<Pod>>,
    /// The other actors of the namespace that are bound.
    pub others: Vec<Arc<AsyncActor>>,
    /// How its queue stands.
    pub queue: QueueState,
    /// The transports.
    pub transports: Arc<Transports>,
    /// How the operator is set up.
    pub settings: Arc<Settings>,
    /// The time.
    pub now: Timestamp,
}

impl Observed {
    /// A live object.
    pub fn live(&self, key: &Key) -> Option<&DynamicObject> {
        self.objects.get(key)?.object()
    }

    /// The version of a kind that is installed.
    pub fn version(&self, key: &Key) -> Option<&str> {
        self.objects.get(key)?.version()
    }

    /// The actor's name.
    pub fn name(&self) -> String {
        self.actor.name_any()
    }

    /// The actor's namespace.
    pub fn namespace(&self) -> String {
        self.actor.namespace().unwrap_or_default()
    }
}

/// Observes an AsyncActor: the watch caches, our own writes that they have not seen, and objects that changed since they were
/// read.
pub(crate) async fn observe(context: &Context, actor: Arc<AsyncActor>) -> Result<Observed, kube::Error> {
    let (namespace, name) = (actor.namespace().unwrap_or_default(), actor.name_any());
    let actor = context.executor.newest(actor);
    let bound_there = |other: &Arc<AsyncActor>| {
        other.namespace().as_deref() == Some(&namespace)
            && other.name_any() != name
            && other.spec.workload_ref.is_some()
    };
    let others = if actor.spec.workload_ref.is_some() {
        context.actors.state().into_iter().filter(bound_there).collect()
    } else {
        Vec::new()
    };
    Ok(Observed {
        objects: context.caches.objects(&actor).await?,
        pods: context.caches.pods(&namespace, &name),
        others,
        queue: queue(context, &actor),
        transports: context.configuration.now(),
        settings: context.settings.clone(),
        now: clock::now(),
        actor,
    })
}

/// The state of the actor's queue.
pub(crate) fn queue(context: &Context, actor: &AsyncActor) -> QueueState {
    let id = (actor.namespace().unwrap_or_default(), actor.name_any());
    let wanted = plan::queues_of(actor, &context.configuration.now());
    context.queues.state(&id, wanted.as_ref())
}
