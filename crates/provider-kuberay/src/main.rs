//! `kuberay-provider`: the KubeRay provider as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_operator::client::ClientArgs;
use runway_operator::shutdown;
use runway_operator::telemetry::{self, LogArgs};
use runway_provider_kuberay::KubeRay;

/// Serves ModelDeployments with KubeRay.
#[derive(Debug, Parser)]
#[command(name = "kuberay-provider", version)]
struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init(&args.log);
    telemetry::exit(async {
        let client = args.client.client().await?;
        runway_provider::run(KubeRay, client, shutdown::on_signal()).await;
        Ok::<_, runway_operator::client::Error>(())
    })
    .await
}
