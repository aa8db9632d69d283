//! Entry point for development: runs checks and tests, and starts the programs of `dev/` for everything else.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a command line tool")]

mod book;
mod circles;
mod fuzz;
mod lane;
mod links;
mod program;
mod python;
mod style;
mod test;
mod tidy;
mod workflows;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use program::{Arguments, become_program};

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
    Up(Arguments),
    /// Stop the control plane that `up` started.
    Down(Arguments),
    /// Test a provider against a cluster in which its upstream operator runs.
    Upstream(Arguments),
    /// Run every check and test, as CI does.
    Test(test::Args),
    /// Show what is newer than the versions of `versions.toml`.
    Fresh(Arguments),
    /// Regenerate files, or check that they are current.
    Gen(Arguments),
    /// Build an OCI archive for each program, without a container engine.
    Images(Arguments),
    /// Build the documentation site into target/book.
    Book,
    /// Write the files of a release.
    Release(Arguments),
    /// Measure time, requests, memory and CPU.
    Bench(Arguments),
    /// Run libFuzzer on each fuzz target.
    Fuzz(fuzz::Args),
    /// Explore the states of a ModelDeployment under crashes and stale caches.
    Storm(Arguments),
    /// Check repository rules: dependencies, licenses, pure plans, links, style.
    Tidy,
    /// Lint python/asya-runtime and test it with each installed Python version.
    Python,
}

fn main() -> ExitCode {
    runway_dev_support::ended(run())
}

fn run() -> Result<()> {
    match Args::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Book => book::run(),
        Command::Tidy => tidy::run(),
        Command::Python => python::run(),
        Command::Up(_) | Command::Down(_) => become_program("runway-dev-demo"),
        Command::Upstream(_) => become_program("runway-dev-upstream"),
        Command::Fresh(_) => become_program("runway-dev-fresh"),
        Command::Gen(_) => become_program("runway-dev-generate"),
        Command::Images(_) | Command::Release(_) => become_program("runway-dev-release"),
        Command::Bench(_) => become_program("runway-dev-bench"),
        Command::Storm(_) => become_program("runway-dev-storm"),
    }
}

#[test]
fn arguments_are_consistent_and_those_in_the_documentation_are_accepted() -> Result<()> {
    runway_dev_support::snippets::check_all(<Args as clap::CommandFactory>::command())
}
