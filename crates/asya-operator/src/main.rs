//! `asya-operator`: the AsyncActor operator as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_api::labels;
use runway_asya_operator::{Args, run};
use runway_operator::process::{self, ControllerArgs};

/// Runs the AsyncActor operator, which creates or binds workloads and manages their queues and scaling.
#[derive(Debug, Parser)]
#[command(name = "asya-operator", version)]
struct Command {
    #[command(flatten)]
    process: ControllerArgs,
    #[command(flatten)]
    args: Args,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let Command { process, args } = Command::parse();
    process::controller(labels::ASYA_MANAGER, "asya", &process, async |process| {
        run(process, args).await
    })
    .await
}
