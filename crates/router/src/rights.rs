//! Identity and rights of callers: by tokens and authorizers of the cluster, or by keys.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::request::Parts;
use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::RwLock;
use runway_api::condition::shorten;
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
/// Most questions about single models for one list, beyond one for each namespace.
const SINGLE_MODELS: usize = 100;
/// Longest name that is asked about, in bytes. Those of objects are not longer.
const LONGEST_NAME: usize = 253;
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

    /// Those of the models that a name may mean that a caller may use. An absent model costs as many questions as one that the
    /// caller may not use, so that the time does not tell them apart.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub async fn usable_as(&self, who: &Who, asked: &str, models: Vec<Arc<Model>>) -> Result<Vec<Arc<Model>>, Error> {
        let Who::Cluster(caller) = who else {
            return self.usable(who, models).await;
        };
        if models.is_empty() {
            let (namespace, name) = asked.split_once('/').unwrap_or(("", asked));
            let [namespace, name] = [namespace, name].map(|part| shorten(part.to_owned(), LONGEST_NAME));
            self.may(caller, &namespace, &name).await?;
        }
        if models.len() > AT_ONCE {
            return self.usable(who, models).await;
        }
        let usable = futures::stream::iter(models).map(|model| self.usable_model(caller, model));
        let usable: Vec<Option<Arc<Model>>> = usable.buffered(AT_ONCE).try_collect().await?;
        Ok(usable.into_iter().flatten().collect())
    }

    /// Those of these models that a caller may use, in their order, which is by namespace. One question answers for all, or for a
    /// namespace, if the caller has such a right. Beyond one for each namespace there are at most 100 questions, first
    /// about the models of the caller's own namespace; the rest is omitted.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub async fn usable(&self, who: &Who, models: Vec<Arc<Model>>) -> Result<Vec<Arc<Model>>, Error> {
        let caller = match who {
            Who::Key(holder) => return Ok(models.into_iter().filter(|model| holder.may_use(model)).collect()),
            Who::Cluster(caller) => caller,
        };
        if models.len() > 1 && self.may(caller, "", "").await? {
            return Ok(models);
        }
        let left = AtomicUsize::new(SINGLE_MODELS);
        let own = caller.tenant.namespace();
        let namespaces = models.chunk_by(|a, b| a.namespace == b.namespace).map(<[_]>::to_vec);
        let is_own = |models: &Vec<Arc<Model>>| models.first().is_some_and(|model| own == Some(&*model.namespace));
        let (own, others): (Vec<_>, Vec<_>) = namespaces.partition(is_own);
        let mut usable = Vec::new();
        for namespaces in [own, others] {
            let found = futures::stream::iter(namespaces).map(|models| self.usable_of_namespace(caller, models, &left));
            let found: Vec<Vec<Arc<Model>>> = found.buffered(AT_ONCE).try_collect().await?;
            usable.extend(found.concat());
        }
        usable.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        Ok(usable)
    }

    async fn usable_of_namespace(
        &self,
        caller: &Caller,
        models: Vec<Arc<Model>>,
        left: &AtomicUsize,
    ) -> Result<Vec<Arc<Model>>, Error> {
        let mut usable = Vec::new();
        if let [only] = models.as_slice() {
            usable.extend(self.usable_model(caller, Arc::clone(only)).await?);
            return Ok(usable);
        }
        if let [first, ..] = models.as_slice()
            && self.may(caller, &first.namespace, "").await?
        {
            return Ok(models);
        }
        for model in models {
            let order = Ordering::Relaxed;
            if left.fetch_update(order, order, |left| left.checked_sub(1)).is_err() {
                break;
            }
            usable.extend(self.usable_model(caller, model).await?);
        }
        Ok(usable)
    }

    /// The model, if the caller may use it.
    async fn usable_model(&self, caller: &Caller, model: Arc<Model>) -> Result<Option<Arc<Model>>, Error> {
        let may = self.may(caller, &model.namespace, &model.name).await?;
        Ok(may.then_some(model))
    }

    /// Whether a caller may see which pod of a model answers: a user of the cluster who may get the pods of its namespace.
    ///
    /// # Errors
    /// The cluster does not answer.
    pub async fn may_see_pods(&self, who: &Who, model: &Model) -> Result<bool, Error> {
        let Who::Cluster(caller) = who else { return Ok(false) };
        let action = Action {
            verb: "get",
            group: "",
            resource: "pods",
            subresource: "",
            namespace: &model.namespace,
            name: "",
        };
        self.callers.may(caller, &action).await
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::header::AUTHORIZATION;
    use axum::http::{Request, Response};
    use kube::client::Body;
    use runway_callers::Options;
    use serde_json::{Value, json};

    use super::*;

    /// An API server that accepts every token, as an account of the namespace `z`, which may use one model there.
    async fn rights(asked: &Arc<AtomicUsize>) -> (Rights, Who) {
        let asked = Arc::clone(asked);
        let server = tower::service_fn(move |request: Request<Body>| {
            let asked = Arc::clone(&asked);
            async move {
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                let attributes = &review["spec"]["resourceAttributes"];
                if attributes.is_object() {
                    asked.fetch_add(1, Ordering::SeqCst);
                }
                let allowed = attributes["namespace"] == "z" && attributes["name"] == "model-19";
                let user = json!({ "username": "system:serviceaccount:z:default" });
                review["status"] = json!({ "authenticated": true, "user": user, "allowed": allowed });
                Ok::<_, Infallible>(Response::new(Body::from(review.to_string().into_bytes())))
            }
        });
        let callers = Callers::new(kube::Client::new(server, "default"), Options::default());
        let rights = Rights::new(callers, PathBuf::from("/absent"));
        let request = Request::builder()
            .header(AUTHORIZATION, "Bearer token")
            .body(())
            .unwrap();
        let who = rights.identify(&request.into_parts().0).await.unwrap();
        (rights, who)
    }

    fn names(models: &[Arc<Model>]) -> Vec<String> {
        models.iter().map(|model| model.full_name()).collect()
    }

    #[tokio::test]
    async fn list_asks_once_for_each_namespace_and_about_few_models_those_of_the_caller_first() {
        let asked = Arc::default();
        let (rights, who) = rights(&asked).await;
        let namespaces = (0..49)
            .map(|number| format!("team-{number:02}"))
            .chain(["z".to_owned()]);
        let models = namespaces.flat_map(|namespace| {
            (0..20).map(move |number| Arc::new(Model::asleep(&format!("{namespace}/model-{number}"), "any")))
        });
        let usable = rights.usable(&who, models.collect()).await.unwrap();
        assert_eq!(names(&usable), ["z/model-19"]);
        assert_eq!(asked.load(Ordering::SeqCst), 1 + 50 + SINGLE_MODELS);
    }

    #[tokio::test]
    async fn absent_model_costs_as_many_questions_as_a_forbidden_one() {
        let asked = Arc::default();
        let (rights, who) = rights(&asked).await;
        let of_name = async |name: &str, models: &[&str]| {
            let before = asked.load(Ordering::SeqCst);
            let models = models.iter().map(|name| Arc::new(Model::asleep(name, "served")));
            let usable = rights.usable_as(&who, name, models.collect()).await.unwrap();
            (names(&usable), asked.load(Ordering::SeqCst) - before)
        };
        let none = Vec::<String>::new();
        assert_eq!(of_name("a/forbidden", &["a/forbidden"]).await, (none.clone(), 1));
        assert_eq!(of_name("a/absent", &[]).await, (none.clone(), 1));
        assert_eq!(of_name("served", &["a/one"]).await, (none.clone(), 1));
        assert_eq!(of_name("absent", &[]).await, (none.clone(), 1));
        assert_eq!(
            of_name("absent", &[]).await,
            (none, 0),
            "answers are used again for both"
        );
        let allowed = of_name("served", &["b/one", "z/model-19"]).await;
        assert_eq!(allowed, (vec!["z/model-19".to_owned()], 2));
    }
}
