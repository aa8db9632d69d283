//! Upstream objects over time: how many a model had at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use runway_provider::Kind;
use runway_provider_dynamo::DYNAMO_GRAPH_DEPLOYMENT;
use runway_provider_kaito::{INFERENCE_SET, WORKSPACE};
use runway_provider_kuberay::RAY_SERVICE;
use tokio::task::JoinSet;

use crate::state::DEPLOYMENT;

const UPSTREAM: [Kind; 5] = [
    INFERENCE_SET,
    WORKSPACE,
    DYNAMO_GRAPH_DEPLOYMENT,
    RAY_SERVICE,
    DEPLOYMENT,
];

/// Namespace and model.
type Model = (String, String);
/// By resource version, which all kinds of a cluster share: an object by its uid, and whether it is there from then on.
type History = BTreeMap<u64, (String, bool)>;

/// Watches the upstream objects of all models.
pub(crate) struct Ledger {
    histories: Arc<Mutex<BTreeMap<Model, History>>>,
    _watches: JoinSet<()>,
}

impl Ledger {
    pub(crate) fn start(client: &Client) -> Self {
        let histories: Arc<Mutex<BTreeMap<Model, History>>> = Arc::default();
        let mut watches = JoinSet::new();
        for kind in UPSTREAM {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
            let histories = histories.clone();
            watches.spawn(async move {
                let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
                while let Some(event) = events.next().await {
                    let (object, is_there) = match event {
                        Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => (object, true),
                        Ok(watcher::Event::Delete(object)) => (object, false),
                        _ => continue,
                    };
                    if let Some((model, version, uid)) = entry(&object) {
                        let mut histories = histories.lock();
                        histories.entry(model).or_default().insert(version, (uid, is_there));
                    }
                }
            });
        }
        Self {
            histories,
            _watches: watches,
        }
    }

    /// Fails if a model of the namespace had two at once, or still has one.
    pub(crate) fn check(&self, namespace: &str) -> Result<()> {
        let histories = self.histories.lock();
        let mut own = histories.iter().filter(|((n, _), _)| n == namespace);
        own.try_for_each(|((_, model), history)| one_at_a_time(history).with_context(|| format!("model {model}")))
    }
}

fn one_at_a_time(history: &History) -> Result<()> {
    let mut alive = BTreeSet::new();
    for (version, (uid, is_there)) in history {
        if *is_there {
            alive.insert(uid);
        } else {
            alive.remove(uid);
        }
        ensure!(alive.len() <= 1, "two upstream objects at resource version {version}");
    }
    ensure!(alive.is_empty(), "the upstream object is still there");
    Ok(())
}

fn entry(object: &DynamicObject) -> Option<(Model, u64, String)> {
    let owner = object.owner_references().iter().find(|o| o.kind == "ModelDeployment")?;
    let version = object.resource_version().context("no version").ok()?.parse().ok()?;
    Some(((object.namespace()?, owner.name.clone()), version, object.uid()?))
}

#[test]
fn two_upstream_objects_at_once_are_noticed_in_any_order_of_the_watches() {
    let history = |events: &[(u64, &str, bool)]| -> History {
        let entries = events
            .iter()
            .map(|(version, uid, is_there)| (*version, ((*uid).to_owned(), *is_there)));
        entries.collect()
    };
    let error = |events| one_at_a_time(&history(events)).err().map(|e| e.to_string());
    assert_eq!(
        error(&[(3, "b", true), (1, "a", true), (2, "a", false), (4, "b", false)]),
        None
    );
    let both = error(&[(1, "a", true), (3, "a", false), (2, "b", true), (4, "b", false)]);
    assert_eq!(both.as_deref(), Some("two upstream objects at resource version 2"));
    assert_eq!(
        error(&[(1, "a", true)]).as_deref(),
        Some("the upstream object is still there")
    );
}
