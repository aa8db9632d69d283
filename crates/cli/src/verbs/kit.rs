//! `llama-stack provider new`, `build`, `check` and `try`: for authors of providers, without a cluster.

use std::path::{Path, PathBuf};

use clap::Args;
use jiff::SignedDuration;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::text::visible;
use runway_llama_stack_kit::{self as provider_kit, Build, Check, Checked, Distribution, Serve};

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

/// Providers, as `check` and `try` take them.
#[derive(Debug, Args)]
pub struct ProvidersArgs {
    /// OCI archive of a provider image, or a directory with the contents of its /lls-provider; repeatable
    #[arg(value_name = "IMAGE", required = true)]
    pub providers: Vec<PathBuf>,
    /// File with the config of a provider, as in my-vllm=config.yaml; repeatable
    #[arg(long = "config", value_name = "ID=FILE", value_parser = config_file)]
    pub configs: Vec<(String, PathBuf)>,
    /// Python with pip, of the version that the provider images have; --distribution-python, or else python3, if omitted
    #[arg(long, value_name = "PROGRAM")]
    pub python: Option<PathBuf>,
    /// Configuration of the distribution; one without providers if omitted
    #[arg(long, value_name = "FILE")]
    pub base_config: Option<PathBuf>,
}

/// Arguments of `llama-stack provider check`.
#[derive(Debug, Args)]
pub struct KitCheckArgs {
    /// The providers.
    #[command(flatten)]
    pub providers: ProvidersArgs,
    /// Python of an environment with llama-stack, as in the distribution; without it, providers are not loaded
    #[arg(long, value_name = "PROGRAM")]
    pub distribution_python: Option<PathBuf>,
    /// OCI archive of the distribution image, or the list of its packages by pip inspect or pip freeze
    #[arg(long, value_name = "FILE", conflicts_with = "distribution_python")]
    pub distribution: Option<PathBuf>,
}

/// Arguments of `llama-stack provider try`.
#[derive(Debug, Args)]
pub struct TryArgs {
    /// The providers.
    #[command(flatten)]
    pub providers: ProvidersArgs,
    /// Python of an environment with llama-stack, as in the distribution
    #[arg(long, value_name = "PROGRAM")]
    pub distribution_python: PathBuf,
    /// Prompt
    #[arg(long, short, value_name = "TEXT", default_value = "Are you there?")]
    pub message: String,
    /// Model; the first one of the first inference provider if omitted
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    /// Time until the server must be healthy, such as 90s or 20m
    #[arg(long, default_value = "5m", value_name = "TIME")]
    pub timeout: SignedDuration,
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
/// A file or program cannot be used.
pub fn check(args: &KitCheckArgs) -> Result<Answer, Error> {
    let volumes = temporary()?;
    let distribution = match (&args.distribution_python, &args.distribution) {
        (Some(python), _) => Distribution::Python(python.clone()),
        (None, Some(file)) => Distribution::Packages(file.clone()),
        (None, None) => Distribution::Unknown,
    };
    let checked = provider_kit::check(&args.providers.check(distribution, volumes.path()))?;
    Ok(answer(checked))
}

/// `llama-stack provider try`.
///
/// # Errors
/// A file or program cannot be used.
pub async fn serve(args: &TryArgs) -> Result<Answer, Error> {
    let volumes = temporary()?;
    let distribution = Distribution::Python(args.distribution_python.clone());
    let input = Serve {
        check: args.providers.check(distribution, volumes.path()),
        message: args.message.clone(),
        model: args.model.clone(),
        patience: args.timeout.unsigned_abs(),
    };
    Ok(answer(provider_kit::serve(&input).await?))
}

impl ProvidersArgs {
    fn check(&self, distribution: Distribution, volumes: &Path) -> Check {
        let python = match (&self.python, &distribution) {
            (Some(python), _) | (None, Distribution::Python(python)) => python.clone(),
            (None, _) => PathBuf::from("python3"),
        };
        Check {
            providers: self.providers.clone(),
            configs: self.configs.iter().cloned().collect(),
            python,
            distribution,
            base_config: self.base_config.clone(),
            volumes: volumes.to_owned(),
        }
    }
}

fn config_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((id, file)) if !id.is_empty() && !file.is_empty() => Ok((id.to_owned(), file.into())),
        _ => Err("use ID=FILE, such as my-vllm=config.yaml".to_owned()),
    }
}

fn answer(checked: Checked) -> Answer {
    let failed = checked.failure.is_some();
    let mut lines: Vec<String> = checked.lines.iter().map(|line| visible(line)).collect();
    lines.extend(checked.failure.map(|message| format!("\n{message}")));
    let talk = failed.then(|| Diagnostic {
        level: Level::Error,
        subject: None,
        text: "the providers would not start: see the message above".to_owned(),
    });
    Answer {
        data: lines.join("\n") + "\n",
        talk: talk.into_iter().collect(),
        failed,
        code: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_servers_do_not_reach_the_terminal() {
        let line = |text: &str| {
            answer(Checked {
                lines: vec![text.to_owned()],
                failure: None,
            })
            .data
        };
        assert_eq!(line("server 0.7\u{1b}[2J: healthy"), "server 0.7\u{fffd}[2J: healthy\n");
        assert_eq!(line("answer: one\n\ttwo"), "answer: one\n\ttwo\n");
    }
}
