//! `test`: every check and test, cheapest first. CI calls this and nothing else.

use std::time::Instant;

use anyhow::Result;
use runway_testbed::{binaries::Binaries, node};

use crate::{generate, python, shell, tidy};

/// Which tests.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out what needs a control plane.
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    step("format", || shell::run("cargo", &["fmt", "--all", "--check"]))?;
    step("generated files", || generate::run(&generate::Args::check()))?;
    step("tidy", tidy::run)?;
    step("clippy", || {
        shell::run(
            "cargo",
            &[
                "clippy",
                "--quiet",
                "--workspace",
                "--all-targets",
                "--locked",
                "--",
                "-D",
                "warnings",
            ],
        )
    })?;
    step("python", python::run)?;
    if args.quick {
        step("tests without a control plane", || {
            shell::run("cargo", &["test", "--workspace", "--locked", "--lib", "--bins"])
        })?;
        println!("SKIPPED: everything that needs a control plane (--quick)");
    } else {
        step("the control plane's programs", || Binaries::ensure().map(|_| ()))?;
        match node::unavailable() {
            Some(reason) => println!("SKIPPED: everything that needs a real node, because {reason}"),
            None => step("a node's programs and packages", node::prepare)?,
        }
        step("tests", || {
            shell::run(
                "cargo",
                &[
                    "test",
                    "--workspace",
                    "--locked",
                    "--no-fail-fast",
                    "--",
                    "--test-threads",
                    "2",
                ],
            )
        })?;
        step("documentation", || {
            shell::run("cargo", &["doc", "--quiet", "--workspace", "--no-deps", "--locked"])
        })?;
        step("up --once", || {
            shell::run(
                "cargo",
                &["run", "--quiet", "--locked", "-p", "xtask", "--", "up", "--once"],
            )
        })?;
    }
    println!("\neverything passed in {} seconds", start.elapsed().as_secs());
    Ok(())
}

fn step(name: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    println!("▸ {name}");
    check()?;
    println!("  {name}: {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
