//! The command line.

use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;
use runway_operator::client::ClientArgs;

use crate::render::Show;
use crate::text::Format;

/// Serve AI models on Kubernetes: what runs, why it runs there, and what the controllers would make of a manifest.
#[derive(Debug, Parser)]
#[command(name = "kubeairunway", version, disable_help_subcommand = true)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Which cluster to talk to.
    #[command(flatten)]
    pub client: ClientArgs,
    /// No colours; they are used on a terminal only
    #[arg(long, global = true, env = "NO_COLOR", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub no_color: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the controllers would make of manifests, without a cluster
    ///
    /// ModelDeployments are rendered; every other document is taken as what the cluster holds: InferenceProviderConfigs,
    /// CustomResourceDefinitions, upstream objects, Pods. Without InferenceProviderConfigs the built-in providers are
    /// registered and ready; without CustomResourceDefinitions their newest upstreams are installed.
    Render(RenderArgs),
    /// List ModelDeployments
    Get(GetArgs),
    /// Show one ModelDeployment: where it stands, what it waits for, how to reach it
    Status(OneArgs),
    /// Explain which provider serves a ModelDeployment, and why not the others
    Why(WhyArgs),
}

/// Arguments of `render`.
#[derive(Debug, Args)]
pub struct RenderArgs {
    /// A file, a folder, or - for standard input; may be given more than once
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// What to show
    #[arg(long, value_enum, default_value_t)]
    pub show: Show,
    /// How to write it
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Format,
    /// The time, as 2026-11-21T10:00:00Z; the wall clock if omitted
    #[arg(long, value_name = "RFC3339")]
    pub now: Option<Timestamp>,
}

/// Arguments of `get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Only this one
    pub name: Option<String>,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// In all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "name"])]
    pub all_namespaces: bool,
    /// How to write it
    #[arg(short, long, value_enum)]
    pub output: Option<ListFormat>,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct OneArgs {
    /// The ModelDeployment
    pub name: String,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// Write the ModelDeployment itself
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Arguments of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// The ModelDeployment; may be omitted with -f
    #[arg(required_unless_present = "files")]
    pub name: Option<String>,
    /// Where to look.
    #[command(flatten)]
    pub place: Place,
    /// How to write it
    #[arg(short, long, value_enum)]
    pub output: Option<Format>,
}

/// Where to look: a namespace of the cluster, or files that say what a cluster holds.
#[derive(Debug, Default, Args)]
pub struct Place {
    /// The namespace; the one of the kubeconfig's context if omitted
    #[arg(short, long)]
    pub namespace: Option<String>,
    /// Read a file, a folder, or - for standard input instead of a cluster; may be given more than once
    #[arg(short, long = "file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The time, as 2026-11-21T10:00:00Z; the wall clock if omitted
    #[arg(long, value_name = "RFC3339", hide_short_help = true)]
    pub now: Option<Timestamp>,
}

/// How a list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ListFormat {
    /// The whole objects as YAML
    Yaml,
    /// The whole objects as JSON
    Json,
    /// A table with reason and message
    Wide,
}
