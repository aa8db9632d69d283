//! What each command does: read, ask the pure part, write. Nothing is printed here.

use std::io::Read;

use runway_operator::client::ClientArgs;
use runway_operator::clock;

use crate::args::{Command, CommandLine, GetArgs, ListFormat, OneArgs, RenderArgs, WhyArgs};
use crate::diagnostic::{Diagnostic, Level};
use crate::documents::Documents;
use crate::render::{self, render};
use crate::source::{self, Admission, Source};
use crate::text::{self, Format, Look};
use crate::{get, status, why};

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
    /// What was asked for cannot be read.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The answer cannot be written.
    #[error(transparent)]
    Text(#[from] text::Error),
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
    let data = text::documents(&rendered.documents, args.output)?;
    Ok(Answer {
        data,
        talk: rendered.diagnostics,
        failed: rendered.failed,
    })
}

async fn run_get(args: &GetArgs, client: &ClientArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, args.all_namespaces);
    let found = source.deployments(namespace.as_deref(), args.name.as_deref()).await?;
    let format = match args.output {
        Some(ListFormat::Yaml) => Some(Format::Yaml),
        Some(ListFormat::Json) => Some(Format::Json),
        Some(ListFormat::Wide) | None => None,
    };
    let data = match format {
        Some(format) if args.name.is_some() => text::documents(&found, format)?,
        Some(format) => text::list(&found, format)?,
        None if found.is_empty() => String::new(),
        None => {
            let wide = args.output == Some(ListFormat::Wide);
            get::table(
                &found,
                args.place.now(),
                get::Options {
                    wide,
                    namespaces: namespace.is_none(),
                },
            )
        }
    };
    if found.is_empty() {
        let place = match namespace {
            Some(namespace) => format!("namespace '{namespace}' (see all with -A)"),
            None => "any namespace".to_owned(),
        };
        let text = format!("no ModelDeployments in {place}");
        source.said.push(Diagnostic {
            level: Level::Note,
            subject: None,
            text,
        });
    }
    Ok(answer(data, source.said))
}

async fn run_status(args: &OneArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::Past).await?;
    let namespace = source.namespace(&args.place, false);
    let found = source.deployments(namespace.as_deref(), Some(&args.name)).await?;
    if let Some(format) = args.output {
        return Ok(answer(text::documents(&found, format)?, source.said));
    }
    let mut screens = Vec::new();
    for md in found {
        let view = source.view(md, args.place.now()).await;
        screens.push(status::screen(&view, args.place.now(), look));
    }
    Ok(answer(screens.join("\n"), source.said))
}

async fn run_why(args: &WhyArgs, client: &ClientArgs, stdin: &mut dyn Read, look: Look) -> Result<Answer, Error> {
    let mut source = Source::open(&args.place, client, stdin, Admission::First).await?;
    let namespace = source.namespace(&args.place, false);
    let found = source.deployments(namespace.as_deref(), args.name.as_deref()).await?;
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

fn answer(data: String, talk: Vec<Diagnostic>) -> Answer {
    Answer {
        data,
        failed: talk.iter().any(|d| d.level == Level::Error),
        talk,
    }
}
