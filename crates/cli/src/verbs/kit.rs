//! `llama-stack provider new` and `check`: for authors of providers, without a cluster.

use std::path::PathBuf;

use clap::Args;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::provider_kit::{self, Check};

use crate::answer::{Answer, Error};

/// Arguments of `llama-stack provider new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// Name of the provider, such as my-vllm
    pub name: String,
    /// Directory for the files; the name in the current directory if omitted
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Arguments of `llama-stack provider check`.
#[derive(Debug, Args)]
pub struct KitCheckArgs {
    /// Contents of /lls-provider of a provider image; repeatable
    #[arg(value_name = "DIR", required = true)]
    pub providers: Vec<PathBuf>,
    /// Python with pip, of the version that the provider images have
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
    /// Python of an environment with llama-stack, as in the distribution; without it, providers are not loaded
    #[arg(long, value_name = "PROGRAM")]
    pub distribution_python: Option<PathBuf>,
    /// Configuration of the distribution; an empty one if omitted
    #[arg(long, value_name = "FILE")]
    pub base_config: Option<PathBuf>,
}

/// `llama-stack provider new`.
///
/// # Errors
/// The name is invalid, or a file exists or cannot be written.
pub fn new(args: &NewArgs) -> Result<Answer, Error> {
    let files = provider_kit::skeleton(&args.name)?;
    let folder = args.dir.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    provider_kit::write_new(&folder, &files)?;
    let paths: Vec<String> = files
        .iter()
        .map(|(name, _)| format!("{}\n", folder.join(name).display()))
        .collect();
    Ok(Answer {
        data: paths.concat(),
        ..Answer::default()
    })
}

/// `llama-stack provider check`.
///
/// # Errors
/// A directory or program cannot be used.
pub fn check(args: &KitCheckArgs) -> Result<Answer, Error> {
    let volumes = tempfile::tempdir().map_err(|source| Error::Write {
        file: std::env::temp_dir(),
        source,
    })?;
    let checked = provider_kit::check(&Check {
        providers: args.providers.clone(),
        python: args.python.clone(),
        distribution: args.distribution_python.clone(),
        base_config: args.base_config.clone(),
        volumes: volumes.path().to_owned(),
    })?;
    let failed = checked.failure.is_some();
    let mut lines = checked.lines;
    lines.extend(checked.failure.map(|message| format!("\n{message}")));
    let talk = failed.then(|| Diagnostic {
        level: Level::Error,
        subject: None,
        text: "the providers would not start: see the message above".to_owned(),
    });
    Ok(Answer {
        data: lines.join("\n") + "\n",
        talk: talk.into_iter().collect(),
        failed,
        code: None,
    })
}
