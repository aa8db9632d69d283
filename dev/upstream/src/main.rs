//! `upstream`: tests a provider against a cluster in which its upstream operator runs. The controllers run on this machine, and
//! nothing is simulated: what cannot be tested there, such as a model without GPUs, is skipped with the reason.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

mod report;
mod suite;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use kube::Client;
use kube::config::Kubeconfig;
use runway_api::{ModelDeployment, labels};
use runway_dev_cluster::{self as cluster, Programs};
use runway_dev_support::step;
use runway_manifests::{self as manifests, Identity};
use runway_operator::client::ClientArgs;
use runway_operator::scope::Namespaces;

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Test a provider against a cluster in which its upstream operator runs.
    Upstream(Args),
}

/// Options of `upstream`.
#[derive(clap::Args)]
struct Args {
    /// Cluster in which the upstream operator runs.
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Provider to test.
    #[arg(long, value_name = "NAME")]
    provider: String,
    /// ModelDeployment to serve, if the built-in one cannot run in the cluster. Its name and namespace are replaced.
    #[arg(long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Test the controllers that are installed in the cluster, instead of starting them on this machine.
    #[arg(long)]
    installed: bool,
    /// Test an installation for the namespace of the models: the controllers watch no other one, and impersonate users who have only
    /// the Roles of such an installation.
    #[arg(long, conflicts_with = "installed")]
    namespaced: bool,
    /// Do not send requests to models, for clusters in which no pods run.
    #[arg(long, conflicts_with = "installed")]
    no_answers: bool,
    /// Address of this machine at which the API server reaches the core's webhooks. Without it there are none.
    #[arg(long, value_name = "IP:PORT", conflicts_with = "installed")]
    webhook_address: Option<SocketAddr>,
    /// Namespace of the models. It is created, and deleted at the end.
    #[arg(long, value_name = "NAME", default_value = "kubeairunway-upstream")]
    namespace: String,
    /// File for the report, in Markdown. It is printed in any case.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Time to wait for each step.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    patience: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    runway_operator::client::install_crypto();
    let Command::Upstream(args) = Command::parse();
    runway_dev_support::ended(Box::pin(run(args)).await)
}

async fn run(args: Args) -> Result<()> {
    let known = manifests::built_in_providers();
    let Some(provider) = known.iter().find(|provider| provider.name() == args.provider) else {
        bail!(
            "provider '{}' does not exist: set --provider to one of {}",
            args.provider,
            cluster::providers().join(", ")
        );
    };
    let model = args.model.as_ref().map(read).transpose()?;
    let source = ClientArgs {
        kubeconfig: Some(args.kubeconfig.clone()),
        context: None,
    };
    let suite = suite::Suite {
        client: source.client().await?,
        provider: provider.clone(),
        namespace: args.namespace.clone(),
        model,
        patience: Duration::from_secs(args.patience),
    };
    suite.make_namespace().await?;
    let identities = tempfile::tempdir().context("cannot create a folder for kubeconfigs")?;
    let controllers = if args.installed {
        Vec::new()
    } else {
        start_controllers(&args, &suite.client, identities.path()).await?
    };
    let report = suite.run().await;
    for mut controller in controllers {
        controller.kill().await?;
    }
    let report = report?;
    let text = report.to_string();
    println!("{text}");
    if let Some(file) = &args.report {
        fs::write(file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let failed = report.failed();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

fn read(file: &PathBuf) -> Result<ModelDeployment> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_saphyr::from_str(&text).with_context(|| format!("{} is not a ModelDeployment", file.display()))
}

/// The core and the provider's controller on this machine.
async fn start_controllers(args: &Args, client: &Client, identities: &Path) -> Result<Vec<tokio::process::Child>> {
    step("building the programs");
    let programs = Programs::build(false).await?;
    step("installing CRDs and roles");
    let webhook_url = args.webhook_address.map(cluster::webhook_url);
    let namespaces: Namespaces = if args.namespaced {
        args.namespace.parse()?
    } else {
        Namespaces::default()
    };
    cluster::install_within(client, webhook_url.as_deref(), Identity::User, &namespaces).await?;
    step("starting the controllers on this machine");
    let verify = format!("--verify-endpoints={}", !args.no_answers);
    // Without webhooks in the cluster, no request reaches those of the core.
    let core = match args.webhook_address {
        Some(address) => cluster::webhook_flags(address).into(),
        None => vec!["--webhook-address=127.0.0.1:0".to_owned()],
    };
    let core: Vec<&str> = core.iter().map(String::as_str).collect();
    let provider = [verify.as_str()];
    let limit = namespaces.argument();
    let limit = limit.as_deref();
    let start = |name: &str, options: &[&str]| {
        let kubeconfig = if args.namespaced {
            impersonating(&args.kubeconfig, name, identities)?
        } else {
            args.kubeconfig.clone()
        };
        let options = [&cluster::ALONE, options, limit.as_slice()].concat();
        cluster::child(&programs, name, &kubeconfig, &options)
    };
    Ok(vec![
        start(labels::CORE_MANAGER, &core)?,
        start(&labels::provider_manager(&args.provider), &provider)?,
    ])
}

/// Writes a kubeconfig whose requests are those of a user, with the credentials of another kubeconfig.
fn impersonating(kubeconfig: &Path, user: &str, folder: &Path) -> Result<PathBuf> {
    let mut config = Kubeconfig::read_from(kubeconfig)?;
    for named in &mut config.auth_infos {
        named.auth_info.get_or_insert_default().impersonate = Some(user.to_owned());
    }
    let file = folder.join(user);
    let text = serde_saphyr::to_string(&config)?;
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

#[test]
fn arguments_are_consistent_and_those_in_the_documentation_are_accepted() -> Result<()> {
    runway_dev_support::snippets::check(<Command as clap::CommandFactory>::command())
}
