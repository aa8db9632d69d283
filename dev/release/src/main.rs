//! `images` and `release`: container images with their bills of materials, and the files of a release beside them.
#![allow(clippy::print_stdout, reason = "this is a command line tool")]

mod images;
mod release;
mod sbom;

use std::process::ExitCode;

use clap::Parser;

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Build an OCI archive for each program, without a container engine.
    Images(images::Args),
    /// Write the files of a release.
    Release(release::Args),
}

fn main() -> ExitCode {
    runway_dev_support::ended(match Command::parse() {
        Command::Images(args) => images::run(&args),
        Command::Release(args) => release::run(&args),
    })
}

#[test]
fn arguments_are_consistent_and_those_in_the_documentation_are_accepted() -> anyhow::Result<()> {
    runway_dev_support::snippets::check(<Command as clap::CommandFactory>::command())
}
