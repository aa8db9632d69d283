//! `kaito-provider`: the KAITO provider as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_provider::ProviderArgs;
use runway_provider_kaito::{Kaito, KaitoConfig};

/// Serves ModelDeployments with KAITO.
#[derive(Debug, Parser)]
#[command(name = "kaito-provider", version)]
struct Args {
    #[command(flatten)]
    provider: ProviderArgs,
    #[command(flatten)]
    kaito: KaitoConfig,
}

// As many threads as a controller needs, not as many as the node has cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    runway_provider::main(Kaito::new(args.kaito), &args.provider).await
}
