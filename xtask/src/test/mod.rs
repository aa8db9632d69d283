//! `test`: every check and test, cheapest first. CI calls this and nothing else.
//!
//! Compiling takes both cores of a small machine, and most tests wait for something. So nothing is compiled twice (see
//! `dev/cluster/Cargo.toml`), what the tests want of the machine is prepared in the background as soon as the program for it is
//! built, and the tests run side by side.

mod jobs;
mod lanes;
mod outcome;
mod prepare;
mod report;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use runway_dev_support::{OlderKubernetes, shell};

use self::jobs::{Job, Selection};
use self::report::Report;
use crate::lane::Lane;
use crate::{program, tidy};

/// Program that writes and compares generated files.
const GENERATE: &str = "runway-dev-generate";
/// Program of `up`, which is one of the jobs.
const DEMO: &str = "runway-dev-demo";

/// Choice of tests.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Leave out what needs a control plane.
    #[arg(long, conflicts_with = "only")]
    quick: bool,
    /// Run no other checks, and only tests whose file contains this text, such as `testbed/tests/lifecycle`; repeatable.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Run an optional lane, and nothing else. Not part of CI.
    #[arg(long, value_enum, conflicts_with_all = ["quick", "only"])]
    lane: Option<Lane>,
    /// Run the tests that need a control plane and no node with one of an older release, and nothing else; with --only, these
    /// of them. Not part of CI. The first run builds the control plane.
    #[arg(long, value_enum, value_name = "RELEASE", conflicts_with_all = ["quick", "lane"])]
    kubernetes: Option<OlderKubernetes>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut report = Report::begin();
    let outcome = if let Some(lane) = args.lane {
        only_lane(&mut report, lane)
    } else if let Some(release) = args.kubernetes {
        on_older_kubernetes(&mut report, release, &args.only)
    } else if args.quick {
        quick(&mut report)
    } else if args.only.is_empty() {
        everything(&mut report)
    } else {
        only(&mut report, &args.only)
    };
    report.print();
    outcome
}

fn everything(report: &mut Report) -> Result<()> {
    format(report)?;
    let folder = programs(report, &[prepare::PROGRAM, GENERATE, DEMO])?;
    let background = prepare::in_background(&folder)?;
    checks(report, &folder)?;
    let mut jobs = jobs::others()?;
    jobs.extend(report.step("compiling the tests", || jobs::tests(Selection::All))?);
    report.step("waiting for the programs of a control plane and a node", || {
        background.cluster()
    })?;
    side_by_side(report, jobs)
}

fn quick(report: &mut Report) -> Result<()> {
    format(report)?;
    let folder = programs(report, &[GENERATE])?;
    checks(report, &folder)?;
    println!("SKIPPED: everything that needs a control plane (--quick)");
    let jobs = report.step("compiling the tests", || jobs::tests(Selection::OfUnits))?;
    side_by_side(report, jobs)
}

fn only(report: &mut Report, texts: &[String]) -> Result<()> {
    let jobs = report.step("compiling the tests", || jobs::tests(Selection::Only(texts)))?;
    side_by_side(report, jobs)
}

fn on_older_kubernetes(report: &mut Report, release: OlderKubernetes, texts: &[String]) -> Result<()> {
    let folder = programs(report, &[prepare::PROGRAM])?;
    let programs = report.step("waiting for the programs of a control plane", || {
        prepare::older_kubernetes(&folder, release)
    })?;
    let selection = if texts.is_empty() {
        Selection::All
    } else {
        Selection::Only(texts)
    };
    let mut jobs = report.step("compiling the tests", || jobs::tests(selection))?;
    jobs.retain(|job| job.node.is_none() && job.name.contains("/tests/"));
    ensure!(
        !jobs.is_empty(),
        "none of the chosen tests needs a control plane without a node"
    );
    for job in &mut jobs {
        job.command.env("KUBEBUILDER_ASSETS", &programs);
    }
    side_by_side(report, jobs)
}

fn only_lane(report: &mut Report, lane: Lane) -> Result<()> {
    let folder = programs(report, &[prepare::PROGRAM])?;
    report.step("preparing the lane", || prepare::lane(&folder, lane))?;
    let jobs = report.step("compiling the tests", || jobs::tests(Selection::Lane(lane)))?;
    side_by_side(report, jobs)
}

/// Builds programs of the workspace, and returns their folder.
fn programs(report: &mut Report, names: &[&str]) -> Result<PathBuf> {
    report.step("building the programs of development", || program::build(names))
}

fn format(report: &mut Report) -> Result<()> {
    report.step("format", || shell::run("cargo", &["fmt", "--all", "--check"]))
}

fn checks(report: &mut Report, folder: &Path) -> Result<()> {
    let generate = folder.join(GENERATE).display().to_string();
    report.step("generated files", || shell::run(&generate, &["gen", "--check"]))?;
    report.step("tidy", tidy::run)?;
    report.step("clippy", || {
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
    })
}

fn side_by_side(report: &mut Report, jobs: Vec<Job>) -> Result<()> {
    let all = jobs.len();
    let outcomes = report.step("tests", || lanes::run(jobs))?;
    let failed = outcomes.iter().filter(|outcome| !outcome.succeeded).count();
    report.outcomes = outcomes;
    if failed > 0 {
        bail!("{failed} of {all} failed; their names are above");
    }
    Ok(())
}
