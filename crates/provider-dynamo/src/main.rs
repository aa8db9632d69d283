//! `dynamo-provider`: the Dynamo provider as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_provider::ProviderArgs;
use runway_provider_dynamo::{Dynamo, DynamoConfig};

/// Serves ModelDeployments with Dynamo.
#[derive(Debug, Parser)]
#[command(name = "dynamo-provider", version)]
struct Args {
    #[command(flatten)]
    provider: ProviderArgs,
    #[command(flatten)]
    dynamo: DynamoConfig,
}

// As many threads as a controller needs, not as many as the node has cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    runway_provider::main(Dynamo::new(args.dynamo), &args.provider).await
}
