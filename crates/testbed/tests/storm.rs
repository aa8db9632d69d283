//! Crash at every write: scenarios over the three systems run once without faults, and then once for each write and kind of
//! fault. Each run has to end in the same state, and then no controller may have anything left to write.
//!
//! | module | content |
//! |---|---|
//! | `scenario`, `scenarios` | what users do, as values |
//! | `controllers` | controllers that can be killed |
//! | `world` | one run in a namespace of its own, and what has to be true of it |
//! | `state` | objects without what differs from run to run |
//! | `upstream` | how many upstream objects a model had at once |
//! | `campaign` | the choice of faults, their runs, and a table of the results |
//!
//! A seeded part runs in the tests; `cargo xtask storm` sets the variables that choose more.

#[path = "storm/campaign.rs"]
mod campaign;
#[path = "storm/controllers.rs"]
mod controllers;
#[path = "storm/scenario.rs"]
mod scenario;
#[path = "storm/scenarios.rs"]
mod scenarios;
#[path = "storm/state.rs"]
mod state;
mod support;
#[path = "storm/upstream.rs"]
mod upstream;
#[path = "storm/world.rs"]
mod world;

use std::env::var;

use anyhow::{Result, ensure};
use campaign::Choice;

#[tokio::test]
async fn every_run_with_a_fault_ends_as_the_one_without() -> Result<()> {
    let report = Box::pin(campaign::run(&choice()?)).await?;
    println!("{}", report.table());
    ensure!(
        report.failures.is_empty(),
        "{} failed:\n{}",
        report.failures.len(),
        report.failures.join("\n")
    );
    Ok(())
}

/// Of all scenarios and all faults of them, in the tests. No multiple of the number of kinds of faults, so that each kind comes.
const EVERY: (usize, usize) = (9, 7);

/// From the variables that `cargo xtask storm` sets; without them, the part of the tests.
#[allow(clippy::disallowed_methods, reason = "a test has no arguments")]
fn choice() -> Result<Choice> {
    let set = |name: &str| var(format!("RUNWAY_STORM_{name}")).ok();
    let scenario = set("SCENARIO");
    let seeds = set("SEEDS").unwrap_or_default();
    let seeds: Vec<u64> = seeds.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let cut = set("CUT").map(|text| text.parse()).transpose();
    let is_all = scenario.is_some() || set("ALL").is_some();
    let (every_scenario, every_fault) = if is_all { (1, 1) } else { EVERY };
    Ok(Choice {
        points: seeds.is_empty() || scenario.is_none(),
        scenario,
        write: set("WRITE").map(|text| text.parse()).transpose()?,
        cut: cut.map_err(anyhow::Error::msg)?,
        seeds,
        every_scenario,
        every_fault,
        report: set("REPORT"),
    })
}
