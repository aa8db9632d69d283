//! Report at the end of a run: time per step, and failures.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::outcome::Outcome;

/// Number of the slowest jobs to list.
const SLOWEST: usize = 15;

/// Results of a run so far.
pub(crate) struct Report {
    start: Instant,
    steps: Vec<(&'static str, Duration)>,
    pub(crate) outcomes: Vec<Outcome>,
}

impl Report {
    pub(crate) fn begin() -> Self {
        Self {
            start: Instant::now(),
            steps: Vec::new(),
            outcomes: Vec::new(),
        }
    }

    /// Does one thing after the other, and takes the time.
    pub(crate) fn step<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        println!("▸ {name}");
        let outcome = work();
        let took = start.elapsed();
        println!("  {name}: {:.0} s", took.as_secs_f64());
        self.steps.push((name, took));
        outcome
    }

    pub(crate) fn print(mut self) {
        println!("\nWhere the time went:");
        for (name, took) in &self.steps {
            line(*took, name);
        }
        line(self.start.elapsed(), "in all");
        if self.outcomes.is_empty() {
            return;
        }
        self.outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
        println!("\nThe slowest of {} that ran side by side:", self.outcomes.len());
        for outcome in self.outcomes.iter().take(SLOWEST) {
            line(outcome.took, &outcome.name);
        }
        self.print_skipped();
        let sum = |count: fn(&Outcome) -> usize| self.outcomes.iter().map(count).sum::<usize>();
        println!(
            "\n{} passed, {} failed",
            sum(|o| o.tally.passed),
            sum(|o| o.tally.failed)
        );
        for outcome in self.outcomes.iter().filter(|outcome| !outcome.succeeded) {
            println!("FAILED: {}", outcome.name);
            for line in outcome.reason() {
                println!("  {line}");
            }
        }
    }

    fn print_skipped(&self) {
        let skipped: BTreeSet<&String> = self.outcomes.iter().flat_map(|o| &o.tally.skipped).collect();
        let ignored: usize = self.outcomes.iter().map(|o| o.tally.ignored).sum();
        println!("\n{} skipped, {ignored} ignored", skipped.len());
        for skipped in skipped {
            println!("SKIPPED: {skipped}");
        }
    }
}

fn line(took: Duration, name: &str) {
    println!("{:>6.0} s  {name}", took.as_secs_f64());
}
