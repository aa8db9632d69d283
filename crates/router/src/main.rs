//! `kubeairunway-gateway`: the model router as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_api::labels;
use runway_operator::process::{self, ProcessArgs};
use runway_router::{Args, run};

/// Serves all models of the cluster at one OpenAI-compatible address.
#[derive(Debug, Parser)]
#[command(name = "kubeairunway-gateway", version)]
struct Command {
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    args: Args,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let Command { process, args } = Command::parse();
    process::server(labels::ROUTER_MANAGER, "gateway", &process, async |process| {
        run(process, args).await
    })
    .await
}
