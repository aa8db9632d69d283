//! `gateway-on-loopback`: the model router, which finds the engine of every Service on this machine, at the port of the Service.
//! For tests and benchmarks that have no DNS of a cluster.

use std::process::ExitCode;

use clap::Parser;
use runway_api::labels;
use runway_operator::process::{self, ProcessArgs};
use runway_router::engine::loopback;
use runway_router::{Args, run_with};

#[derive(Debug, Parser)]
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
        run_with(process, args, loopback()).await
    })
    .await
}
