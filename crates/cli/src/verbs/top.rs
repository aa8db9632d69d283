//! `top`: the use of models, as their engines report it.

use std::time::Duration;

use clap::Args;
use jiff::SignedDuration;
use runway_client::cluster::Cluster;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::target::Kind;
use runway_client::text::{self, Format};
use runway_client::{top, usage};

use super::selection::Models;
use super::{Error, look};
use crate::answer::{self, Answer};

/// Longest time between the two readings.
const LONGEST_INTERVAL: Duration = Duration::from_mins(10);

/// Arguments of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// The models.
    #[command(flatten)]
    pub models: Models,
    /// Show a row for each pod
    #[arg(long)]
    pub pods: bool,
    /// Time between the two readings, for the tokens per second; at most 10m
    #[arg(long, default_value = "2s", value_name = "TIME")]
    pub interval: SignedDuration,
    /// Output format; a table if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Reads the engines of the ModelDeployments.
///
/// # Errors
/// The interval is out of range, or the ModelDeployments cannot be read.
pub async fn top(args: &TopArgs, cluster: &Cluster) -> Result<Answer, answer::Error> {
    let interval = Duration::try_from(args.interval).unwrap_or_default();
    if interval.is_zero() || interval > LONGEST_INTERVAL {
        let text = format!("invalid --interval {:#}: use a time from 1ms to 10m", args.interval);
        return Err(Error::Usage(text).into());
    }
    let namespace = args.models.namespace(cluster);
    let deployments = match (&args.models.name, namespace) {
        (Some(name), Some(namespace)) => vec![cluster.deployment(namespace, name).await.map_err(Error::from)?],
        _ => cluster.deployments(namespace).await.map_err(Error::from)?,
    };
    let all = usage::of(cluster, &deployments, interval).await;
    let problems = all.iter().flat_map(|top| {
        let subject = format!("{}/{}", Kind::ModelDeployment.as_str(), top.name);
        let about = move |text: &String| Diagnostic::about(Level::Warning, subject.clone(), text.clone());
        top.problems.iter().map(about)
    });
    let mut said: Vec<Diagnostic> = problems.collect();
    if all.is_empty() {
        said.push(look::none(Kind::ModelDeployment, namespace));
    }
    let options = top::Options {
        pods: args.pods,
        namespaces: args.models.all_namespaces,
    };
    let data = match args.output {
        Some(format) => text::list(&all, format)?,
        None if all.is_empty() => String::new(),
        None => top::table(&all, options),
    };
    Ok(Answer::new(data, said))
}
