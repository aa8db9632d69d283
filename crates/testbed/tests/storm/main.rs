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
//! | `walk` | changes of every field of a spec |
//! | `plans` | the same in memory, by the plans alone |
//! | `campaign` | the choice of faults, their runs, and a table of the results |
//! | `journal` | outcomes in a file, so that a campaign continues |
//!
//! A seeded part runs in the tests; `cargo xtask storm` sets the variables that choose more.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

mod campaign;
mod controllers;
mod journal;
mod plans;
mod scenario;
mod scenarios;
mod state;
mod upstream;
mod walk;
mod world;

use std::num::ParseIntError;
use std::ops::Range;
use std::panic::resume_unwind;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, available_parallelism};

use anyhow::{Context, Result, ensure};
use campaign::Choice;
use runway_product_testbed::storm_setting;
use scenarios::scenarios;
use walk::Walks;
use world::Tried;

#[tokio::test]
async fn every_run_with_a_fault_ends_as_the_one_without() -> Result<()> {
    run(&choice()?).await
}

/// Walks of each scenario in the tests.
const WALKS: u64 = 1;

#[tokio::test]
async fn every_change_of_a_spec_is_handled_and_the_first_spec_recovers() -> Result<()> {
    run(&Choice {
        walks: 0..WALKS,
        every_scenario: 1,
        every_fault: 1,
        ..Choice::default()
    })
    .await
}

/// Walks of each scenario in memory in the tests.
const PLANNED: u64 = 1;

#[test]
fn every_change_of_a_spec_is_planned_and_the_first_spec_recovers() -> Result<()> {
    let numbers = walks()?.unwrap_or(0..PLANNED);
    let name = storm_setting("SCENARIO");
    let mut scenarios = scenarios();
    scenarios.retain(|s| walk::is_walked(s) && name.as_ref().is_none_or(|name| s.is_named(name)));
    let walks: Vec<Walks<'_>> = scenarios.iter().map(Walks::of).collect::<Result<_>>()?;
    let all: Vec<_> = numbers
        .flat_map(|number| walks.iter().map(move |walks| (walks, number)))
        .collect();
    let total = plan(&all)?;
    println!("{} changes were accepted, {} rejected.", total.accepted, total.rejected);
    ensure!(total.accepted > total.rejected / 4, "hardly anything was accepted");
    Ok(())
}

/// Takes walks in memory, one on each core at a time, until one fails.
fn plan(all: &[(&Walks<'_>, u64)]) -> Result<Tried> {
    let next = AtomicUsize::new(0);
    let take = || -> Result<Tried> {
        let mut total = Tried::default();
        while let Some((walks, number)) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            total += plans::walk(walks, *number).with_context(|| {
                next.store(all.len(), Ordering::Relaxed);
                format!(
                    "cargo xtask storm --scenario {} --walk {number} --planned",
                    walks.scenario.name
                )
            })?;
        }
        Ok(total)
    };
    let cores = available_parallelism()?.get();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(take)).collect();
        let mut total = Tried::default();
        for thread in threads {
            total += thread.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        }
        Ok(total)
    })
}

async fn run(choice: &Choice) -> Result<()> {
    let report = Box::pin(campaign::run(choice)).await?;
    println!("{}", report.table());
    let failures = report.failures();
    ensure!(
        failures.is_empty(),
        "{} failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    Ok(())
}

/// Of all scenarios and all faults of them, in the tests. No multiple of the number of kinds of faults, so that each kind comes.
const EVERY: (usize, usize) = (9, 7);

/// Choice of `cargo xtask storm`; without it, the part of the tests.
fn choice() -> Result<Choice> {
    let scenario = storm_setting("SCENARIO");
    let seeds = storm_setting("SEEDS").unwrap_or_default();
    let seeds: Vec<u64> = seeds.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let walks = walks()?.unwrap_or_default();
    let cut = storm_setting("CUT").map(|text| text.parse()).transpose();
    let is_all = storm_setting("ALL").is_some();
    let is_part = scenario.is_none() && walks.is_empty() && seeds.is_empty() && !is_all;
    let (every_scenario, every_fault) = if is_part { EVERY } else { (1, 1) };
    Ok(Choice {
        points: is_all || seeds.is_empty() && walks.is_empty(),
        scenario,
        write: storm_setting("WRITE").map(|text| text.parse()).transpose()?,
        cut: cut.map_err(anyhow::Error::msg)?,
        seeds,
        walks,
        every_scenario,
        every_fault,
        report: storm_setting("REPORT"),
        journal: storm_setting("JOURNAL"),
    })
}

fn number<T: FromStr<Err = ParseIntError>>(name: &str) -> Result<Option<T>> {
    Ok(storm_setting(name).map(|text| text.parse()).transpose()?)
}

/// Numbers of walks: one, or those of so many changes.
fn walks() -> Result<Option<Range<u64>>> {
    if let Some(walk) = number("WALK")? {
        return Ok(Some(walk..walk + 1));
    }
    Ok(number("CHANGES")?.map(walk::numbers))
}
