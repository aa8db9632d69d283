//! State of a cluster, from documents. ModelDeployments are kept apart, because the commands are about them.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use runway_api::labels::{self, llama_stack};
use runway_api::{
    AsyncActor, InferenceProviderConfig, InferenceProviderConfigStatus, LlamaStackDistribution, ModelDeployment,
};
use runway_core::autoscalers::{Autoscaler, Autoscalers, KINDS, SCALED_OBJECT};
use runway_core::providers::Providers;
use runway_provider::model_pods::ModelPod;
use runway_provider::observe::Lookup;
use runway_provider::upstream::{Installed, crd_name, detect};
use runway_provider::{CLAIM, Configured, Kind, Provider, ReplicaObjects};

use crate::diagnostic::{Diagnostic, Level};
use crate::offline::documents::{Document, Documents, Error};
use crate::target;

/// Namespace of documents without a namespace.
pub const DEFAULT_NAMESPACE: &str = "default";

/// State of a cluster, from documents.
#[derive(Debug, Default)]
pub struct State {
    /// The ModelDeployments, in the order of the documents.
    pub deployments: Vec<Document>,
    /// The AsyncActors, in the order of the documents.
    pub actors: Vec<Document>,
    /// The LlamaStackDistributions, in the order of the documents.
    pub distributions: Vec<Document>,
    /// The registrations given, in the order of the documents.
    pub configs: Vec<(Document, Arc<InferenceProviderConfig>)>,
    /// Registered providers.
    pub providers: Arc<Providers>,
    crds: Option<BTreeMap<String, CustomResourceDefinition>>,
    objects: BTreeMap<Key, Arc<DynamicObject>>,
    pods: Vec<Pod>,
    events: Vec<Event>,
}

/// The built-in providers without settings. Compiling their rules takes longer than anything else here.
static BUILT_IN: LazyLock<Arc<Providers>> = LazyLock::new(|| {
    Arc::new(Providers::compile(
        State::default().registrations(),
        &Providers::default(),
    ))
});

/// Group, kind, namespace, name.
type Key = (String, String, String, String);

impl State {
    /// Builds the state from documents. Invalid documents are skipped and reported.
    pub fn new(documents: Documents) -> (Self, Vec<Diagnostic>) {
        let mut said: Vec<Diagnostic> = documents.errors.iter().map(Diagnostic::error).collect();
        let mut state = Self::default();
        for document in without_duplicates(documents.found, &mut said) {
            let subject = document.subject();
            if let Err(error) = state.take_in(document) {
                said.push(Diagnostic::about(
                    Level::Error,
                    subject,
                    runway_operator::telemetry::chain(&error),
                ));
            }
        }
        state.providers = if state.configs.is_empty() {
            BUILT_IN.clone()
        } else {
            Arc::new(Providers::compile(state.registrations(), &Providers::default()))
        };
        (state, said)
    }

    /// A cluster of which only the providers are known: each upstream kind has the newest schema that is known of it.
    pub fn with_providers(providers: Arc<Providers>) -> Self {
        Self {
            providers,
            ..Self::default()
        }
    }

    /// State of a real cluster. A CRD that is not listed is not installed.
    pub fn of(
        configs: impl IntoIterator<Item = InferenceProviderConfig>,
        crds: impl IntoIterator<Item = CustomResourceDefinition>,
        objects: impl IntoIterator<Item = DynamicObject>,
    ) -> Self {
        let configs = configs.into_iter().map(Arc::new);
        let of = |mut object: DynamicObject| {
            object.metadata.managed_fields = None;
            let types = object.types.clone().unwrap_or_default();
            let group = types.api_version.rsplit_once('/').map_or("", |(group, _)| group);
            let key = (
                group.to_owned(),
                types.kind,
                object.namespace().unwrap_or_default(),
                object.name_any(),
            );
            (key, Arc::new(object))
        };
        Self {
            providers: Arc::new(Providers::compile(configs, &Providers::default())),
            crds: Some(crds.into_iter().map(|crd| (crd.name_any(), crd)).collect()),
            objects: objects.into_iter().map(of).collect(),
            ..Self::default()
        }
    }

    fn take_in(&mut self, document: Document) -> Result<(), Unusable> {
        match (document.group(), document.kind()) {
            ("kubeairunway.ai", "ModelDeployment") => {
                check_version(&document, &ModelDeployment::api_version(&()))?;
                self.deployments.push(document);
            }
            ("asya.sh", "AsyncActor") => {
                check_version(&document, &AsyncActor::api_version(&()))?;
                self.actors.push(document);
            }
            ("llamastack.io", "LlamaStackDistribution") => {
                check_version(&document, &LlamaStackDistribution::api_version(&()))?;
                self.distributions.push(document);
            }
            ("kubeairunway.ai", "InferenceProviderConfig") => {
                check_version(&document, &InferenceProviderConfig::api_version(&()))?;
                let config = Arc::new(document.parse()?);
                self.configs.push((document, config));
            }
            ("apiextensions.k8s.io", "CustomResourceDefinition") => {
                let crd: CustomResourceDefinition = document.parse()?;
                self.crds.get_or_insert_default().insert(crd.name_any(), crd);
            }
            ("", "Pod") => self.pods.push(document.parse()?),
            ("" | "events.k8s.io", "Event") => self.events.push(document.parse()?),
            _ => {
                let mut object: DynamicObject = document.parse()?;
                // As the watch caches hold it.
                object.metadata.managed_fields = None;
                self.objects.insert(key(&document), Arc::new(object));
            }
        }
        Ok(())
    }

    /// The documents of a kind of ours, in their order.
    pub fn documents(&self, kind: target::Kind) -> &[Document] {
        match kind {
            target::Kind::ModelDeployment => &self.deployments,
            target::Kind::AsyncActor => &self.actors,
            target::Kind::LlamaStackDistribution => &self.distributions,
            target::Kind::InferenceProviderConfig => &[],
        }
    }

    /// Given registrations, or those of the built-in providers, all ready, with the given settings.
    fn registrations(&self) -> Vec<Arc<InferenceProviderConfig>> {
        let given = self.configs.iter().map(|(_, config)| config);
        if !given.clone().all(|config| is_settings_only(config)) {
            return given.cloned().collect();
        }
        let configured = |provider: Arc<dyn Provider>| {
            let mut config = ready(provider.as_ref());
            let mut given = given.clone().filter(|given| given.name_any() == provider.name());
            config.spec.settings = given.next().and_then(|given| given.spec.settings.clone());
            Arc::new(config)
        };
        runway_manifests::built_in_providers()
            .into_iter()
            .map(configured)
            .collect()
    }

    /// The built-in providers, with the settings of their registrations.
    pub fn built_in_providers(&self) -> Vec<Configured> {
        let configured = |provider: Arc<dyn Provider>| {
            let registered = self.providers.get(provider.name());
            let settings = registered.and_then(|registered| registered.config.spec.settings.as_ref());
            Configured::new(provider, settings)
        };
        runway_manifests::built_in_providers()
            .into_iter()
            .map(configured)
            .collect()
    }

    /// Whether a CRD is installed. Without any CRDs, all are.
    pub fn has_crd(&self, name: &str) -> bool {
        self.crds.as_ref().is_none_or(|crds| crds.contains_key(name))
    }

    /// An object, or a ModelDeployment as it was written.
    pub fn object(&self, group: &str, kind: &str, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let at = (group.to_owned(), kind.to_owned(), namespace.to_owned(), name.to_owned());
        let deployment = || {
            let found = self.deployments.iter().find(|document| key(document) == at)?;
            found.parse().ok().map(Arc::new)
        };
        self.objects.get(&at).cloned().or_else(deployment)
    }

    /// All objects of a namespace but pods, Events and those of our own kinds.
    pub fn objects_in(&self, namespace: &str) -> Vec<Arc<DynamicObject>> {
        let here = self.objects.iter().filter(|((_, _, n, _), _)| n == namespace);
        here.map(|(_, object)| object.clone()).collect()
    }

    /// The autoscalers that concern a ModelDeployment.
    pub fn autoscalers(&self, md: &ModelDeployment) -> Autoscalers {
        let namespace = md.namespace().unwrap_or_default();
        let here = self.objects.iter().filter(|((_, _, n, _), _)| *n == namespace);
        let found = here.filter_map(|((group, kind, ..), object)| {
            let kind = KINDS.into_iter().find(|k| k.kind == kind && k.group == group)?;
            let object = object.clone();
            Some(Autoscaler { kind, object })
        });
        Autoscalers {
            without_keda: !self.has_crd(&SCALED_OBJECT.crd_name()),
            found: found.filter(|found| found.concerns(md)).collect(),
        }
    }

    /// The pods of a namespace.
    pub fn pods_in(&self, namespace: &str) -> Vec<Pod> {
        let here = |pod: &&Pod| pod.namespace().as_deref().unwrap_or(DEFAULT_NAMESPACE) == namespace;
        self.pods.iter().filter(here).cloned().collect()
    }

    /// Installed upstream schemas of a provider, those of the given CRDs or the newest supported, and the release of the upstream
    /// operator in its registration.
    pub fn installed(&self, provider: &dyn Provider) -> Installed {
        let upstreams = provider.upstreams();
        let installed = match &self.crds {
            None => Installed::newest(&upstreams),
            Some(crds) => Installed::new(
                upstreams
                    .iter()
                    .map(|u| (u.kind, detect(u, crds.get(&crd_name(u.kind))))),
            ),
        };
        let registered = self.providers.get(provider.name());
        installed.registered(registered.map(|registered| registered.config.as_ref()))
    }

    /// The pods of a ModelDeployment; `None` if the documents contain no pod at all, so that nothing is known of any.
    pub fn pods_of_model(&self, provider: &dyn Provider, namespace: &str, name: &str) -> Option<Vec<ModelPod>> {
        if self.pods.is_empty() {
            return None;
        }
        let labels = provider.pod_labels();
        let belongs = |pod: &Pod| {
            labels
                .iter()
                .any(|label| pod.labels().get(*label).is_some_and(|value| value == name))
        };
        let mut pods: Vec<&Pod> = self
            .pods
            .iter()
            .filter(|pod| pod.namespace().as_deref().unwrap_or(DEFAULT_NAMESPACE) == namespace && belongs(pod))
            .collect();
        pods.sort_by_key(|pod| pod.name_any());
        Some(
            pods.into_iter()
                .filter_map(|pod| ModelPod::of(provider.component_labels(), provider.compared_containers(), pod))
                .collect(),
        )
    }

    /// The pods of a LlamaStackDistribution.
    pub fn pods_of(&self, namespace: &str, llsd: &str) -> Vec<Arc<Pod>> {
        self.labelled(
            namespace,
            &[
                (llama_stack::INSTANCE, llsd),
                (llama_stack::MANAGED_BY, llama_stack::MANAGER),
            ],
        )
    }

    /// The pods of an AsyncActor.
    pub fn pods_of_actor(&self, namespace: &str, actor: &str) -> Vec<Arc<Pod>> {
        self.labelled(namespace, &[(labels::ASYA_ACTOR, actor)])
    }

    fn labelled(&self, namespace: &str, wanted: &[(&str, &str)]) -> Vec<Arc<Pod>> {
        let has = |pod: &Pod, (key, value): &(&str, &str)| pod.labels().get(*key).is_some_and(|found| found == value);
        self.pods
            .iter()
            .filter(|pod| pod.namespace().as_deref().unwrap_or(DEFAULT_NAMESPACE) == namespace)
            .filter(|pod| wanted.iter().all(|label| has(pod, label)))
            .map(|pod| Arc::new(pod.clone()))
            .collect()
    }

    /// Lists the Events of a namespace.
    pub fn all_events(&self, namespace: &str) -> Vec<Event> {
        let here = |event: &&Event| event.namespace().as_deref().unwrap_or(DEFAULT_NAMESPACE) == namespace;
        self.events.iter().filter(here).cloned().collect()
    }

    /// The Events about a ModelDeployment.
    pub fn events(&self, namespace: &str, name: &str) -> Vec<Event> {
        let about = |event: &&Event| {
            let object = &event.involved_object;
            object.kind.as_deref() == Some("ModelDeployment")
                && object.name.as_deref() == Some(name)
                && object.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE) == namespace
        };
        self.events.iter().filter(about).cloned().collect()
    }
}

/// A provider's view of the state. As in its watch caches, objects of auxiliary kinds are visible only if they have the
/// provider's labels.
pub struct SeenBy<'a> {
    /// The state.
    pub state: &'a State,
    /// The provider.
    pub provider: &'a dyn Provider,
}

impl Lookup for SeenBy<'_> {
    fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let key = (
            kind.group.to_owned(),
            kind.kind.to_owned(),
            namespace.to_owned(),
            name.to_owned(),
        );
        let object = self.state.objects.get(&key)?;
        let is_upstream = self.provider.upstreams().iter().any(|u| u.kind == kind);
        let carries = |label: &str, value: &str| object.labels().get(label).is_some_and(|found| found == value);
        let is_ours =
            carries(labels::MANAGED_BY, labels::MANAGED_BY_VALUE) && carries(labels::PROVIDER, self.provider.name());
        (is_upstream || is_ours).then(|| object.clone())
    }

    fn replicas(&self, objects: ReplicaObjects, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>> {
        let found = self.state.objects.iter().filter(|((group, kind, place, _), object)| {
            (group.as_str(), kind.as_str(), place.as_str()) == (objects.kind.group, objects.kind.kind, namespace)
                && object
                    .labels()
                    .get(objects.label)
                    .is_some_and(|name| name == deployment)
        });
        found.map(|(_, object)| object.clone()).collect()
    }

    fn claims(&self, namespace: &str, deployment: &str) -> Vec<Arc<DynamicObject>> {
        let carries = |object: &DynamicObject, label: &str, value: &str| {
            object.labels().get(label).is_some_and(|found| found == value)
        };
        let claims = self.state.objects.iter().filter(|((group, kind, place, _), object)| {
            (group.as_str(), kind.as_str(), place.as_str()) == (CLAIM.group, CLAIM.kind, namespace)
                && carries(object, labels::MANAGED_BY, labels::MANAGED_BY_VALUE)
                && carries(object, labels::DEPLOYMENT, deployment)
        });
        claims.map(|(_, object)| object.clone()).collect()
    }
}

/// Reason why a document cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// A version that does not exist.
    #[error("unknown apiVersion {given}: use {known} ({origin})")]
    Version {
        given: String,
        known: String,
        origin: String,
    },
    /// The document cannot be parsed.
    #[error(transparent)]
    Document(#[from] Error),
}

fn check_version(document: &Document, known: &str) -> Result<(), Unusable> {
    let given = document.value["apiVersion"].as_str().unwrap_or_default();
    if given == known {
        return Ok(());
    }
    Err(Unusable::Version {
        given: given.to_owned(),
        known: known.to_owned(),
        origin: document.origin.to_string(),
    })
}

/// Whether an administrator wrote the object for its settings, before the provider registered.
fn is_settings_only(config: &InferenceProviderConfig) -> bool {
    config.status.is_none() && config.spec.capabilities.engine_names().is_empty()
}

/// A built-in provider's registration, as when its controller runs and all is well.
fn ready(provider: &dyn Provider) -> InferenceProviderConfig {
    let mut config = InferenceProviderConfig::new(provider.name(), provider.registration());
    config.status = Some(InferenceProviderConfigStatus {
        ready: Some(true),
        version: Some(provider.version()),
        ..InferenceProviderConfigStatus::default()
    });
    config
}

/// Removes duplicates. The last definition is used, as with `kubectl apply`.
fn without_duplicates(found: Vec<Document>, said: &mut Vec<Diagnostic>) -> Vec<Document> {
    let mut last: BTreeMap<Key, usize> = BTreeMap::new();
    let mut kept: Vec<Option<Document>> = Vec::new();
    for document in found {
        if let Some(earlier) = last
            .insert(key(&document), kept.len())
            .and_then(|index| kept[index].take())
        {
            let text = format!(
                "defined twice ({}; {}): the last definition is used",
                earlier.origin, document.origin
            );
            said.push(Diagnostic::about(Level::Warning, document.subject(), text));
        }
        kept.push(Some(document));
    }
    kept.into_iter().flatten().collect()
}

fn key(document: &Document) -> Key {
    let namespace = document.namespace().unwrap_or(DEFAULT_NAMESPACE);
    (
        document.group().to_owned(),
        document.kind().to_owned(),
        namespace.to_owned(),
        document.name().to_owned(),
    )
}
