//! Limits of requests and tokens, by rules of the administrator.
//!
//! Every rule that selects a request must have room for it. Counters are in memory, and each of several routers has its share of every
//! limit; or they are in Valkey or Redis, and the routers share them.

mod counters;
mod rules;
mod shared;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use parking_lot::{Mutex, RwLock};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use tokio::time::{Instant, sleep};

pub use counters::{Left, Now, Reached};
pub use rules::{Invalid, NotAFile, Rule, Rules, Unit};
pub use shared::Shared;

use crate::file;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::rights::Who;
use crate::table;
use counters::Counter;
use shared::Verdict;

/// Interval at which the file is read again: Kubernetes replaces it when the ConfigMap changes.
const AGAIN: Duration = Duration::from_secs(10);
/// Largest file, in bytes: that of a ConfigMap.
const LARGEST_FILE: u64 = 1024 * 1024;
/// Units that are counted at once. For one more, those that are as if new are forgotten.
const MOST_UNITS: usize = 20_000;

/// Counts the routers that share each limit.
pub type Routers = Box<dyn Fn() -> u64 + Send + Sync>;

/// Rules and what their units have used.
pub struct Limits {
    file: PathBuf,
    routers: Routers,
    rules: RwLock<Arc<[InForce]>>,
    shared: Option<Shared>,
    /// The shared counters do not answer, which was logged.
    is_alone: AtomicBool,
    skipped: Mutex<Vec<String>>,
    counters: Mutex<HashMap<Key, Counter>>,
    metrics: Arc<Metrics>,
}

/// A rule of the file, and what this router has of its limits while it counts alone.
struct InForce {
    whole: Rule,
    share: Rule,
}

/// Name of a rule, and a unit that has the limit.
type Key = (Arc<str>, Arc<str>);

/// A request within its limits, until it ends. Dropping it counts no more tokens than those of its begin.
pub struct Admitted {
    limits: Arc<Limits>,
    /// Counters in memory, and shared ones.
    keys: Vec<Key>,
    shared_keys: Vec<Key>,
    counted: u64,
    /// Rest of the narrowest limits, for the client.
    left: [Option<Left>; 2],
}

/// A request beyond a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beyond {
    /// Name of the rule.
    pub rule: Arc<str>,
    /// The unit that has the limit.
    pub unit: Arc<str>,
    /// The limit.
    pub reached: Reached,
    /// Rest of the limits, for the client.
    pub left: [Option<Left>; 2],
}

impl Limits {
    /// Limits of a file. Without the file there are none.
    pub fn new(file: PathBuf, routers: Routers, shared: Option<Shared>, metrics: Arc<Metrics>) -> Self {
        let limits = Self {
            file,
            metrics,
            routers,
            rules: RwLock::default(),
            shared,
            is_alone: AtomicBool::new(false),
            skipped: Mutex::default(),
            counters: Mutex::default(),
        };
        limits.read();
        limits
    }

    /// Reads the file again from time to time.
    pub async fn follow(self: Arc<Self>) {
        loop {
            sleep(AGAIN).await;
            self.read();
        }
    }

    /// Reads the file, and counts the routers.
    fn read(&self) {
        let text = match file::text(&self.file, LARGEST_FILE) {
            Ok(text) => text.ok_or_else(|| "the file is larger than 1 MiB".to_owned()),
            // No limits are set.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok("{}".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let read = text.and_then(|text| Rules::read(&text).map_err(|error| error.to_string()));
        let skipped = match read {
            Ok(Rules { rules, skipped }) => {
                let routers = (self.routers)().max(1);
                let in_force = |whole: Rule| InForce {
                    share: whole.clone().shared_by(routers),
                    whole,
                };
                *self.rules.write() = rules.into_iter().map(in_force).collect();
                let skipped = skipped
                    .iter()
                    .map(|(place, invalid)| format!("limits[{place}]: {invalid}"));
                skipped.collect()
            }
            // The rules of before stay.
            Err(error) => vec![error],
        };
        self.metrics.limit_rules([self.rules.read().len(), skipped.len()]);
        let mut before = self.skipped.lock();
        if *before != skipped {
            for error in &skipped {
                tracing::warn!(file = %self.file.display(), error, "limit skipped: correct it");
            }
            *before = skipped;
        }
    }

    /// The model that gets the requests of a caller while theirs does not serve, by the first rule that names one.
    pub fn fallback(&self, who: &Who, model: &Model) -> Option<table::Key> {
        let rules = Arc::clone(&self.rules.read());
        let mut rules = rules.iter().map(|rule| &rule.whole);
        let rule = rules.find(|rule| rule.fallback.is_some() && rule.selects(who, model))?;
        rule.fallback.clone()
    }

    /// Counts a request that begins, with the tokens of its prompt as far as they are known.
    ///
    /// # Errors
    /// A limit is reached. Then nothing is counted.
    pub async fn admit(self: &Arc<Self>, who: &Who, model: &Model, tokens: u64) -> Result<Admitted, Box<Beyond>> {
        let seconds = u64::try_from(clock::now().as_second()).unwrap_or_default();
        let at = Instant::now();
        let now = Now { at, seconds };
        let rules = Arc::clone(&self.rules.read());
        let is_selected = |rule: &&InForce| rule.whole.is_limit() && rule.whole.selects(who, model);
        let selected: Vec<&InForce> = rules.iter().filter(is_selected).collect();
        let shares: Vec<&Rule> = selected.iter().map(|rule| &rule.share).collect();
        let is_shared = |rule: &&Rule| rule.is_shared();
        let store = self.shared.as_ref().filter(|_| shares.iter().any(is_shared));
        let Some(store) = store else {
            return self.admit_at(&shares, who, tokens, now);
        };
        let units = selected.iter().map(|rule| &rule.whole).filter(is_shared);
        let units: Vec<(Key, &Rule)> = units.map(|rule| (key(rule, who), rule)).collect();
        let in_flight = shares.iter().map(|rule| (*rule).clone().in_flight());
        let in_flight: Vec<Rule> = in_flight.filter(Rule::is_limit).collect();
        let in_flight = self.admit_at(&in_flight.iter().collect::<Vec<_>>(), who, tokens, now)?;
        match store.admit(&units, tokens).await {
            Ok(verdict) => {
                self.is_alone.store(false, Ordering::Relaxed);
                self.judge(units, verdict, in_flight, tokens)
            }
            Err(away) => {
                drop(in_flight);
                self.metrics.counters_away();
                if !self.is_alone.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        error = chain(&away),
                        "the shared counters do not answer: this router counts in memory, with its share of every limit"
                    );
                }
                self.admit_at(&shares, who, tokens, now)
            }
        }
    }

    /// The answer of the shared counters, as that of counters in memory.
    fn judge(
        &self,
        units: Vec<(Key, &Rule)>,
        verdict: Verdict,
        mut admitted: Admitted,
        tokens: u64,
    ) -> Result<Admitted, Box<Beyond>> {
        let now = verdict.now;
        for ((key, rule), mut counter) in units.into_iter().zip(verdict.counters) {
            if verdict.is_refused || rule.dry_run {
                self.check(&key, rule, &mut counter, now)?;
            }
            counter.begin(tokens);
            admitted.add(rule, counter.left(rule, now));
            admitted.shared_keys.push(key);
        }
        Ok(admitted)
    }

    /// Reports a limit that is reached.
    ///
    /// # Errors
    /// It refuses the request.
    fn check(&self, key: &Key, rule: &Rule, counter: &mut Counter, now: Now) -> Result<(), Box<Beyond>> {
        let Some(reached) = counter.reached(rule, now) else {
            return Ok(());
        };
        self.metrics.limited(&rule.name, reached.quantity, rule.dry_run);
        if rule.dry_run {
            return Ok(());
        }
        let (rule_name, unit) = key.clone();
        Err(Box::new(Beyond {
            rule: rule_name,
            unit,
            reached,
            left: counter.left(rule, now),
        }))
    }

    /// Counts in memory.
    fn admit_at(self: &Arc<Self>, rules: &[&Rule], who: &Who, tokens: u64, now: Now) -> Result<Admitted, Box<Beyond>> {
        let mut admitted = Admitted {
            limits: Arc::clone(self),
            keys: Vec::new(),
            shared_keys: Vec::new(),
            counted: tokens,
            left: [None; 2],
        };
        if rules.is_empty() {
            return Ok(admitted);
        }
        let mut counters = self.counters.lock();
        let mut keys = Vec::new();
        for rule in rules {
            let key = key(rule, who);
            let is_full = counters.len() >= MOST_UNITS && !counters.contains_key(&key);
            if is_full {
                forget_unused(&mut counters, &self.rules.read(), now);
            }
            let counter = counters.entry(key.clone()).or_insert_with(|| Counter::new(now));
            self.check(&key, rule, counter, now)?;
            keys.push((key, rule));
        }
        for (key, rule) in keys {
            if let Some(counter) = counters.get_mut(&key) {
                counter.begin(tokens);
                admitted.add(rule, counter.left(rule, now));
            }
            admitted.keys.push(key);
        }
        Ok(admitted)
    }
}

/// The counter of a caller.
fn key(rule: &Rule, who: &Who) -> Key {
    (Arc::clone(&rule.name), rule.unit(who))
}

/// Forgets the units that are as if new, and all those of rules that are gone.
fn forget_unused(counters: &mut HashMap<Key, Counter>, rules: &[InForce], now: Now) {
    counters.retain(|(name, _), counter| {
        let rule = rules.iter().map(|rule| &rule.share).find(|rule| rule.name == *name);
        rule.is_some_and(|rule| !counter.is_unused(rule, now))
    });
}

fn narrower(one: Option<Left>, other: Option<Left>) -> Option<Left> {
    match (one, other) {
        (Some(one), Some(other)) if other.remaining < one.remaining => Some(other),
        (one, other) => one.or(other),
    }
}

impl Admitted {
    /// Headers of the response that say what is left.
    pub fn headers(&self) -> HeaderMap {
        headers(&self.left)
    }

    /// Adds what a rule leaves.
    fn add(&mut self, rule: &Rule, left: [Option<Left>; 2]) {
        if !rule.dry_run {
            self.left = std::array::from_fn(|at| narrower(self.left[at], left[at]));
        }
    }

    /// Ends the request, with the tokens that it had.
    pub fn end(mut self, tokens: u64) {
        self.count(tokens);
    }

    fn count(&mut self, tokens: u64) {
        let shared_keys = std::mem::take(&mut self.shared_keys);
        if let Some(shared) = self.limits.shared.as_ref().filter(|_| !shared_keys.is_empty()) {
            shared.settle(&shared_keys, self.counted, tokens);
        }
        let keys = std::mem::take(&mut self.keys);
        if keys.is_empty() {
            return;
        }
        let mut counters = self.limits.counters.lock();
        for key in keys {
            if let Some(counter) = counters.get_mut(&key) {
                counter.end(self.counted, tokens);
            }
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.count(self.counted);
    }
}

impl Beyond {
    /// The refusal, for people.
    pub fn message(&self) -> String {
        let Self {
            rule, unit, reached, ..
        } = self;
        let of = if unit.is_empty() {
            String::new()
        } else {
            format!(" of {unit}")
        };
        let (limit, quantity) = (reached.limit, reached.quantity.name());
        let again = match reached.again_after {
            Some(after) => format!("try again in {} seconds", seconds(after)),
            None => "an administrator can raise it".to_owned(),
        };
        format!("limit '{rule}'{of} is reached, {limit} {quantity}: {again}")
    }

    /// Headers of the response.
    pub fn headers(&self) -> HeaderMap {
        let mut headers = headers(&self.left);
        if let Some(after) = self.reached.again_after {
            headers.insert(header::RETRY_AFTER, seconds(after).into());
        }
        headers
    }
}

/// Headers of OpenAI's API, by requests and tokens.
/// Source: <https://platform.openai.com/docs/guides/rate-limits#rate-limits-in-headers>.
const HEADERS: [[HeaderName; 3]; 2] = [
    [
        HeaderName::from_static("x-ratelimit-limit-requests"),
        HeaderName::from_static("x-ratelimit-remaining-requests"),
        HeaderName::from_static("x-ratelimit-reset-requests"),
    ],
    [
        HeaderName::from_static("x-ratelimit-limit-tokens"),
        HeaderName::from_static("x-ratelimit-remaining-tokens"),
        HeaderName::from_static("x-ratelimit-reset-tokens"),
    ],
];

fn headers(left: &[Option<Left>; 2]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for ([limit, remaining, reset], left) in HEADERS.into_iter().zip(left) {
        let Some(left) = left else { continue };
        headers.insert(limit, left.limit.into());
        headers.insert(remaining, left.remaining.into());
        if let Ok(value) = HeaderValue::try_from(format!("{}s", seconds(left.reset))) {
            headers.insert(reset, value);
        }
    }
    headers
}

/// Whole seconds, rounded up.
fn seconds(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::keys::KeyHolder;

    fn caller(name: &str) -> Who {
        Who::Key(Arc::new(KeyHolder::named(name)))
    }

    fn limits(text: &str) -> (tempfile::TempDir, Arc<Limits>) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.yaml");
        std::fs::write(&file, text).unwrap();
        (
            folder,
            Arc::new(Limits::new(file, Box::new(|| 1), None, Arc::new(Metrics::new(1)))),
        )
    }

    fn model() -> Model {
        Model::asleep("team-a/gemma", "gemma")
    }

    #[test]
    fn each_unit_has_a_limit_of_its_own() {
        let (_folder, limits) = limits("limits: [{name: a, requestsInFlight: 1}]");
        let held = limits
            .admit(&caller("one"), &model(), 0)
            .now_or_never()
            .unwrap()
            .unwrap();
        let beyond = limits
            .admit(&caller("one"), &model(), 0)
            .now_or_never()
            .unwrap()
            .err()
            .unwrap();
        assert_eq!(
            beyond.message(),
            "limit 'a' of key:one is reached, 1 requests in flight: try again in 1 seconds"
        );
        assert!(
            limits
                .admit(&caller("two"), &model(), 0)
                .now_or_never()
                .unwrap()
                .is_ok()
        );
        held.end(0);
        assert!(
            limits
                .admit(&caller("one"), &model(), 0)
                .now_or_never()
                .unwrap()
                .is_ok()
        );
    }

    #[test]
    fn refused_request_is_counted_by_no_rule() {
        let (_folder, limits) = limits("limits: [{name: a, requestsPerMinute: 10}, {name: b, requestsPerMinute: 1}]");
        let admitted = limits
            .admit(&caller("one"), &model(), 0)
            .now_or_never()
            .unwrap()
            .unwrap();
        assert_eq!(admitted.headers()["x-ratelimit-remaining-requests"], "0");
        assert_eq!(admitted.headers()["x-ratelimit-reset-requests"], "60s");
        drop(admitted);
        for _ in 0..20 {
            let beyond = limits
                .admit(&caller("one"), &model(), 0)
                .now_or_never()
                .unwrap()
                .err()
                .unwrap();
            assert_eq!(
                (&*beyond.rule, &beyond.headers()[header::RETRY_AFTER]),
                ("b", &HeaderValue::from(60))
            );
        }
    }

    #[test]
    fn first_rule_with_a_fallback_names_the_other_model() {
        let (_folder, limits) = limits(
            "limits: [{name: a, requestsPerMinute: 9}, {name: b, match: {keys: [one]}, fallback: team-a/small}, {name: c, fallback: team-b/any}]",
        );
        let fallback = |name: &str| {
            limits
                .fallback(&caller(name), &model())
                .map(|(namespace, name)| format!("{namespace}/{name}"))
        };
        assert_eq!(fallback("one").as_deref(), Some("team-a/small"));
        assert_eq!(fallback("two").as_deref(), Some("team-b/any"));
    }

    #[test]
    fn dry_run_counts_and_refuses_nothing() {
        let (_folder, limits) = limits("limits: [{name: a, tokensPerDay: 5, dryRun: true}]");
        limits
            .admit(&caller("one"), &model(), 0)
            .now_or_never()
            .unwrap()
            .unwrap()
            .end(100);
        let admitted = limits
            .admit(&caller("one"), &model(), 0)
            .now_or_never()
            .unwrap()
            .unwrap();
        assert!(admitted.headers().is_empty());
        let count = r#"limited_requests_total{rule="a",quantity="tokens_per_day",dry_run="true"} 1"#;
        assert!(limits.metrics.scraped().contains(count));
    }

    #[test]
    fn changed_file_is_taken_in_and_one_that_cannot_be_read_changes_nothing() {
        let (folder, limits) = limits("limits: [{name: a, requestsPerMinute: 0}, {name: b}]");
        let numbers = |active: u8, skipped: u8| {
            let text = limits.metrics.scraped();
            for (state, number) in [("active", active), ("skipped", skipped)] {
                let series = format!("limit_rules{{state=\"{state}\"}} {number}");
                assert!(text.contains(&series), "{series}: {text}");
            }
        };
        numbers(1, 1);
        let file = folder.path().join("limits.yaml");
        for text in ["limits: {", "limits: 7"] {
            std::fs::write(&file, text).unwrap();
            limits.read();
            numbers(1, 1);
            assert!(
                limits
                    .admit(&caller("one"), &model(), 0)
                    .now_or_never()
                    .unwrap()
                    .is_err()
            );
        }
        std::fs::remove_file(&file).unwrap();
        limits.read();
        numbers(0, 0);
        assert!(
            limits
                .admit(&caller("one"), &model(), 0)
                .now_or_never()
                .unwrap()
                .is_ok()
        );
    }

    #[test]
    fn routers_share_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.yaml");
        std::fs::write(
            &file,
            "limits: [{name: a, requestsInFlight: 3}, {name: b, tokensPerDay: 0}]",
        )
        .unwrap();
        let limits = Limits::new(file, Box::new(|| 2), None, Arc::new(Metrics::new(1)));
        let rules = limits.rules.read();
        assert_eq!(
            (rules[0].share.requests_in_flight, rules[1].share.tokens_per_day),
            (Some(2), Some(0))
        );
    }

    #[test]
    fn number_of_units_is_bounded() {
        let (_folder, limits) = limits("limits: [{name: a, per: caller, requestsPerMinute: 60}]");
        let now = |seconds| Now {
            at: limits_start() + Duration::from_secs(seconds),
            seconds,
        };
        let rules = Arc::clone(&limits.rules.read());
        let rules: Vec<&Rule> = rules.iter().map(|rule| &rule.share).collect();
        for number in 0..=MOST_UNITS {
            let seconds = u64::from(number == MOST_UNITS) * 10;
            drop(
                limits
                    .admit_at(&rules, &caller(&number.to_string()), 0, now(seconds))
                    .unwrap(),
            );
        }
        assert_eq!(
            limits.counters.lock().len(),
            1,
            "the others are as if new after a second"
        );
    }

    fn limits_start() -> Instant {
        static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        *START
    }
}
