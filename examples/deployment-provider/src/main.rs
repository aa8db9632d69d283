//! `deployment-provider`: the provider as a process.

use std::process::ExitCode;

use clap::Parser;
use deployment_provider::DeploymentProvider;
use runway_provider::ProviderArgs;

/// Serves ModelDeployments as plain Deployments.
#[derive(Debug, Parser)]
#[command(name = "deployment-provider", version)]
struct Args {
    #[command(flatten)]
    provider: ProviderArgs,
}

// As many threads as a controller needs, not as many as the node has cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    runway_provider::main(DeploymentProvider, &args.provider).await
}
