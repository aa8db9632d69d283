//! `up` and `down`: a control plane and a node, everything of ours on it, and a model that answers.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

mod demo;
mod up;

use std::process::ExitCode;

use clap::Parser;

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Start a control plane with all controllers, and deploy models on it.
    Up(up::Args),
    /// Stop the control plane that `up` started.
    Down,
}

#[tokio::main]
async fn main() -> ExitCode {
    runway_operator::client::install_crypto();
    runway_dev_support::ended(match Command::parse() {
        Command::Up(args) => up::run(args).await,
        Command::Down => up::down().await,
    })
}

#[test]
fn arguments_are_consistent_and_those_in_the_documentation_are_accepted() -> anyhow::Result<()> {
    runway_dev_support::snippets::check(<Command as clap::CommandFactory>::command())
}
