//! `usage`: tokens and requests by day, model and tenant, as the model router counted them.

use clap::Args;
use jiff::Timestamp;
use jiff::civil::Date;
use runway_api::daily_usage::{CONFIG_MAP, day};
use runway_api::{Namespace, labels};
use runway_client::cluster::Cluster;
use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::token_usage::{By, Query, csv, first_day, report, table};
use runway_client::{daily_usage, text};
use runway_operator::clock;

use super::Error;
use super::selection::Models;
use crate::answer::{self, Answer};

/// Days that are shown by default.
const DAYS: i64 = 30;

/// Arguments of `usage`.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// The models.
    #[command(flatten)]
    pub models: Models,
    /// Show a row for each value of these properties, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', default_value = "model,tenant")]
    pub by: Vec<By>,
    /// First day (UTC), such as 2026-11-01; 29 days before the last one if omitted
    #[arg(long, value_name = "DATE")]
    pub since: Option<Date>,
    /// Last day (UTC); today if omitted
    #[arg(long, value_name = "DATE")]
    pub until: Option<Date>,
    /// Namespace of the model router
    #[arg(long, value_name = "NAMESPACE", default_value = labels::SYSTEM_NAMESPACE)]
    pub router_namespace: Namespace,
    /// Output format; a table if omitted
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Format of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Comma-separated values with a header, for spreadsheets
    Csv,
    /// JSON, as one List
    Json,
    /// YAML, documents separated by ---
    Yaml,
}

/// Reads the use.
///
/// # Errors
/// The router is not installed, or the user may not get its ConfigMap.
pub async fn usage(args: &UsageArgs, cluster: &Cluster) -> Result<Answer, answer::Error> {
    let query = query(args, cluster, clock::now())?;
    let days = daily_usage::days(cluster, &args.router_namespace).await;
    let report = report(&days.map_err(Error::from)?, &query);
    let mut said = Vec::new();
    if report.skipped > 0 {
        let text = format!(
            "{} lines cannot be read and are not counted: the router did not write them",
            report.skipped
        );
        said.push(Diagnostic::about(
            Level::Warning,
            format!("ConfigMap/{CONFIG_MAP}"),
            text,
        ));
    }
    if report.rows.is_empty() {
        let of = match &query.namespace {
            Some(namespace) => format!("models in namespace '{namespace}'"),
            None => "any model".to_owned(),
        };
        let text = format!("no use of {of} from {} to {}", query.since, query.until);
        said.push(Diagnostic {
            level: Level::Note,
            subject: None,
            text,
        });
    }
    let data = match args.output {
        Some(Format::Csv) => csv(&report.rows, &query),
        Some(Format::Json) => text::list(&report.rows, text::Format::Json)?,
        Some(Format::Yaml) => text::list(&report.rows, text::Format::Yaml)?,
        None if report.rows.is_empty() => String::new(),
        None => table(&report.rows, &query),
    };
    Ok(Answer::new(data, said))
}

fn query(args: &UsageArgs, cluster: &Cluster, now: Timestamp) -> Result<Query, Error> {
    let until = args.until.unwrap_or_else(|| day(now));
    let since = args.since.unwrap_or_else(|| first_day(until, DAYS));
    if since > until {
        return Err(Error::Usage(format!(
            "invalid --since {since}: it is after the last day, {until}"
        )));
    }
    Ok(Query {
        by: args.by.iter().copied().collect(),
        since,
        until,
        namespace: args.models.namespace(cluster).cloned(),
        model: args.models.name.clone(),
    })
}
