//! `asya-gateway`: the front door of Asya as a process.

use std::process::ExitCode;

use clap::Parser;
use runway_asya_gateway::{Args, run};
use runway_operator::process::{self, ProcessArgs};

/// Accepts jobs for AsyncActors over HTTP, and keeps their results.
#[derive(Debug, Parser)]
#[command(name = "asya-gateway", version)]
struct Command {
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    args: Args,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let Command { process, args } = Command::parse();
    process::server("asya-gateway", "asya-gateway", &process, async |process| {
        run(process, args).await
    })
    .await
}
