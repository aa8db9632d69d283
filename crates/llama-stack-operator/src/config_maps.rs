//! The ConfigMaps that users name: one small watch for each, while it is named. All ConfigMaps of a cluster would be too many.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::watcher;
use kube::{Api, Client};
use parking_lot::Mutex;
use runway_api::LlamaStackDistribution;
use runway_operator::controller::Wake;
use runway_operator::packed::{Packed, Text};
use runway_operator::scope::Apis;
use runway_operator::store::{Change, Store};
use runway_operator::watch::watched;
use tokio_util::task::AbortOnDropHandle;

/// Longest wait for the first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(20);

/// It is not known whether a ConfigMap exists.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch ConfigMap '{name}': no answer within {} seconds", FIRST_ANSWER.as_secs())]
pub(crate) struct Unknown {
    name: String,
}

/// Namespace and name.
type Key = (String, String);

/// Names of LlamaStackDistributions.
type Users = Arc<Mutex<BTreeSet<String>>>;

/// The ConfigMaps that LlamaStackDistributions name.
pub(crate) struct ConfigMaps {
    client: Client,
    wake: Wake<Packed<LlamaStackDistribution>>,
    watches: Mutex<HashMap<Key, Watch>>,
}

struct Watch {
    store: Store<Text>,
    /// Those that name it, in its namespace.
    users: Users,
    _task: AbortOnDropHandle<()>,
}

impl ConfigMaps {
    /// ConfigMaps whose changes requeue those that name them.
    pub(crate) fn new(client: Client, wake: Wake<Packed<LlamaStackDistribution>>) -> Self {
        Self {
            client,
            wake,
            watches: Mutex::default(),
        }
    }

    /// The ConfigMap, if it exists. From now on, `user` is requeued when it changes.
    pub(crate) async fn get(&self, namespace: &str, name: &str, user: &str) -> Result<Option<Arc<ConfigMap>>, Unknown> {
        let store = {
            let mut watches = self.watches.lock();
            let watch = watches
                .entry((namespace.to_owned(), name.to_owned()))
                .or_insert_with(|| self.watch(namespace, name));
            watch.users.lock().insert(user.to_owned());
            watch.store.clone()
        };
        match tokio::time::timeout(FIRST_ANSWER, store.listed()).await {
            Ok(()) => Ok(store.get(namespace, name)),
            Err(_) => Err(Unknown { name: name.to_owned() }),
        }
    }

    /// Ends the watches of what a LlamaStackDistribution does not name any more.
    pub(crate) fn only(&self, namespace: &str, user: &str, names: &BTreeSet<String>) {
        self.watches.lock().retain(|(ns, name), watch| {
            if ns != namespace || names.contains(name) {
                return true;
            }
            let mut users = watch.users.lock();
            users.remove(user);
            !users.is_empty()
        });
    }

    fn watch(&self, namespace: &str, name: &str) -> Watch {
        let api = Apis::one(Api::namespaced(self.client.clone(), namespace));
        let only_this = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let (store, users) = (Store::by_name(), Users::default());
        let (wake, to_wake, known) = (self.wake.clone(), users.clone(), store.clone());
        let changed = move |change: &Change<'_, Text>| {
            // The reconcile that asks for it first waits for it.
            if known.is_listed() {
                let users = to_wake.lock();
                users.iter().for_each(|user| wake.call(change.namespace, user));
            }
        };
        let keep = |packed: Packed<ConfigMap>| Some(packed.into_text());
        let task = store.clone().follow(watched(api, only_this), keep, changed);
        Watch {
            store,
            users,
            _task: AbortOnDropHandle::new(tokio::spawn(task)),
        }
    }
}
