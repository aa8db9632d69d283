//! The report of a run: what was tested, against what, with which result.

use std::fmt;
use std::time::Duration;

/// Result of one test.
pub(super) enum Verdict {
    Passed,
    /// It cannot be tested in this cluster.
    Skipped(String),
    Failed(String),
}

/// One test.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) verdict: Verdict,
    pub(super) took: Duration,
}

/// All tests of a provider.
pub(super) struct Report {
    pub(super) provider: String,
    /// Version of the Kubernetes API server.
    pub(super) kubernetes: String,
    /// Upstream kinds with version and schema hash.
    pub(super) upstream: Vec<String>,
    pub(super) cases: Vec<Case>,
}

impl Report {
    /// Names of the failed tests.
    pub(super) fn failed(&self) -> Vec<&str> {
        let failed = self.cases.iter();
        failed
            .filter(|case| matches!(case.verdict, Verdict::Failed(_)))
            .map(|case| case.name.as_str())
            .collect()
    }

    fn count(&self, is_counted: fn(&Verdict) -> bool) -> usize {
        self.cases.iter().filter(|case| is_counted(&case.verdict)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Provider {} against its upstream\n", self.provider)?;
        writeln!(f, "Kubernetes {}", self.kubernetes)?;
        for kind in &self.upstream {
            writeln!(f, "- {kind}")?;
        }
        writeln!(f, "\n| test | result | seconds |\n|---|---|---|")?;
        for Case { name, verdict, took } in &self.cases {
            let result = match verdict {
                Verdict::Passed => "passed".to_owned(),
                Verdict::Skipped(reason) => format!("SKIPPED: {reason}"),
                Verdict::Failed(reason) => format!("**failed**: {reason}"),
            };
            let result = result.replace('|', "\\|").replace('\n', " ");
            writeln!(f, "| {name} | {result} | {:.1} |", took.as_secs_f64())?;
        }
        writeln!(
            f,
            "\n{} passed, {} failed, {} skipped",
            self.count(|verdict| matches!(verdict, Verdict::Passed)),
            self.count(|verdict| matches!(verdict, Verdict::Failed(_))),
            self.count(|verdict| matches!(verdict, Verdict::Skipped(_))),
        )
    }
}
