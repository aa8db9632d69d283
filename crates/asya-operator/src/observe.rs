//! What a plan is made from: read from watch caches, never by a live request in the steady state.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::AsyncActor;

use crate::transports::Transports;

pub use crate::needs::{Lookup, objects};
pub use crate::object::{Found, Key, Kind, Objects};

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
