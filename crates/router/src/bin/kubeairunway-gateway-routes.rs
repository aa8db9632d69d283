//! `kubeairunway-gateway-routes`: the routes controller as a process.

use std::convert::Infallible;
use std::process::ExitCode;

use clap::Parser;
use runway_api::labels;
use runway_operator::process::{self, ControllerArgs};
use runway_router::routes::{self, Args};

/// Create HTTPRoutes for ModelDeployments at a Gateway of the cluster
#[derive(Debug, Parser)]
#[command(name = "kubeairunway-gateway-routes", version)]
struct Command {
    #[command(flatten)]
    process: ControllerArgs,
    #[command(flatten)]
    args: Args,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let Command { process, args } = Command::parse();
    process::controller(labels::GATEWAY_MANAGER, "gateway-routes", &process, async |process| {
        routes::run(process, args.into()).await;
        Ok::<(), Infallible>(())
    })
    .await
}
