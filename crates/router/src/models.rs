//! The models of the cluster, from one watch.

use std::sync::Arc;

use kube::Client;
use kube::runtime::watcher;
use parking_lot::RwLock;
use runway_api::ModelDeployment;
use runway_http::watches::{Watch, Watches};
use runway_operator::health::Pending;
use runway_operator::scope::Namespaces;
use runway_operator::services::ServicePort;
use runway_operator::store::{Change, Store};
use runway_operator::watch::watched;

use crate::model::{Model, State};
use crate::table::{Key, Listed, Named, Table, beside};

/// Current models, and news of them. Cheap to clone.
#[derive(Clone)]
pub struct Models {
    store: Store<Arc<Model>>,
    table: Arc<RwLock<Table>>,
    news: Watches<Key>,
}

impl Default for Models {
    fn default() -> Self {
        Self {
            store: Store::by_name(),
            table: Arc::default(),
            news: Watches::default(),
        }
    }
}

impl Models {
    /// Follows the ModelDeployments in these namespaces, for as long as it is polled. `changed` is called after each change.
    pub async fn follow(
        self,
        client: Client,
        namespaces: Namespaces,
        listed: Pending,
        changed: impl Fn(&Change<'_, Arc<Model>>),
    ) {
        let events = watched(namespaces.apis(&client), watcher::Config::default());
        let keep = |md: ModelDeployment| Model::of(&md).map(Arc::new);
        let taken_in = self.store.clone().follow(events, keep, |change| {
            self.take_in(change);
            changed(change);
        });
        let ready = async {
            self.store.listed().await;
            listed.done();
        };
        tokio::join!(taken_in, ready);
    }

    fn take_in(&self, change: &Change<'_, Arc<Model>>) {
        let key = (change.namespace.to_owned(), change.name.to_owned());
        if change.gone {
            self.table.write().remove(&key);
        } else {
            self.table.write().insert(Arc::clone(change.kept), !self.are_known());
        }
        self.news.wake(&key);
        if let Some(other) = &change.kept.stands_in_for {
            self.news.wake(&beside(change.kept, other));
        }
    }

    /// Whether the first list is complete. Until then, a model that is not found may exist.
    pub fn are_known(&self) -> bool {
        self.store.is_listed()
    }

    /// The model of this namespace and name.
    pub fn get(&self, key: &Key) -> Option<Arc<Model>> {
        self.table.read().get(key)
    }

    /// A model that serves, with its engine.
    pub fn serving(&self, key: &Key) -> Option<(Arc<Model>, ServicePort)> {
        let model = self.get(key)?;
        let State::Serving(at) = &model.state else { return None };
        let at = at.clone();
        Some((model, at))
    }

    /// The model that stands in for one and serves, with its engine.
    pub fn serving_stand_in(&self, model: &Model) -> Option<(Arc<Model>, ServicePort)> {
        // Most models have none, and need no lock.
        model.stand_in.as_ref()?;
        let stand_in = self.table.read().stand_in(model)?;
        match &stand_in.state {
            State::Serving(at) => Some((Arc::clone(&stand_in), at.clone())),
            _ => None,
        }
    }

    /// The canary that gets a request for a model, by a number of the request below 100, if it serves; with its engine.
    pub fn serving_canary(
        &self,
        model: &Model,
        draw: u8,
        may_serve: impl Fn(&Model) -> bool,
    ) -> Option<(Arc<Model>, ServicePort)> {
        let mut from = 0;
        let canaries = self.table.read().canaries(model);
        let drawn = canaries.into_iter().find(|canary| {
            from += u32::from(canary.weight());
            u32::from(draw) < from
        })?;
        match &drawn.state {
            State::Serving(at) if may_serve(&drawn) => Some((Arc::clone(&drawn), at.clone())),
            _ => None,
        }
    }

    /// The canaries of a model.
    pub fn canaries(&self, model: &Model) -> Vec<Arc<Model>> {
        self.table.read().canaries(model)
    }

    /// All models but stand-ins and canaries.
    pub fn all(&self) -> Vec<Arc<Model>> {
        self.table.read().all()
    }

    /// The models that a name in a request may mean.
    pub fn named(&self, asked: &str) -> Named {
        self.table.read().named(asked)
    }

    /// The models that have a name at the Gateway of the cluster.
    pub fn at_gateway(&self, name: &str) -> Vec<Arc<Model>> {
        self.table.read().at_gateway(name)
    }

    /// The list of models for a caller who may get these.
    pub fn listing(&self, visible: &[Arc<Model>]) -> Vec<Listed> {
        self.table.read().listing(visible)
    }

    /// News of a model from now on.
    pub fn watch(&self, key: &Key) -> Watch<Key> {
        self.news.watch(key.clone())
    }

    /// Wakes the requests that wait for a model.
    pub fn wake(&self, key: &Key) {
        self.news.wake(key);
    }
}
