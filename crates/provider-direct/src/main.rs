//! `direct-provider`: process of the direct provider.

use std::process::ExitCode;

use clap::Parser;
use runway_provider::ProviderArgs;
use runway_provider_direct::Direct;

/// Serve ModelDeployments as Deployments and Services
#[derive(Debug, Parser)]
#[command(name = "direct-provider", version)]
struct Args {
    #[command(flatten)]
    provider: ProviderArgs,
}

// The number of threads that a controller needs, independent of the node's cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    runway_provider::main(Direct::default(), &args.provider).await
}
