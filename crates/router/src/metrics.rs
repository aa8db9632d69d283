//! Metrics of the router.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use runway_operator::metrics::Metric;

use crate::balance::{Decision, Reason};
use crate::model::Model;
use crate::quantity::Quantity;
use crate::recent::Recent;
use crate::rights::Who;
use crate::usage::Usage;

/// Responses of engines.
const RESPONSES: Metric = Metric {
    name: "kubeairunway_gateway_responses_total",
    kind: "counter",
    labels: &["namespace", "name", "caller", "code"],
    help: "Responses of engines. namespace and name are those of the ModelDeployment; caller is token or key; code is the class of the HTTP status, such as 2xx",
};
/// Time to the first byte.
const FIRST_BYTE: Metric = Metric {
    name: "kubeairunway_gateway_response_start_seconds",
    kind: "histogram",
    labels: &["namespace", "name"],
    help: "Time from the request to the header of the engine's response, with the time for which the request was held",
};
/// Refused requests.
const REFUSED: Metric = Metric {
    name: "kubeairunway_gateway_requests_refused_total",
    kind: "counter",
    labels: &["reason"],
    help: "Requests that were not answered by an engine. reason is invalid, unauthenticated, not_found (or not allowed), forbidden (to see replicas), ambiguous, busy (a limit of requests), not_serving (the model does not serve in time), broken (the engine closed the connection before its response), unavailable (the API server) or limited (a limit of the administrator)",
};
/// Wakes.
const WAKES: Metric = Metric {
    name: "kubeairunway_gateway_wakes_total",
    kind: "counter",
    labels: &["result"],
    help: "Models scaled from zero to one replica for a request. result is done, or failed (the API server refused)",
};
/// Held requests.
const HELD: Metric = Metric {
    name: "kubeairunway_gateway_held_requests",
    kind: "gauge",
    labels: &[],
    help: "Requests that wait until their model serves",
};
/// Limit of held requests.
const HELD_LIMIT: Metric = Metric {
    name: "kubeairunway_gateway_held_requests_limit",
    kind: "gauge",
    labels: &[],
    help: "Requests that may wait at once until their model serves (--largest-held); one more is refused",
};
/// Requests in flight.
const IN_FLIGHT: Metric = Metric {
    name: "kubeairunway_gateway_requests_in_flight",
    kind: "gauge",
    labels: &[],
    help: "Requests from the first byte to the last byte of the response, with those that are held",
};

/// Requests for a model.
const OF_MODEL: Metric = Metric {
    name: "kubeairunway_gateway_model_requests",
    kind: "gauge",
    labels: &["namespace", "name"],
    help: "Requests for a model that are held or in flight. Every model has a series, also one that is scaled to zero",
};

/// Requests that wait for a model.
const HELD_OF_MODEL: Metric = Metric {
    name: "kubeairunway_gateway_model_held_requests",
    kind: "gauge",
    labels: &["namespace", "name"],
    help: "Requests that wait until a model serves",
};
/// Speed of a model.
const TOKENS_PER_SECOND: Metric = Metric {
    name: "kubeairunway_gateway_model_tokens_per_second",
    kind: "gauge",
    labels: &["namespace", "name"],
    help: "Tokens of responses that ended within the last minute, per second. For autoscalers that read this page; a rate of kubeairunway_gateway_tokens_total is more exact",
};
/// Time to the first part of a stream.
const FIRST_PART: Metric = Metric {
    name: "kubeairunway_gateway_model_first_token_seconds",
    kind: "gauge",
    labels: &["namespace", "name"],
    help: "Mean time from the request at the engine to the first token of a stream, of the streams that ended within the last minute; 0 without any",
};

/// Tokens.
const TOKENS: Metric = Metric {
    name: "kubeairunway_gateway_tokens_total",
    kind: "counter",
    labels: &["namespace", "name", "caller", "direction", "source"],
    help: "Tokens of requests. direction is input (prompts) or output (responses); source is engine (as the engine reported them), or estimate: from the length of the prompt and the parts of the response, for streams that ended early and engines that report none",
};
/// Choices of replicas.
const CHOICES: Metric = Metric {
    name: "kubeairunway_gateway_replica_choices_total",
    kind: "counter",
    labels: &["namespace", "name", "reason"],
    help: "Requests by what decided their replica. reason is only (there is one), prefix (it has seen the longest beginning of the prompt), load (it has the fewest requests, and no replica has seen the beginning of the prompt) or busy (those that have seen it have too many requests)",
};
/// Prompts.
const BLOCKS: Metric = Metric {
    name: "kubeairunway_gateway_prompt_blocks_total",
    kind: "counter",
    labels: &["namespace", "name", "seen"],
    help: "Blocks of 256 bytes of prompts. seen is true for those that the chosen replica had received before, in the same place: their share is the hit rate that an engine's prefix cache can reach",
};

/// Requests beyond a limit.
const LIMITED: Metric = Metric {
    name: "kubeairunway_gateway_limited_requests_total",
    kind: "counter",
    labels: &["rule", "quantity", "dry_run"],
    help: "Requests beyond a limit of the administrator. rule is its name; quantity is requests_per_minute, tokens_per_minute, tokens_per_day or requests_in_flight; dry_run is true for rules that refuse nothing",
};
/// Stopped canaries.
const STOPPED: Metric = Metric {
    name: "kubeairunway_gateway_canary_stopped",
    kind: "gauge",
    labels: &["namespace", "name"],
    help: "1 for a canary that gets no more requests, because it fails more often or answers later than the version that it is of",
};
/// Failures of the shared counters.
const COUNTERS_AWAY: Metric = Metric {
    name: "kubeairunway_gateway_limit_counters_away_total",
    kind: "counter",
    labels: &[],
    help: "Requests that were counted in memory, with the share of this router of every limit, because the shared counters did not answer",
};
/// Rules.
const RULES: Metric = Metric {
    name: "kubeairunway_gateway_limit_rules",
    kind: "gauge",
    labels: &["state"],
    help: "Rules of limits. state is active, or skipped (not valid: the log says why)",
};

/// All metrics.
pub const METRICS: [Metric; 18] = [
    RESPONSES,
    FIRST_BYTE,
    REFUSED,
    WAKES,
    HELD,
    HELD_LIMIT,
    IN_FLIGHT,
    OF_MODEL,
    TOKENS,
    CHOICES,
    BLOCKS,
    LIMITED,
    RULES,
    COUNTERS_AWAY,
    STOPPED,
    HELD_OF_MODEL,
    TOKENS_PER_SECOND,
    FIRST_PART,
];

/// Values of the label `result` of [`WAKES`].
const WOKEN: [&str; 2] = ["done", "failed"];
/// Values of the label `code` of [`RESPONSES`].
const CODES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];
/// Values of the label `direction` of [`TOKENS`].
const DIRECTIONS: [&str; 2] = ["input", "output"];
/// Values of the label `source` of [`TOKENS`].
const SOURCES: [&str; 2] = ["engine", "estimate"];
/// Values of the label `seen` of [`BLOCKS`].
const SEEN: [&str; 2] = ["false", "true"];
/// From a warm answer to the load of a large model.
const BUCKETS: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];

/// Reason for refusing a request, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the label value is the name")]
pub enum Refusal {
    /// The request.
    invalid,
    /// The token or key.
    unauthenticated,
    /// The model, or the right to use it.
    not_found,
    /// The right to see replicas.
    forbidden,
    /// The name.
    ambiguous,
    /// A limit of requests.
    busy,
    /// The model does not serve in time.
    not_serving,
    /// The engine closed the connection before its response.
    broken,
    /// The API server.
    unavailable,
    /// A limit of the administrator.
    limited,
}

impl Refusal {
    const ALL: [Self; 10] = [
        Self::invalid,
        Self::unauthenticated,
        Self::not_found,
        Self::forbidden,
        Self::ambiguous,
        Self::busy,
        Self::not_serving,
        Self::broken,
        Self::unavailable,
        Self::limited,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: Refusal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Result {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Response {
    #[prometheus(flatten)]
    model: OfModel,
    caller: &'static str,
    code: &'static str,
}

impl From<&Model> for OfModel {
    fn from(model: &Model) -> Self {
        Self {
            namespace: model.namespace.to_string(),
            name: model.name.to_string(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Tokens {
    #[prometheus(flatten)]
    model: OfModel,
    caller: &'static str,
    direction: &'static str,
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Choice {
    #[prometheus(flatten)]
    model: OfModel,
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Blocks {
    #[prometheus(flatten)]
    model: OfModel,
    seen: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Limited {
    rule: String,
    quantity: Quantity,
    dry_run: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRules {
    state: &'static str,
}

type Responses = Family<Response, Counter>;
type FirstBytes = Family<OfModel, Histogram, fn() -> Histogram>;

/// Counters of the router.
#[derive(Debug)]
pub struct Metrics {
    responses: Responses,
    first_byte: FirstBytes,
    refused: Family<Refused, Counter>,
    wakes: Family<Result, Counter>,
    held: Arc<AtomicI64>,
    held_limit: i64,
    in_flight: Arc<AtomicI64>,
    of_models: Family<OfModel, Gauge>,
    held_of_models: Family<OfModel, Gauge>,
    start: Instant,
    recent: Mutex<HashMap<OfModel, Recent>>,
    tokens: Family<Tokens, Counter>,
    choices: Family<Choice, Counter>,
    blocks: Family<Blocks, Counter>,
    limited: Family<Limited, Counter>,
    rules: Family<OfRules, Gauge>,
    counters_away: Counter,
    stopped: Family<OfModel, Gauge>,
}

/// One more in a gauge, until it is dropped.
#[derive(Debug)]
pub struct Counted(Arc<AtomicI64>);

impl Counted {
    fn one(gauge: &Arc<AtomicI64>) -> Self {
        gauge.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(gauge))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One more request for a model, until it is dropped.
#[derive(Debug)]
pub struct CountedForModel(Gauge);

impl CountedForModel {
    fn one(gauges: &Family<OfModel, Gauge>, model: &Model) -> Self {
        let gauge = gauges.get_or_create_owned(&OfModel::from(model));
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for CountedForModel {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    /// Metrics of a router with this limit of held requests. Series without a model begin at 0, so that Prometheus sees the first
    /// increase of each.
    pub fn new(largest_held: usize) -> Self {
        let metrics = Self {
            responses: Family::default(),
            first_byte: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            refused: Family::default(),
            wakes: Family::default(),
            held: Arc::default(),
            held_limit: i64::try_from(largest_held).unwrap_or(i64::MAX),
            in_flight: Arc::default(),
            of_models: Family::default(),
            held_of_models: Family::default(),
            start: Instant::now(),
            recent: Mutex::default(),
            tokens: Family::default(),
            choices: Family::default(),
            blocks: Family::default(),
            limited: Family::default(),
            rules: Family::default(),
            counters_away: Counter::default(),
            stopped: Family::default(),
        };
        for reason in Refusal::ALL {
            drop(metrics.refused.get_or_create(&Refused { reason }));
        }
        for result in WOKEN {
            drop(metrics.wakes.get_or_create(&Result { result }));
        }
        metrics
    }

    /// Begins the series of a model that autoscalers read.
    pub fn know(&self, model: &Model) {
        let model = OfModel::from(model);
        drop(self.of_models.get_or_create(&model));
        drop(self.held_of_models.get_or_create(&model));
        self.recent.lock().entry(model).or_default();
    }

    /// Counts the response of an engine.
    pub fn responded(&self, model: &Model, who: &Who, status: u16, after: Duration) {
        let model = OfModel::from(model);
        self.first_byte.get_or_create(&model).observe(after.as_secs_f64());
        let labels = Response {
            model,
            caller: who.class(),
            code: class(status),
        };
        self.responses.get_or_create(&labels).inc();
    }

    /// Removes the series of a model that is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        let of_model = OfModel {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let model = || of_model.clone();
        for caller in Who::CLASSES {
            for code in CODES {
                let model = model();
                self.responses.remove(&Response { model, caller, code });
            }
            for (direction, source) in DIRECTIONS
                .into_iter()
                .flat_map(|one| SOURCES.map(|source| (one, source)))
            {
                self.tokens.remove(&Tokens {
                    model: model(),
                    caller,
                    direction,
                    source,
                });
            }
        }
        for reason in Reason::ALL {
            let model = model();
            self.choices.remove(&Choice { model, reason });
        }
        for seen in SEEN {
            let model = model();
            self.blocks.remove(&Blocks { model, seen });
        }
        self.first_byte.remove(&of_model);
        self.stopped.remove(&of_model);
        self.of_models.remove(&of_model);
        self.held_of_models.remove(&of_model);
        self.recent.lock().remove(&of_model);
    }

    /// Counts the tokens of a request, and whether they are estimated.
    pub fn used(&self, model: &Model, who: &Who, usage: Usage, estimated: bool) {
        for (direction, tokens) in DIRECTIONS.into_iter().zip([usage.input, usage.output]) {
            let labels = Tokens {
                model: model.into(),
                caller: who.class(),
                direction,
                source: SOURCES[usize::from(estimated)],
            };
            self.tokens.get_or_create(&labels).inc_by(tokens);
        }
        let second = self.second();
        if let Some(recent) = self.recent.lock().get_mut(&model.into()) {
            recent.tokens(usage.output, second);
        }
    }

    /// Counts a stream, by the time to its first part.
    pub fn first_part(&self, model: &Model, after: Duration) {
        let second = self.second();
        if let Some(recent) = self.recent.lock().get_mut(&model.into()) {
            recent.stream(after.as_secs_f64(), second);
        }
    }

    fn second(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// A value of the last minute, by model.
    fn of_last_minute(&self, value: impl Fn(&Recent, u64) -> f64) -> Family<OfModel, Gauge<f64, AtomicU64>> {
        let family = Family::<OfModel, Gauge<f64, AtomicU64>>::default();
        let second = self.second();
        for (model, recent) in self.recent.lock().iter() {
            family.get_or_create(model).set(value(recent, second));
        }
        family
    }

    /// Counts the choice of a replica.
    pub fn chose(&self, model: &Model, decision: &Decision) {
        let choice = Choice {
            model: model.into(),
            reason: decision.reason,
        };
        self.choices.get_or_create(&choice).inc();
        let blocks = [decision.blocks - decision.matched, decision.matched];
        for (seen, blocks) in SEEN.into_iter().zip(blocks).filter(|(_, blocks)| *blocks > 0) {
            let model = choice.model.clone();
            let blocks = u64::try_from(blocks).unwrap_or(u64::MAX);
            self.blocks.get_or_create(&Blocks { model, seen }).inc_by(blocks);
        }
    }

    /// Sets whether a canary is stopped.
    pub fn canary_stopped(&self, canary: &Model, is_stopped: bool) {
        self.stopped.get_or_create(&canary.into()).set(is_stopped.into());
    }

    /// Counts a request beyond a limit.
    pub fn limited(&self, rule: &str, quantity: Quantity, dry_run: bool) {
        let labels = Limited {
            rule: rule.to_owned(),
            quantity,
            dry_run: if dry_run { "true" } else { "false" },
        };
        self.limited.get_or_create(&labels).inc();
    }

    /// Sets the numbers of rules: those in force, and those that are skipped.
    pub fn limit_rules(&self, numbers: [usize; 2]) {
        for (state, number) in ["active", "skipped"].into_iter().zip(numbers) {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            self.rules.get_or_create(&OfRules { state }).set(number);
        }
    }

    /// Counts a request that the shared counters did not count.
    pub fn counters_away(&self) {
        self.counters_away.inc();
    }

    /// Counts a request that no engine answered.
    pub fn refused(&self, reason: Refusal) {
        self.refused.get_or_create(&Refused { reason }).inc();
    }

    /// Counts a model that was scaled for a request, or not.
    pub fn woken(&self, done: bool) {
        let result = if done { "done" } else { "failed" };
        self.wakes.get_or_create(&Result { result }).inc();
    }

    /// A request that is held, until the result is dropped.
    pub fn hold(&self, model: &Model) -> (Counted, CountedForModel) {
        let of_model = CountedForModel::one(&self.held_of_models, model);
        (Counted::one(&self.held), of_model)
    }

    /// A request for a model, until the result is dropped.
    pub fn request(&self, model: &Model) -> CountedForModel {
        CountedForModel::one(&self.of_models, model)
    }

    /// A request in flight, until the result is dropped.
    pub fn begin(&self) -> Counted {
        Counted::one(&self.in_flight)
    }
}

fn class(status: u16) -> &'static str {
    CODES[usize::from(status / 100).clamp(1, CODES.len()) - 1]
}

/// The metrics at a scrape.
#[derive(Debug)]
pub struct Scrape(pub Arc<Metrics>);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::result::Result<(), std::fmt::Error> {
        let metrics = &self.0;
        RESPONSES.encode(&mut encoder, &metrics.responses)?;
        FIRST_BYTE.encode(&mut encoder, &metrics.first_byte)?;
        REFUSED.encode(&mut encoder, &metrics.refused)?;
        WAKES.encode(&mut encoder, &metrics.wakes)?;
        let gauge = |value: &AtomicI64| ConstGauge::new(value.load(Ordering::Relaxed));
        HELD.encode(&mut encoder, &gauge(&metrics.held))?;
        HELD_LIMIT.encode(&mut encoder, &ConstGauge::new(metrics.held_limit))?;
        IN_FLIGHT.encode(&mut encoder, &gauge(&metrics.in_flight))?;
        OF_MODEL.encode(&mut encoder, &metrics.of_models)?;
        TOKENS.encode(&mut encoder, &metrics.tokens)?;
        CHOICES.encode(&mut encoder, &metrics.choices)?;
        BLOCKS.encode(&mut encoder, &metrics.blocks)?;
        LIMITED.encode(&mut encoder, &metrics.limited)?;
        RULES.encode(&mut encoder, &metrics.rules)?;
        COUNTERS_AWAY.encode(&mut encoder, &metrics.counters_away)?;
        STOPPED.encode(&mut encoder, &metrics.stopped)?;
        HELD_OF_MODEL.encode(&mut encoder, &metrics.held_of_models)?;
        let speed = metrics.of_last_minute(Recent::tokens_per_second);
        TOKENS_PER_SECOND.encode(&mut encoder, &speed)?;
        FIRST_PART.encode(&mut encoder, &metrics.of_last_minute(Recent::first_part_seconds))
    }
}

#[cfg(test)]
impl Metrics {
    /// The text of a scrape.
    pub(crate) fn scraped(self: &Arc<Self>) -> String {
        let mut registry = prometheus_client::registry::Registry::default();
        registry.register_collector(Box::new(Scrape(Arc::clone(self))));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_have_a_class() {
        assert_eq!([100, 200, 404, 599].map(class), ["1xx", "2xx", "4xx", "5xx"]);
    }

    #[test]
    fn every_model_has_a_number_of_requests_until_it_is_gone() {
        let metrics = Arc::new(Metrics::new(10));
        let model = Model::asleep("a/one", "llama");
        let series =
            |number: u8| format!("kubeairunway_gateway_model_requests{{namespace=\"a\",name=\"one\"}} {number}");
        metrics.know(&model);
        assert!(metrics.scraped().contains(&series(0)));
        let held = metrics.request(&model);
        assert!(metrics.scraped().contains(&series(1)));
        let key = Who::Key(Arc::default());
        metrics.used(&model, &key, Usage { input: 7, output: 3 }, true);
        let decision = Decision {
            pod: "one-0".into(),
            reason: Reason::prefix,
            blocks: 5,
            matched: 4,
            in_flight: 0,
            replicas: 2,
        };
        metrics.chose(&model, &decision);
        let text = metrics.scraped();
        for series in [
            "tokens_total{namespace=\"a\",name=\"one\",caller=\"key\",direction=\"output\",source=\"estimate\"} 3",
            "replica_choices_total{namespace=\"a\",name=\"one\",reason=\"prefix\"} 1",
            "prompt_blocks_total{namespace=\"a\",name=\"one\",seen=\"true\"} 4",
        ] {
            assert!(text.contains(series), "{series}: {text}");
        }
        metrics.forget("a", "one");
        drop(held);
        let text = metrics.scraped();
        assert!(!text.contains("name=\"one\""), "{text}");
    }

    #[test]
    fn series_without_a_model_exist_from_the_start() {
        let metrics = Arc::new(Metrics::new(10));
        let held = metrics.hold(&Model::asleep("a/one", "llama"));
        let text = metrics.scraped();
        for series in [
            "kubeairunway_gateway_requests_refused_total{reason=\"unavailable\"} 0",
            "kubeairunway_gateway_wakes_total{result=\"failed\"} 0",
            "kubeairunway_gateway_held_requests 1",
            "kubeairunway_gateway_held_requests_limit 10",
        ] {
            assert!(text.contains(series), "{series}: {text}");
        }
        drop(held);
        assert_eq!(metrics.held.load(Ordering::Relaxed), 0);
    }
}
