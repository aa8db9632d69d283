//! Entry points for development: build, test, generate, measure, release.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

mod api;
mod argocd;
mod bench;
mod book;
mod changes;
mod chart;
mod circles;
mod cluster;
mod command;
mod demo;
mod files;
mod fuzz;
mod generate;
mod images;
mod installed;
mod krew;
mod kustomize;
mod lane;
mod links;
mod metrics;
mod permissions;
mod python;
mod record;
mod reference;
mod release;
mod rules;
mod sbom;
mod settings;
mod shell;
#[cfg(test)]
mod snippets;
mod status;
mod storm;
mod style;
mod test;
mod tidy;
mod up;
mod upstream;
mod versions;
mod workflows;
mod yaml;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a control plane with all controllers, and deploy models on it.
    Up(up::Args),
    /// Stop the control plane that `up` started.
    Down,
    /// Test a provider against a cluster in which its upstream operator runs.
    Upstream(upstream::Args),
    /// Run every check and test, as CI does.
    Test(test::Args),
    /// Regenerate files, or check that they are current.
    Gen(generate::Args),
    /// Build an OCI archive for each program, without a container engine.
    Images(images::Args),
    /// Build the documentation site into target/book.
    Book,
    /// Write the files of a release.
    Release(release::Args),
    /// Measure time, requests, memory and CPU.
    Bench(bench::Args),
    /// Run libFuzzer on each fuzz target.
    Fuzz(fuzz::Args),
    /// Explore the states of a ModelDeployment under crashes and stale caches.
    Storm(storm::Args),
    /// Check repository rules: dependencies, licenses, pure plans, links, style.
    Tidy,
    /// Lint python/asya-runtime and test it with each installed Python version.
    Python,
}

#[tokio::main]
async fn main() -> ExitCode {
    runway_operator::client::install_crypto();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<()> {
    match Args::parse().command {
        Command::Up(args) => up::run(args).await,
        Command::Down => up::down().await,
        Command::Upstream(args) => Box::pin(upstream::run(args)).await,
        Command::Test(args) => test::run(&args),
        Command::Gen(args) => generate::run(&args),
        Command::Images(args) => images::run(&args),
        Command::Book => book::run(),
        Command::Release(args) => release::run(&args),
        Command::Bench(args) => Box::pin(bench::run(args)).await,
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Storm(args) => storm::run(&args).await,
        Command::Tidy => tidy::run(),
        Command::Python => python::run(),
    }
}

/// clap checks the arguments of a subcommand only when it is called.
#[test]
fn arguments_of_all_subcommands_are_consistent() {
    <Args as clap::CommandFactory>::command().debug_assert();
}
