//! `dynamo-provider`: the Dynamo provider as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_operator::client::ClientArgs;
use runway_operator::shutdown;
use runway_operator::telemetry::{self, LogArgs};
use runway_provider_dynamo::{Dynamo, DynamoConfig};

/// Serves ModelDeployments with Dynamo.
#[derive(Debug, Parser)]
#[command(name = "dynamo-provider", version)]
struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    dynamo: DynamoConfig,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init(&args.log);
    telemetry::exit(async {
        let client = args.client.client().await?;
        runway_provider::run(Dynamo::new(args.dynamo), client, shutdown::on_signal()).await;
        Ok::<_, runway_operator::client::Error>(())
    })
    .await
}
