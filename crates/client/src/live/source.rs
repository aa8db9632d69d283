//! Source of objects for commands that read: a cluster, or documents.

use std::fmt::Debug;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use futures::future::join;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use kube::api::ListParams;
use kube::core::{DynamicObject, GroupVersionKind, NamespaceResourceScope};
use kube::{Resource, ResourceExt};
use runway_api::labels::llama_stack;
use runway_api::provider_config::Health;
use runway_api::{AsyncActor, InferenceProviderConfig, LlamaStackDistribution, ModelDeployment, Name, Namespace};
use runway_asya_operator::object::SCALED_OBJECT;
use runway_core::providers::Providers;
use runway_llama_stack_operator::kinds;
use runway_manifests as manifests;
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use runway_provider::observe::Lookup;
use runway_provider::{Kind, Provider, Request};
use serde::de::DeserializeOwned;

use crate::diagnostic::{Diagnostic, Level};
use crate::live::belongings::Around;
use crate::live::cluster::{self, Cluster};
use crate::live::queue;
use crate::offline::documents::{Document, Documents};
use crate::offline::render::{self, admit};
use crate::offline::state::{DEFAULT_NAMESPACE, SeenBy, State};
use crate::offline::why;
use crate::target::{self, Ours, Target};
use crate::view::depth::Depth;
use crate::view::events::is_about;
use crate::view::explain::{self, Explanation};
use crate::view::pods::{actor_selector, distribution_selector, pod_labels, pod_selectors};
use crate::view::status::{Upstream, View};
use crate::view::tree::{self, Belongings, Tree};
use runway_operator::telemetry::chain;

/// Source of objects: a namespace of the cluster, or files.
#[derive(Debug, Default, Args)]
pub struct Place {
    /// Namespace; the namespace of the kubeconfig's current context if omitted
    #[arg(short, long)]
    pub namespace: Option<Namespace>,
    /// File, directory, or - for standard input to read instead of a cluster; repeatable
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Time to use as now, such as 2026-11-21T10:00:00Z; the current time if omitted
    #[arg(long, value_name = "RFC3339", hide_short_help = true)]
    pub now: Option<Timestamp>,
}

/// Failure to read the input.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The documents do not have it.
    #[error("{} '{name}' not found in the given files (found: {known})", kind.as_str())]
    NotInFiles {
        /// Kind.
        kind: target::Kind,
        /// Name.
        name: String,
        /// Names in the files.
        known: String,
    },
    /// A kind for which nothing is made.
    #[error(
        "unsupported object {0}: use a ModelDeployment (NAME), an AsyncActor (asya/NAME) or a LlamaStackDistribution (llsd/NAME)"
    )]
    NothingBelow(Target),
}

/// Whether ModelDeployments in documents have passed admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// They are new, so admission runs first.
    First,
    /// They are what the cluster holds.
    Past,
}

/// A cluster, or documents.
pub struct Source {
    origin: Origin,
    /// Diagnostics about the documents.
    pub said: Vec<Diagnostic>,
}

enum Origin {
    Cluster(Box<Cluster>),
    Documents(Box<State>, Admission),
}

impl From<Cluster> for Source {
    fn from(cluster: Cluster) -> Self {
        Self {
            origin: Origin::Cluster(Box::new(cluster)),
            said: Vec::new(),
        }
    }
}

impl Source {
    /// Opens what `place` names: its files, or else the cluster of `client`.
    ///
    /// # Errors
    /// No kubeconfig is usable.
    pub async fn open(
        place: &Place,
        client: &ClientArgs,
        stdin: &mut dyn Read,
        admission: Admission,
    ) -> Result<Self, Error> {
        if place.files.is_empty() {
            return Ok(Cluster::connect(client).await?.into());
        }
        let (state, said) = State::new(Documents::read(&place.files, stdin));
        Ok(Self {
            origin: Origin::Documents(Box::new(state), admission),
            said,
        })
    }

    /// The namespace to look in; `None` for all of them. In files that is the default.
    pub fn namespace(&self, place: &Place, all: bool) -> Option<Namespace> {
        match (&self.origin, &place.namespace) {
            (_, Some(namespace)) => Some(namespace.clone()),
            (Origin::Cluster(cluster), None) if !all => Some(cluster.namespace.clone()),
            _ => None,
        }
    }

    /// The ModelDeployments of a namespace or of all, or those of one name; it is an error if there is none of that name.
    ///
    /// # Errors
    /// The cluster rejects a request, or the files do not contain the object.
    pub async fn deployments(
        &mut self,
        namespace: Option<&Namespace>,
        name: Option<&Name>,
    ) -> Result<Vec<ModelDeployment>, Error> {
        let mut found = match (&self.origin, name) {
            (Origin::Cluster(cluster), Some(name)) => {
                let namespace = namespace.cloned().unwrap_or_default();
                vec![cluster.deployment(&namespace, name).await?]
            }
            (Origin::Cluster(cluster), None) => cluster.deployments(namespace).await?,
            (Origin::Documents(state, admission), _) => {
                let asked = state
                    .deployments
                    .iter()
                    .filter(|d| name.is_none_or(|name| *name == d.name()));
                let here = asked.filter(|d| is_in(d, namespace));
                let here: Vec<&Document> = here.collect();
                if let (Some(name), true) = (name, here.is_empty()) {
                    return Err(Error::NotInFiles {
                        kind: target::Kind::ModelDeployment,
                        name: name.to_string(),
                        known: names(&state.deployments),
                    });
                }
                let said = &mut self.said;
                here.into_iter()
                    .filter_map(|document| read(document, state, *admission, said))
                    .collect()
            }
        };
        found.sort_by_key(|md| (md.namespace(), md.name_any()));
        Ok(found)
    }

    /// The registered providers, their rules compiled.
    ///
    /// # Errors
    /// The cluster rejects a request, or the files do not contain the object.
    pub async fn providers(&self) -> Result<Arc<Providers>, Error> {
        match &self.origin {
            Origin::Cluster(cluster) => {
                let configs = cluster.configs().await?.into_iter().map(Arc::new);
                Ok(Arc::new(Providers::compile(configs, &Providers::default())))
            }
            Origin::Documents(state, _) => Ok(state.providers.clone()),
        }
    }

    /// Lists the Events of a namespace.
    ///
    /// # Errors
    /// The cluster rejects a request, or the files do not contain the object.
    pub async fn all_events(&self, namespace: &str) -> Result<Vec<Event>, Error> {
        Ok(match &self.origin {
            Origin::Cluster(cluster) => {
                let namespace = namespace.parse::<Namespace>().map_err(cluster::Error::Name)?;
                cluster.all_events(&namespace).await?
            }
            Origin::Documents(state, _) => state.all_events(namespace),
        })
    }

    /// Data of the status screen of a ModelDeployment. Lookups that fail are listed in it.
    pub async fn view(&self, md: ModelDeployment, now: Timestamp) -> View {
        let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
        let mut missing = Vec::new();
        let (config, provider_trouble) = self.health(&md, now, &mut missing).await;
        let (upstream, _) = self.upstream(&md, config.as_deref(), &mut missing).await;
        let mut events = match &self.origin {
            Origin::Cluster(cluster) => events(cluster, &md).await.unwrap_or_else(|e| {
                missing.push(format!("Events: {}", chain(&e)));
                Vec::new()
            }),
            Origin::Documents(state, _) => state.events(&namespace, &name),
        };
        events.retain(|event| is_about(event, &md));
        View {
            md,
            upstream,
            provider_trouble,
            events,
            missing,
        }
    }

    /// Chains of the target: of one object, or in files of all with its name. Lookups that fail are listed in them.
    ///
    /// # Errors
    /// The cluster rejects a request, or the files do not contain the object.
    pub async fn trees(
        &mut self,
        target: &Target,
        namespace: Option<&Namespace>,
        now: Timestamp,
    ) -> Result<Vec<Tree>, Error> {
        let mut trees = Vec::new();
        match target.kind {
            target::Kind::ModelDeployment => {
                for md in self.deployments(namespace, Some(&target.name)).await? {
                    trees.push(self.tree_of_deployment(md, now).await);
                }
            }
            target::Kind::AsyncActor => {
                for actor in self.named(target, namespace).await? {
                    trees.push(self.tree_of_actor(&actor).await);
                }
            }
            target::Kind::LlamaStackDistribution => {
                for llsd in self.named(target, namespace).await? {
                    trees.push(self.tree_of_distribution(&llsd).await);
                }
            }
            target::Kind::InferenceProviderConfig => return Err(Error::NothingBelow(target.clone())),
        }
        Ok(trees)
    }

    /// Blocking conditions of the target, an AsyncActor or a LlamaStackDistribution.
    ///
    /// # Errors
    /// The cluster rejects a request, or the files do not contain the object.
    pub async fn explanations(
        &mut self,
        target: &Target,
        namespace: Option<&Namespace>,
    ) -> Result<Vec<Explanation>, Error> {
        let mut all = Vec::new();
        match target.kind {
            target::Kind::AsyncActor => {
                for actor in self.named::<AsyncActor>(target, namespace).await? {
                    let conditions = actor.status.as_ref().map_or(&[][..], |s| &s.conditions);
                    all.push(explain::explain(&self.tree_of_actor(&actor).await, conditions));
                }
            }
            target::Kind::LlamaStackDistribution => {
                for llsd in self.named::<LlamaStackDistribution>(target, namespace).await? {
                    let conditions = llsd.status.as_ref().map_or(&[][..], |s| &s.conditions);
                    all.push(explain::explain(&self.tree_of_distribution(&llsd).await, conditions));
                }
            }
            _ => return Err(Error::NothingBelow(target.clone())),
        }
        Ok(all)
    }

    /// AsyncActors or LlamaStackDistributions of a name.
    ///
    /// # Errors
    /// The cluster rejects a request, or the files do not contain the object.
    pub async fn named<K>(&mut self, target: &Target, namespace: Option<&Namespace>) -> Result<Vec<K>, Error>
    where
        K: Ours + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let state = match &self.origin {
            Origin::Cluster(cluster) => {
                let namespace = namespace.cloned().unwrap_or_default();
                return Ok(vec![cluster.one(&namespace, &target.name).await?]);
            }
            Origin::Documents(state, _) => state,
        };
        let documents = state.documents(target.kind);
        let here: Vec<&Document> = documents
            .iter()
            .filter(|d| target.name == d.name())
            .filter(|d| is_in(d, namespace))
            .collect();
        if here.is_empty() {
            return Err(Error::NotInFiles {
                kind: target.kind,
                name: target.name.to_string(),
                known: names(documents),
            });
        }
        let said = &mut self.said;
        let read = |document: &Document| {
            let parsed = document.parse::<K>().map_err(|error| {
                let text = chain(&error);
                said.push(Diagnostic::about(Level::Error, document.subject(), text));
            });
            let mut object = parsed.ok()?;
            let namespace = &mut object.meta_mut().namespace;
            namespace.get_or_insert_with(|| DEFAULT_NAMESPACE.to_owned());
            Some(object)
        };
        Ok(here.into_iter().filter_map(read).collect())
    }

    /// Chain from a ModelDeployment to its endpoint.
    pub async fn tree_of_deployment(&self, md: ModelDeployment, now: Timestamp) -> Tree {
        let namespace = md.namespace().unwrap_or_default();
        let mut missing = Vec::new();
        let (config, provider_trouble) = self.health(&md, now, &mut missing).await;
        let (upstream, object) = self.upstream(&md, config.as_deref(), &mut missing).await;
        let mut found = self
            .belongings(&Around {
                namespace: &namespace,
                roots: object.as_slice(),
                more: Vec::new(),
                pods: pod_selectors(&md),
                service: md.status.as_ref().and_then(|s| s.endpoint.as_ref()?.service.clone()),
            })
            .await;
        found.missing.splice(0..0, missing);
        tree::deployment::tree(&tree::deployment::Parts {
            upstream,
            provider_trouble,
            found,
            pod_labels: pod_labels(&md),
            md,
        })
    }

    /// Chain from an AsyncActor to its pods, its queue and its scaler.
    pub async fn tree_of_actor(&self, actor: &AsyncActor) -> Tree {
        self.actor(actor).await.1
    }

    /// Queue length and chain of an AsyncActor.
    pub async fn actor(&self, actor: &AsyncActor) -> (Depth, Tree) {
        let namespace = actor.namespace().unwrap_or_default();
        let mut missing = Vec::new();
        let roots = self.targets(actor, &mut missing).await;
        let mut pods: Vec<String> = roots.iter().filter_map(|root| selector(root)).collect();
        pods.push(actor_selector(&actor.name_any()));
        let all = ListParams::default();
        let more = vec![
            (SCALED_OBJECT.resource(), all.clone()),
            (kinds::AUTOSCALER.resource(), all),
        ];
        let around = Around {
            namespace: &namespace,
            roots: &roots,
            more,
            pods,
            service: None,
        };
        let (mut found, depth) = join(self.belongings(&around), self.depth(actor)).await;
        found.missing.splice(0..0, missing);
        let tree = tree::actor::tree(actor, &found, &depth);
        (depth, tree)
    }

    /// Queue length of an actor.
    pub async fn depth(&self, actor: &AsyncActor) -> Depth {
        match &self.origin {
            Origin::Cluster(cluster) => queue::depth(cluster, actor).await,
            Origin::Documents(..) => Depth::Unknown("not available when reading files".to_owned()),
        }
    }

    /// Target of an actor, and the workloads that it resolves to.
    async fn targets(&self, actor: &AsyncActor, missing: &mut Vec<String>) -> Vec<Arc<DynamicObject>> {
        let namespace = actor.namespace().unwrap_or_default();
        let asked = actor.spec.workload_ref.iter();
        let asked = asked.map(|r| (r.api_version.as_str(), r.kind.as_str(), r.name.as_str()));
        let status = actor.status.iter();
        let made = status.flat_map(|s| [&s.resolved_target, &s.workload_ref].into_iter().flatten());
        let made = made.map(|r| (r.api_version.as_str(), r.kind.as_str(), r.name.as_str()));
        let mut all: Vec<_> = asked.chain(made).collect();
        all.dedup();
        let mut found = Vec::new();
        for (api_version, kind, name) in all {
            let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
            match self
                .any(&GroupVersionKind::gvk(group, version, kind), &namespace, name)
                .await
            {
                Ok(object) => found.extend(object),
                Err(error) => missing.push(chain(&error)),
            }
        }
        found.dedup_by_key(|object| object.uid().or_else(|| Some(object.name_any())));
        found
    }

    /// Chain from a LlamaStackDistribution to its pods and its Service.
    pub async fn tree_of_distribution(&self, llsd: &LlamaStackDistribution) -> Tree {
        let (namespace, name) = (llsd.namespace().unwrap_or_default(), llsd.name_any());
        let selector = distribution_selector(&name);
        let labelled = ListParams::default().labels(&selector);
        let of_its_own = [
            kinds::CLAIM,
            kinds::NETWORK_POLICY,
            kinds::INGRESS,
            kinds::DISRUPTION_BUDGET,
            kinds::AUTOSCALER,
        ];
        let around = Around {
            namespace: &namespace,
            roots: &[],
            more: of_its_own.map(|kind| (kind.resource(), labelled.clone())).into(),
            pods: vec![selector],
            service: Some(kinds::service(&name)),
        };
        let mut found = self.belongings(&around).await;
        found.pods.retain(|pod| {
            let is = |key: &str, value: &str| pod.labels().get(key).is_some_and(|found| found == value);
            is(llama_stack::INSTANCE, &name) && is(llama_stack::MANAGED_BY, llama_stack::MANAGER)
        });
        tree::distribution::tree(llsd, &found)
    }

    /// Objects that may belong to an object.
    async fn belongings(&self, around: &Around<'_>) -> Belongings {
        match &self.origin {
            Origin::Cluster(cluster) => cluster.belongings(around).await,
            Origin::Documents(state, _) => Belongings {
                objects: state.objects_in(around.namespace),
                pods: state.pods_in(around.namespace),
                missing: Vec::new(),
            },
        }
    }

    /// An object of any kind.
    async fn any(
        &self,
        gvk: &GroupVersionKind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Arc<DynamicObject>>, cluster::Error> {
        match &self.origin {
            Origin::Cluster(cluster) => {
                let found = cluster.object(gvk, &namespace.parse()?, &name.parse()?).await?;
                Ok(found.map(Arc::new))
            }
            Origin::Documents(state, _) => Ok(state.object(&gvk.group, &gvk.kind, namespace, name)),
        }
    }

    /// The registration of the provider that serves a ModelDeployment, and what is wrong with it.
    async fn health(
        &self,
        md: &ModelDeployment,
        now: Timestamp,
        missing: &mut Vec<String>,
    ) -> (Option<Arc<InferenceProviderConfig>>, Option<String>) {
        let Some(selected) = md.selected_provider() else {
            return (None, None);
        };
        match self.providers().await {
            Ok(providers) => {
                let config = providers.get(selected).map(|registered| registered.config.clone());
                let trouble = trouble(config.as_deref(), now);
                (config, trouble)
            }
            Err(error) => {
                missing.push(format!("health of the provider: {}", chain(&error)));
                (None, None)
            }
        }
    }

    /// The upstream object, and its state if its provider is built in.
    async fn upstream(
        &self,
        md: &ModelDeployment,
        config: Option<&InferenceProviderConfig>,
        missing: &mut Vec<String>,
    ) -> (Upstream, Option<Arc<DynamicObject>>) {
        let read = self.upstream_object(md, config).await;
        read.unwrap_or_else(|e| {
            missing.push(format!("state of the upstream object: {}", chain(&e)));
            (Upstream::Unknown, None)
        })
    }

    async fn upstream_object(
        &self,
        md: &ModelDeployment,
        config: Option<&InferenceProviderConfig>,
    ) -> Result<(Upstream, Option<Arc<DynamicObject>>), cluster::Error> {
        let namespace = md.namespace().unwrap_or_default();
        let Some((provider, kind, name)) = made_by(md) else {
            return Ok((Upstream::Unknown, self.made_by_others(md, config).await?));
        };
        let Ok(request) = Request::try_from(md) else {
            return Ok((Upstream::Unknown, None));
        };
        let object = match &self.origin {
            Origin::Cluster(cluster) => match version(provider.as_ref(), kind, config) {
                Some(version) => {
                    let (namespace, name) = (namespace.parse()?, name.parse()?);
                    cluster.upstream(kind, &version, &namespace, &name).await?.map(Arc::new)
                }
                None => return Ok((Upstream::Unknown, None)),
            },
            Origin::Documents(state, _) => SeenBy {
                state,
                provider: provider.as_ref(),
            }
            .find(kind, &namespace, &name),
        };
        let said = match &object {
            None => Upstream::Absent,
            Some(object) => serde_json::to_value(object.as_ref()).map_or(Upstream::Unknown, |value| {
                Upstream::Says(provider.read_status(&request, &value))
            }),
        };
        Ok((said, object))
    }

    /// Upstream object of a third-party provider, found through its registration.
    async fn made_by_others(
        &self,
        md: &ModelDeployment,
        config: Option<&InferenceProviderConfig>,
    ) -> Result<Option<Arc<DynamicObject>>, cluster::Error> {
        let made = md.status.as_ref().and_then(|status| status.provider.as_ref());
        let api_version = config.and_then(|c| c.status.as_ref()?.upstream_crd_version.as_deref());
        let (Some(kind), Some(name), Some((group, version))) = (
            made.and_then(|made| made.resource_kind.as_deref()),
            made.and_then(|made| made.resource_name.as_deref()),
            api_version.and_then(|v| v.split_once('/')),
        ) else {
            return Ok(None);
        };
        let namespace = md.namespace().unwrap_or_default();
        self.any(&GroupVersionKind::gvk(group, version, kind), &namespace, name)
            .await
    }

    /// The cluster, if it is one that is read.
    pub fn cluster(&self) -> Option<&Cluster> {
        match &self.origin {
            Origin::Cluster(cluster) => Some(cluster),
            Origin::Documents(..) => None,
        }
    }
}

/// Whether a document is in a namespace; `None` selects all.
fn is_in(document: &Document, namespace: Option<&Namespace>) -> bool {
    namespace.is_none_or(|namespace| *namespace == document.namespace().unwrap_or(DEFAULT_NAMESPACE))
}

/// The Events about a ModelDeployment of a cluster.
async fn events(cluster: &Cluster, md: &ModelDeployment) -> Result<Vec<Event>, cluster::Error> {
    let (namespace, name) = cluster::place(md)?;
    cluster.events(&ModelDeployment::kind(&()), &namespace, &name).await
}

/// Label selector of a workload's pods.
fn selector(workload: &DynamicObject) -> Option<String> {
    let labels = workload.data.pointer("/spec/selector/matchLabels")?.as_object()?;
    let pairs = labels
        .iter()
        .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)));
    let pairs: Vec<String> = pairs.collect();
    (!pairs.is_empty()).then(|| pairs.join(","))
}

/// Problem of a provider, as text.
fn trouble(config: Option<&InferenceProviderConfig>, now: Timestamp) -> Option<String> {
    match config.map(|c| c.health(now)) {
        Some(Health::Healthy) => None,
        Some(health) => Some(why::health(&health)),
        None => Some("no longer registered".to_owned()),
    }
}

/// The built-in provider of a ModelDeployment, with kind and name of what it made.
fn made_by(md: &ModelDeployment) -> Option<(Arc<dyn Provider>, Kind, String)> {
    let selected = md.selected_provider()?;
    let status = md.status.as_ref()?.provider.as_ref()?;
    let provider = manifests::built_in_providers()
        .into_iter()
        .find(|p| p.name() == selected)?;
    let made = status.resource_kind.as_deref()?;
    let kind = provider
        .upstreams()
        .into_iter()
        .map(|u| u.kind)
        .find(|kind| kind.kind == made)?;
    Some((provider, kind, status.resource_name.clone()?))
}

/// The upstream version in use, as the provider has registered it, or the newest known.
fn version(provider: &dyn Provider, kind: Kind, config: Option<&InferenceProviderConfig>) -> Option<String> {
    let registered = config.and_then(|c| c.status.as_ref()?.upstream_crd_version.as_deref());
    let main = provider.upstreams().first().map(|u| u.kind);
    match registered.and_then(|v| v.split_once('/')) {
        Some((_, version)) if main == Some(kind) => Some(version.to_owned()),
        _ => Some(
            provider
                .upstreams()
                .iter()
                .find(|u| u.kind == kind)?
                .schemas
                .first()?
                .version
                .to_owned(),
        ),
    }
}

fn read(
    document: &Document,
    state: &State,
    admission: Admission,
    said: &mut Vec<Diagnostic>,
) -> Option<ModelDeployment> {
    match admission {
        Admission::First => admit(document, state, said).map(|admitted| admitted.md),
        Admission::Past => render::parsed(document).map_err(|error| said.push(error)).ok(),
    }
}

fn names(documents: &[Document]) -> String {
    let names: Vec<&str> = documents.iter().map(Document::name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

impl Place {
    /// The time that was given, or the wall clock's.
    pub fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(clock::now)
    }
}
