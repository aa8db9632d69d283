//! Waiting: how long, how often is looked, and that each change is said once, so that a wait is never silent.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::terminal::Terminal;

/// Default interval.
const PACE: Duration = Duration::from_millis(500);

/// A wait that has begun.
#[derive(Debug)]
pub struct Patience {
    start: Instant,
    limit: Duration,
    pace: Duration,
    said: String,
}

impl Patience {
    /// Begins a wait of at most so long.
    pub fn of(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            limit,
            pace: PACE,
            said: String::new(),
        }
    }

    /// Sets the interval.
    #[must_use]
    pub fn every(self, pace: Duration) -> Self {
        Self { pace, ..self }
    }

    /// Reports a state if it has changed.
    pub fn say(&mut self, line: &str, terminal: &mut Terminal<'_>) {
        if self.said != line {
            terminal.say(line);
            line.clone_into(&mut self.said);
        }
    }

    /// Last reported state.
    pub fn last(&self) -> &str {
        &self.said
    }

    /// Waits until it is time to look again; false if the time is up.
    pub async fn lasts(&self) -> bool {
        if self.start.elapsed() >= self.limit {
            return false;
        }
        sleep(self.pace).await;
        true
    }
}
