//! The reader of `check`: everything once, side by side, in a number of requests that does not grow with the number of objects.
//! Lists that are denied are recorded; the others are still read.

use std::collections::BTreeSet;
use std::fmt::Debug;

use futures::future::join_all;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::core::v1::{self, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, NamespaceResourceScope, TypeMeta};
use kube::{Api, Client, Resource, ResourceExt};
use runway_api::labels::{self, llama_stack};
use runway_api::{AsyncActor, LlamaStackDistribution, ModelDeployment, Namespace};
use runway_client::access::{self, Right};
use runway_client::cluster::{self, Cluster};
use runway_core::admission::manifests::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use runway_manifests::router::LIMITS;
use runway_manifests::{self as manifests, NAMESPACE, WEBHOOK_SECRET};
use runway_operator::clock;
use runway_provider::upstream::{Installed, api_resource, crd_name, detect};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::Observed;
use super::judge::{DEPLOY, KEDA, OPERATORS};
use super::observed::{Admission, Facts, Unread};
use runway_operator::telemetry::chain;

/// Scope of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only this namespace; none: all that the user may see.
    pub namespace: Option<Namespace>,
    /// Before the installation.
    pub before: bool,
    /// Whether to read the certificate authority from its Secret.
    pub authority: bool,
}

/// Kinds whose creation is asked about before an installation: group, plural, whether in our namespace.
const INSTALLED: [(&str, &str, bool); 11] = [
    ("", "namespaces", false),
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", false),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations", false),
    ("rbac.authorization.k8s.io", "roles", true),
    ("rbac.authorization.k8s.io", "rolebindings", true),
    ("", "serviceaccounts", true),
    ("", "services", true),
    ("apps", "deployments", true),
];

/// CRDs of other products that are looked up.
const NEIGHBORS: [&str; 2] = ["scaledobjects.keda.sh", "triggerauthentications.keda.sh"];

/// Reads everything.
pub async fn observe(cluster: &Cluster, scope: &Scope) -> Observed {
    let mut reader = Reader {
        client: cluster.client(),
        home: cluster.namespace.clone(),
        namespace: scope.namespace.clone(),
        seen: Observed::default(),
    };
    reader.seen.facts = Facts {
        now: Some(clock::now()),
        url: cluster.url().to_owned(),
        namespace: scope.namespace.clone().map(String::from),
        ..Facts::default()
    };
    match reader.client.apiserver_version().await {
        Ok(info) => reader.seen.facts.version = Some(info.git_version),
        Err(error) => {
            let facts = &mut reader.seen.facts;
            match cluster.explain(error, "read the server version".to_owned(), "its version") {
                cluster::Error::Unauthorized { message, .. } => facts.unauthorized = Some(message),
                error => facts.unreachable = Some(chain(&error)),
            }
            return reader.seen;
        }
    }
    if scope.before {
        reader.before().await;
    } else {
        Box::pin(reader.all(scope.authority)).await;
    }
    reader.seen
}

struct Reader {
    client: Client,
    /// The namespace of the context.
    home: Namespace,
    namespace: Option<Namespace>,
    seen: Observed,
}

type Read<T> = Result<Vec<T>, Unread>;

/// Stores the result of each request in the field of its name.
macro_rules! keep {
    ($seen:expr; $($field:ident),+) => {
        $(keep(&mut $seen.facts, &mut $seen.$field, $field);)+
    };
}

impl Reader {
    async fn before(&mut self) {
        let (crds, namespaces, nodes, rights) = tokio::join!(
            self.crds(),
            self.named::<v1::Namespace>(&[NAMESPACE]),
            self.everywhere(everything()),
            self.rights(true),
        );
        keep!(self.seen; crds, namespaces, nodes);
        self.take_rights(rights);
    }

    async fn all(&mut self, authority: bool) {
        let (
            crds,
            namespaces,
            mutating,
            validating,
            services,
            slices,
            deployments,
            leases,
            configmaps,
            cluster_roles,
            cluster_role_bindings,
            roles,
            role_bindings,
            nodes,
        ) = tokio::join!(
            self.crds(),
            self.named::<v1::Namespace>(&[NAMESPACE]),
            self.named::<MutatingWebhookConfiguration>(&[MUTATING_CONFIGURATION]),
            self.named::<ValidatingWebhookConfiguration>(&[VALIDATING_CONFIGURATION]),
            self.in_ours(everything()),
            self.in_ours(everything()),
            self.in_ours(everything()),
            self.in_ours(everything()),
            self.in_ours(everything().fields(&format!("metadata.name={LIMITS}"))),
            self.everywhere(ours()),
            self.everywhere(ours()),
            self.in_ours(ours()),
            self.in_ours(ours()),
            self.everywhere(everything()),
        );
        keep!(
            self.seen; crds, namespaces, mutating, validating, services, slices, deployments, leases, configmaps, cluster_roles,
            cluster_role_bindings, roles, role_bindings, nodes
        );
        let watched = self.watched();
        let (roles, role_bindings) = tokio::join!(self.in_each(&watched), self.in_each(&watched));
        keep!(self.seen; roles, role_bindings);
        let objects = async {
            tokio::join!(
                self.everywhere(everything()),
                self.everywhere(everything()),
                self.scoped::<ModelDeployment>(everything()),
                self.scoped::<AsyncActor>(everything()),
                self.scoped::<LlamaStackDistribution>(everything()),
                self.pods(),
                self.scoped(everything().fields("reason=FailedCreate")),
            )
        };
        let answers = async {
            tokio::join!(
                self.operators(),
                self.neighbors(),
                self.upstream_objects(),
                self.rights(false),
                self.admission(),
                self.authority(authority),
            )
        };
        let (objects, answers) = tokio::join!(objects, answers);
        let (storage_classes, configs, models, actors, distributions, pods, events) = objects;
        let (operators, others, upstream, rights, admission, authority) = answers;
        let (models, narrowed) = models;
        let (actors, distributions, events) = (actors.0, distributions.0, events.0);
        self.seen.facts.narrowed = narrowed;
        keep!(self.seen; storage_classes, configs, models, actors, distributions, pods, events);
        match operators {
            Ok(found) => self.seen.deployments.extend(found),
            Err(why) => {
                self.seen.facts.unread.insert(OPERATORS.to_owned(), why);
            }
        }
        for (kind, found) in others.into_iter().chain(upstream) {
            match found {
                Ok(found) => self.seen.others.extend(found),
                Err(why) => {
                    self.seen.facts.unread.insert(kind, why);
                }
            }
        }
        self.take_rights(rights);
        self.seen.facts.admission = admission;
        self.seen.facts.authority = authority;
        self.sort();
    }

    /// Sorts objects, so that the same state gives the same report.
    fn sort(&mut self) {
        let seen = &mut self.seen;
        seen.configs.sort_by_key(ResourceExt::name_any);
        seen.models.sort_by_key(|o| (o.namespace(), o.name_any()));
        seen.actors.sort_by_key(|o| (o.namespace(), o.name_any()));
        seen.distributions.sort_by_key(|o| (o.namespace(), o.name_any()));
        seen.pods.sort_by_key(|o| (o.namespace(), o.name_any()));
    }

    /// Our CRDs, and those that are written upstream.
    async fn crds(&self) -> Read<CustomResourceDefinition> {
        let components = manifests::components();
        let ours = components.iter().flat_map(|c| &c.crds).map(ResourceExt::name_any);
        let providers = manifests::built_in_providers();
        let upstream = providers
            .iter()
            .flat_map(|p| p.upstreams())
            .filter(|u| !u.kind.is_built_in())
            .map(|u| crd_name(u.kind));
        let names: BTreeSet<String> = ours.chain(upstream).chain(NEIGHBORS.map(str::to_owned)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.named(&names).await
    }

    /// Objects of a kind in all namespaces, or of a kind without namespaces.
    async fn everywhere<K>(&self, params: ListParams) -> Read<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        list(Api::all(self.client.clone()), params).await
    }

    /// Reads objects by name. Those that do not exist are omitted.
    async fn named<K>(&self, names: &[&str]) -> Read<K>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let found = join_all(names.iter().map(|name| api.get_opt(name))).await;
        let found: Result<Vec<Option<K>>, _> = found.into_iter().collect();
        Ok(found.map_err(|e| unread(&e))?.into_iter().flatten().collect())
    }

    /// Objects in the namespace of the controllers.
    async fn in_ours<K>(&self, params: ListParams) -> Read<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        list(Api::namespaced(self.client.clone(), NAMESPACE), params).await
    }

    /// Namespaces that controllers watch, if they do not watch all.
    fn watched(&self) -> BTreeSet<Namespace> {
        let components = manifests::components().into_iter();
        let lists = components.map(|component| self.seen.watched_by(&component.name));
        lists.flat_map(|list| list.names().to_vec()).collect()
    }

    /// Our objects in these namespaces. They are read one by one: that requires no permission elsewhere.
    async fn in_each<K>(&self, namespaces: &BTreeSet<Namespace>) -> Read<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let lists = namespaces.iter().map(|namespace| {
            let api = Api::namespaced(self.client.clone(), namespace);
            list(api, ours())
        });
        let lists: Result<Vec<Vec<K>>, _> = join_all(lists).await.into_iter().collect();
        Ok(lists?.concat())
    }

    /// Objects in the requested namespaces, or in that of the context if others may not be listed.
    async fn scoped<K>(&self, params: ListParams) -> (Read<K>, Option<String>)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        if let Some(namespace) = &self.namespace {
            return (
                list(Api::namespaced(self.client.clone(), namespace), params).await,
                None,
            );
        }
        match list(Api::all(self.client.clone()), params.clone()).await {
            Err(Unread::Forbidden(why)) => match list(Api::namespaced(self.client.clone(), &self.home), params).await {
                Ok(found) => (Ok(found), Some(self.home.to_string())),
                Err(_) => (Err(Unread::Forbidden(why)), None),
            },
            found => (found, None),
        }
    }

    /// Our pods, and those that serve: by the labels they carry.
    async fn pods(&self) -> Read<Pod> {
        let providers = manifests::built_in_providers();
        let mut selectors: BTreeSet<String> = providers
            .iter()
            .flat_map(|p| p.pod_labels())
            .map(|label| (*label).to_owned())
            .collect();
        selectors.extend([labels::DEPLOYMENT, labels::ASYA_ACTOR].map(str::to_owned));
        selectors.insert(format!("{}={}", llama_stack::MANAGED_BY, llama_stack::MANAGER));
        let serving = selectors
            .iter()
            .map(|selector| self.scoped::<Pod>(everything().labels(selector)));
        let (ours, serving) = tokio::join!(self.in_ours(everything()), join_all(serving));
        let mut all: Vec<Pod> = ours?;
        for (found, _) in serving {
            all.extend(found?);
        }
        all.sort_by_key(|pod| (pod.namespace(), pod.name_any()));
        all.dedup_by_key(|pod| (pod.namespace(), pod.name_any()));
        Ok(all)
    }

    /// The Deployments of the operators upstream and of KEDA, wherever they are.
    async fn operators(&self) -> Read<k8s_openapi::api::apps::v1::Deployment> {
        let names: Vec<&str> = manifests::built_in_providers()
            .iter()
            .flat_map(|provider| provider.operator_labels())
            .copied()
            .chain([KEDA])
            .collect();
        let selector = format!("app.kubernetes.io/name in ({})", names.join(","));
        list(Api::all(self.client.clone()), everything().labels(&selector)).await
    }

    /// Policies, the API of external metrics, ServiceMonitors.
    async fn neighbors(&self) -> Vec<(String, Read<DynamicObject>)> {
        let kinds = [
            (
                "admissionregistration.k8s.io",
                "v1",
                "ValidatingAdmissionPolicy",
                "validatingadmissionpolicies",
                ours(),
            ),
            (
                "admissionregistration.k8s.io",
                "v1",
                "ValidatingAdmissionPolicyBinding",
                "validatingadmissionpolicybindings",
                ours(),
            ),
            (
                "apiregistration.k8s.io",
                "v1",
                "APIService",
                "apiservices",
                everything().fields("metadata.name=v1beta1.external.metrics.k8s.io"),
            ),
            (
                "monitoring.coreos.com",
                "v1",
                "ServiceMonitor",
                "servicemonitors",
                ours(),
            ),
        ];
        join_all(kinds.map(async |(group, version, kind, plural, params)| {
            let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
            (kind.to_owned(), self.dynamic(&resource, None, params).await)
        }))
        .await
    }

    /// Upstream objects of all built-in providers.
    async fn upstream_objects(&self) -> Vec<(String, Read<DynamicObject>)> {
        let providers = manifests::built_in_providers();
        let resources = providers.iter().flat_map(|p| p.upstreams()).filter_map(|upstream| {
            if upstream.kind.is_built_in() {
                return None;
            }
            let crd = self
                .seen
                .crds
                .iter()
                .find(|crd| crd.name_any() == crd_name(upstream.kind));
            let installed = Installed::new([(upstream.kind, detect(&upstream, crd))]);
            Some(api_resource(upstream.kind, &installed.visible_version(upstream.kind)?))
        });
        join_all(resources.map(async |resource| {
            let found = self.dynamic(&resource, self.namespace.as_ref(), everything()).await;
            (resource.kind, found)
        }))
        .await
    }

    async fn dynamic(
        &self,
        resource: &ApiResource,
        namespace: Option<&Namespace>,
        params: ListParams,
    ) -> Read<DynamicObject> {
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        };
        let types = TypeMeta {
            api_version: resource.api_version.clone(),
            kind: resource.kind.clone(),
        };
        let mut found = list(api, params).await?;
        for object in &mut found {
            object.types = Some(types.clone());
        }
        Ok(found)
    }

    /// Permissions of the user as text, each with the answer; `None` if it is unknown.
    async fn rights(&self, before: bool) -> Vec<(String, Option<bool>)> {
        let here = self.namespace.clone().unwrap_or_else(|| self.home.clone());
        let mut asked = vec![(
            format!("{DEPLOY} in namespace '{here}'"),
            ModelDeployment::group(&()).into_owned(),
            ModelDeployment::plural(&()).into_owned(),
            Some(here.to_string()),
        )];
        if before {
            asked.extend(INSTALLED.map(|(group, plural, namespaced)| {
                let dot = if group.is_empty() { "" } else { "." };
                let place = if namespaced {
                    format!(" in namespace '{NAMESPACE}'")
                } else {
                    String::new()
                };
                let namespace = namespaced.then(|| NAMESPACE.to_owned());
                (
                    format!("create {plural}{dot}{group}{place}"),
                    group.to_owned(),
                    plural.to_owned(),
                    namespace,
                )
            }));
        }
        join_all(asked.into_iter().map(async |(words, group, plural, namespace)| {
            let right = Right {
                group,
                plural,
                namespace,
                verb: "create".to_owned(),
            };
            (words, access::may(&self.client, &right).await.ok())
        }))
        .await
    }

    fn take_rights(&mut self, rights: Vec<(String, Option<bool>)>) {
        let facts = &mut self.seen.facts;
        for (words, allowed) in rights {
            match allowed {
                Some(true) => facts.may.push(words),
                Some(false) => facts.may_not.push(words),
                None => {}
            }
        }
    }

    /// Submits a ModelDeployment as a dry run that only admission rejects.
    async fn admission(&self) -> Admission {
        let here = self.namespace.as_ref().unwrap_or(&self.home);
        // The webhooks are called for the namespaces of the installation only.
        let watched = self.seen.watched_by(labels::CORE_MANAGER);
        let first = watched.names().first().filter(|_| !watched.contain(here));
        let here = first.unwrap_or(here);
        let resource = ApiResource::erase::<ModelDeployment>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), here, &resource);
        let mut wrong = DynamicObject::new("kubeairunway-check", &resource);
        wrong.data = json!({ "spec": { "model": { "id": "check/admission" } } });
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        match api.create(&dry, &wrong).await {
            Ok(_) => Admission::Silent,
            Err(kube::Error::Api(status)) if status.message.contains("engine.type") => Admission::Answers,
            Err(kube::Error::Api(status)) if status.is_forbidden() && !status.message.contains("admission") => {
                Admission::NotAsked
            }
            Err(kube::Error::Api(status)) if status.is_not_found() || status.code == 404 => Admission::NotAsked,
            Err(error) => Admission::Refused(chain(&error)),
        }
    }

    /// The certificate authority of admission. Nothing else of the Secret is kept.
    async fn authority(&self, wanted: bool) -> Option<String> {
        if !wanted {
            return None;
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        // Who may not read it does without.
        let found = secrets.get_opt(WEBHOOK_SECRET).await.ok()??;
        let authority = found.data?.remove("ca.crt")?;
        String::from_utf8(authority.0).ok()
    }
}

/// Keeps what was read, or why it was not.
fn keep<K: Resource<DynamicType = ()>>(facts: &mut Facts, place: &mut Vec<K>, read: Read<K>) {
    match read {
        Ok(found) => place.extend(found),
        Err(why) => {
            facts.unread.insert(K::kind(&()).into_owned(), why);
        }
    }
}

async fn list<K>(api: Api<K>, params: ListParams) -> Read<K>
where
    K: Clone + Debug + DeserializeOwned,
{
    let found = api.list(&params).await;
    Ok(found.map_err(|e| unread(&e))?.items)
}

fn unread(error: &kube::Error) -> Unread {
    match error {
        kube::Error::Api(status) if status.is_forbidden() => Unread::Forbidden(status.message.clone()),
        kube::Error::Api(status) if status.code == 404 => Unread::NotInstalled,
        error => Unread::Failed(chain(error)),
    }
}

fn everything() -> ListParams {
    ListParams::default()
}

fn ours() -> ListParams {
    ListParams::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_VALUE))
}
