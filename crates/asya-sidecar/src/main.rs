//! `asya-sidecar`: the data plane of Asya as a process.

use std::process::ExitCode;

use runway_asya_sidecar::config::Config;
use runway_asya_sidecar::process;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    process::main(Config::read(std::env::args_os()).unwrap_or_else(|error| error.exit())).await
}
