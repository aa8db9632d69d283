//! The ConfigMaps that users name: one small watch for each, while it is named. All ConfigMaps of a cluster would be too many.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::watch;
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

/// `None` until it is known whether it exists.
type State = Option<Option<Arc<ConfigMap>>>;

/// The ConfigMaps that LlamaStackDistributions name.
pub(crate) struct ConfigMaps {
    client: Client,
    watched: Mutex<HashMap<Key, Watched>>,
}

struct Watched {
    state: watch::Receiver<State>,
    /// Names of the LlamaStackDistributions that name it, in its namespace.
    users: Arc<Mutex<BTreeSet<String>>>,
    _task: AbortOnDropHandle<()>,
}

impl ConfigMaps {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            watched: Mutex::default(),
        }
    }

    /// The ConfigMap, if it exists. When it changes, `wake` is called with the names of those that use it.
    pub(crate) async fn get(
        &self,
        namespace: &str,
        name: &str,
        user: &str,
        wake: impl Fn(&str, &str) + Send + Sync + 'static,
    ) -> Result<Option<Arc<ConfigMap>>, Unknown> {
        let mut state = {
            let mut watched = self.lock();
            let entry = watched
                .entry((namespace.to_owned(), name.to_owned()))
                .or_insert_with(|| self.follow(namespace, name, wake));
            lock(&entry.users).insert(user.to_owned());
            entry.state.clone()
        };
        let known = tokio::time::timeout(FIRST_ANSWER, state.wait_for(Option::is_some)).await;
        match known {
            Ok(Ok(found)) => Ok(found.clone().flatten()),
            _ => Err(Unknown { name: name.to_owned() }),
        }
    }

    /// Ends the watches of what a LlamaStackDistribution does not name any more.
    pub(crate) fn only(&self, namespace: &str, user: &str, names: &BTreeSet<String>) {
        self.lock().retain(|(ns, name), watched| {
            if ns != namespace || names.contains(name) {
                return true;
            }
            let mut users = lock(&watched.users);
            users.remove(user);
            !users.is_empty()
        });
    }

    fn follow(&self, namespace: &str, name: &str, wake: impl Fn(&str, &str) + Send + Sync + 'static) -> Watched {
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let (sender, state) = watch::channel(None);
        let users: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (namespace, name, told) = (namespace.to_owned(), name.to_owned(), users.clone());
        let task = tokio::spawn(async move {
            let mut states = watch_object(api, &name).default_backoff().boxed();
            while let Some(found) = states.next().await {
                match found {
                    Ok(found) => {
                        let found = found.map(|mut config_map| {
                            config_map.metadata.managed_fields = None;
                            Arc::new(config_map)
                        });
                        if sender.send_replace(Some(found)).is_some() {
                            lock(&told).iter().for_each(|user| wake(&namespace, user));
                        }
                    }
                    Err(error) => tracing::warn!(%error, namespace, name, "cannot watch the ConfigMap"),
                }
            }
        });
        Watched {
            state,
            users,
            _task: AbortOnDropHandle::new(task),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Watched>> {
        lock(&self.watched)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
