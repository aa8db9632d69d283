//! `kubeairunway-controller`: the core controller as a process.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use runway_api::labels;
use runway_core::Registry;
use runway_core::serve::{self, WebhookArgs};
use runway_operator::process::{self, Process, ProcessArgs};

/// Validates ModelDeployments, fills in defaults and chooses their provider.
#[derive(Debug, Parser)]
#[command(name = "kubeairunway-controller", version)]
struct Args {
    #[command(flatten)]
    process: ProcessArgs,
    /// Choose a provider for ModelDeployments that name none. Off: a selector of your own writes status.provider.name.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_provider_selector: bool,
    #[command(flatten)]
    webhook: WebhookArgs,
}

// As many threads as a controller needs, not as many as the node has cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    process::main(labels::CORE_MANAGER, "core", &args.process, async |process| {
        run(process, &args).await
    })
    .await
}

async fn run(process: Process, args: &Args) -> Result<(), serve::Error> {
    let registry = Arc::new(Registry::default());
    let admission = serve::admission(&process, &args.webhook, registry.clone()).await?;
    runway_core::run(process, registry, args.enable_provider_selector).await;
    // Requests under way are answered; how that task ended matters to nobody any more.
    let _ = admission.await;
    Ok(())
}
