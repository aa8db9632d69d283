//! `kubeairunway-controller`: the core controller as a process.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use runway_core::Registry;
use runway_core::serve::{self, WebhookArgs};
use runway_operator::client::ClientArgs;
use runway_operator::shutdown;
use runway_operator::telemetry::{self, LogArgs};

/// Validates ModelDeployments, fills in defaults and chooses their provider.
#[derive(Debug, Parser)]
#[command(name = "kubeairunway-controller", version)]
struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    /// Choose a provider for ModelDeployments that name none. Off: a selector of your own writes status.provider.name.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_provider_selector: bool,
    #[command(flatten)]
    webhook: WebhookArgs,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    telemetry::init(&args.log);
    telemetry::exit(run(args)).await
}

async fn run(args: Args) -> Result<(), Error> {
    let client = args.client.client().await?;
    let shutdown = shutdown::on_signal();
    let registry = Arc::new(Registry::default());
    let admission = serve::admission(client.clone(), &args.webhook, registry.clone(), shutdown.clone()).await?;
    runway_core::run(client, registry, args.enable_provider_selector, shutdown).await;
    // Requests under way are answered; how that task ended matters to nobody any more.
    let _ = admission.await;
    Ok(())
}

/// Why the controller cannot start.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Client(#[from] runway_operator::client::Error),
    #[error(transparent)]
    Admission(#[from] serve::Error),
}
