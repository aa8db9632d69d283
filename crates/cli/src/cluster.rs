//! Reading a cluster, and saying what to do when that does not work.

use std::time::Duration;

use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_api::{InferenceProviderConfig, ModelDeployment};
use runway_operator::client::{self, ClientArgs};
use runway_provider::Kind;
use runway_provider::upstream::api_resource;

/// A cluster that does not answer by then is not reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A list may take longer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// What could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no way to a cluster.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The cluster does not answer.
    #[error("cannot reach the cluster at {url} (is it running, and is the context the right one?)")]
    Unreachable {
        /// Its address.
        url: String,
        /// What went wrong.
        source: Box<kube::Error>,
    },
    /// The server does not know who asks.
    #[error("the cluster at {url} does not accept the credentials of the kubeconfig: log in again ({message})")]
    Unauthorized {
        /// Its address.
        url: String,
        /// What the server said.
        message: String,
    },
    /// The server knows, and refuses.
    #[error("not allowed to {doing}: ask for a role that allows it ({message})")]
    Forbidden {
        /// What was tried.
        doing: String,
        /// What the server said.
        message: String,
    },
    /// There is no such ModelDeployment.
    #[error(
        "ModelDeployment '{name}' not found in namespace '{namespace}': give another namespace with -n, or find it with: kubeairunway get -A"
    )]
    NotFound {
        /// Its name.
        name: String,
        /// Where it was looked for.
        namespace: String,
    },
    /// The server does not know the kind.
    #[error("the cluster at {url} does not know {kind}: is the control plane installed in this cluster?")]
    NotInstalled {
        /// Its address.
        url: String,
        /// The kind.
        kind: &'static str,
    },
    /// Something else.
    #[error("cannot {doing}")]
    Other {
        /// What was tried.
        doing: String,
        /// What went wrong.
        source: Box<kube::Error>,
    },
}

/// A cluster.
pub struct Cluster {
    client: Client,
    url: String,
    /// The namespace of the context.
    pub namespace: String,
}

impl Cluster {
    /// Prepares for reading; nothing is asked yet.
    pub async fn connect(args: &ClientArgs) -> Result<Self, Error> {
        client::install_crypto();
        let mut config = args.config().await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        // Somebody is waiting: an error now is better than an answer in minutes.
        config.default_retry = false;
        let (url, namespace) = (config.cluster_url.to_string(), config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|e| client::Error::Client(Box::new(e)))?;
        Ok(Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            namespace,
        })
    }

    /// The ModelDeployments of a namespace, or of all.
    pub async fn deployments(&self, namespace: Option<&str>) -> Result<Vec<ModelDeployment>, Error> {
        let api: Api<ModelDeployment> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let place = namespace.map_or_else(|| "all namespaces".to_owned(), |n| format!("namespace '{n}'"));
        let list = api.list(&ListParams::default()).await;
        Ok(list
            .map_err(|e| self.explain(e, format!("list ModelDeployments in {place}"), "ModelDeployment"))?
            .items)
    }

    /// One ModelDeployment.
    pub async fn deployment(&self, namespace: &str, name: &str) -> Result<ModelDeployment, Error> {
        let api: Api<ModelDeployment> = Api::namespaced(self.client.clone(), namespace);
        api.get(name).await.map_err(|error| match &error {
            // A server that does not know the kind does not name the object either.
            kube::Error::Api(status)
                if status.is_not_found() && status.details.as_ref().is_some_and(|d| !d.name.is_empty()) =>
            {
                Error::NotFound {
                    name: name.to_owned(),
                    namespace: namespace.to_owned(),
                }
            }
            _ => self.explain(
                error,
                format!("read ModelDeployment '{name}' in namespace '{namespace}'"),
                "ModelDeployment",
            ),
        })
    }

    /// The registered providers.
    pub async fn configs(&self) -> Result<Vec<InferenceProviderConfig>, Error> {
        let api: Api<InferenceProviderConfig> = Api::all(self.client.clone());
        let list = api.list(&ListParams::default()).await;
        let mut items = list
            .map_err(|e| self.explain(e, "list InferenceProviderConfigs".to_owned(), "InferenceProviderConfig"))?
            .items;
        items.sort_by_key(ResourceExt::name_any);
        Ok(items)
    }

    /// An upstream object, if it exists.
    pub async fn upstream(
        &self,
        kind: Kind,
        version: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<DynamicObject>, Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &api_resource(kind, version));
        api.get_opt(name)
            .await
            .map_err(|e| self.explain(e, format!("read {} '{name}'", kind.kind), "it"))
    }

    /// The Events about a ModelDeployment.
    pub async fn events(&self, namespace: &str, name: &str) -> Result<Vec<Event>, Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let about = format!("involvedObject.kind=ModelDeployment,involvedObject.name={name}");
        let list = api.list(&ListParams::default().fields(&about)).await;
        Ok(list
            .map_err(|e| self.explain(e, format!("list Events in namespace '{namespace}'"), "Event"))?
            .items)
    }

    fn explain(&self, error: kube::Error, doing: String, kind: &'static str) -> Error {
        let url = self.url.clone();
        match error {
            kube::Error::Api(status) if status.code == 401 => Error::Unauthorized {
                url,
                message: status.message,
            },
            kube::Error::Api(status) if status.is_forbidden() => Error::Forbidden {
                doing,
                message: status.message,
            },
            kube::Error::Api(status) if status.is_not_found() || status.code == 404 => {
                Error::NotInstalled { url, kind }
            }
            kube::Error::HyperError(_) | kube::Error::Service(_) => Error::Unreachable {
                url,
                source: Box::new(error),
            },
            error => Error::Other {
                doing,
                source: Box::new(error),
            },
        }
    }
}
