//! Choice of faults, their runs, and a table of the results.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;
use std::io::Write as _;
use std::ops::Range;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use runway_testbed::fault::{Cut, Plan};

use crate::controllers::Who;
use crate::journal::{Journal, Outcome};
use crate::scenario::Scenario;
use crate::scenarios::scenarios;
use crate::state::State;
use crate::walk::{self, Walks};
use crate::world::{Run, Shore, Tried};

/// Runs at the same time. They mostly wait.
const PARALLEL: usize = 32;
/// Seeded faults of a controller end after so many of its writes, and of its events.
const LAST: u64 = 30;

/// Choice of faults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// One scenario only, or with `-` at the end those whose names begin so.
    pub(crate) scenario: Option<String>,
    /// One write only.
    pub(crate) write: Option<Point>,
    /// One kind of fault only.
    pub(crate) cut: Option<Cut>,
    /// One in so many scenarios.
    pub(crate) every_scenario: usize,
    /// One in so many faults of those.
    pub(crate) every_fault: usize,
    /// Seeds of faults of writes and watches together.
    pub(crate) seeds: Vec<u64>,
    /// Numbers of walks of scenarios that end with an object.
    pub(crate) walks: Range<u64>,
    /// Whether single writes are tried.
    pub(crate) points: bool,
    /// File of the table.
    pub(crate) report: Option<String>,
    /// File of the outcomes. Runs that have passed by it are not repeated.
    pub(crate) journal: Option<String>,
}

/// A write of a controller, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    who: Who,
    write: u64,
}

impl FromStr for Point {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (who, write) = text.split_once(':').context("a write is CONTROLLER:NUMBER")?;
        Ok(Self {
            who: who.parse()?,
            write: write.parse()?,
        })
    }
}

/// Faults of one run.
#[derive(Clone, Copy, Debug)]
enum Faults {
    None,
    One(Point, Cut),
    Seeded(u64),
    /// None, but the walk of this number.
    Walk(u64),
}

impl Faults {
    fn plan(self, who: Who) -> Plan {
        match self {
            Self::One(point, cut) if point.who == who => Plan::At {
                write: point.write,
                cut,
            },
            // Controllers of one run have faults of their own.
            Self::Seeded(seed) => Plan::Seeded {
                seed: seed * 16 + who as u64,
                last: LAST,
            },
            _ => Plan::Calm,
        }
    }

    /// The arguments that replay it for a scenario.
    fn replay(self, scenario: &Scenario) -> String {
        format!("--scenario {}{self}", scenario.name)
    }

    fn kind(self) -> String {
        match self {
            Self::None => "no fault".to_owned(),
            Self::One(_, cut) => cut.to_string(),
            Self::Seeded(_) => "seeded".to_owned(),
            Self::Walk(_) => "walk".to_owned(),
        }
    }
}

/// Arguments of the command.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::One(Point { who, write }, cut) => write!(f, " --write {who}:{write} --cut {cut}"),
            Self::Seeded(seed) => write!(f, " --seed {seed}"),
            Self::Walk(number) => write!(f, " --walk {number}"),
        }
    }
}

/// Runs of one kind of fault.
#[derive(Default)]
struct Count {
    runs: usize,
    /// Faults that were carried out.
    faults: usize,
    bends: usize,
    failed: usize,
}

/// Results of a campaign.
pub(crate) struct Report {
    scenarios: usize,
    writes: usize,
    /// Runs of the choice, not all of which have ended if the campaign was interrupted.
    runs: usize,
    journal: Journal,
}

/// Tries the faults of a choice.
pub(crate) async fn run(choice: &Choice) -> Result<Report> {
    let chosen: Vec<Scenario> = scenarios()
        .into_iter()
        .filter(|s| choice.scenario.as_ref().is_none_or(|name| s.is_named(name)))
        .filter(|s| choice.points || !choice.seeds.is_empty() || walk::is_walked(s))
        .step_by(choice.every_scenario)
        .collect();
    ensure!(
        !chosen.is_empty(),
        "unknown scenario '{}': crates/testbed/tests/storm/scenarios.rs lists all",
        choice.scenario.as_deref().unwrap_or_default()
    );
    let shore = Shore::start().await?;
    let mut report = Report {
        scenarios: chosen.len(),
        writes: 0,
        runs: 0,
        journal: Journal::open(choice.journal.as_deref())?,
    };

    let mut undisturbed = stream::iter(&chosen)
        .map(async |scenario| (scenario, Box::pin(shore.run(scenario, |_| Plan::Calm, None)).await))
        .buffered(PARALLEL);
    let (mut jobs, mut states) = (Vec::new(), BTreeMap::new());
    while let Some((scenario, run)) = undisturbed.next().await {
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                report.add(scenario, Faults::None, Err(error))?;
                continue;
            }
        };
        let writes = run.writes.iter();
        let points: Vec<Point> = writes
            .flat_map(|(who, writes)| {
                writes.iter().map(|w| Point {
                    who: *who,
                    write: w.number,
                })
            })
            .collect();
        say(&format!("{}: {} writes", scenario.name, points.len()));
        report.writes += points.len();
        states.insert(scenario.name, run.state);
        jobs.extend(choice.faults(scenario, &points).map(|faults| (scenario, faults)));
    }
    let mut jobs: Vec<_> = jobs.into_iter().step_by(choice.every_fault).collect();
    report.runs = jobs.len();
    jobs.retain(|(scenario, faults)| !report.journal.has_passed(&faults.replay(scenario)));
    let (total, mut done) = (jobs.len(), 0);
    let mut outcomes = stream::iter(jobs)
        .map(async |(scenario, faults)| {
            (
                scenario,
                faults,
                Box::pin(attempt(&shore, scenario, faults, &states)).await,
            )
        })
        .buffer_unordered(PARALLEL);
    while let Some((scenario, faults, run)) = outcomes.next().await {
        done += 1;
        if run.is_err() {
            shore.is_up().await?;
        }
        report.add(scenario, faults, run)?;
        if done == total || done.is_multiple_of(100) {
            say(&format!("{done} of {total} runs, {} failed", report.failures().len()));
            if let Some(file) = &choice.report {
                fs::write(file, report.table()).with_context(|| format!("cannot write {file}"))?;
            }
        }
    }
    Ok(report)
}

/// Runs a scenario with faults, or its walk.
async fn attempt(
    shore: &Shore,
    scenario: &Scenario,
    faults: Faults,
    states: &BTreeMap<&'static str, State>,
) -> Result<Run> {
    let walked = match faults {
        Faults::Walk(number) => Some(Walks::of(scenario)?.walked(number)),
        _ => None,
    };
    let steps = walked.as_ref().unwrap_or(scenario);
    shore
        .run(steps, |who| faults.plan(who), Some(&states[scenario.name]))
        .await
}

impl Choice {
    fn faults<'a>(&'a self, scenario: &'a Scenario, points: &'a [Point]) -> impl Iterator<Item = Faults> + 'a {
        // Two runs without faults end alike, or those with faults show nothing.
        let none = (self.points && self.write.is_none()).then_some(Faults::None);
        let is_chosen = move |point: &Point| self.points && self.write.is_none_or(|chosen| chosen == *point);
        let points = points.iter().copied().filter(is_chosen);
        let mut cuts = Cut::ALL.to_vec();
        cuts.retain(|cut| self.cut.is_none_or(|chosen| chosen == *cut));
        let one = points.flat_map(move |point| cuts.clone().into_iter().map(move |cut| Faults::One(point, cut)));
        let seeded = self.seeds.iter().map(|seed| Faults::Seeded(*seed));
        let walks = self
            .walks
            .clone()
            .filter(|_| walk::is_walked(scenario))
            .map(Faults::Walk);
        none.into_iter().chain(one).chain(seeded).chain(walks)
    }
}

impl Report {
    fn add(&mut self, scenario: &Scenario, faults: Faults, run: Result<Run>) -> Result<()> {
        let mut outcome = Outcome {
            run: faults.replay(scenario),
            kind: faults.kind(),
            faults: 0,
            bends: 0,
            tried: Tried::default(),
            error: None,
        };
        match run {
            Ok(run) => {
                outcome.faults = run.writes.values().flatten().filter(|w| w.cut.is_some()).count();
                outcome.bends = run.bends;
                outcome.tried = run.tried;
            }
            Err(error) => {
                let error = format!("{error:#}");
                say(&failure(&outcome.run, &error));
                outcome.error = Some(error);
            }
        }
        self.journal.add(outcome)
    }

    /// Lines that replay a failure, with what failed.
    pub(crate) fn failures(&self) -> Vec<String> {
        let outcomes = self.journal.outcomes.values();
        outcomes
            .filter_map(|outcome| Some(failure(&outcome.run, outcome.error.as_ref()?)))
            .collect()
    }

    /// The table of the campaign, as Markdown.
    pub(crate) fn table(&self) -> String {
        let (mut counts, mut tried) = (BTreeMap::<&str, Count>::new(), Tried::default());
        for outcome in self.journal.outcomes.values() {
            let count = counts.entry(&outcome.kind).or_default();
            count.runs += 1;
            count.faults += outcome.faults;
            count.bends += outcome.bends;
            count.failed += usize::from(outcome.error.is_some());
            tried += outcome.tried;
        }
        let done: usize = counts.values().map(|count| count.runs).sum();
        let mut table = format!(
            "{done} of {} runs over {} scenarios with {} writes.\n\n| fault | runs | faults of writes | faults of watch events | failed |\n|---|--:|--:|--:|--:|\n",
            self.runs, self.scenarios, self.writes
        );
        for (kind, count) in &counts {
            let _ = writeln!(
                table,
                "| {kind} | {} | {} | {} | {} |",
                count.runs, count.faults, count.bends, count.failed
            );
        }
        if tried.total() > 0 {
            let _ = writeln!(
                table,
                "\n{} changes of specs: {} accepted, {} rejected by the API server.",
                tried.total(),
                tried.accepted,
                tried.rejected
            );
        }
        table
    }
}

fn failure(run: &str, error: &str) -> String {
    format!("cargo xtask storm {run}: {error}")
}

/// Past the test harness, which would keep it until the end.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "storm: {line}");
}
