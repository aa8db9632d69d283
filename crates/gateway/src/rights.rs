//! Identity and rights of callers: by tokens and authorizers of the cluster, or by keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::RwLock;
use runway_callers::tenant::Tenant;
use runway_callers::{Action, Caller, Callers, Error};
use runway_http::Client;
use runway_operator::{audit, clock};
use tokio::time::sleep;

use crate::keys::{KeyHolder, Keys};
use crate::model::Model;

/// API group of the right to use a model: `get` on its ModelDeployment.
pub const GROUP: &str = "kubeairunway.ai";
/// Resource of that right.
pub const RESOURCE: &str = "modeldeployments";
/// Questions about one list that are asked at once.
const AT_ONCE: usize = 8;
/// Interval at which key files are read again.
const KEYS_AGAIN: Duration = Duration::from_secs(30);
/// Shortest interval at which rights are checked again.
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);

/// Identifies callers, and decides which models they may use.
pub struct Rights {
    callers: Callers,
    keys: RwLock<Keys>,
    folder: PathBuf,
}

/// An authenticated caller.
#[derive(Clone, Debug)]
pub enum Who {
    /// With a token of the cluster.
    Cluster(Arc<Caller>),
    /// With a key.
    Key(Arc<KeyHolder>),
}

impl Who {
    /// All classes.
    pub const CLASSES: [&'static str; 2] = ["token", "key"];

    /// Class of the caller, as a label of metrics.
    pub fn class(&self) -> &'static str {
        match self {
            Self::Cluster(_) => Self::CLASSES[0],
            Self::Key(_) => Self::CLASSES[1],
        }
    }

    /// Name of the caller: of the user, or of the key.
    pub fn name(&self) -> &str {
        match self {
            Self::Cluster(caller) => &caller.user,
            Self::Key(holder) => &holder.name,
        }
    }

    /// Unit of limits.
    pub fn tenant(&self) -> Tenant {
        match self {
            Self::Cluster(caller) => caller.tenant.clone(),
            Self::Key(holder) => Tenant::of_key(&holder.name),
        }
    }
}

fn warn_of_plain_text(keys: &Keys) {
    for name in keys.plain() {
        tracing::warn!(name, "the key is in plain text: store its SHA-256 instead");
    }
}

impl Rights {
    /// Reads the keys of a folder now, and then while [`Rights::follow`] runs.
    pub fn new(callers: Callers, folder: PathBuf) -> Self {
        let keys = Keys::read(&folder);
        warn_of_plain_text(&keys);
        let keys = RwLock::new(keys);
        Self { callers, keys, folder }
    }

    /// Reads the keys again from time to time: Kubernetes replaces the files when the Secret changes.
    pub async fn follow(self: Arc<Self>) {
        loop {
            sleep(KEYS_AGAIN).await;
            let read = Keys::read(&self.folder);
            if *self.keys.read() != read {
                warn_of_plain_text(&read);
                *self.keys.write() = read;
            }
        }
    }

    /// The caller of a request.
    ///
    /// # Errors
    /// The token or key is missing or not accepted, or the API server does not answer.
    pub async fn identify(&self, request: &Parts) -> Result<Who, Error> {
        let headers = &request.headers;
        let holder = runway_callers::bearer(headers).and_then(|key| self.keys.read().holder(key, clock::now()));
        if let Some(holder) = holder {
            audit::user("key", &holder.name);
            return Ok(Who::Key(holder));
        }
        let client = Client::of(&request.extensions);
        self.callers.identify(headers, client).await.map(Who::Cluster)
    }

    /// Waits until a caller loses the right to use a model, which is checked at this interval. Without an answer of the cluster, the
    /// right stays.
    pub async fn lost(self: Arc<Self>, who: Who, model: Arc<Model>, interval: Duration) {
        loop {
            sleep(interval.max(SHORTEST_INTERVAL)).await;
            match Box::pin(self.may_still_use(&who, &model)).await {
                Ok(true) => {}
                Ok(false) => {
                    let (namespace, name, caller) = (model.namespace.as_str(), model.name.as_str(), who.name());
                    tracing::info!(
                        namespace,
                        name,
                        caller,
                        "the caller lost the right to the model, its response ends"
                    );
                    return;
                }
                Err(error) => tracing::warn!(%error, "cannot check the right of a caller again"),
            }
        }
    }

    async fn may_still_use(&self, who: &Who, model: &Arc<Model>) -> Result<bool, Error> {
        let who = match who {
            Who::Cluster(caller) => Who::Cluster(Arc::clone(caller)),
            Who::Key(holder) => match self.keys.read().current(holder, clock::now()) {
                Some(holder) => Who::Key(holder),
                None => return Ok(false),
            },
        };
        let usable = self.usable(&who, vec![Arc::clone(model)]).await?;
        Ok(!usable.is_empty())
    }

    /// Those of these models that a caller may use, in their order, which is by namespace.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub async fn usable(&self, who: &Who, models: Vec<Arc<Model>>) -> Result<Vec<Arc<Model>>, Error> {
        let caller = match who {
            Who::Key(holder) => return Ok(models.into_iter().filter(|model| holder.may_use(model)).collect()),
            Who::Cluster(caller) => caller,
        };
        // One question answers for all, or for a namespace, if the caller has such a right.
        if models.len() > 1 && self.may(caller, "", "").await? {
            return Ok(models);
        }
        let namespaces = models.chunk_by(|a, b| a.namespace == b.namespace);
        let namespaces: Vec<Vec<Arc<Model>>> = namespaces.map(<[_]>::to_vec).collect();
        let usable = futures::stream::iter(namespaces).map(|models| self.usable_of_namespace(caller, models));
        let usable: Vec<Vec<Arc<Model>>> = usable.buffered(AT_ONCE).try_collect().await?;
        Ok(usable.concat())
    }

    async fn usable_of_namespace(&self, caller: &Caller, models: Vec<Arc<Model>>) -> Result<Vec<Arc<Model>>, Error> {
        if let [first, _, ..] = models.as_slice()
            && self.may(caller, &first.namespace, "").await?
        {
            return Ok(models);
        }
        let mut usable = Vec::new();
        for model in models {
            if self.may(caller, &model.namespace, &model.name).await? {
                usable.push(model);
            }
        }
        Ok(usable)
    }

    async fn may(&self, caller: &Caller, namespace: &str, name: &str) -> Result<bool, Error> {
        let action = Action {
            verb: "get",
            group: GROUP,
            resource: RESOURCE,
            subresource: "",
            namespace,
            name,
        };
        self.callers.may(caller, &action).await
    }
}
