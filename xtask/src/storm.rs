//! `storm`: explores the states of a ModelDeployment under crashes and stale caches, longer than the tests do.

use anyhow::{Context, Result, bail};
use runway_testbed::programs;

use crate::shell;

/// The test that explores; `crates/core/tests/states` describes it.
const TEST: &str = "states::every_state_settles_without_a_second_upstream_object";

/// Number of states and first walk.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of different states.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    states: u64,
    /// Number of the first walk. A failure prints the one that replays it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let status = programs::cargo()
        .args([
            "test",
            "--locked",
            "--release",
            "-p",
            "runway-core",
            "--test",
            "properties",
            "--",
        ])
        .args(["--exact", TEST, "--nocapture"])
        .env("RUNWAY_STATES", args.states.to_string())
        .env("RUNWAY_SEED", args.seed.to_string())
        .current_dir(shell::root())
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("a state failed: the lines above show its history and the command that replays it");
    }
    Ok(())
}
