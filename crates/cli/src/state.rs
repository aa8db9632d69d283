//! What a cluster holds, as documents say it. ModelDeployments are set apart: they are what the commands are about.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use runway_api::{InferenceProviderConfig, InferenceProviderConfigStatus, ModelDeployment, labels};
use runway_core::providers::Providers;
use runway_provider::observe::{Lookup, Waiting};
use runway_provider::upstream::{Installed, crd_name, detect};
use runway_provider::{Kind, Provider};

use crate::diagnostic::{Diagnostic, Level};
use crate::documents::{Document, Documents, Error};

/// Where a document belongs that names no namespace.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Kinds that are rendered, by group and kind; this build knows the first.
const RENDERED: [(&str, &str); 3] = [
    ("kubeairunway.ai", "ModelDeployment"),
    ("asya.sh", "AsyncActor"),
    ("llamastack.io", "LlamaStackDistribution"),
];

/// What a cluster holds.
#[derive(Debug, Default)]
pub struct State {
    /// The ModelDeployments, in the order of the documents.
    pub deployments: Vec<Document>,
    /// The registrations given, in the order of the documents.
    pub configs: Vec<(Document, Arc<InferenceProviderConfig>)>,
    /// Who is registered.
    pub providers: Arc<Providers>,
    crds: Option<BTreeMap<String, CustomResourceDefinition>>,
    objects: BTreeMap<Key, Arc<DynamicObject>>,
    pods: Vec<Pod>,
    events: Vec<Event>,
}

/// Group, kind, namespace, name.
type Key = (String, String, String, String);

impl State {
    /// Sorts documents into what a cluster holds. Those that cannot be used are told of and left out.
    pub fn new(documents: Documents) -> (Self, Vec<Diagnostic>) {
        let mut said: Vec<Diagnostic> = documents.errors.iter().map(Diagnostic::error).collect();
        let mut state = Self::default();
        for document in without_duplicates(documents.found, &mut said) {
            let subject = document.subject();
            if let Err(error) = state.take_in(document) {
                said.push(Diagnostic::about(
                    Level::Error,
                    subject,
                    crate::diagnostic::chain(&error),
                ));
            }
        }
        state.providers = Arc::new(Providers::compile(state.registrations(), &Providers::default()));
        (state, said)
    }

    fn take_in(&mut self, document: Document) -> Result<(), Unusable> {
        match (document.group(), document.kind()) {
            ("kubeairunway.ai", "ModelDeployment") => {
                check_version(&document, &ModelDeployment::api_version(&()))?;
                self.deployments.push(document);
            }
            ("kubeairunway.ai", "InferenceProviderConfig") => {
                check_version(&document, &InferenceProviderConfig::api_version(&()))?;
                let config = Arc::new(document.parse()?);
                self.configs.push((document, config));
            }
            rendered if RENDERED.contains(&rendered) => return Err(Unusable::NotYet),
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

    /// Those given, or the built-in ones, all ready.
    fn registrations(&self) -> Vec<Arc<InferenceProviderConfig>> {
        if !self.configs.is_empty() {
            return self.configs.iter().map(|(_, config)| config.clone()).collect();
        }
        crate::manifests::built_in_providers()
            .iter()
            .map(|provider| Arc::new(ready(provider.as_ref())))
            .collect()
    }

    /// Which upstream schemas of a provider are installed: those of the CRDs given, or the newest known.
    pub fn installed(&self, provider: &dyn Provider) -> Installed {
        let upstreams = provider.upstreams();
        match &self.crds {
            None => Installed::newest(&upstreams),
            Some(crds) => Installed::new(
                upstreams
                    .iter()
                    .map(|u| (u.kind, detect(u, crds.get(&crd_name(u.kind))))),
            ),
        }
    }

    /// What the pods of a ModelDeployment wait for.
    pub fn waiting(&self, provider: &dyn Provider, namespace: &str, name: &str) -> Vec<Waiting> {
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
        pods.into_iter().flat_map(runway_provider::waiting).collect()
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

/// What a provider sees of the state: as in its watch caches, kinds that only serve the upstream objects count only when
/// they carry its labels.
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
}

/// Why a document cannot be used.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    /// A kind whose controller is still to come.
    #[error("this build renders ModelDeployment only")]
    NotYet,
    /// A version that does not exist.
    #[error("apiVersion {given} does not exist: use {known} ({origin})")]
    Version {
        given: String,
        known: String,
        origin: String,
    },
    /// It does not deserialize.
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

/// As `kubectl apply` would leave it: the last one counts.
fn without_duplicates(found: Vec<Document>, said: &mut Vec<Diagnostic>) -> Vec<Document> {
    let mut last: BTreeMap<Key, usize> = BTreeMap::new();
    let mut kept: Vec<Option<Document>> = Vec::new();
    for document in found {
        if let Some(earlier) = last
            .insert(key(&document), kept.len())
            .and_then(|index| kept[index].take())
        {
            let text = format!(
                "given twice ({}; {}): the last one counts",
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
