//! Reads and writes of a cluster, for one user.

use std::fmt::Debug;
use std::time::Duration;

use futures::Stream;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    DeleteParams, GetParams, ListParams, Patch, PatchParams, Preconditions, Request, ValidationDirective, WatchEvent,
    WatchParams,
};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, NamespaceResourceScope};
use kube::discovery;
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::name::{Invalid, Segment};
use runway_api::{InferenceProviderConfig, ModelDeployment, Name, Namespace};
use runway_operator::client::{self, ClientArgs};
use runway_provider::Kind;
use runway_provider::upstream::api_resource;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

pub use super::error::Error;
use crate::target::{self, Ours, Target};
use crate::view::pods;

/// A cluster that does not answer by then is not reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A list may take longer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Namespace and name of an object. The namespace is `default` if the object has none.
///
/// # Errors
/// The namespace or name is invalid.
pub(crate) fn place<K: ResourceExt>(object: &K) -> Result<(Namespace, Name), Invalid> {
    let namespace = object
        .namespace()
        .map_or_else(|| Ok(Namespace::default()), Namespace::try_from)?;
    Ok((namespace, object.name_any().parse()?))
}

/// A kind of Kubernetes' own.
pub(crate) fn built_in(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

/// Objects in one answer of the server, as kubectl asks for them.
const CHUNK: u32 = 500;

/// Lists all objects in chunks.
async fn listed<K: Clone + DeserializeOwned + Debug>(api: &Api<K>) -> kube::Result<Vec<K>> {
    listed_with(api, ListParams::default()).await
}

/// Parameters for objects with these labels.
pub fn labelled(labels: Option<&str>) -> ListParams {
    ListParams {
        label_selector: labels.map(str::to_owned),
        ..ListParams::default()
    }
}

async fn listed_with<K: Clone + DeserializeOwned + Debug>(api: &Api<K>, params: ListParams) -> kube::Result<Vec<K>> {
    let (mut params, mut all) = (params.limit(CHUNK), Vec::new());
    loop {
        let chunk = api.list(&params).await?;
        all.extend(chunk.items);
        match chunk.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

/// Parameters to delete exactly the object with this uid. The server rejects an empty uid.
pub fn only(uid: &str) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        }),
        ..DeleteParams::background()
    }
}

/// The object of each row in a table of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowObject {
    /// Metadata without spec and status.
    Metadata,
    /// The whole object.
    Whole,
}

impl RowObject {
    /// Value of the parameter `includeObject`.
    fn included(self) -> &'static str {
        match self {
            Self::Metadata => "Metadata",
            Self::Whole => "Object",
        }
    }
}

/// Requests for objects of a kind, in a namespace or in all.
fn requests(kind: target::Kind, namespace: Option<&Namespace>) -> Request {
    let within = namespace.filter(|_| kind.is_namespaced()).map(Namespace::as_str);
    Request::new(DynamicObject::url_path(&kind.resource(), within))
}

/// The request, for a table instead of objects.
fn as_table(mut request: http::Request<Vec<u8>>, rows: RowObject) -> http::Request<Vec<u8>> {
    if let Ok(table) = "application/json;as=Table;v=v1;g=meta.k8s.io".parse() {
        request.headers_mut().insert("accept", table);
    }
    let separator = if request.uri().query().is_some() { "&" } else { "?" };
    if let Ok(uri) = format!("{}{separator}includeObject={}", request.uri(), rows.included()).parse() {
        *request.uri_mut() = uri;
    }
    request
}

/// A cluster.
pub struct Cluster {
    client: Client,
    url: String,
    /// The namespace of the context.
    pub namespace: Namespace,
}

impl Cluster {
    /// Prepares a connection, without sending a request.
    ///
    /// # Errors
    /// No kubeconfig is usable.
    pub async fn connect(args: &ClientArgs) -> Result<Self, Error> {
        // A user is waiting: an early error is better than a late response.
        Self::connect_with(args, false, Some(READ_TIMEOUT)).await
    }

    /// Like [`Self::connect`], for streams such as logs: without a read timeout.
    ///
    /// # Errors
    /// No kubeconfig is usable.
    pub async fn connect_to_follow(args: &ClientArgs) -> Result<Self, Error> {
        Self::connect_with(args, false, None).await
    }

    /// Like [`Self::connect`], for commands with many requests: retries if the server asks for it.
    ///
    /// # Errors
    /// No kubeconfig is usable.
    pub async fn connect_patiently(args: &ClientArgs) -> Result<Self, Error> {
        Self::connect_with(args, true, Some(READ_TIMEOUT)).await
    }

    async fn connect_with(args: &ClientArgs, patient: bool, silence: Option<Duration>) -> Result<Self, Error> {
        client::install_crypto();
        let mut config = args.config().await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = silence;
        config.default_retry = patient;
        let (url, namespace) = (config.cluster_url.to_string(), client::namespace(&config)?);
        let client = Client::try_from(config).map_err(|e| client::Error::Client(Box::new(e)))?;
        Ok(Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            namespace,
        })
    }

    /// A cluster that is reached through an existing client.
    pub fn of(client: Client, url: &str, namespace: Namespace) -> Self {
        Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            namespace,
        }
    }

    /// The client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// URL of the API server.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The ModelDeployments of a namespace, or of all.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn deployments(&self, namespace: Option<&Namespace>) -> Result<Vec<ModelDeployment>, Error> {
        let api: Api<ModelDeployment> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let place = namespace.map_or_else(|| "all namespaces".to_owned(), |n| format!("namespace '{n}'"));
        let list = listed(&api).await;
        list.map_err(|e| self.explain(e, format!("list ModelDeployments in {place}"), "ModelDeployment"))
    }

    /// Gets a ModelDeployment.
    ///
    /// # Errors
    /// The object does not exist, or the cluster cannot be reached or rejects the request.
    pub async fn deployment(&self, namespace: &Namespace, name: &Name) -> Result<ModelDeployment, Error> {
        self.one(namespace, name).await
    }

    /// Gets an object of one of our kinds.
    ///
    /// # Errors
    /// The object does not exist, or the cluster cannot be reached or rejects the request.
    pub async fn one<K>(&self, namespace: &Namespace, name: &Name) -> Result<K, Error>
    where
        K: Ours + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        match api.get(name).await {
            Ok(found) => Ok(found),
            Err(error) => Err(self.not_read(error, K::KIND, namespace, name).await),
        }
    }

    /// Lists the objects of one of our kinds in a namespace.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn typed<K>(&self, namespace: &Namespace) -> Result<Vec<K>, Error>
    where
        K: Ours + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let list = listed(&Api::<K>::namespaced(self.client.clone(), namespace)).await;
        let doing = || format!("list {}s in namespace '{namespace}'", K::NAME);
        list.map_err(|e| self.explain(e, doing(), K::NAME))
    }

    /// API for objects of a kind, in a namespace or in all.
    pub fn api(&self, kind: target::Kind, namespace: Option<&Namespace>) -> Api<DynamicObject> {
        match namespace.filter(|_| kind.is_namespaced()) {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind.resource()),
            None => Api::all_with(self.client.clone(), &kind.resource()),
        }
    }

    /// An object of ours. Where there is none, the closest name is offered.
    ///
    /// # Errors
    /// The object does not exist, or the cluster cannot be reached or rejects the request.
    pub async fn get(&self, target: &Target, namespace: &Namespace) -> Result<DynamicObject, Error> {
        match self.api(target.kind, Some(namespace)).get(&target.name).await {
            Ok(object) => Ok(object),
            Err(error) => Err(self.not_read(error, target.kind, namespace, &target.name).await),
        }
    }

    /// Like [`Self::get`], but `None` if the object does not exist.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn find(&self, target: &Target, namespace: &Namespace) -> Result<Option<DynamicObject>, Error> {
        let found = self.api(target.kind, Some(namespace)).get_opt(&target.name).await;
        found.map_err(|e| {
            self.explain(
                e,
                format!("read {target} in namespace '{namespace}'"),
                target.kind.as_str(),
            )
        })
    }

    /// Sets an annotation as field manager `manager`, or removes it if there is no value.
    ///
    /// # Errors
    /// The object does not exist, or the cluster cannot be reached or rejects the request.
    pub async fn annotate(
        &self,
        target: &Target,
        namespace: &Namespace,
        (annotation, value): (&str, Option<&str>),
        manager: &str,
    ) -> Result<(), Error> {
        let patch = json!({ "metadata": { "annotations": { annotation: value } } });
        self.change(target, namespace, &Patch::Merge(patch), manager).await
    }

    /// Applies a patch as field manager `manager`.
    ///
    /// # Errors
    /// The object does not exist, or the cluster cannot be reached or rejects the request.
    pub async fn change(
        &self,
        target: &Target,
        namespace: &Namespace,
        patch: &Patch<Value>,
        manager: &str,
    ) -> Result<(), Error> {
        let params = PatchParams {
            field_manager: Some(manager.to_owned()),
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::default()
        };
        let patched = self
            .api(target.kind, Some(namespace))
            .patch(&target.name, &params, patch)
            .await;
        let doing = || format!("change {target} in namespace '{namespace}'");
        patched
            .map(drop)
            .map_err(|e| self.explain(e, doing(), target.kind.as_str()))
    }

    /// Deletes the object with this uid, not another one of the same name.
    ///
    /// # Errors
    /// The object does not exist, or the cluster cannot be reached or rejects the request.
    pub async fn delete(&self, target: &Target, namespace: &Namespace, uid: &str, dry_run: bool) -> Result<(), Error> {
        let params = DeleteParams { dry_run, ..only(uid) };
        let deleted = self
            .api(target.kind, Some(namespace))
            .delete(&target.name, &params)
            .await;
        let doing = || format!("delete {target} in namespace '{namespace}'");
        deleted
            .map(drop)
            .map_err(|e| self.explain(e, doing(), target.kind.as_str()))
    }

    /// Lists all objects of a kind, sorted by namespace and name.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn all(&self, kind: target::Kind, namespace: Option<&Namespace>) -> Result<Vec<DynamicObject>, Error> {
        self.selected(kind, namespace, None).await
    }

    /// Lists the objects of a kind with these labels, sorted by namespace and name.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn selected(
        &self,
        kind: target::Kind,
        namespace: Option<&Namespace>,
        labels: Option<&str>,
    ) -> Result<Vec<DynamicObject>, Error> {
        let list = listed_with(&self.api(kind, namespace), labelled(labels)).await;
        let mut all = list.map_err(|e| self.explain(e, format!("list {}s", kind.as_str()), kind.as_str()))?;
        all.sort_by_key(|object| (object.namespace(), object.name_any()));
        Ok(all)
    }

    /// The names of a kind in a namespace; none if they may not be read.
    pub async fn names(&self, kind: target::Kind, namespace: Option<&Namespace>) -> Vec<String> {
        let list = self.api(kind, namespace).list_metadata(&ListParams::default()).await;
        list.map_or_else(
            |_| Vec::new(),
            |list| list.items.iter().map(ResourceExt::name_any).collect(),
        )
    }

    async fn not_read(&self, error: kube::Error, kind: target::Kind, namespace: &Namespace, name: &Name) -> Error {
        match &error {
            // A server that does not know the kind does not name the object either.
            kube::Error::Api(status)
                if status.is_not_found() && status.details.as_ref().is_some_and(|d| !d.name.is_empty()) =>
            {
                let names = self.names(kind, Some(namespace)).await;
                Error::NotFound {
                    kind: kind.as_str(),
                    name: name.to_string(),
                    namespace: if kind.is_namespaced() {
                        namespace.to_string()
                    } else {
                        String::new()
                    },
                    closest: target::closest(name, names.iter().map(String::as_str)),
                }
            }
            _ => self.explain(
                error,
                format!("read {} '{name}' in namespace '{namespace}'", kind.as_str()),
                kind.as_str(),
            ),
        }
    }

    /// The table that the server makes of a kind, or of one object, by the columns of its CRD. `rows[].object` is what `rows` says.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn table(
        &self,
        kind: target::Kind,
        namespace: Option<&Namespace>,
        name: Option<&Name>,
        selected: &ListParams,
        rows: RowObject,
    ) -> Result<Value, Error> {
        let request = requests(kind, namespace);
        let request = match name {
            Some(name) => request.get(name, &GetParams::default()),
            None => request.list(selected),
        };
        let doing = || format!("list {}s", kind.as_str());
        let built = request.map_err(kube::Error::BuildRequest);
        let request = built.map_err(|e| self.explain(e, doing(), kind.as_str()))?;
        match (self.client.request(as_table(request, rows)).await, name) {
            (Ok(table), _) => Ok(table),
            (Err(error), Some(name)) => {
                let namespace = namespace.unwrap_or(&self.namespace);
                Err(self.not_read(error, kind, namespace, name).await)
            }
            (Err(error), None) => Err(self.explain(error, doing(), kind.as_str())),
        }
    }

    /// Changes to [`Self::table`] after a version. Each event has a table of one row, whose object is its metadata.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn table_events(
        &self,
        kind: target::Kind,
        namespace: Option<&Namespace>,
        selected: &ListParams,
        version: &str,
    ) -> kube::Result<impl Stream<Item = kube::Result<WatchEvent<Value>>> + use<>> {
        let params = WatchParams {
            label_selector: selected.label_selector.clone(),
            field_selector: selected.field_selector.clone(),
            ..WatchParams::default().disable_bookmarks()
        };
        let request = requests(kind, namespace).watch(&params, version);
        let request = as_table(request.map_err(kube::Error::BuildRequest)?, RowObject::Metadata);
        self.client.request_events(request).await
    }

    /// The pods of an object of ours.
    ///
    /// # Errors
    /// The object does not exist, or the cluster cannot be reached or rejects the request.
    pub async fn pods_of(&self, target: &Target, namespace: &Namespace) -> Result<Vec<Pod>, Error> {
        let name = &target.name;
        let selectors: Vec<String> = match target.kind {
            target::Kind::ModelDeployment => pods::pod_selectors(&self.deployment(namespace, name).await?),
            target::Kind::AsyncActor => vec![pods::actor_selector(name)],
            target::Kind::LlamaStackDistribution => vec![pods::distribution_selector(name)],
            target::Kind::InferenceProviderConfig => Vec::new(),
        };
        self.pods_with(namespace, selectors).await
    }

    /// The pods that any of these label selectors finds, sorted by name.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn pods_with(&self, namespace: &Namespace, selectors: Vec<String>) -> Result<Vec<Pod>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let mut found: Vec<Pod> = Vec::new();
        for selector in selectors {
            let list = api.list(&ListParams::default().labels(&selector)).await;
            let doing = || format!("list pods in namespace '{namespace}'");
            found.extend(list.map_err(|e| self.explain(e, doing(), "Pod"))?.items);
        }
        found.sort_by_key(ResourceExt::name_any);
        found.dedup_by_key(|pod| pod.uid());
        Ok(found)
    }

    /// Lists the Events of a namespace.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn all_events(&self, namespace: &Namespace) -> Result<Vec<Event>, Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let list = listed(&api).await;
        list.map_err(|e| self.explain(e, format!("list Events in namespace '{namespace}'"), "Event"))
    }

    /// The registered providers.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn configs(&self) -> Result<Vec<InferenceProviderConfig>, Error> {
        let api: Api<InferenceProviderConfig> = Api::all(self.client.clone());
        let list = listed(&api).await;
        let mut items =
            list.map_err(|e| self.explain(e, "list InferenceProviderConfigs".to_owned(), "InferenceProviderConfig"))?;
        items.sort_by_key(ResourceExt::name_any);
        Ok(items)
    }

    /// An upstream object, if it exists.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn upstream(
        &self,
        kind: Kind,
        version: &str,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Option<DynamicObject>, Error> {
        let version: Segment = version.parse()?;
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &api_resource(kind, &version));
        api.get_opt(name)
            .await
            .map_err(|e| self.explain(e, format!("read {} '{name}'", kind.kind), "it"))
    }

    /// An object of any kind, if it exists and its kind does.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn object(
        &self,
        gvk: &GroupVersionKind,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Option<DynamicObject>, Error> {
        // Group and version come from fields of objects, and are parts of the path.
        for part in [&gvk.group, &gvk.version].into_iter().filter(|part| !part.is_empty()) {
            part.parse::<Segment>()?;
        }
        let doing = || format!("read {} '{name}'", gvk.kind);
        let resource = match discovery::pinned_kind(&self.client, gvk).await {
            Ok((resource, _)) => resource,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(kube::Error::Discovery(_)) => return Ok(None),
            Err(error) => return Err(self.explain(error, doing(), "it")),
        };
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        api.get_opt(name).await.map_err(|e| self.explain(e, doing(), "it"))
    }

    /// A CRD, if it is installed.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn crd(&self, name: &str) -> Result<Option<CustomResourceDefinition>, Error> {
        let name: Name = name.parse()?;
        let api: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        api.get_opt(&name).await.map_err(|e| {
            self.explain(
                e,
                format!("read CustomResourceDefinition '{name}'"),
                "CustomResourceDefinition",
            )
        })
    }

    /// The Events about an object of this kind and name, also about a deleted one.
    ///
    /// # Errors
    /// The cluster cannot be reached, or rejects the request.
    pub async fn events(&self, kind: &str, namespace: &Namespace, name: &Name) -> Result<Vec<Event>, Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let about = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let list = api.list(&ListParams::default().fields(&about)).await;
        Ok(list
            .map_err(|e| self.explain(e, format!("list Events in namespace '{namespace}'"), "Event"))?
            .items)
    }

    /// Converts an error of the client to one that names the action and the remedy.
    pub fn explain(&self, error: kube::Error, doing: String, kind: &'static str) -> Error {
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt;
    use kube::client::Body;

    use super::*;
    use crate::live::belongings::Around;

    /// Requests: method, path with its query, and body.
    type Asked = Arc<Mutex<Vec<(String, String, Value)>>>;

    fn cluster() -> (Cluster, Asked) {
        let asked = Arc::<Mutex<Vec<_>>>::default();
        let seen = asked.clone();
        let server = tower::service_fn(move |request: http::Request<Body>| {
            let seen = seen.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body
                    .collect()
                    .await
                    .map(http_body_util::Collected::to_bytes)
                    .unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let uri = head.uri.path_and_query().map(ToString::to_string);
                let line = (head.method.to_string(), uri.unwrap_or_default(), body);
                seen.lock().unwrap().push(line);
                let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Success" }).to_string();
                Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(status.into_bytes())))
            }
        });
        let client = Client::new(server, "default");
        (Cluster::of(client, "http://cluster.test", Namespace::default()), asked)
    }

    #[tokio::test]
    async fn a_delete_is_of_one_object_with_its_uid() {
        let (cluster, asked) = cluster();
        let target: Target = "gemma".parse().unwrap();
        cluster
            .delete(&target, &cluster.namespace, "1-2-3", false)
            .await
            .unwrap();
        let asked = asked.lock().unwrap();
        let [(method, path, body)] = asked.as_slice() else {
            panic!("{asked:?}");
        };
        assert_eq!(method, "DELETE");
        assert_eq!(
            path,
            "/apis/kubeairunway.ai/v1alpha1/namespaces/default/modeldeployments/gemma?"
        );
        assert_eq!(body["preconditions"], json!({ "uid": "1-2-3" }));
    }

    #[tokio::test]
    async fn a_table_comes_with_its_objects_in_one_request() {
        let (cluster, asked) = cluster();
        for labels in [None, Some("team=a")] {
            cluster
                .table(
                    target::Kind::AsyncActor,
                    None,
                    None,
                    &labelled(labels),
                    RowObject::Whole,
                )
                .await
                .unwrap();
        }
        let asked = asked.lock().unwrap();
        let paths: Vec<&str> = asked.iter().map(|(_, path, _)| path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "/apis/asya.sh/v1alpha1/asyncactors?&includeObject=Object",
                "/apis/asya.sh/v1alpha1/asyncactors?&labelSelector=team%3Da&includeObject=Object"
            ]
        );
    }

    #[tokio::test]
    async fn a_field_that_leads_elsewhere_is_not_followed() {
        let (cluster, asked) = cluster();
        let name: Name = "a".parse().unwrap();
        for (group, version) in [
            ("../../api", "v1"),
            ("apps", "v1?watch"),
            ("apps/..", "v1"),
            ("..", "v1"),
        ] {
            let gvk = GroupVersionKind::gvk(group, version, "Deployment");
            let error = cluster.object(&gvk, &cluster.namespace, &name).await.unwrap_err();
            assert!(matches!(error, Error::Name(_)), "{group}/{version}: {error}");
        }
        let around = Around {
            namespace: "../default",
            roots: &[],
            more: Vec::new(),
            pods: vec!["a=b".to_owned()],
            service: None,
        };
        let found = cluster.belongings(&around).await;
        assert!(
            found.missing[0].starts_with("invalid namespace `../default`"),
            "{:?}",
            found.missing
        );
        for name in ["?", "a/b", "..", "%2F", ""] {
            assert!(matches!(cluster.crd(name).await, Err(Error::Name(_))), "{name}");
        }
        assert!(asked.lock().unwrap().is_empty());
    }
}
