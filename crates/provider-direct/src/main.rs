//! `direct-provider`: the direct provider as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_provider::ProviderArgs;
use runway_provider_direct::Direct;

/// Serves ModelDeployments as plain Deployments and Services.
#[derive(Debug, Parser)]
#[command(name = "direct-provider", version)]
struct Args {
    #[command(flatten)]
    provider: ProviderArgs,
}

// As many threads as a controller needs, not as many as the node has cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    runway_provider::main(Direct, &args.provider).await
}
