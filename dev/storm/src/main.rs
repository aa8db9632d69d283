//! `storm`: longer than the tests do, explores the states of a ModelDeployment under crashes and stale caches, and on a real API
//! server crashes the controllers at every write, tries values of every field, and ends leaders.

#![allow(clippy::print_stdout, reason = "this is a command line tool")]

mod faults;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use runway_dev_support::{record, shell};
use runway_testbed::fault::Cut;
use runway_testbed::programs;

/// The test that explores; `crates/core/tests/states` describes it.
const STATES: &str = "states::every_state_settles_without_a_second_upstream_object";
/// The test that crashes; `crates/testbed/tests/storm/main.rs` describes it.
const WRITES: &str = "every_run_with_a_fault_ends_as_the_one_without";
/// The test that plans the same changes in memory; `crates/testbed/tests/storm/plans.rs` describes it.
const PLANS: &str = "every_change_of_a_spec_is_planned_and_the_first_spec_recovers";
/// The test that ends leaders.
const LEADERS: &str = "another_replica_takes_over_although_the_clocks_differ";
/// The test that samples Ready.
const SAMPLER: &str = "ready_is_true_only_while_pods_of_the_current_generation_serve";
/// The test of outages, and their lengths in seconds.
const OUTAGE: &str = "controllers_try_once_a_second_and_continue_after_an_outage";
const OUTAGES: &str = "0.1 1 10 60 600";
/// Changes of specs in a complete campaign, on the API server and in memory.
const CHANGES: u64 = 50_000;
const PLANNED: u64 = 1_000_000;
/// Seeds of a complete campaign: with each, every scenario has faults of writes and watches at once.
const SEEDS: u64 = 4;

/// Development tasks of this repository.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Command {
    /// Explore the states of a ModelDeployment under crashes and stale caches.
    Storm(Box<Args>),
}

/// Choice of states, or of writes and faults.
#[derive(clap::Args)]
struct Args {
    /// Number of different states.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    states: u64,
    /// Number of the first walk, or with --scenario the seed of its faults. A failure prints the one that replays it.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Crash the controllers at every write of every scenario, and write the results to docs/project/reliability.md.
    #[arg(long, group = "campaign", conflicts_with_all = ["scenario", "states", "seed", "changes", "walk"])]
    all: bool,
    /// Run every scenario N times with seeded faults of writes and watches, and write the results to docs/project/reliability.md.
    #[arg(long, value_name = "N", group = "campaign", conflicts_with_all = ["scenario", "states", "seed", "changes", "walk"])]
    seeds: Option<u64>,
    /// With --all or --seeds: continue a campaign that was interrupted. Runs that failed are repeated, those that passed are not.
    #[arg(long, requires = "campaign")]
    resume: bool,
    #[command(flatten)]
    programs: OfPrograms,
    #[command(flatten)]
    faults: faults::Options,
    /// Change specs N times on a real API server: values of every field that its schema names, bounds or forbids.
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "states", "seed"])]
    changes: Option<u64>,
    /// With --changes or --walk: in memory, with the plans that `kubeairunway render` uses.
    #[arg(long)]
    planned: bool,
    /// Only the walk of this number: 25 changes of the scenario's object.
    #[arg(long, value_name = "N", requires = "scenario", conflicts_with = "seed")]
    walk: Option<u64>,
    /// Crash the controllers at every write of one scenario, such as kaito-create.
    #[arg(long, value_name = "NAME", conflicts_with = "states")]
    scenario: Option<String>,
    /// Only one write: controller and number, such as core:3.
    #[arg(long, value_name = "WRITE", requires = "scenario", conflicts_with = "seed")]
    write: Option<String>,
    /// Only one kind of fault: before, after, kill-before, kill-after, 409, 429, 500 or 504.
    #[arg(long, value_name = "KIND", requires = "scenario", conflicts_with = "seed")]
    cut: Option<Cut>,
}

/// Disturbances of built programs.
#[derive(clap::Args)]
struct OfPrograms {
    /// End the leaders of replicated controllers N times, by kill -9 and by SIGTERM, and write the results to docs/project/reliability.md.
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "states", "seed", "changes", "all", "installed"])]
    leaders: Option<usize>,
    /// Interrupt the connections of controllers to the API server for 0.1 seconds to 10 minutes, and write the results to
    /// docs/project/reliability.md.
    #[arg(long, conflicts_with_all = ["scenario", "states", "seed", "changes", "all", "seeds", "installed", "leaders"])]
    outages: bool,
    /// Take models of each provider through N changes and faults, compare every 200 ms what Ready says with what the pods serve, and
    /// write the results to docs/project/reliability.md.
    #[arg(long, value_name = "N", conflicts_with_all = ["scenario", "states", "seed", "changes", "all", "seeds", "installed", "leaders", "outages"])]
    ready: Option<u32>,
}

#[tokio::main]
async fn main() -> ExitCode {
    runway_operator::client::install_crypto();
    let Command::Storm(args) = Command::parse();
    runway_dev_support::ended(run(&args).await)
}

async fn run(args: &Args) -> Result<()> {
    if args.faults.installed {
        return Box::pin(faults::run(&args.faults)).await;
    }
    if let Some(times) = args.programs.leaders {
        return measure(
            "storm --leaders",
            "leaders",
            LEADERS,
            ("STORM_LEADERS", times.to_string()),
        );
    }
    if let Some(changes) = args.programs.ready {
        return measure("storm --ready", "ready", SAMPLER, ("STORM_READY", changes.to_string()));
    }
    if args.programs.outages {
        return measure(
            "storm --outages",
            "outage",
            OUTAGE,
            ("STORM_OUTAGES", OUTAGES.to_owned()),
        );
    }
    if args.all {
        if !args.resume {
            plan(None, None, Some(PLANNED))?;
        }
        return campaign("storm --all", SEEDS, true, args.resume);
    }
    if let Some(seeds) = args.seeds {
        return campaign("storm --seeds", seeds, false, args.resume);
    }
    if let Some(changes) = args.changes {
        return if args.planned {
            plan(None, None, Some(changes))
        } else {
            crash(&[("STORM_CHANGES", Some(changes.to_string()))])
        };
    }
    let Some(scenario) = &args.scenario else {
        let variables = [("STATES", Some(args.states)), ("SEED", args.seed)];
        let variables = variables.map(|(name, value)| (name, value.map(|value| value.to_string())));
        return test(
            &["--release", "--workspace", "--test", "properties"],
            STATES,
            &variables,
        );
    };
    if args.planned {
        return plan(Some(scenario), args.walk, None);
    }
    crash(&[
        ("STORM_SCENARIO", Some(scenario.clone())),
        ("STORM_WRITE", args.write.clone()),
        ("STORM_CUT", args.cut.map(|cut| cut.to_string())),
        ("STORM_SEEDS", args.seed.map(|seed| seed.to_string())),
        ("STORM_WALK", args.walk.map(|walk| walk.to_string())),
    ])
}

/// Plans walks in memory, of one scenario or of all: one walk, or those of so many changes.
fn plan(scenario: Option<&String>, walk: Option<u64>, changes: Option<u64>) -> Result<()> {
    let variables = [
        ("STORM_SCENARIO", scenario.cloned()),
        ("STORM_WALK", walk.map(|walk| walk.to_string())),
        ("STORM_CHANGES", changes.map(|changes| changes.to_string())),
    ];
    test(&["--release", "--workspace", "--test", "storm"], PLANS, &variables)
}

/// Every scenario with the faults of so many seeds, and with `is_all` with one fault at each write and with its walks. Writes the
/// page also if something failed: it says so.
fn campaign(name: &str, seeds: u64, is_all: bool, is_resumed: bool) -> Result<()> {
    let [journal, table] = ["jsonl", "md"].map(|kind| {
        let file = format!("target/{}.{kind}", name.replace(" --", "-"));
        shell::root().join(file)
    });
    if !is_resumed {
        fs::write(&journal, "").with_context(|| format!("cannot write {}", journal.display()))?;
    }
    let seeds: Vec<String> = (1..=seeds).map(|seed| seed.to_string()).collect();
    let ended = crash(&[
        ("STORM_ALL", is_all.then(|| "1".to_owned())),
        ("STORM_SEEDS", Some(seeds.join(" "))),
        ("STORM_CHANGES", is_all.then(|| CHANGES.to_string())),
        ("STORM_REPORT", Some(table.display().to_string())),
        ("STORM_JOURNAL", Some(journal.display().to_string())),
    ]);
    let table = fs::read_to_string(&table).context("the campaign did not end: the lines above say why")?;
    record::write_down(record::RELIABILITY, name, &table)?;
    ended
}

/// Runs one test of a file with a setting, and writes its table to the page, also if something failed: it says so.
fn measure(name: &str, file: &str, test_name: &str, (setting, value): (&str, String)) -> Result<()> {
    let table = shell::root().join(format!("target/{file}.md"));
    // One of an earlier run may be there.
    let _ = fs::remove_file(&table);
    let ended = test(
        &["--workspace", "--test", file],
        test_name,
        &[
            (setting, Some(value)),
            ("STORM_REPORT", Some(table.display().to_string())),
        ],
    );
    let table = fs::read_to_string(&table).context("the measurement did not end: the lines above say why")?;
    record::write_down(record::RELIABILITY, name, &table)?;
    ended
}

fn crash(variables: &[(&str, Option<String>)]) -> Result<()> {
    test(&["--workspace", "--test", "storm"], WRITES, variables)
}

/// Runs one test, which reads these variables.
fn test(target: &[&str], name: &str, variables: &[(&str, Option<String>)]) -> Result<()> {
    let mut cargo = programs::cargo();
    cargo
        .args(["test", "--locked"])
        .args(target)
        .args(["--", "--exact", name, "--nocapture"]);
    for (name, value) in variables {
        cargo.envs(value.as_ref().map(|value| (format!("RUNWAY_{name}"), value)));
    }
    let status = cargo.current_dir(shell::root()).status().context("cannot run cargo")?;
    if !status.success() {
        bail!("failed: the lines above show what, and the command that replays it");
    }
    Ok(())
}

#[test]
fn arguments_are_consistent_and_those_in_the_documentation_are_accepted() -> Result<()> {
    runway_dev_support::snippets::check(<Command as clap::CommandFactory>::command())
}
