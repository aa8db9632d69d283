//! `bench tokens`: streams that clients leave and that break off at kills of the engine, at full size. Each must be counted once:
//! see [`runway_testbed::traffic::tokens`].

use anyhow::{Result, ensure};
use runway_dev_support::record;
use runway_testbed::traffic::tokens::{self, Options, Report};

use super::goals::{Limit, Row};
use super::measure::{as_number, seconds};
use super::zero::progress;
use super::{router, step};

/// Amount of work.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Streams.
    #[arg(long, default_value_t = 10_000)]
    streams: usize,
    /// Decides which streams are left early, and when the engine is killed.
    #[arg(long, default_value_t = 0x5eed)]
    seed: u64,
    #[command(flatten)]
    record: record::Options,
}

pub(super) async fn run(args: &Args) -> Result<()> {
    ensure!(args.streams > 0, "--streams must be at least 1");
    let (bed, programs) = router::start(None, args.record.is_release()).await?;
    step(&format!("{} streams, seed {}", args.streams, args.seed));
    let options = Options {
        streams: args.streams,
        seed: args.seed,
    };
    let outcome = tokens::run(&bed, &programs, options, progress(args.streams, "streams")).await;
    bed.cluster.stop().await?;
    let outcome = outcome?;
    let text = table(args.streams, &outcome)?;
    println!("{text}");
    outcome.check()?;
    args.record
        .write_down(record::PERFORMANCE, "bench tokens --docs", &text)?;
    Ok(())
}

fn table(streams: usize, report: &Report) -> Result<String> {
    let count = |what: &str, number: usize| Row::new(what, as_number(number), 0);
    let tokens = |what: &str, number: u64| anyhow::Ok(count(what, usize::try_from(number)?));
    Ok(Row::table(
        &format!("{streams} streams in {:.0} s", seconds(report.took)),
        &[
            count("received whole", report.whole),
            count("left by their client", report.left),
            count("broken off at a kill of the engine", report.broken),
            count("refused after a kill", report.refused),
            count("engine killed", report.kills),
            tokens("tokens of responses, as the engine reported them", report.reported)?,
            tokens("estimated tokens of responses", report.estimated)?,
            count("streams whose count is wrong", report.wrong.len()).goal(Limit::AtMost(0.0)),
            tokens("tokens that the metrics have more or less", report.difference)?.goal(Limit::AtMost(0.0)),
        ],
    ))
}
