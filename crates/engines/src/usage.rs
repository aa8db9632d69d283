//! Use of a model, from two readings of its engines' metrics.

use std::time::Duration;

use serde::Serialize;

use super::text::{Sample, samples};
use super::{ENGINES, Engine};

/// State of an engine at one moment. A value is absent if the engine does not export it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Name of the engine, for users.
    pub engine: &'static str,
    /// Requests that are processed.
    pub running: Option<f64>,
    /// Requests that wait in the engine.
    pub waiting: Option<f64>,
    /// Tokens that were generated since the engine started.
    pub tokens: Option<f64>,
    /// Used share of the KV cache, from 0 to 1: the highest of a pod with several engines.
    pub kv_cache: Option<f64>,
    /// Times to the first token since the engine started: their sum in seconds, and their number.
    pub first_token: [Option<f64>; 2],
}

impl Reading {
    /// Reads the text of a metrics endpoint; `None` if it has no metric of a known engine.
    pub fn of(text: &str) -> Option<Self> {
        let engine = ENGINES
            .iter()
            .find(|engine| samples(text).any(|sample| sample.name.starts_with(engine.metrics.family)))?;
        Some(Self::of_engine(engine, text))
    }

    fn of_engine(engine: &Engine, text: &str) -> Self {
        let mut reading = Self {
            engine: engine.title,
            running: None,
            waiting: None,
            tokens: None,
            kv_cache: None,
            first_token: [None; 2],
        };
        let names = engine.metrics;
        let first_token = |name: &str| {
            let part = name.strip_prefix(names.first_token?)?;
            ["_sum", "_count"].iter().position(|suffix| *suffix == part)
        };
        for Sample { name, value } in samples(text).filter(|sample| sample.value.is_finite()) {
            if name == names.running {
                reading.running = sum(reading.running, Some(value));
            } else if name == names.waiting {
                reading.waiting = sum(reading.waiting, Some(value));
            } else if name == names.tokens {
                reading.tokens = sum(reading.tokens, Some(value));
            } else if names.kv_cache.contains(&name) {
                reading.kv_cache = highest(reading.kv_cache, Some(value));
            } else if let Some(part) = first_token(name).and_then(|part| reading.first_token.get_mut(part)) {
                *part = sum(*part, Some(value));
            }
        }
        reading
    }
}

/// Use of an engine, or of all engines of a model. A value is absent if no engine exports it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Name of the engine, for users.
    pub engine: &'static str,
    /// Requests that are processed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<f64>,
    /// Requests that wait in the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<f64>,
    /// Tokens that are generated per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens_per_second: Option<f64>,
    /// Used share of the KV cache, from 0 to 1: the highest of all engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<f64>,
    /// Times to the first token between the readings: their sum in seconds, and their number.
    #[serde(skip)]
    pub first_token: [Option<f64>; 2],
}

impl Usage {
    /// Mean time to the first token between the readings, in seconds. `None` if no request got one.
    pub fn seconds_to_first_token(&self) -> Option<f64> {
        let [sum, number] = self.first_token;
        sum.zip(number)
            .filter(|(_, number)| *number > 0.0)
            .map(|(sum, number)| sum / number)
    }

    /// The last reading, with the tokens since the first one. They are absent without a first reading, or if the engine has
    /// started again in between.
    pub fn between(first: Option<&Reading>, last: &Reading, elapsed: Duration) -> Self {
        let first = first.filter(|first| first.engine == last.engine);
        let before = first.and_then(|first| first.tokens);
        let since = |part: usize| {
            let before = first?.first_token.get(part).copied()??;
            let more = last.first_token.get(part).copied()?? - before;
            (more >= 0.0).then_some(more)
        };
        let tokens = last.tokens.zip(before).map(|(last, before)| last - before);
        Self {
            engine: last.engine,
            running: last.running,
            waiting: last.waiting,
            tokens_per_second: tokens
                .map(|tokens| tokens / elapsed.as_secs_f64())
                .filter(|rate| rate.is_finite() && *rate >= 0.0),
            kv_cache: last.kv_cache,
            first_token: [since(0), since(1)],
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            engine: self.engine,
            running: sum(self.running, other.running),
            waiting: sum(self.waiting, other.waiting),
            tokens_per_second: sum(self.tokens_per_second, other.tokens_per_second),
            kv_cache: highest(self.kv_cache, other.kv_cache),
            first_token: [
                sum(self.first_token[0], other.first_token[0]),
                sum(self.first_token[1], other.first_token[1]),
            ],
        }
    }
}

fn sum(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    // Two values near the largest number have an infinite sum.
    both(a, b, |a, b| a + b).filter(|sum| sum.is_finite())
}

fn highest(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    both(a, b, f64::max)
}

/// An absent value counts as nothing, not as zero.
fn both(a: Option<f64>, b: Option<f64>, join: impl Fn(f64, f64) -> f64) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(join(a, b)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text of a running llama-server; those of other engines are written from their sources, and say so.
    const LLAMACPP: &str = include_str!("../tests/metrics/llamacpp.txt");
    const VLLM: &str = include_str!("../tests/metrics/vllm.txt");
    const SGLANG: &str = include_str!("../tests/metrics/sglang.txt");
    const RAY: &str = include_str!("../tests/metrics/ray.txt");

    fn reading(engine: &'static str, values: [Option<f64>; 4]) -> Reading {
        let [running, waiting, tokens, kv_cache] = values;
        Reading {
            engine,
            running,
            waiting,
            tokens,
            kv_cache,
            first_token: [None; 2],
        }
    }

    #[test]
    fn each_engine_is_read_by_its_names() {
        let wanted = [
            (LLAMACPP, reading("llama.cpp", [Some(0.0), Some(0.0), Some(18.0), None])),
            (
                VLLM,
                reading("vLLM", [Some(5.0), Some(7.0), Some(1_235_567.0), Some(0.914_062_5)]),
            ),
            (
                SGLANG,
                reading("SGLang", [Some(4.0), Some(0.0), Some(7557.0), Some(0.28)]),
            ),
            (RAY, reading("vLLM on Ray", [Some(1.0), Some(2.0), Some(512.0), None])),
        ];
        for (text, wanted) in wanted {
            let read = Reading::of(text).map(|reading| Reading {
                first_token: [None; 2],
                ..reading
            });
            assert_eq!(read, Some(wanted));
        }
    }

    #[test]
    fn time_to_the_first_token_is_the_mean_between_two_readings() {
        let last = Reading::of(SGLANG).unwrap();
        assert_eq!(last.first_token, [Some(1.5), Some(2.0)]);
        let mean = |first: [Option<f64>; 2]| {
            let first = Reading {
                first_token: first,
                ..last
            };
            let usage = Usage::between(Some(&first), &last, Duration::from_secs(15));
            (
                usage.seconds_to_first_token(),
                usage.and(usage).seconds_to_first_token(),
            )
        };
        assert_eq!(mean([Some(1.0), Some(1.0)]), (Some(0.5), Some(0.5)));
        assert_eq!(mean(last.first_token), (None, None), "no request");
        assert_eq!(mean([Some(9.0), Some(9.0)]), (None, None), "restarted");
        assert_eq!(Reading::of(LLAMACPP).unwrap().first_token, [None; 2]);
    }

    #[test]
    fn text_without_an_engine_is_not_a_reading() {
        for text in [
            "",
            "process_cpu_seconds_total 5",
            "# TYPE vllm:num_requests_running gauge",
            "<html></html>",
        ] {
            assert_eq!(Reading::of(text), None, "{text}");
        }
    }

    #[test]
    fn old_name_of_the_kv_cache_metric_is_read() {
        let reading = Reading::of("vllm:gpu_cache_usage_perc{model_name=\"a\"} 0.5\n").unwrap();
        assert_eq!((reading.kv_cache, reading.running), (Some(0.5), None));
    }

    #[test]
    fn tokens_per_second_need_two_readings_of_one_engine() {
        let at = |tokens| reading("vLLM", [Some(1.0), None, tokens, None]);
        let rate = |first: Option<Reading>, last, seconds| {
            Usage::between(first.as_ref(), &at(last), Duration::from_secs(seconds)).tokens_per_second
        };
        assert_eq!(rate(Some(at(Some(100.0))), Some(150.0), 2), Some(25.0));
        assert_eq!(rate(Some(at(Some(100.0))), Some(100.0), 2), Some(0.0));
        assert_eq!(rate(None, Some(100.0), 2), None, "one reading");
        assert_eq!(rate(Some(at(Some(100.0))), Some(5.0), 2), None, "restarted");
        assert_eq!(rate(Some(at(None)), Some(5.0), 2), None, "not exported before");
        assert_eq!(rate(Some(at(Some(1.0))), Some(5.0), 0), None, "no time between");
        let other = reading("SGLang", [None, None, Some(1.0), None]);
        assert_eq!(rate(Some(other), Some(5.0), 2), None, "another engine");
    }

    #[test]
    fn absent_values_are_not_zero_in_a_sum() {
        let usage = |running, kv_cache| Usage {
            engine: "vLLM",
            running,
            waiting: None,
            tokens_per_second: None,
            kv_cache,
            first_token: [None; 2],
        };
        let all = usage(Some(2.0), Some(0.2))
            .and(usage(None, Some(0.9)))
            .and(usage(Some(1.0), None));
        assert_eq!(all, usage(Some(3.0), Some(0.9)));
    }
}
