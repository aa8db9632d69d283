//! `render` and `validate`: they read manifests only.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use jiff::Timestamp;
use runway_asya_operator::ActorArgs;
use runway_client::documents::Documents;
use runway_client::render::{Show, render_with};
use runway_client::text::{self, Format};
use runway_operator::clock;

use crate::answer::{Answer, Error};

/// Arguments of `render`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// File, directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Parts of the plan to show
    #[arg(long, value_enum, default_value_t)]
    pub show: Show,
    /// Render objects for a cluster without the controllers: without owners, labels and annotations for them
    #[arg(long, conflicts_with = "show")]
    pub standalone: bool,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// Time to use as now, such as 2026-11-21T10:00:00Z; the current time if omitted
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<Timestamp>,
    /// Options for AsyncActors.
    #[command(flatten)]
    pub actors: ActorArgs,
}

/// Arguments of `validate`.
#[derive(Debug, Args)]
pub struct ValidateArgs {
    /// File, directory, or - for standard input; repeatable
    #[arg(short, long = "file", value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    /// Output format; text for people if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// `render`.
///
/// # Errors
/// The transports are invalid, or the documents cannot be written.
pub fn render(args: &RenderArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let documents = Documents::read(&args.files, stdin);
    let options = runway_client::render::Options {
        show: args.show,
        now: args.now.unwrap_or_else(clock::now),
    };
    let actors = runway_client::render::Actors {
        transports: Arc::new(args.actors.transports.load()?),
        sidecar_image: args.actors.sidecar_image.clone(),
    };
    let mut rendered = render_with(documents, &options, &actors);
    if args.standalone {
        rendered.standalone();
    }
    let data = text::documents(&rendered.documents, args.output)?;
    Ok(Answer {
        data,
        talk: rendered.diagnostics,
        failed: rendered.failed,
        code: None,
    })
}

/// `validate`.
///
/// # Errors
/// The result cannot be written.
pub fn validate(args: &ValidateArgs, stdin: &mut dyn Read) -> Result<Answer, Error> {
    let validated = runway_client::validate::validate(Documents::read(&args.files, stdin), clock::now());
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
