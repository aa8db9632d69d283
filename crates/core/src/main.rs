//! `kubeairunway-controller`: process of the core controller.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use runway_api::labels;
use runway_core::Registry;
use runway_core::serve::{self, WebhookArgs};
use runway_core::task::Task;
use runway_operator::process::{self, ControllerArgs, Process};

/// Validate ModelDeployments, set defaults and select their provider
#[derive(Debug, Parser)]
#[command(name = "kubeairunway-controller", version)]
struct Args {
    #[command(flatten)]
    process: ControllerArgs,
    /// Select a provider for ModelDeployments that name none. With false, your own selector must write status.provider.name
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    enable_provider_selector: bool,
    #[command(flatten)]
    webhook: WebhookArgs,
    /// Act once instead of running the controller
    #[command(subcommand)]
    task: Option<Task>,
}

// The number of threads that a controller needs, independent of the node's cores.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(task) = &args.task {
        return process::task(&args.process, async |client, namespaces| {
            task.run(&client, &namespaces).await
        })
        .await;
    }
    process::controller(labels::CORE_MANAGER, "core", &args.process, async |process| {
        run(process, &args).await
    })
    .await
}

async fn run(process: Process, args: &Args) -> Result<(), serve::Error> {
    let registry = Arc::new(Registry::default());
    let admission = serve::admission(&process, &args.webhook, registry.clone()).await?;
    runway_core::run(process, registry, args.enable_provider_selector).await;
    // Requests in progress get their responses; the result of that task does not matter anymore.
    let _ = admission.await;
    Ok(())
}
