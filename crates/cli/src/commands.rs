//! What each command does: read, ask the pure part, write. Nothing is printed here, progress of what takes long aside.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use kube::core::DynamicObject;
use runway_api::Namespace;
use runway_asya_operator::transports::Transports;
use runway_operator::client::ClientArgs;
use runway_operator::clock;
use serde::Serialize;

use crate::args::{
    Command, CommandLine, ConsoleCommand, ControllerCommand, DiffArgs, ProviderCommand, RenderArgs, TargetArgs,
    ValidateArgs, WhyArgs,
};
use crate::install::console::Console;
use crate::install::{self, remove, report};
use crate::verbs::{self, change, chat, deploy, logs, look};
use crate::{check, complete, version};
use crate::{migrate, support_bundle, ui};
use runway_client::cluster::Cluster;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::documents::{self, Documents};
use runway_client::render::{self, render_with};
use runway_client::source::{self, Admission, Source};
use runway_client::target::{Kind, Target};
use runway_client::text::{self, Format, Look};
use runway_client::{diff, endpoint, held, operated, tree, validate, why};
use runway_operator::telemetry::chain;

/// Exit code of `diff --exit-code` when something would change.
const DIFFERS: u8 = 3;

/// Exit code when something was waited for, and the time was up before it was there.
pub const NOT_IN_TIME: u8 = 4;

/// Exit code of a command line that cannot be meant, as clap has it.
pub const WRONG_USAGE: u8 = 2;

/// What a command has to say.
#[derive(Debug, Default)]
pub struct Answer {
    /// For stdout.
    pub data: String,
    /// For stderr.
    pub talk: Vec<Diagnostic>,
    /// Whether something that was asked for was not done.
    pub failed: bool,
    /// The exit code, where it is neither 0 nor 1: `docs/command.md` lists them.
    pub code: Option<u8>,
}

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was asked for cannot be read.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The transports of AsyncActors cannot be used.
    #[error(transparent)]
    Transports(#[from] runway_asya_operator::transports::Error),
    /// A document cannot be read.
    #[error(transparent)]
    Document(#[from] documents::Error),
    /// The answer cannot be written.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// The cluster is not as it should be.
    #[error(transparent)]
    Install(#[from] install::Error),
    /// A file cannot be written.
    #[error("cannot write {}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A ModelDeployment was not moved.
    #[error(transparent)]
    Migrate(#[from] migrate::Error),
    /// The console is not served.
    #[error(transparent)]
    Ui(#[from] runway_web::server::Error),
    /// There is no script for the shell.
    #[error("cannot generate the completion script")]
    Completion(#[from] io::Error),
    /// A verb did not do what was asked.
    #[error(transparent)]
    Verb(#[from] verbs::Error),
}

impl Error {
    /// The exit code, where it is not 1.
    pub fn code(&self) -> Option<u8> {
        match self {
            Self::Verb(error) => error.code(),
            Self::Migrate(migrate::Error::NotInTime { .. }) => Some(NOT_IN_TIME),
            _ => None,
        }
    }
}

/// Does what the command line asks for.
pub async fn run(line: &CommandLine, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    match &line.command {
        Command::Render(args) => run_render(args, stdin),
        Command::Validate(args) => run_validate(args, stdin),
        Command::Get(args) => look::get(args, &line.client, stdin).await,
        Command::Status(args) => look::status(args, &line.client, &mut Console { stdin }, look).await,
        Command::Events(args) => look::events(args, &line.client, stdin).await,
        Command::Endpoint(args) => run_endpoint(args, &line.client, stdin).await,
        Command::Logs(args) => {
            let cluster = Cluster::connect_to_follow(&line.client)
                .await
                .map_err(verbs::Error::from)?;
            Ok(logs::logs(args, &cluster, &mut Console { stdin }).await?)
        }
        Command::Chat(args) => {
            let cluster = Cluster::connect_to_follow(&line.client)
                .await
                .map_err(verbs::Error::from)?;
            Ok(chat::chat(args, &cluster, &mut Console { stdin }).await?)
        }
        Command::Deploy(args) => deploy::deploy(args, &line.client, &mut Console { stdin }).await,
        Command::Pause(args) | Command::Resume(args) => {
            let pause = matches!(line.command, Command::Pause(_));
            let cluster = Cluster::connect(&line.client).await.map_err(verbs::Error::from)?;
            Ok(change::pause(args, pause, &cluster, &mut Console { stdin }).await?)
        }
        Command::Delete(args) => {
            let cluster = Cluster::connect_patiently(&line.client)
                .await
                .map_err(verbs::Error::from)?;
            Ok(change::delete(args, &cluster, &mut Console { stdin }).await?)
        }
        Command::Why(args) => run_why(args, &line.client, stdin, look).await,
        Command::Tree(args) => run_tree(args, &line.client, stdin, look).await,
        Command::Diff(args) => run_diff(args, &line.client, stdin).await,
        Command::Migrate(args) => {
            let cluster = Cluster::connect(&line.client).await.map_err(migrate::Error::from)?;
            Ok(migrate::migrate(args, &cluster, &mut Console { stdin }).await?)
        }
        Command::Check(args) => check::check(args, &line.client, &mut Console { stdin }, look).await,
        Command::SupportBundle(args) => support_bundle::support_bundle(args, &line.client).await,
        Command::Controller(command) => run_controller(command, &line.client, stdin).await,
        Command::Provider(command) => run_provider(command, &line.client, stdin).await,
        Command::Console(command) => run_console(command, &line.client, stdin).await,
        Command::Completion(args) => Ok(Answer {
            data: complete::script(args.shell)?,
            ..Answer::default()
        }),
        Command::Version(args) => version::version(args, &line.client).await,
        Command::Ui(args) => Ok(ui::run(args, &line.client).await?),
    }
}

async fn run_controller(
    command: &ControllerCommand,
    client: &ClientArgs,
    stdin: &mut dyn Read,
) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    let console = &mut Console { stdin };
    Ok(match command {
        ControllerCommand::Install(args) => install::install(args, &cluster, console).await?,
        ControllerCommand::Upgrade(args) => install::upgrade(args, &cluster, console).await?,
        ControllerCommand::Uninstall(args) => remove::controller(args, &cluster, console).await?,
        ControllerCommand::Status => report::status(&cluster, console).await?,
    })
}

async fn run_provider(command: &ProviderCommand, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    let console = &mut Console { stdin };
    Ok(match command {
        ProviderCommand::Install(args) => install::install_provider(args, &cluster, console).await?,
        ProviderCommand::Uninstall(args) => remove::provider(args, &cluster, console).await?,
        ProviderCommand::List => report::providers(&cluster, console).await?,
    })
}

async fn run_console(command: &ConsoleCommand, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(install::Error::from)?;
    let console = &mut Console { stdin };
    Ok(match command {
        ConsoleCommand::Install(args) => install::install_console(args, &cluster, console).await?,
        ConsoleCommand::Uninstall(args) => remove::web_console(args, &cluster, console).await?,
    })
}

fn run_render(args: &RenderArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let documents = Documents::read(&args.files, stdin);
    let options = render::Options {
        show: args.show,
        now: args.now.unwrap_or_else(clock::now),
    };
    let actors = render::Actors {
        transports: Arc::new(Transports::load(&args.actors.transport_config)?),
        sidecar_image: args.actors.sidecar_image.clone(),
    };
    let rendered = render_with(documents, &options, &actors);
    let data = text::documents(&rendered.documents, args.output)?;
    Ok(Answer {
        data,
        talk: rendered.diagnostics,
        failed: rendered.failed,
        code: None,
    })
}

fn run_validate(args: &ValidateArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let validated = validate::validate(Documents::read(&args.files, stdin), clock::now());
    let (data, talk) = match args.output {
        Some(format) => (text::documents(std::slice::from_ref(&validated), format)?, Vec::new()),
        None => (validated.summary(), validated.lines()),
    };
    Ok(Answer {
        data,
        talk,
        failed: validated.failed(),
        code: None,
    })
}

async fn run_why(args: &WhyArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::First).await?;
    let namespace = source.namespace(&args.place, false);
    if let Some(target) = args.target.as_ref().filter(|t| t.kind != Kind::ModelDeployment) {
        let found = source.held(target, namespace.as_ref()).await?;
        let data = match args.output {
            Some(format) => text::documents(&found, format)?,
            None => screens(found.iter().map(|held| held::screen(held, look))),
        };
        return Ok(answer(data, source.said));
    }
    let name = args.target.as_ref().map(|target| &target.name);
    let found = source.deployments(namespace.as_ref(), name).await?;
    let providers = source.providers().await?;
    let explained = found.iter().map(|md| why::explain(md, &providers, args.place.now()));
    let data = match args.output {
        Some(format) => text::documents(&explained.collect::<Vec<_>>(), format)?,
        None => explained
            .map(|why| why::screen(&why, look))
            .collect::<Vec<_>>()
            .join("\n"),
    };
    Ok(answer(data, source.said))
}

async fn run_tree(args: &TargetArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, false);
    let trees = source.trees(&args.target, namespace.as_ref(), args.place.now()).await?;
    let data = match args.output {
        Some(format) => text::documents(&trees, format)?,
        None => screens(trees.iter().map(|tree| tree::screen(tree, look))),
    };
    Ok(answer(data, source.said))
}

async fn run_endpoint(args: &TargetArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, false);
    let (namespace, target) = (namespace.as_ref(), &args.target);
    let data = match target.kind {
        Kind::ModelDeployment => {
            let mut found = Vec::new();
            for md in source.deployments(namespace, Some(&target.name)).await? {
                found.push(endpoint::access(&md).ok_or_else(|| verbs::Error::no_endpoint(&md))?);
            }
            shown(&found, args.output, endpoint::screen)?
        }
        Kind::LlamaStackDistribution => {
            let mut found = Vec::new();
            for llsd in source.named(target, namespace).await? {
                found.push(endpoint::server(&llsd).ok_or_else(|| verbs::Error::no_server(&llsd))?);
            }
            shown(&found, args.output, endpoint::server_screen)?
        }
        Kind::AsyncActor => {
            let actors = source.named(target, namespace).await?;
            let found: Vec<_> = actors.iter().map(endpoint::queue).collect();
            shown(&found, args.output, endpoint::queue_screen)?
        }
        Kind::InferenceProviderConfig => return Err(source::Error::NothingBelow(target.clone()).into()),
    };
    Ok(answer(data, source.said))
}

/// For programs, or for people.
fn shown<T: Serialize>(all: &[T], output: Option<Format>, screen: fn(&T) -> String) -> Result<String, text::Error> {
    match output {
        Some(format) => text::documents(all, format),
        None => Ok(screens(all.iter().map(screen))),
    }
}

async fn run_diff(args: &DiffArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let cluster = Cluster::connect_patiently(client).await.map_err(source::Error::from)?;
    let (mut diffs, mut said) = (Vec::new(), Vec::new());
    if let Some(target) = &args.target {
        diffs.push(diff_of_live(&cluster, target, args.namespace.as_ref()).await?);
    }
    let documents = Documents::read(&args.files, stdin);
    said.extend(documents.errors.iter().map(Diagnostic::error));
    for document in documents.found {
        let Some(kind) = Kind::known_as(document.kind()).filter(|kind| kind.is_namespaced()) else {
            let text = "skipped: diff shows only ModelDeployments, AsyncActors and LlamaStackDistributions (use kubectl diff for other kinds)";
            said.push(Diagnostic::about(Level::Note, document.subject(), text));
            continue;
        };
        let tried = async {
            let mut written: DynamicObject = document.parse()?;
            written.metadata.namespace = written
                .metadata
                .namespace
                .or_else(|| args.namespace.clone().map(String::from));
            let now = clock::now();
            let tried = match kind {
                Kind::AsyncActor => operated::of_new_actor(&cluster, &written, now).await,
                Kind::LlamaStackDistribution => operated::of_new_distribution(&cluster, &written, now).await,
                _ => diff::of_new(&cluster, &written, now).await,
            };
            Ok::<_, Error>(tried.map_err(source::Error::from)?)
        };
        match tried.await {
            Ok(diff) => diffs.push(diff),
            Err(error) => said.push(Diagnostic::about(Level::Error, document.subject(), chain(&error))),
        }
    }
    let data = match args.output {
        Some(format) => text::documents(&diffs, format)?,
        None => screens(diffs.iter().map(diff::screen)),
    };
    let mut answer = answer(data, said);
    if args.exit_code && !answer.failed && diffs.iter().any(|diff| !diff.is_empty()) {
        answer.code = Some(DIFFERS);
    }
    Ok(answer)
}

/// What the controllers would change for an object as the cluster holds it.
async fn diff_of_live(cluster: &Cluster, target: &Target, namespace: Option<&Namespace>) -> Result<diff::Diff, Error> {
    let namespace = namespace.unwrap_or(&cluster.namespace);
    let (name, now) = (&target.name, clock::now());
    let asked = async {
        match target.kind {
            Kind::AsyncActor => {
                let actor = cluster.one(target.kind, namespace, name).await?;
                Ok(operated::of_actor(cluster, actor, now).await?)
            }
            Kind::LlamaStackDistribution => {
                let llsd = cluster.one(target.kind, namespace, name).await?;
                Ok(operated::of_distribution(cluster, llsd, now).await?)
            }
            Kind::ModelDeployment => {
                let md = cluster.deployment(namespace, name).await?;
                Ok(diff::of_live(cluster, md, now).await?)
            }
            Kind::InferenceProviderConfig => Err(source::Error::NothingBelow(target.clone())),
        }
    };
    Ok(asked.await?)
}

/// Several screens, apart from each other.
pub(crate) fn screens(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join("\n")
}

/// An answer that failed if an error was told.
pub(crate) fn answer(data: String, talk: Vec<Diagnostic>) -> Answer {
    Answer {
        data,
        failed: talk.iter().any(|d| d.level == Level::Error),
        talk,
        code: None,
    }
}
