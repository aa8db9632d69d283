//! The endpoints of ModelDeployments. Their CRD may come later, or never: it is watched by its name, and they only while it
//! is there.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watch_object};
use kube::{Api, Client, CustomResourceExt};
use runway_api::ModelDeployment;
use runway_operator::watch::{key, watched};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// Namespace and name.
type Key = (String, String);

/// The ModelDeployments, as far as they have to do with us: name and endpoint.
#[derive(Default)]
pub(crate) struct Models {
    known: Mutex<HashMap<Key, Arc<ModelDeployment>>>,
    listed: watch::Sender<bool>,
}

impl Models {
    /// Those of these names that exist.
    pub(crate) fn find(&self, namespace: &str, names: &BTreeSet<String>) -> BTreeMap<String, Arc<ModelDeployment>> {
        let known = self.lock();
        names
            .iter()
            .filter_map(|name| Some((name.clone(), known.get(&(namespace.to_owned(), name.clone()))?.clone())))
            .collect()
    }

    /// Waits until it is known which there are.
    pub(crate) async fn listed(&self) {
        // The sender lives as long as we do.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Follows them until dropped; calls `changed` with namespace and name when one comes, goes, or answers elsewhere.
    pub(crate) async fn follow(self: Arc<Self>, client: Client, changed: impl Fn(&str, &str) + Send + Sync + 'static) {
        let changed = Arc::new(changed);
        let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
        let mut states = pin!(watch_object(crds, ModelDeployment::crd_name()).default_backoff());
        let mut task: Option<AbortOnDropHandle<()>> = None;
        while let Some(found) = states.next().await {
            match found {
                Ok(Some(_)) if task.is_some() => {}
                Ok(Some(_)) => {
                    let follow = self.clone().follow_all(client.clone(), changed.clone());
                    task = Some(AbortOnDropHandle::new(tokio::spawn(follow)));
                }
                Ok(None) => {
                    task = None;
                    let gone: Vec<Key> = self.lock().drain().map(|(key, _)| key).collect();
                    for (namespace, name) in &gone {
                        changed(namespace, name);
                    }
                    self.listed.send_replace(true);
                }
                Err(error) => tracing::warn!(%error, "cannot watch the CRD of ModelDeployments"),
            }
        }
    }

    async fn follow_all(self: Arc<Self>, client: Client, changed: Arc<impl Fn(&str, &str) + Send + Sync + 'static>) {
        let mut events = pin!(watched(Api::all(client), watcher::Config::default()));
        while let Some(event) = events.next().await {
            if matches!(event, Event::InitDone) {
                self.listed.send_replace(true);
            }
            if let Some((namespace, name)) = self.take_in(event) {
                changed(&namespace, &name);
            }
        }
    }

    /// What changed, if it matters.
    fn take_in(&self, event: Event<ModelDeployment>) -> Option<Key> {
        let mut known = self.lock();
        match event {
            Event::Apply(model) | Event::InitApply(model) => {
                let key = key(&model);
                let endpoint = |m: &ModelDeployment| m.status.as_ref().and_then(|s| s.endpoint.clone());
                let before = known.get(&key).map(|m| endpoint(m));
                let is_news = before != Some(endpoint(&model));
                known.insert(key.clone(), Arc::new(model));
                is_news.then_some(key)
            }
            Event::Delete(model) => {
                let key = key(&model);
                known.remove(&key).map(|_| key)
            }
            Event::Init | Event::InitDone => None,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<ModelDeployment>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
