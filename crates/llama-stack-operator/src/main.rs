//! `llama-stack-operator`: the controller, and `merge-config`, which the same image runs inside pods.

use std::convert::Infallible;
use std::process::ExitCode;

use clap::Parser;
use runway_api::labels::llama_stack as labels;
use runway_llama_stack_operator::RunArgs;
use runway_llama_stack_operator::merge_config::{self, MergeArgs};
use runway_operator::process::{self, ControllerArgs};

/// Runs Llama Stack servers with providers that are installed at deploy time.
#[derive(Debug, Parser)]
#[command(name = "llama-stack-operator", version)]
enum Args {
    /// Run the controller.
    Run(Box<Run>),
    /// Merge the configuration of external providers into run.yaml. Runs as an init container.
    MergeConfig(MergeArgs),
}

/// The controller's arguments.
#[derive(Debug, clap::Args)]
struct Run {
    #[command(flatten)]
    process: ControllerArgs,
    #[command(flatten)]
    run: RunArgs,
}

fn main() -> ExitCode {
    match Args::parse() {
        Args::Run(args) => run(&args),
        Args::MergeConfig(args) => merge_config::run(&args),
    }
}

// As many threads as a controller needs, not as many as the node has cores.
#[tokio::main(worker_threads = 2)]
async fn run(args: &Run) -> ExitCode {
    process::controller(labels::MANAGER, "llama-stack", &args.process, async |process| {
        let settings = args.run.settings(&process.client).await;
        runway_llama_stack_operator::run(process, settings).await;
        Ok::<_, Infallible>(())
    })
    .await
}
