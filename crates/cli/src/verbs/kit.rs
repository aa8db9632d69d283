//! `llama-stack provider new`, `build` and `check`: for authors of providers, without a cluster.

use std::path::PathBuf;

use clap::Args;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::provider_kit::{self, Build, Check};

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

/// Arguments of `llama-stack provider build`.
#[derive(Debug, Args)]
pub struct BuildArgs {
    /// Sources of the provider: pyproject.toml and lls-provider-spec.yaml
    #[arg(value_name = "DIR")]
    pub sources: PathBuf,
    /// OCI archive of an image with Python and pip, in the version of the distribution
    #[arg(long, value_name = "FILE")]
    pub base: PathBuf,
    /// Name of the image, such as registry.example.com/my-vllm:v1
    #[arg(long, value_name = "IMAGE")]
    pub tag: String,
    /// File for the OCI archive; DIR.tar in the current directory if omitted
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Python with pip, of the version that the base has
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub python: PathBuf,
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

/// `llama-stack provider build`.
///
/// # Errors
/// pip fails, the metadata does not fit the wheels, or a file cannot be read or written.
pub fn build(args: &BuildArgs) -> Result<Answer, Error> {
    let work = temporary()?;
    let name = args.sources.file_name().unwrap_or_else(|| "provider".as_ref());
    let default = || PathBuf::from(format!("{}.tar", name.to_string_lossy()));
    let archive = args.output.clone().unwrap_or_else(default);
    let built = provider_kit::build(&Build {
        sources: args.sources.clone(),
        python: args.python.clone(),
        base: args.base.clone(),
        image: args.tag.clone(),
        archive: archive.clone(),
        work: work.path().to_owned(),
    })?;
    let lines: Vec<String> = built.wheels.iter().map(|wheel| format!("  {wheel}\n")).collect();
    Ok(Answer {
        data: format!(
            "{}: {}@{}\n{}",
            archive.display(),
            args.tag,
            built.digest,
            lines.concat()
        ),
        ..Answer::default()
    })
}

fn temporary() -> Result<tempfile::TempDir, Error> {
    tempfile::tempdir().map_err(|source| Error::Write {
        file: std::env::temp_dir(),
        source,
    })
}

/// `llama-stack provider check`.
///
/// # Errors
/// A directory or program cannot be used.
pub fn check(args: &KitCheckArgs) -> Result<Answer, Error> {
    let volumes = temporary()?;
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
