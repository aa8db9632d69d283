//! Where the commands that look read from: a cluster, or documents that say what one holds.

use std::io::Read;
use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::provider_config::Health;
use runway_api::{InferenceProviderConfig, ModelDeployment};
use runway_core::providers::Providers;
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use runway_provider::observe::Lookup;
use runway_provider::{Kind, Provider, Request};

use crate::args::Place;
use crate::cluster::{self, Cluster};
use crate::diagnostic::{Diagnostic, chain};
use crate::documents::{Document, Documents};
use crate::render::{admit, held};
use crate::state::{DEFAULT_NAMESPACE, SeenBy, State};
use crate::status::{Upstream, View};
use crate::{manifests, why};

/// What cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The documents do not have it.
    #[error("ModelDeployment '{name}' is not in the files given (they hold: {known})")]
    NotInFiles {
        /// Its name.
        name: String,
        /// What they have.
        known: String,
    },
}

/// Whether ModelDeployments of documents still have admission before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// They are about to be created.
    First,
    /// They are what the cluster holds.
    Past,
}

/// Where things are read.
pub(crate) struct Source {
    origin: Origin,
    /// What there is to say of what was read.
    pub(crate) said: Vec<Diagnostic>,
}

enum Origin {
    Cluster(Box<Cluster>),
    Documents(Box<State>, Admission),
}

impl Source {
    pub(crate) async fn open(
        place: &Place,
        client: &ClientArgs,
        stdin: &mut dyn Read,
        admission: Admission,
    ) -> Result<Self, Error> {
        if place.files.is_empty() {
            let cluster = Cluster::connect(client).await?;
            return Ok(Self {
                origin: Origin::Cluster(Box::new(cluster)),
                said: Vec::new(),
            });
        }
        let (state, said) = State::new(Documents::read(&place.files, stdin));
        Ok(Self {
            origin: Origin::Documents(Box::new(state), admission),
            said,
        })
    }

    /// The namespace to look in; `None` for all of them. In files that is the default.
    pub(crate) fn namespace(&self, place: &Place, all: bool) -> Option<String> {
        match (&self.origin, &place.namespace) {
            (_, Some(namespace)) => Some(namespace.clone()),
            (Origin::Cluster(cluster), None) if !all => Some(cluster.namespace.clone()),
            _ => None,
        }
    }

    /// The ModelDeployments of a namespace or of all, or those of one name; it is an error if there is none of that name.
    pub(crate) async fn deployments(
        &mut self,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<Vec<ModelDeployment>, Error> {
        let mut found = match (&self.origin, name) {
            (Origin::Cluster(cluster), Some(name)) => {
                vec![cluster.deployment(namespace.unwrap_or(DEFAULT_NAMESPACE), name).await?]
            }
            (Origin::Cluster(cluster), None) => cluster.deployments(namespace).await?,
            (Origin::Documents(state, admission), _) => {
                let asked = state
                    .deployments
                    .iter()
                    .filter(|d| name.is_none_or(|name| d.name() == name));
                let here = asked.filter(|d| namespace.is_none_or(|n| d.namespace().unwrap_or(DEFAULT_NAMESPACE) == n));
                let here: Vec<&Document> = here.collect();
                if let (Some(name), true) = (name, here.is_empty()) {
                    return Err(Error::NotInFiles {
                        name: name.to_owned(),
                        known: names(state),
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

    pub(crate) async fn providers(&self) -> Result<Arc<Providers>, Error> {
        match &self.origin {
            Origin::Cluster(cluster) => {
                let configs = cluster.configs().await?.into_iter().map(Arc::new);
                Ok(Arc::new(Providers::compile(configs, &Providers::default())))
            }
            Origin::Documents(state, _) => Ok(state.providers.clone()),
        }
    }

    /// All that is shown of a ModelDeployment. What cannot be read is said, and keeps nothing else from being shown.
    pub(crate) async fn view(&self, md: ModelDeployment, now: Timestamp) -> View {
        let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
        let mut missing = Vec::new();
        let selected = md.selected_provider().map(str::to_owned);
        let (mut config, mut provider_trouble) = (None, None);
        match self.providers().await {
            Ok(providers) => {
                config = selected
                    .as_deref()
                    .and_then(|name| Some(providers.get(name)?.config.clone()));
                provider_trouble = selected.and_then(|_| trouble(config.as_deref(), now));
            }
            Err(error) => missing.push(format!("health of the provider: {}", chain(&error))),
        }
        let upstream = self.upstream(&md, config.as_deref()).await.unwrap_or_else(|e| {
            missing.push(format!("state of the upstream object: {}", chain(&e)));
            Upstream::Unknown
        });
        let events = match &self.origin {
            Origin::Cluster(cluster) => cluster.events(&namespace, &name).await.unwrap_or_else(|e| {
                missing.push(format!("Events: {}", chain(&e)));
                Vec::new()
            }),
            Origin::Documents(state, _) => state.events(&namespace, &name),
        };
        View {
            md,
            upstream,
            provider_trouble,
            events,
            missing,
        }
    }

    /// What the upstream object of a built-in provider says.
    async fn upstream(
        &self,
        md: &ModelDeployment,
        config: Option<&InferenceProviderConfig>,
    ) -> Result<Upstream, cluster::Error> {
        let Some((provider, kind, name)) = made_by(md) else {
            return Ok(Upstream::Unknown);
        };
        let Ok(request) = Request::try_from(md) else {
            return Ok(Upstream::Unknown);
        };
        let namespace = md.namespace().unwrap_or_default();
        let object = match &self.origin {
            Origin::Cluster(cluster) => match version(provider.as_ref(), kind, config) {
                Some(version) => cluster.upstream(kind, &version, &namespace, &name).await?.map(Arc::new),
                None => return Ok(Upstream::Unknown),
            },
            Origin::Documents(state, _) => SeenBy {
                state,
                provider: provider.as_ref(),
            }
            .find(kind, &namespace, &name),
        };
        let said = |object: Arc<DynamicObject>| {
            serde_json::to_value(object.as_ref())
                .map(|o| provider.read_status(&request, &o))
                .ok()
        };
        Ok(object.map_or(Upstream::Absent, |object| {
            said(object).map_or(Upstream::Unknown, Upstream::Says)
        }))
    }
}

/// What is wrong with a provider, for people.
fn trouble(config: Option<&InferenceProviderConfig>, now: Timestamp) -> Option<String> {
    match config.map(|c| c.health(now)) {
        Some(Health::Healthy) => None,
        Some(health) => Some(why::health(&health)),
        None => Some("no longer registered".to_owned()),
    }
}

/// The built-in provider of a ModelDeployment, with kind and name of what it made.
fn made_by(md: &ModelDeployment) -> Option<(Box<dyn Provider>, Kind, String)> {
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
        Admission::Past => held(document).map_err(|error| said.push(error)).ok(),
    }
}

fn names(state: &State) -> String {
    let names: Vec<&str> = state.deployments.iter().map(Document::name).collect();
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

impl Place {
    /// The time that was given, or the wall clock's.
    pub(crate) fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(clock::now)
    }
}
