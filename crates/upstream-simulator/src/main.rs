//! The upstream simulator as a process of its own, with an identity of its own.
#![expect(clippy::print_stderr, reason = "a program talks to its user on stderr")]

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use clap::Parser;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use runway_upstream_simulator::{self as simulator, Behavior};

/// Upstream simulator: plays the controllers of KAITO, Dynamo and KubeRay on a real API server. No model runs, unless the
/// workloads are made.
#[derive(Parser)]
struct Args {
    /// Kubeconfig of the cluster and the identity.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// From first sight of an object to its Ready, such as 500ms or 10s.
    #[arg(long, default_value = "1s", value_parser = duration)]
    ready_after: Duration,
    /// For objects without the label kubeairunway.ai/simulate: ready, slow, stall, fail, flap, secret-missing, stuck-delete.
    #[arg(long, default_value_t = Behavior::Ready)]
    behavior: Behavior,
    /// Make Services without an address of their own, which many thousands of objects need: see the simulator's Config.
    #[arg(long)]
    headless: bool,
    /// Make the real workloads of KAITO's objects and tell their status from the pods: for clusters with a node.
    #[arg(long)]
    workloads: bool,
    /// Create the Deployments of Dynamo's components and derive their status from the pods: for clusters with a node that has the
    /// images, and with the CRD of DynamoWorkerMetadata.
    #[arg(long)]
    dynamo_workloads: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    // kube leaves the choice of TLS provider to the program. Installed twice is fine: the first stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let server = client.apiserver_version().await.with_context(|| {
        format!(
            "the API server of {} does not answer; is the control plane up?",
            args.kubeconfig.display()
        )
    })?;

    let what_runs = if args.workloads {
        "the pods of KAITO's objects run, as far as their images can"
    } else {
        "no model runs"
    };
    eprintln!(
        "upstream simulator: plays KAITO, Dynamo and KubeRay on Kubernetes {}; {what_runs}",
        server.git_version
    );
    let config = simulator::Config {
        ready_after: args.ready_after,
        behavior: args.behavior,
        headless: args.headless,
        workloads: args.workloads,
        dynamo_workloads: args.dynamo_workloads,
        ..simulator::Config::default()
    };
    simulator::run(client, config).await;
    Ok(())
}

fn duration(text: &str) -> Result<Duration> {
    let duration: jiff::SignedDuration = text.parse().context("write it as 500ms or 10s")?;
    Duration::try_from(duration).context("it cannot be negative")
}
