//! Pods, watched by a label that names the object they are for. Only what became of them is kept.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use kube::{Api, Client, ResourceExt};

use crate::watch::subject;

/// Namespace and name of an object.
type Owner = (String, String);

/// The pods of all objects of a kind.
pub struct Pods {
    label: &'static str,
    of: Mutex<HashMap<Owner, BTreeMap<String, Arc<Pod>>>>,
    listed: tokio::sync::watch::Sender<bool>,
}

impl fmt::Debug for Pods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

impl Pods {
    /// For pods that carry the name of their object in `label`.
    pub fn new(label: &'static str) -> Self {
        Self {
            label,
            of: Mutex::default(),
            listed: tokio::sync::watch::Sender::new(false),
        }
    }

    /// The pods of an object, by name.
    pub fn of(&self, namespace: &str, name: &str) -> Vec<Arc<Pod>> {
        let owner = (namespace.to_owned(), name.to_owned());
        self.lock()
            .get(&owner)
            .map(|pods| pods.values().cloned().collect())
            .unwrap_or_default()
    }

    /// Waits for the first list.
    pub async fn listed(&self) {
        // The sender lives as long as we do.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Watches those that `selector` selects, and tells namespace and name of the object whose pods changed.
    pub async fn follow(self: Arc<Self>, client: Client, selector: String, changed: impl Fn(&str, &str) + Send) {
        let api: Api<Pod> = Api::all(client);
        let mut events = watch(api, watcher::Config::default().labels(&selector))
            .default_backoff()
            .boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // What a pod is to do is in its workload; what became of it is in its status.
                    let event = event.modify(|pod| {
                        pod.metadata.managed_fields = None;
                        pod.spec = None;
                    });
                    if let Some((namespace, name)) = self.take_in(event) {
                        changed(&namespace, &name);
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot watch pods"),
            }
        }
    }

    fn take_in(&self, event: Event<Pod>) -> Option<Owner> {
        match event {
            Event::Init => self.lock().clear(),
            Event::InitDone => {
                self.listed.send_replace(true);
            }
            _ => {}
        }
        let (pod, gone) = subject(event)?;
        let owner = (
            pod.namespace().unwrap_or_default(),
            pod.labels().get(self.label)?.clone(),
        );
        let mut all = self.lock();
        let pods = all.entry(owner.clone()).or_default();
        if gone {
            pods.remove(&pod.name_any());
        } else {
            pods.insert(pod.name_any(), Arc::new(pod));
        }
        if pods.is_empty() {
            all.remove(&owner);
        }
        Some(owner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Owner, BTreeMap<String, Arc<Pod>>>> {
        self.of.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
