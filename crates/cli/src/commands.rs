//! What each command does: read, ask the pure part, write. Nothing is printed here.

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

use crate::args::{Command, CommandLine, GetArgs, ListFormat, OneArgs, Place, RenderArgs, WhyArgs};
use crate::cluster::{self, Cluster};
use crate::diagnostic::{Diagnostic, Level};
use crate::documents::Documents;
use crate::render::{self, admit, render};
use crate::state::{DEFAULT_NAMESPACE, SeenBy, State};
use crate::status::{Upstream, View};
use crate::text::{self, Format, Look};
use crate::{get, manifests, status, why};

/// What a command has to say.
#[derive(Debug, Default)]
pub struct Answer {
    /// For stdout.
    pub data: String,
    /// For stderr.
    pub talk: Vec<Diagnostic>,
    /// Whether something that was asked for was not done.
    pub failed: bool,
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The answer cannot be written.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// The documents do not have it.
    #[error("ModelDeployment '{name}' is not in the files given (they hold: {known})")]
    NotInFiles {
        /// Its name.
        name: String,
        /// What they have.
        known: String,
    },
}

/// Does what the command line asks for.
pub async fn run(line: &CommandLine, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    match &line.command {
        Command::Render(args) => run_render(args, stdin),
        Command::Get(args) => run_get(args, &line.client, stdin).await,
        Command::Status(args) => run_status(args, &line.client, stdin, look).await,
        Command::Why(args) => run_why(args, &line.client, stdin, look).await,
    }
}

fn run_render(args: &RenderArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let documents = Documents::read(&args.files, stdin);
    let options = render::Options {
        show: args.show,
        now: args.now.unwrap_or_else(clock::now),
    };
    let rendered = render(documents, &options);
    Ok(Answer {
        data: text::documents(&rendered.documents, args.output)?,
        talk: rendered.diagnostics,
        failed: rendered.failed,
    })
}

async fn run_get(args: &GetArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let mut talk = Vec::new();
    let mut source = Source::open(&args.place, client, stdin, &mut talk).await?;
    let namespace = source.namespace(&args.place, args.all_namespaces);
    let mut found = match &args.name {
        Some(name) => vec![source.deployment(namespace.as_deref(), name, &mut talk).await?],
        None => source.deployments(namespace.as_deref(), &mut talk).await?,
    };
    found.sort_by_key(|md| (md.namespace(), md.name_any()));
    let data = match args.output {
        Some(ListFormat::Yaml) => text::documents(&found, Format::Yaml)?,
        Some(ListFormat::Json) => text::documents(&found, Format::Json)?,
        _ if found.is_empty() => String::new(),
        output => {
            let options = get::Options {
                wide: output == Some(ListFormat::Wide),
                namespaces: namespace.is_none(),
            };
            get::table(&found, args.place.now(), options)
        }
    };
    if found.is_empty() {
        let place = namespace.map_or_else(
            || "any namespace".to_owned(),
            |n| format!("namespace '{n}' (see all with -A)"),
        );
        talk.push(Diagnostic {
            level: Level::Note,
            subject: None,
            text: format!("no ModelDeployments in {place}"),
        });
    }
    Ok(Answer {
        data,
        failed: has_error(&talk),
        talk,
    })
}

async fn run_status(args: &OneArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut talk = Vec::new();
    let mut source = Source::open(&args.place, client, stdin, &mut talk).await?;
    let namespace = source.namespace(&args.place, false);
    let md = source.deployment(namespace.as_deref(), &args.name, &mut talk).await?;
    let data = match args.output {
        Some(format) => text::documents(&[md], format)?,
        None => status::screen(&source.view(md, args.place.now()).await, args.place.now(), look),
    };
    Ok(Answer {
        data,
        failed: has_error(&talk),
        talk,
    })
}

async fn run_why(args: &WhyArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut talk = Vec::new();
    let mut source = Source::open(&args.place, client, stdin, &mut talk).await?;
    let namespace = source.namespace(&args.place, false);
    let asked = match &args.name {
        Some(name) => vec![source.deployment(namespace.as_deref(), name, &mut talk).await?],
        None => source.deployments(namespace.as_deref(), &mut talk).await?,
    };
    let providers = source.providers().await?;
    let explained: Vec<why::Why> = asked
        .iter()
        .map(|md| why::explain(md, &providers, args.place.now()))
        .collect();
    let data = match args.output {
        Some(format) => text::documents(&explained, format)?,
        None => explained
            .iter()
            .map(|why| why::screen(why, look))
            .collect::<Vec<_>>()
            .join("\n"),
    };
    Ok(Answer {
        data,
        failed: has_error(&talk),
        talk,
    })
}

fn has_error(talk: &[Diagnostic]) -> bool {
    talk.iter().any(|d| d.level == Level::Error)
}

impl Place {
    fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(clock::now)
    }
}

/// Where things are read: a cluster, or documents that say what one holds.
enum Source {
    Cluster(Cluster),
    Documents(Box<State>),
}

impl Source {
    async fn open(
        place: &Place,
        client: &ClientArgs,
        stdin: &mut dyn Read,
        talk: &mut Vec<Diagnostic>,
    ) -> Result<Self, Error> {
        if place.files.is_empty() {
            return Ok(Self::Cluster(Cluster::connect(client).await?));
        }
        let (state, said) = State::new(Documents::read(&place.files, stdin));
        talk.extend(said);
        Ok(Self::Documents(Box::new(state)))
    }

    /// The namespace to look in; `None` for all of them. Files are small: all of them unless one is asked for.
    fn namespace(&self, place: &Place, all: bool) -> Option<String> {
        match (self, &place.namespace) {
            (_, Some(namespace)) => Some(namespace.clone()),
            (Self::Cluster(cluster), None) if !all => Some(cluster.namespace.clone()),
            _ => None,
        }
    }

    async fn deployments(
        &mut self,
        namespace: Option<&str>,
        talk: &mut Vec<Diagnostic>,
    ) -> Result<Vec<ModelDeployment>, Error> {
        match self {
            Self::Cluster(cluster) => Ok(cluster.deployments(namespace).await?),
            Self::Documents(state) => {
                let all = state
                    .deployments
                    .iter()
                    .filter_map(|document| Some(admit(document, state, talk)?.md));
                Ok(all
                    .filter(|md| namespace.is_none_or(|n| md.namespace().as_deref() == Some(n)))
                    .collect())
            }
        }
    }

    async fn deployment(
        &mut self,
        namespace: Option<&str>,
        name: &str,
        talk: &mut Vec<Diagnostic>,
    ) -> Result<ModelDeployment, Error> {
        if let Self::Cluster(cluster) = self {
            return Ok(cluster.deployment(namespace.unwrap_or(DEFAULT_NAMESPACE), name).await?);
        }
        let all = self.deployments(namespace, talk).await?;
        let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        all.into_iter()
            .find(|md| md.name_any() == name)
            .ok_or_else(|| Error::NotInFiles {
                name: name.to_owned(),
                known: if names.is_empty() {
                    "none".to_owned()
                } else {
                    names.join(", ")
                },
            })
    }

    async fn providers(&self) -> Result<Arc<Providers>, Error> {
        match self {
            Self::Cluster(cluster) => {
                let configs = cluster.configs().await?.into_iter().map(Arc::new);
                Ok(Arc::new(Providers::compile(configs, &Providers::default())))
            }
            Self::Documents(state) => Ok(state.providers.clone()),
        }
    }

    /// All that is shown of a ModelDeployment. What cannot be read is said, and keeps nothing else from being shown.
    async fn view(&self, md: ModelDeployment, now: Timestamp) -> View {
        let (namespace, name) = (md.namespace().unwrap_or_default(), md.name_any());
        let mut missing = Vec::new();
        let providers = self
            .providers()
            .await
            .map_err(|e| missing.push(format!("health of the provider: {e}")))
            .ok();
        let config = md
            .selected_provider()
            .and_then(|name| Some(providers.as_ref()?.get(name)?.config.clone()));
        let provider_trouble = config
            .as_ref()
            .map(|c| c.health(now))
            .filter(|h| *h != Health::Healthy)
            .map(|h| why::health(&h));
        let upstream = self.upstream(&md, config.as_deref()).await.unwrap_or_else(|e| {
            missing.push(format!("state of the upstream object: {e}"));
            Upstream::Unknown
        });
        let events = match self {
            Self::Cluster(cluster) => cluster.events(&namespace, &name).await.unwrap_or_else(|e| {
                missing.push(format!("Events: {e}"));
                Vec::new()
            }),
            Self::Documents(state) => state.events(&namespace, &name),
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
        let object = match self {
            Self::Cluster(cluster) => match version(provider.as_ref(), kind, config) {
                Some(version) => cluster.upstream(kind, &version, &namespace, &name).await?.map(Arc::new),
                None => return Ok(Upstream::Unknown),
            },
            Self::Documents(state) => SeenBy {
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
