//! Keeps the snapshot of registered providers current, and reports invalid rules in the status of their providers.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::{Stream, StreamExt, stream};
use kube::api::{Patch, PatchParams, ValidationDirective};
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher;
use kube::{Api, Resource, ResourceExt};
use runway_api::{InferenceProviderConfig, labels};
use runway_operator::clock;
use runway_operator::process::Process;
use runway_operator::scope::Apis;
use runway_operator::watch::{Event, reflect, watched};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::providers::Providers;

/// Interval of checks of the heartbeats. Sends no request.
const HEALTH_CHECK: Duration = Duration::from_secs(5);

/// The registered providers, as the watch shows them.
#[derive(Default)]
pub struct Registry {
    snapshot: ArcSwap<Providers>,
    changes: watch::Sender<Vec<(String, String)>>,
}

impl Registry {
    /// The providers as they are now.
    pub fn current(&self) -> Arc<Providers> {
        self.snapshot.load_full()
    }

    /// Ticks when a provider appears, goes, changes, or becomes ready or silent: not for heartbeats.
    pub(crate) fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        stream::unfold(self.changes.subscribe(), |mut changes| async move {
            changes.changed().await.ok()?;
            Some(((), changes))
        })
    }

    /// Follows the InferenceProviderConfigs until dropped, and signals `listed` after the first complete list. Only the leader
    /// writes their status.
    pub(crate) async fn follow(self: Arc<Self>, process: Process, listed: tokio::sync::oneshot::Sender<()>) {
        let api: Api<InferenceProviderConfig> = Api::all(process.client.clone());
        let (store, writer) = reflector::store();
        let mut events = pin!(reflect(
            watched(Apis::one(Api::all(process.client)), watcher::Config::default()),
            writer
        ));
        let mut begins_to_lead = pin!(process.leadership.begins());
        let mut listed = Some((listed, process.health.waits_for("the list of InferenceProviderConfigs")));
        // Last reported problems, by name: the watch may be behind.
        let mut said: HashMap<String, Value> = HashMap::new();
        loop {
            tokio::select! {
                event = events.next() => match event {
                    Some(Event::Init(_) | Event::InitApply(_)) => {}
                    Some(event) => {
                        self.rebuild(&store);
                        if process.leadership.is_leading() {
                            self.report_rules(&api, &mut said).await;
                        }
                        if matches!(event, Event::Listed) && let Some((listed, pending)) = listed.take() {
                            pending.done();
                            // The receiver is gone during shutdown.
                            let _ = listed.send(());
                        }
                    }
                    None => return,
                },
                Some(()) = begins_to_lead.next() => {
                    said.clear();
                    self.report_rules(&api, &mut said).await;
                }
                () = tokio::time::sleep(HEALTH_CHECK) => self.publish(),
            }
        }
    }

    fn rebuild(&self, store: &Store<InferenceProviderConfig>) {
        let mut configs = store.state();
        configs.sort_by_key(|c| c.name_any());
        self.snapshot
            .store(Arc::new(Providers::compile(configs, &self.current())));
        self.publish();
    }

    fn publish(&self) {
        let meaning = self.current().meaning(clock::now());
        self.changes.send_if_modified(|before| {
            let changed = *before != meaning;
            *before = meaning;
            changed
        });
    }

    async fn report_rules(&self, api: &Api<InferenceProviderConfig>, said: &mut HashMap<String, Value>) {
        let current = self.current();
        said.retain(|name, _| current.get(name).is_some());
        for (name, provider) in current.iter() {
            let Some(status) = provider.status_to_write(clock::now()) else {
                continue;
            };
            let message = status["conditions"][0]["message"].clone();
            let generation = status["conditions"][0]["observedGeneration"].clone();
            let saying = json!([provider.config.metadata.uid, generation, message]);
            if said.get(name) == Some(&saying) {
                continue;
            }
            let document = json!({
                "apiVersion": InferenceProviderConfig::api_version(&()),
                "kind": InferenceProviderConfig::kind(&()),
                "metadata": { "name": name },
                "status": status,
            });
            let params = PatchParams {
                field_validation: Some(ValidationDirective::Strict),
                ..PatchParams::apply(labels::CORE_MANAGER)
            };
            match api.patch_status(name, &params, &Patch::Apply(document)).await {
                Ok(_) => {
                    for problem in &provider.problems {
                        tracing::warn!(provider = name, problem, "rule skipped");
                    }
                    said.insert(name.to_owned(), saying);
                }
                Err(error) => {
                    tracing::warn!(provider = name, %error, "cannot write the status of the InferenceProviderConfig");
                }
            }
        }
    }
}
