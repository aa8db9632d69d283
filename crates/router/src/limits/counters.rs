//! Use of a limit by its units. Pure: the time is given.

use std::time::Duration;

use tokio::time::Instant;

use super::rules::Rule;
use crate::quantity::Quantity;

const MINUTE: f64 = 60.0;
const DAY: u64 = 24 * 60 * 60;

/// A moment, by a clock that only goes forward and by the calendar.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For minutes.
    pub at: Instant,
    /// Seconds since 1970, for days.
    pub seconds: u64,
}

/// A limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The quantity.
    pub quantity: Quantity,
    /// The limit.
    pub limit: u64,
    /// Time until one more request has room. `None` if none ever has.
    pub again_after: Option<Duration>,
}

/// Rest of a limit by the minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The limit.
    pub limit: u64,
    /// Rest of it.
    pub remaining: u64,
    /// Time until all of it is left.
    pub reset: Duration,
}

/// Use by one unit.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    requests: Bucket,
    tokens: Bucket,
    day: u64,
    tokens_of_day: u64,
    in_flight: u64,
}

/// A use that becomes less by the limit within a minute.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    used: f64,
    at: Instant,
}

impl Bucket {
    /// The use now.
    fn now(&mut self, limit: u64, at: Instant) -> f64 {
        let passed = at.saturating_duration_since(self.at).as_secs_f64();
        self.used = (self.used - passed * per_second(limit)).max(0.0);
        self.at = self.at.max(at);
        self.used
    }

    fn left(&mut self, limit: u64, at: Instant) -> Left {
        let used = self.now(limit, at);
        Left {
            limit,
            remaining: whole(number(limit) - used),
            reset: time(used, limit).unwrap_or_default(),
        }
    }
}

fn per_second(limit: u64) -> f64 {
    number(limit) / MINUTE
}

/// Time in which a use becomes less by this much. `None` without a limit above 0.
fn time(used: f64, limit: u64) -> Option<Duration> {
    (limit > 0).then(|| Duration::try_from_secs_f64(used.max(0.0) / per_second(limit)).unwrap_or(Duration::MAX))
}

#[allow(clippy::cast_precision_loss, reason = "limits are far below 2^52")]
fn number(limit: u64) -> f64 {
    limit as f64
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded by 0, and by a limit"
)]
fn whole(left: f64) -> u64 {
    left.max(0.0).floor() as u64
}

impl Counter {
    /// A counter of a unit that has used nothing.
    pub(super) fn new(now: Now) -> Self {
        let empty = Bucket { used: 0.0, at: now.at };
        Self {
            requests: empty,
            tokens: empty,
            day: now.seconds / DAY,
            tokens_of_day: 0,
            in_flight: 0,
        }
    }

    /// A counter of a unit that has used this much, without requests in flight.
    pub(super) fn used(requests: f64, tokens: f64, today: f64, now: Now) -> Self {
        let bucket = |used| Bucket { used, at: now.at };
        Self {
            requests: bucket(requests),
            tokens: bucket(tokens),
            tokens_of_day: whole(today),
            ..Self::new(now)
        }
    }

    /// The limit of a rule that one more request does not respect.
    pub(super) fn reached(&mut self, rule: &Rule, now: Now) -> Option<Reached> {
        self.begin_day(now);
        let requests = |limit| {
            let over = self.requests.now(limit, now.at) + 1.0 - number(limit);
            (over > 0.0).then(|| (limit, time(over, limit)))
        };
        if let Some((limit, again_after)) = rule.requests_per_minute.and_then(requests) {
            return Some(Reached {
                quantity: Quantity::requests_per_minute,
                limit,
                again_after,
            });
        }
        // The tokens of a response are known at its end only, so that a use may be above the limit.
        let tokens = |limit| {
            let over = self.tokens.now(limit, now.at) - number(limit);
            (over >= 0.0).then(|| (limit, time(over + 1.0, limit)))
        };
        if let Some((limit, again_after)) = rule.tokens_per_minute.and_then(tokens) {
            return Some(Reached {
                quantity: Quantity::tokens_per_minute,
                limit,
                again_after,
            });
        }
        if let Some(limit) = rule.tokens_per_day.filter(|limit| self.tokens_of_day >= *limit) {
            let next = Duration::from_secs(DAY - now.seconds % DAY);
            return Some(Reached {
                quantity: Quantity::tokens_per_day,
                limit,
                again_after: (limit > 0).then_some(next),
            });
        }
        let limit = rule.requests_in_flight.filter(|limit| self.in_flight >= *limit)?;
        Some(Reached {
            quantity: Quantity::requests_in_flight,
            limit,
            again_after: (limit > 0).then_some(Duration::from_secs(1)),
        })
    }

    /// Counts a request that begins, with the tokens of its prompt as far as they are known.
    pub(super) fn begin(&mut self, tokens: u64) {
        self.requests.used += 1.0;
        self.in_flight += 1;
        self.add(tokens);
    }

    /// Counts a request that ends: it had more tokens than were counted at its begin, or fewer.
    pub(super) fn end(&mut self, counted: u64, tokens: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if tokens >= counted {
            self.add(tokens - counted);
        } else {
            let less = counted - tokens;
            self.tokens.used = (self.tokens.used - number(less)).max(0.0);
            self.tokens_of_day = self.tokens_of_day.saturating_sub(less);
        }
    }

    fn add(&mut self, tokens: u64) {
        self.tokens.used += number(tokens);
        self.tokens_of_day = self.tokens_of_day.saturating_add(tokens);
    }

    /// A day that has passed counts no more. A clock that is set back begins no day.
    fn begin_day(&mut self, now: Now) {
        let day = now.seconds / DAY;
        if day > self.day {
            self.day = day;
            self.tokens_of_day = 0;
        }
    }

    /// Rest of the requests and of the tokens a minute.
    pub(super) fn left(&mut self, rule: &Rule, now: Now) -> [Option<Left>; 2] {
        [
            rule.requests_per_minute.map(|limit| self.requests.left(limit, now.at)),
            rule.tokens_per_minute.map(|limit| self.tokens.left(limit, now.at)),
        ]
    }

    /// Whether a new counter would say the same.
    pub(super) fn is_unused(&mut self, rule: &Rule, now: Now) -> bool {
        self.begin_day(now);
        let is_full = |left: Option<Left>| left.is_none_or(|left| left.reset.is_zero());
        self.in_flight == 0
            && (rule.tokens_per_day.is_none() || self.tokens_of_day == 0)
            && self.left(rule, now).into_iter().all(is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rules::Rules;
    use super::*;

    fn rule(limits: &str) -> Rule {
        Rules::read(&format!("limits: [{{name: a, {limits}}}]"))
            .unwrap()
            .rules
            .remove(0)
    }

    fn start() -> Now {
        Now {
            at: Instant::now(),
            seconds: 10 * DAY + DAY - 5,
        }
    }

    fn later(now: Now, seconds: u64) -> Now {
        Now {
            at: now.at + Duration::from_secs(seconds),
            seconds: now.seconds + seconds,
        }
    }

    fn quantity(counter: &mut Counter, rule: &Rule, now: Now) -> Option<(Quantity, Option<u64>)> {
        let reached = counter.reached(rule, now)?;
        Some((reached.quantity, reached.again_after.map(|after| after.as_secs())))
    }

    #[test]
    fn requests_of_a_minute_are_limited_and_free_evenly() {
        let (rule, now) = (rule("requestsPerMinute: 3"), start());
        let mut counter = Counter::new(now);
        for _ in 0..3 {
            assert_eq!(counter.reached(&rule, now), None);
            counter.begin(0);
        }
        let reached = (Quantity::requests_per_minute, Some(20));
        assert_eq!(quantity(&mut counter, &rule, now), Some(reached));
        let [requests, _] = counter.left(&rule, now);
        let expected = Left {
            limit: 3,
            remaining: 0,
            reset: Duration::from_mins(1),
        };
        assert_eq!(requests, Some(expected));
        assert_eq!(quantity(&mut counter, &rule, later(now, 20)), None);
        assert!(!counter.is_unused(&rule, later(now, 600)), "three are in flight");
        for _ in 0..3 {
            counter.end(0, 0);
        }
        assert!(counter.is_unused(&rule, later(now, 60)));
    }

    #[test]
    fn tokens_count_at_the_end_and_what_is_above_the_limit_is_paid_back() {
        let (rule, now) = (rule("tokensPerMinute: 60"), start());
        let mut counter = Counter::new(now);
        counter.begin(10);
        assert_eq!(counter.reached(&rule, now), None);
        counter.end(10, 180);
        assert_eq!(
            quantity(&mut counter, &rule, now),
            Some((Quantity::tokens_per_minute, Some(121)))
        );
        assert_eq!(quantity(&mut counter, &rule, later(now, 121)), None);
        counter.begin(100);
        counter.end(100, 1);
        let [_, tokens] = counter.left(&rule, later(now, 121));
        assert_eq!(tokens.map(|left| left.remaining), Some(0), "59 and 1");
    }

    #[test]
    fn tokens_of_a_day_end_at_midnight_and_not_with_a_clock_that_is_set_back() {
        let (rule, now) = (rule("tokensPerDay: 100"), start());
        let mut counter = Counter::new(now);
        counter.begin(0);
        counter.end(0, 100);
        let reached = Some((Quantity::tokens_per_day, Some(5)));
        assert_eq!(quantity(&mut counter, &rule, now), reached);
        let back = Now {
            seconds: now.seconds - 3 * DAY,
            ..now
        };
        assert!(counter.reached(&rule, back).is_some());
        assert_eq!(counter.reached(&rule, later(now, 5)), None);
    }

    #[test]
    fn requests_in_flight_are_limited() {
        let (rule, now) = (rule("requestsInFlight: 1"), start());
        let mut counter = Counter::new(now);
        counter.begin(0);
        assert_eq!(
            quantity(&mut counter, &rule, now),
            Some((Quantity::requests_in_flight, Some(1)))
        );
        counter.end(0, 0);
        assert_eq!(counter.reached(&rule, now), None);
    }

    #[test]
    fn limit_of_zero_allows_nothing_at_any_time() {
        for limits in [
            "requestsPerMinute: 0",
            "tokensPerMinute: 0",
            "tokensPerDay: 0",
            "requestsInFlight: 0",
        ] {
            let (rule, now) = (rule(limits), start());
            let mut counter = Counter::new(now);
            for now in [now, later(now, 100_000)] {
                let reached = counter.reached(&rule, now).unwrap();
                assert_eq!((reached.limit, reached.again_after), (0, None), "{limits}");
            }
        }
    }
}
