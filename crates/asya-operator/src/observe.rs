//! The input of a plan, read from watch caches. The only live request reads an object that an actor needs and that has changed
//! since it was read.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::AsyncActor;
use runway_asya_transport::tenants::Credentials;
use runway_operator::apply::Executor;
use runway_operator::clock;

use crate::caches::Caches;
use crate::configuration::Configuration;
use crate::object::{Key, Objects};
use crate::queue::{QueueState, queues_of};
use crate::queues::Keeper;
use crate::rivals::{Rival, Rivals};
use crate::transports::{Transport, Transports};

/// Settings of the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Image of asya-sidecar for actors that set none.
    pub sidecar_image: String,
    /// URL of the gateway to which sidecars report progress.
    pub gateway_url: Option<String>,
    /// Whether the operator creates and deletes queues. Otherwise the sidecars create them.
    pub manages_queues: bool,
    /// Wait after the first conflict. It doubles with each further one.
    pub conflict_wait: Duration,
    /// Python script of the runtime for standalone actors.
    pub runtime_script: String,
}

impl Settings {
    /// Whether the operator creates and deletes the queues of the transport; otherwise the sidecars create them.
    pub(crate) fn manage_queues_of(&self, transport: &Transport) -> bool {
        self.manages_queues && transport.queues().auto_create
    }
}

/// Sources that a reconcile reads, and the executor of its plan.
pub(crate) struct Context {
    pub(crate) caches: Arc<Caches>,
    pub(crate) rivals: Arc<Rivals>,
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
    /// Objects of its namespace that the plan reads.
    pub objects: Objects,
    /// Pods with its label, which have its containers.
    pub pods: Vec<Arc<Pod>>,
    /// Bindings of the other actors of the namespace.
    pub rivals: Vec<Arc<Rival>>,
    /// State of its queue.
    pub queue: QueueState,
    /// Configured transports.
    pub transports: Arc<Transports>,
    /// User of the namespace at the broker, or why it is unknown. Absent if the transport has no such users, and offline.
    pub tenant: Option<Result<Credentials, String>>,
    /// Whether no other actor of the namespace remains.
    pub is_last: bool,
    /// Settings of the operator.
    pub settings: Arc<Settings>,
    /// Current time.
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
    let rivals = if actor.spec.workload_ref.is_some() {
        context.rivals.of(&namespace, &name)
    } else {
        Vec::new()
    };
    Ok(Observed {
        objects: context.caches.objects(&actor).await?,
        pods: context.caches.pods(&namespace, &name),
        rivals,
        queue: queue(context, &actor),
        transports: context.configuration.now(),
        tenant: tenant(context, &actor),
        is_last: context.rivals.is_last(&namespace, &name),
        settings: context.settings.clone(),
        now: clock::now(),
        actor,
    })
}

/// The user of an actor's namespace at its broker.
fn tenant(context: &Context, actor: &AsyncActor) -> Option<Result<Credentials, String>> {
    let transports = context.configuration.now();
    let Ok(Transport::RabbitMq(broker)) = transports.get(&actor.spec.transport) else {
        return None;
    };
    let namespace = actor.namespace().unwrap_or_default();
    let credentials = broker
        .tenants
        .as_ref()?
        .credentials(broker, &namespace, context.queues.secrets());
    Some(credentials.map_err(|error| error.to_string()))
}

/// The state of the actor's queue.
pub(crate) fn queue(context: &Context, actor: &AsyncActor) -> QueueState {
    let id = (actor.namespace().unwrap_or_default(), actor.name_any());
    let wanted = queues_of(actor, &context.configuration.now());
    context.queues.state(&id, wanted.as_ref())
}
