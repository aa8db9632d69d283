//! Result of a job: read from its exit status and its output.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use runway_dev_support::shell;

use super::jobs::Job;

/// Lines to repeat of a failure, its first one included.
const LINES_OF_FAILURE: usize = 6;
/// Failures of one job to repeat.
const FAILURES: usize = 3;
/// Lines to repeat of a job that names no failure.
const LAST_LINES: usize = 12;

/// Result of a job.
pub(crate) struct Outcome {
    pub(crate) name: String,
    pub(crate) took: Duration,
    pub(crate) succeeded: bool,
    pub(crate) tally: Tally,
    output: String,
}

/// Counts of the test harness.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) ignored: usize,
    /// Skipped tests with their reasons.
    pub(crate) skipped: Vec<String>,
}

/// Folder of the output of each job, kept until the next run.
pub(crate) fn folder() -> PathBuf {
    shell::root().join("target/test-output")
}

impl Outcome {
    /// Runs the job until it ends.
    pub(crate) fn of(mut job: Job) -> Self {
        let start = Instant::now();
        let ended = end(&mut job);
        let (succeeded, output) = match ended {
            Ok((succeeded, output)) => (succeeded, output),
            Err(error) => (false, format!("error: {error:#}\n")),
        };
        let mut tally = Tally::of(&output);
        if !succeeded {
            // It may have ended before it could count.
            tally.failed = tally.failed.max(1);
        }
        Self {
            name: job.name,
            took: start.elapsed(),
            succeeded,
            tally,
            output,
        }
    }

    /// All that it printed, and how it ended.
    pub(crate) fn print(&self) {
        println!("▸ {}\n{}", self.name, self.output.trim_end());
        let word = if self.succeeded { "" } else { "FAILED after " };
        println!("  {}: {word}{:.0} s\n", self.name, self.took.as_secs_f64());
    }

    /// Reason of a failure, in a few lines: panics and errors of tests, or else the end of the output. CI may show only the end
    /// of a log.
    pub(crate) fn reason(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.output.lines().filter(|line| !line.trim().is_empty()).collect();
        let is_failure = |line: &str| line.contains(" panicked at ") || line.starts_with("Error: ");
        let failures = (0..lines.len()).filter(|&at| is_failure(lines[at])).take(FAILURES);
        let repeated: Vec<&str> = failures
            .flat_map(|at| lines.iter().skip(at).take(LINES_OF_FAILURE).copied())
            .collect();
        if repeated.is_empty() {
            return lines[lines.len().saturating_sub(LAST_LINES)..].to_vec();
        }
        repeated
    }
}

/// Whether it succeeded, and what it printed to its standard output and error, in the order in which it came.
fn end(job: &mut Job) -> Result<(bool, String)> {
    let path = folder().join(format!("{}.log", job.name.replace(['/', ' '], "-")));
    let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let status = job
        .command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()
        .with_context(|| format!("cannot run {}", job.command.get_program().display()))?;
    let output = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let output = String::from_utf8_lossy(&output);
    if status.success() {
        return Ok((true, output.into_owned()));
    }
    Ok((false, format!("{output}\n{status}\n")))
}

impl Tally {
    fn of(output: &str) -> Self {
        let mut tally = Self::default();
        for line in output.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                tally.passed += count(result, "passed");
                tally.failed += count(result, "failed");
                tally.ignored += count(result, "ignored");
            }
            if let Some((_, skipped)) = line.split_once("SKIPPED: ") {
                tally.skipped.push(skipped.to_owned());
            }
        }
        tally
    }
}

/// Of `ok. 5 passed; 0 failed; 1 ignored; …`.
fn count(result: &str, what: &str) -> usize {
    let part = result.split(['.', ';']).find_map(|part| part.trim().strip_suffix(what));
    part.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn job(script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: format!("script-{}", script.len()),
            command,
            node: None,
        }
    }

    #[test]
    fn counts_are_those_of_the_harness() {
        let output = "running 3 tests\ntestbed: SKIPPED: nodes, because no root\n\
            test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.10s\n\
            test result: FAILED. 11 passed; 3 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n";
        let expected = Tally {
            passed: 13,
            failed: 3,
            ignored: 1,
            skipped: vec!["nodes, because no root".to_owned()],
        };
        assert_eq!(Tally::of(output), expected);
    }

    #[test]
    fn test_that_dies_before_its_count_has_failed() {
        fs::create_dir_all(folder()).unwrap();
        let outcome = Outcome::of(job("echo out; echo err >&2; kill -KILL $$"));
        assert!(!outcome.succeeded);
        assert_eq!(outcome.tally.failed, 1);
        assert_eq!(outcome.output, "out\nerr\n\nsignal: 9 (SIGKILL)\n");
    }

    #[test]
    fn the_reason_is_the_failure_or_the_end_of_the_output() {
        fs::create_dir_all(folder()).unwrap();
        let panicked = "echo log; echo \"thread 't' panicked at src/a.rs:1:2:\"; echo no endpoint; seq 20; exit 101";
        let outcome = Outcome::of(job(panicked));
        let reason = outcome.reason();
        assert_eq!(reason[..2], ["thread 't' panicked at src/a.rs:1:2:", "no endpoint"]);
        assert_eq!(reason.len(), LINES_OF_FAILURE);

        let outcome = Outcome::of(job("echo 'Error: not ready'; echo Caused by: 404; seq 30; exit 1"));
        assert_eq!(outcome.reason()[..2], ["Error: not ready", "Caused by: 404"]);

        let outcome = Outcome::of(job("seq 30; echo does not compile; exit 1"));
        assert_eq!(
            outcome.reason()[LAST_LINES - 2..],
            ["does not compile", "exit status: 1"]
        );
    }

    #[test]
    fn test_that_cannot_run_has_failed() {
        fs::create_dir_all(folder()).unwrap();
        let command = Command::new("/there/is/no/such/program");
        let outcome = Outcome::of(Job { command, ..job("") });
        assert!(!outcome.succeeded && outcome.output.contains("/there/is/no/such/program"));
    }
}
