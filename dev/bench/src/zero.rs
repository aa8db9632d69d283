//! `bench zero`: models that scale to zero and are woken by requests, at full size. Nothing may be lost: see
//! [`runway_testbed::traffic::zero`].

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use runway_dev_support::record;
use runway_testbed::traffic::zero::{self, Options, Report};

use super::goals::{Limit, Row};
use super::measure::{as_number, seconds};
use super::{router, step};

/// Amount of work.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Cycles from zero and back to zero.
    #[arg(long, default_value_t = 10_000)]
    cycles: usize,
    /// Models whose cycles run at the same time.
    #[arg(long, default_value_t = 4)]
    models: usize,
    /// Decides which processes are killed, and when.
    #[arg(long, default_value_t = 0x5eed)]
    seed: u64,
    #[command(flatten)]
    record: record::Options,
}

pub(super) async fn run(args: &Args) -> Result<()> {
    ensure!(
        args.cycles > 0 && args.models > 0,
        "--cycles and --models must be at least 1"
    );
    let (bed, programs) = router::start(None, args.record.is_release()).await?;
    step(&format!("{} cycles, seed {}", args.cycles, args.seed));
    let options = Options {
        cycles: args.cycles,
        models: args.models,
        seed: args.seed,
    };
    let outcome = zero::run(&bed, &programs, options, progress(args.cycles, "cycles")).await;
    bed.cluster.stop().await?;
    let outcome = outcome?;
    let text = table(args.cycles, &outcome);
    println!("{text}");
    outcome.check()?;
    args.record
        .write_down(record::PERFORMANCE, "bench zero --docs", &text)?;
    Ok(())
}

/// Reports every tenth of so many things.
pub(super) fn progress(count: usize, things: &str) -> impl Fn() {
    let (done, tenth) = (AtomicUsize::new(0), (count / 10).max(1));
    move || {
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        if done.is_multiple_of(tenth) {
            step(&format!("{done} {things}"));
        }
    }
}

fn table(cycles: usize, report: &Report) -> String {
    let count = |what: &str, number: usize| Row::new(what, as_number(number), 0);
    let none = |what: &str, list: &[String]| count(what, list.len()).goal(Limit::AtMost(0.0));
    Row::table(
        &format!("{cycles} cycles in {:.0} s", seconds(report.took)),
        &[
            count("starts of a model from zero", report.wakes),
            count("requests", report.requests),
            count("router killed", report.router_kills),
            count("engine killed", report.engine_kills),
            count("failed attempts, repeated by the client", report.failed.values().sum()),
            count("requests that engines received in several attempts", report.repeated),
            none(
                "attempts with a failure or an answer that nothing explains",
                &report.unexplained,
            ),
            none("attempts that engines received twice", &report.sent_twice),
            none("requests without an answer", &report.lost),
        ],
    )
}
