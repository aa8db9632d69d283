//! The only entry points of the project: `up`, `down`, `test`, `gen`, `images`, `bench`, `fuzz`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

mod api;
mod argocd;
mod bench;
mod book;
mod chart;
mod cluster;
mod command;
mod demo;
mod fuzz;
mod generate;
mod images;
mod krew;
mod lane;
mod links;
mod metrics;
mod python;
mod reference;
mod release;
mod sbom;
mod shell;
#[cfg(test)]
mod snippets;
mod status;
mod test;
mod tidy;
mod up;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Everything there is to do with this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a control plane, run everything on it and show three models coming up.
    Up(up::Args),
    /// Stop what `up` left running.
    Down,
    /// Run every check and test. CI calls this and nothing else.
    Test(test::Args),
    /// Write the generated files again, or check that they are current.
    Gen(generate::Args),
    /// Write an OCI archive for each program, without a container engine.
    Images(images::Args),
    /// Build the documentation site into target/book.
    Book,
    /// Write the files of a release.
    Release(release::Args),
    /// Print figures: time, requests, memory and CPU for many ModelDeployments.
    Bench(bench::Args),
    /// Look for inputs that break a promise, with libFuzzer.
    Fuzz(fuzz::Args),
    /// Check the rules of the house: dependency direction, pure plans, licences.
    Tidy,
    /// Lint python/asya-runtime and test it with every supported Python that is installed.
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
        Command::Test(args) => test::run(&args),
        Command::Gen(args) => generate::run(&args),
        Command::Images(args) => images::run(&args),
        Command::Book => book::run(),
        Command::Release(args) => release::run(&args),
        Command::Bench(args) => bench::run(args).await,
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Tidy => tidy::run(),
        Command::Python => python::run(),
    }
}
