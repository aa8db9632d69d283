//! `kaito-provider`: process of the KAITO provider.

use std::process::ExitCode;

use clap::Parser;
use runway_provider::ProviderArgs;
use runway_provider_kaito::Kaito;

/// Serve ModelDeployments with KAITO
#[derive(Debug, Parser)]
#[command(name = "kaito-provider", version)]
struct Args {
    #[command(flatten)]
    provider: ProviderArgs,
}

// The number of threads that a controller needs, independent of the node's cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    runway_provider::main(Kaito::default(), &args.provider).await
}
