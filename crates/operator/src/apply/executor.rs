//! Writer of a controller: its field manager, and the answers to its own writes.

use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;

use futures::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use kube::core::DynamicObject;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::echo::{Deletions, Echo};
use crate::events::Events;
use crate::failing::Failing;
use crate::packed::Packed;
use crate::scope::Namespaces;
use crate::trace::Traces;
use crate::watch::{Event, mapped, reporting_missed, watched};

/// A kind whose objects have plans.
pub trait Owner:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl<K> Owner for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize
{
}

/// Carries out plans for objects of kind `K`, under one field manager.
pub struct Executor<K> {
    pub(super) client: Client,
    pub(super) manager: String,
    pub(super) finalizer: &'static str,
    pub(super) events: Events,
    /// The controller's own writes of `K`.
    pub own: Arc<Echo<K>>,
    /// The controller's own writes of other kinds.
    pub children: Arc<Echo<DynamicObject>>,
    pub(super) deletions: Deletions,
    pub(super) failing: Failing,
    pub(super) traces: Traces,
    namespaces: Namespaces,
}

impl<K: Owner> Executor<K> {
    /// Writes as `manager`; `finalizer` is the finalizer that plans add and remove.
    pub fn new(client: Client, manager: impl Into<String>, finalizer: &'static str, events: Events) -> Self {
        Self {
            client,
            manager: manager.into(),
            finalizer,
            events,
            own: Arc::default(),
            children: Arc::default(),
            deletions: Deletions::default(),
            failing: Failing::default(),
            traces: Traces::default(),
            namespaces: Namespaces::default(),
        }
    }

    /// Watches only these namespaces.
    #[must_use]
    pub fn within(mut self, namespaces: &Namespaces) -> Self {
        self.namespaces = namespaces.clone();
        self
    }

    /// Also records what it writes.
    #[must_use]
    pub fn traced(mut self, traces: Traces) -> Self {
        self.traces = traces;
        self
    }

    /// Watches the objects of `K`, for a reflector's store. A list replaces the answers to earlier writes of them.
    pub fn watch(&self) -> impl Stream<Item = Event<Packed<K>>> + Send + use<K>
    where
        K: Send + Sync + 'static,
    {
        let objects = watched(self.namespaces.apis(&self.client), watcher::Config::default());
        let objects = reporting_missed(objects, self.own.clone(), K::kind(&()).into_owned(), |_| {});
        objects.filter_map(|event| ready(mapped(event, |packed: Packed<K>| Some(packed.delivered()))))
    }

    /// The owner after our own writes to it.
    pub fn latest(&self, owner: &K) -> Arc<K> {
        self.own.latest(&K::kind(&()), Arc::new(owner.clone()))
    }

    /// The newer of what a watch delivered of the owner and our own last write to it.
    pub fn newest(&self, owner: Arc<K>) -> Arc<K> {
        let (namespace, name) = (owner.namespace().unwrap_or_default(), owner.name_any());
        let newest = self.own.newest(&K::kind(&()), &namespace, &name, Some(owner.clone()));
        newest.unwrap_or(owner)
    }
}
