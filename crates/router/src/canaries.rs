//! Canaries get requests only while they do as well as the version that they are of.
//!
//! Responses of both are counted by minutes, and the last minutes are compared. A canary that fails more often or answers later is
//! stopped, until its spec or its weight changes. Each router compares what it has passed on itself.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

use crate::model::Model;
use crate::table::{Key, key};

/// Minutes that are compared.
const MINUTES: u64 = 5;
/// Fewest responses for a comparison.
const LEAST: u64 = 20;
/// Difference of the shares of failed responses above which a canary is stopped.
const MORE_FAILURES: f64 = 0.05;
/// Factor, and difference in seconds, of the mean times to the first byte above which a canary is stopped.
const SLOWER: (f64, f64) = (2.0, 0.1);

/// Step between the numbers of requests. It has no factor in common with 100, so that 100 requests in a row have all numbers.
const STEP: u8 = 61;

/// Canaries and what they are compared by.
#[derive(Debug, Default)]
pub struct Canaries {
    compared: Mutex<HashMap<Key, Compared>>,
    /// Numbers of the last requests, by the model that has canaries.
    numbers: Mutex<HashMap<Key, u8>>,
}

#[derive(Debug)]
struct Compared {
    /// Generation of the spec, and weight.
    version: (i64, u8),
    minutes: VecDeque<Minute>,
    is_stopped: bool,
}

#[derive(Debug, Default)]
struct Minute {
    number: u64,
    canary: Sum,
    stable: Sum,
}

/// Responses of one version.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    responses: u64,
    failed: u64,
    /// Until the first byte of those that have not failed.
    seconds: f64,
}

/// A response of a canary, or of the version that it is of.
#[derive(Clone, Copy, Debug)]
pub struct Responded {
    /// It is the canary's.
    pub by_canary: bool,
    /// It failed, with a status from 500 or without any.
    pub failed: bool,
    /// Time until the first byte.
    pub first_byte: Duration,
}

impl Canaries {
    /// The number of the next request for a model that has canaries, which decides on the one that gets it: evenly spread below 100.
    pub fn number(&self, model: &Key) -> u8 {
        let mut numbers = self.numbers.lock();
        let number = numbers.entry(model.clone()).or_default();
        *number = (*number + STEP) % 100;
        *number
    }

    /// Whether a canary may get requests.
    pub fn may_serve(&self, canary: &Model) -> bool {
        let compared = self.compared.lock();
        let known = compared
            .get(&key(canary))
            .filter(|known| known.version == version(canary));
        known.is_none_or(|known| !known.is_stopped)
    }

    /// Counts a response within a minute. The reason, if it stops the canary.
    pub fn count(&self, canary: &Model, responded: Responded, minute: u64) -> Option<String> {
        let mut compared = self.compared.lock();
        let version = version(canary);
        let known = compared.entry(key(canary)).or_insert_with(|| Compared::new(version));
        if known.version != version {
            *known = Compared::new(version);
        }
        known.add(responded, minute);
        let reason = known.reason().filter(|_| !known.is_stopped)?;
        known.is_stopped = true;
        Some(reason)
    }

    /// Forgets a canary, or a model with canaries, that is gone.
    pub fn forget(&self, key: &Key) {
        self.compared.lock().remove(key);
        self.numbers.lock().remove(key);
    }
}

fn version(canary: &Model) -> (i64, u8) {
    (canary.generation, canary.weight())
}

impl Compared {
    fn new(version: (i64, u8)) -> Self {
        Self {
            version,
            minutes: VecDeque::new(),
            is_stopped: false,
        }
    }

    fn add(&mut self, responded: Responded, minute: u64) {
        // A clock that is set back adds to the last minute.
        let minute = self.minutes.back().map_or(minute, |last| last.number.max(minute));
        if self.minutes.back().is_none_or(|last| last.number < minute) {
            self.minutes.push_back(Minute {
                number: minute,
                ..Minute::default()
            });
        }
        self.minutes.retain(|one| one.number + MINUTES > minute);
        if let Some(last) = self.minutes.back_mut() {
            let sum = if responded.by_canary {
                &mut last.canary
            } else {
                &mut last.stable
            };
            sum.add(responded);
        }
    }

    /// The reason to stop the canary.
    fn reason(&self) -> Option<String> {
        let sum = |of: fn(&Minute) -> Sum| self.minutes.iter().map(of).fold(Sum::default(), Sum::plus);
        let (canary, stable) = (sum(|minute| minute.canary), sum(|minute| minute.stable));
        if canary.responses < LEAST {
            return None;
        }
        let (failed, before) = (canary.failed_share(), stable.failed_share());
        if failed > before + MORE_FAILURES {
            return Some(format!(
                "{:.0} % of its responses failed, and {:.0} % of those of the stable version",
                100.0 * failed,
                100.0 * before
            ));
        }
        let (time, before) = canary.mean_seconds().zip(stable.mean_seconds())?;
        let is_slower = time > before * SLOWER.0 && time > before + SLOWER.1;
        is_slower.then(|| format!("it takes {time:.2} s to the first byte, and the stable version {before:.2} s"))
    }
}

impl Sum {
    fn add(&mut self, responded: Responded) {
        self.responses += 1;
        if responded.failed {
            self.failed += 1;
        } else {
            self.seconds += responded.first_byte.as_secs_f64();
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            responses: self.responses + other.responses,
            failed: self.failed + other.failed,
            seconds: self.seconds + other.seconds,
        }
    }

    fn failed_share(self) -> f64 {
        if self.responses == 0 {
            return 0.0;
        }
        number(self.failed) / number(self.responses)
    }

    /// `None` with too few responses.
    fn mean_seconds(self) -> Option<f64> {
        let answered = self.responses - self.failed;
        (answered >= LEAST).then(|| self.seconds / number(answered))
    }
}

#[allow(clippy::cast_precision_loss, reason = "responses of five minutes are far below 2^52")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Canary;

    fn canary(weight: u8) -> Model {
        Model {
            canary: Some(Canary {
                of: "one".parse().unwrap(),
                weight,
            }),
            ..Model::asleep("a/two", "llama")
        }
    }

    fn responded(by_canary: bool, failed: bool, milliseconds: u64) -> Responded {
        Responded {
            by_canary,
            failed,
            first_byte: Duration::from_millis(milliseconds),
        }
    }

    /// The reason after some responses of each version in a minute.
    fn counted(canaries: &Canaries, minute: u64, count: u64, response: Responded) -> Option<String> {
        let reasons = (0..count).filter_map(|_| canaries.count(&canary(10), response, minute));
        reasons.last()
    }

    #[test]
    fn numbers_of_requests_are_even_for_each_model() {
        let canaries = Canaries::default();
        let keys = [
            key(&Model::asleep("a/one", "one")),
            key(&Model::asleep("a/other", "other")),
        ];
        let mut seen = [[0; 100]; 2];
        for _ in 0..100 {
            for (key, seen) in keys.iter().zip(&mut seen) {
                seen[usize::from(canaries.number(key))] += 1;
            }
        }
        assert_eq!(seen, [[1; 100]; 2]);
    }

    #[test]
    fn canary_that_fails_more_often_is_stopped_until_it_changes() {
        let canaries = Canaries::default();
        assert_eq!(counted(&canaries, 1, 100, responded(false, false, 10)), None);
        assert_eq!(counted(&canaries, 1, 18, responded(true, false, 10)), None);
        assert!(canaries.may_serve(&canary(10)));
        let reason = counted(&canaries, 1, 2, responded(true, true, 0)).unwrap();
        assert_eq!(
            reason,
            "10 % of its responses failed, and 0 % of those of the stable version"
        );
        assert!(!canaries.may_serve(&canary(10)));
        assert_eq!(counted(&canaries, 1, 1, responded(true, true, 0)), None, "said once");
        assert!(canaries.may_serve(&canary(20)), "another weight is another attempt");
        canaries.forget(&key(&canary(10)));
        assert!(canaries.may_serve(&canary(10)));
    }

    #[test]
    fn failures_that_both_versions_have_stop_nothing() {
        let canaries = Canaries::default();
        for _ in 0..100 {
            assert_eq!(counted(&canaries, 1, 1, responded(false, true, 0)), None);
            assert_eq!(counted(&canaries, 1, 1, responded(true, true, 0)), None);
        }
    }

    #[test]
    fn canary_that_answers_later_is_stopped() {
        let canaries = Canaries::default();
        counted(&canaries, 1, 20, responded(false, false, 100));
        assert_eq!(counted(&canaries, 1, 20, responded(true, false, 190)), None);
        let reason = counted(&canaries, 2, 100, responded(true, false, 300)).unwrap();
        assert!(reason.starts_with("it takes 0.2"), "{reason}");
    }

    #[test]
    fn only_the_last_minutes_count() {
        let canaries = Canaries::default();
        counted(&canaries, 1, 15, responded(true, true, 0));
        assert_eq!(
            counted(&canaries, 6, 15, responded(true, true, 0)),
            None,
            "15 within five minutes"
        );
        assert!(
            counted(&canaries, 2, 5, responded(true, true, 0)).is_some(),
            "a clock that is set back"
        );
    }
}
