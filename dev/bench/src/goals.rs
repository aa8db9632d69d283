//! Targets and results.

use std::fmt::{self, Write as _};

use super::results::{Contender, Results};

/// The command's program.
pub(super) const COMMAND: &str = "kubeairunway";

/// Reads a figure off all runs and the sizes of the programs; `None` where they do not tell.
type Measured = fn(&[Results], &[(&str, f64)]) -> Option<f64>;

/// A figure that is not to exceed something.
struct Goal {
    what: &'static str,
    limit: f64,
    decimals: usize,
    measured: Measured,
}

const GOALS: [Goal; 12] = [
    Goal {
        what: "writes per object from create to Running, mean",
        limit: 4.05,
        decimals: 2,
        measured: |all, _| worst(all, "create_patches_per_object"),
    },
    Goal {
        what: "reads from create to Running, in all",
        limit: 0.0,
        decimals: 0,
        measured: |all, _| worst(all, "create_reads"),
    },
    Goal {
        what: "burst of 1,000, beside the bare client",
        limit: 1.15,
        decimals: 2,
        measured: |all, _| {
            let of = |contender| of_count(all, 1000)?.median(contender, "create_seconds");
            Some(of(Contender::Ours)? / of(Contender::Bare)?)
        },
    },
    Goal {
        what: "burst of 10,000, beside 1,000",
        limit: 11.0,
        decimals: 2,
        measured: |all, _| {
            let of = |count| of_count(all, count)?.median(Contender::Ours, "create_seconds");
            Some(of(10_000)? / of(1000)?)
        },
    },
    Goal {
        what: "at rest: requests a second and process",
        limit: 1.0,
        decimals: 2,
        measured: |all, _| worst(all, "rest_requests_per_second"),
    },
    Goal {
        what: "at rest: CPU of a process, % of a core",
        limit: 0.2,
        decimals: 2,
        measured: |all, _| worst(all, "rest_cpu_percent"),
    },
    Goal {
        what: "after a restart: writes, in all",
        limit: 0.0,
        decimals: 0,
        measured: |all, _| worst(all, "restart_writes"),
    },
    Goal {
        what: "memory of a process without objects, MiB",
        limit: 15.0,
        decimals: 1,
        measured: |all, _| larger(worst(all, "core_idle_mib"), worst(all, "provider_idle_mib")),
    },
    Goal {
        what: "memory for each object, with the most objects, KiB",
        limit: 2.0,
        decimals: 1,
        measured: |all, _| {
            let largest = all.iter().max_by_key(|results| results.count())?;
            let of = |key| largest.median(Contender::Ours, key);
            larger(of("core_slope_kib"), of("provider_slope_kib"))
        },
    },
    Goal {
        what: "upstream change to status, p99 at 20 a second, ms",
        limit: 40.0,
        decimals: 1,
        measured: |all, _| worst(all, "change_told_p99_ms"),
    },
    Goal {
        what: "largest binary of a controller, MiB",
        limit: 15.0,
        decimals: 1,
        measured: |_, sizes| {
            let controllers = sizes.iter().filter(|(name, _)| *name != COMMAND);
            controllers.map(|(_, mib)| *mib).reduce(f64::max)
        },
    },
    Goal {
        what: "binary of the command, MiB",
        limit: 20.0,
        decimals: 1,
        measured: |_, sizes| sizes.iter().find(|(name, _)| *name == COMMAND).map(|(_, mib)| *mib),
    },
];

/// A table of them.
pub(super) fn table(all: &[Results], sizes: &[(&str, f64)]) -> String {
    let mut text = "| to be reached | at most | measured | |\n|---|--:|--:|---|\n".to_owned();
    for goal in &GOALS {
        let Some(measured) = (goal.measured)(all, sizes) else {
            continue;
        };
        let verdict = Limit::AtMost(goal.limit).verdict(measured);
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {measured:.*} | {verdict} |",
            goal.what, goal.limit, goal.decimals
        );
    }
    text
}

/// Limit of a figure.
pub(super) enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Limit {
    /// Whether a figure reaches it.
    fn verdict(&self, measured: f64) -> String {
        match *self {
            Self::AtMost(limit) if measured <= limit => "reached".to_owned(),
            Self::AtLeast(limit) if measured >= limit => "reached".to_owned(),
            Self::AtMost(limit) if limit > 0.0 => format!("missed: {:.2} times as much", measured / limit),
            Self::AtMost(_) | Self::AtLeast(_) => "missed".to_owned(),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(limit) => write!(f, "at most {limit}"),
            Self::AtLeast(limit) => write!(f, "at least {limit}"),
        }
    }
}

/// A measured figure, with its limit if it has one.
pub(super) struct Row {
    what: String,
    limit: Option<Limit>,
    measured: f64,
    decimals: usize,
}

impl Row {
    pub(super) fn new(what: impl Into<String>, measured: f64, decimals: usize) -> Self {
        Self {
            what: what.into(),
            limit: None,
            measured,
            decimals,
        }
    }

    pub(super) fn goal(self, limit: Limit) -> Self {
        Self {
            limit: Some(limit),
            ..self
        }
    }

    /// A table of several.
    pub(super) fn table(title: &str, rows: &[Self]) -> String {
        let mut text = format!("| {title} | goal | measured | |\n|---|--:|--:|---|\n");
        for row in rows {
            let limit = row.limit.as_ref();
            let (goal, verdict) = limit.map_or_else(Default::default, |limit| {
                (limit.to_string(), limit.verdict(row.measured))
            });
            // Writing to a String does not fail.
            let _ = writeln!(
                text,
                "| {} | {goal} | {:.*} | {verdict} |",
                row.what, row.decimals, row.measured
            );
        }
        text
    }
}

/// The largest of the medians of all runs.
fn worst(all: &[Results], key: &str) -> Option<f64> {
    let medians = all.iter().filter_map(|results| results.median(Contender::Ours, key));
    medians.reduce(f64::max)
}

fn larger(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    Some(one?.max(other?))
}

fn of_count(all: &[Results], count: usize) -> Option<&Results> {
    all.iter().find(|results| results.count() == count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Figures;

    #[test]
    fn missed_goals_are_reported() {
        let mut small = Results::new(100);
        small.add(
            Contender::Ours,
            Figures::from([("create_reads", 0.0), ("create_patches_per_object", 4.0)]),
        );
        let mut large = Results::new(1000);
        large.add(
            Contender::Ours,
            Figures::from([
                ("create_reads", 3.0),
                ("create_patches_per_object", 8.1),
                ("create_seconds", 11.0),
            ]),
        );
        large.add(Contender::Bare, Figures::from([("create_seconds", 10.0)]));
        let table = table(&[small, large], &[("a", 3.0), ("b", 15.0), (COMMAND, 21.0)]);
        for line in [
            "| writes per object from create to Running, mean | 4.05 | 8.10 | missed: 2.00 times as much |",
            "| reads from create to Running, in all | 0 | 3 | missed |",
            "| burst of 1,000, beside the bare client | 1.15 | 1.10 | reached |",
            "| largest binary of a controller, MiB | 15 | 15.0 | reached |",
            "| binary of the command, MiB | 20 | 21.0 | missed: 1.05 times as much |",
        ] {
            assert!(table.lines().any(|l| l == line), "{line} is not in\n{table}");
        }
        assert_eq!(table.lines().count(), 2 + 5, "a target without a result is skipped");
    }

    #[test]
    fn rows_have_a_verdict_if_they_have_a_limit() {
        let table = Row::table(
            "figures",
            &[
                Row::new("without", 7.0, 0),
                Row::new("enough", 80.0, 0).goal(Limit::AtLeast(80.0)),
                Row::new("too little", 79.94, 1).goal(Limit::AtLeast(80.0)),
                Row::new("too much", 0.5, 2).goal(Limit::AtMost(0.2)),
            ],
        );
        let lines = [
            "| figures | goal | measured | |",
            "|---|--:|--:|---|",
            "| without |  | 7 |  |",
            "| enough | at least 80 | 80 | reached |",
            "| too little | at least 80 | 79.9 | missed |",
            "| too much | at most 0.2 | 0.50 | missed: 2.50 times as much |",
        ];
        assert_eq!(table.lines().collect::<Vec<_>>(), lines);
    }
}
