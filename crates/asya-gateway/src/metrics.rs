//! Metrics of the gateway.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use runway_operator::metrics::Metric;

use crate::store::Counts;

/// Accepted jobs.
const SUBMITTED: Metric = Metric {
    name: "asya_gateway_jobs_submitted_total",
    kind: "counter",
    labels: &[],
    help: "Jobs that were accepted: on disk, and confirmed by the broker",
};
/// Jobs that were not accepted.
const REFUSED: Metric = Metric {
    name: "asya_gateway_jobs_refused_total",
    kind: "counter",
    labels: &["reason"],
    help: "Jobs that were not accepted. reason is invalid (the request, or an actor without a queue), unauthenticated, forbidden, full (too many jobs) or unavailable (the broker, the store or the API server)",
};
/// Results.
const FINISHED: Metric = Metric {
    name: "asya_gateway_results_total",
    kind: "counter",
    labels: &["status"],
    help: "Results from the reply queue, and failures at the deadline. status is succeeded, failed, dropped (of a job that is finished, cancelled or not known), unreadable, or foreign (from another namespace than that of the job); the last two are in the dead-letter queue",
};
/// Calls of URLs.
const CALLS: Metric = Metric {
    name: "asya_gateway_callbacks_total",
    kind: "counter",
    labels: &["status"],
    help: "Calls of the URLs of jobs. status is succeeded, failed (called again later) or given_up",
};
/// Known jobs.
const JOBS: Metric = Metric {
    name: "asya_gateway_jobs",
    kind: "gauge",
    labels: &[],
    help: "Jobs in the store",
};
/// Pending jobs.
const PENDING: Metric = Metric {
    name: "asya_gateway_jobs_pending",
    kind: "gauge",
    labels: &[],
    help: "Jobs without a result",
};
/// Size of results.
const BYTES: Metric = Metric {
    name: "asya_gateway_result_bytes",
    kind: "gauge",
    labels: &[],
    help: "Bytes of all results in the store",
};
/// Requests that wait.
const WAITING: Metric = Metric {
    name: "asya_gateway_waiting_requests",
    kind: "gauge",
    labels: &[],
    help: "Requests that wait for a result or stream its progress",
};

/// All metrics.
pub const METRICS: [Metric; 8] = [SUBMITTED, REFUSED, FINISHED, CALLS, JOBS, PENDING, BYTES, WAITING];

/// Values of the label `status` of [`FINISHED`].
const RESULTS: [&str; 5] = ["succeeded", "failed", "dropped", "unreadable", "foreign"];
/// Values of the label `status` of [`CALLS`].
const CALLED: [&str; 3] = ["succeeded", "failed", "given_up"];

/// Reason for not accepting a job, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "the label value is the name")]
pub enum Refusal {
    /// The request, or an actor without a queue.
    invalid,
    /// The token.
    unauthenticated,
    /// The rights.
    forbidden,
    /// Too many jobs.
    full,
    /// The broker, the store or the API server.
    unavailable,
}

impl Refusal {
    const ALL: [Self; 5] = [
        Self::invalid,
        Self::unauthenticated,
        Self::forbidden,
        Self::full,
        Self::unavailable,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: Refusal,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Status {
    status: &'static str,
}

/// Counters of the gateway.
#[derive(Debug)]
pub struct Metrics {
    submitted: Counter,
    refused: Family<Refused, Counter>,
    finished: Family<Status, Counter>,
    calls: Family<Status, Counter>,
    /// Requests that wait now.
    pub waiting: AtomicI64,
}

impl Default for Metrics {
    /// All series begin at 0, so that Prometheus sees the first increase of each.
    fn default() -> Self {
        let metrics = Self {
            submitted: Counter::default(),
            refused: Family::default(),
            finished: Family::default(),
            calls: Family::default(),
            waiting: AtomicI64::new(0),
        };
        for reason in Refusal::ALL {
            drop(metrics.refused.get_or_create(&Refused { reason }));
        }
        for status in RESULTS {
            drop(metrics.finished.get_or_create(&Status { status }));
        }
        for status in CALLED {
            drop(metrics.calls.get_or_create(&Status { status }));
        }
        metrics
    }
}

impl Metrics {
    /// Counts an accepted job.
    pub fn submitted(&self) {
        self.submitted.inc();
    }

    /// Counts a job that was not accepted.
    pub fn refused(&self, reason: Refusal) {
        self.refused.get_or_create(&Refused { reason }).inc();
    }

    /// Counts a result.
    pub fn finished(&self, status: &'static str) {
        self.finished.get_or_create(&Status { status }).inc();
    }

    /// Counts a call of a URL.
    pub fn called(&self, status: &'static str) {
        self.calls.get_or_create(&Status { status }).inc();
    }
}

/// The metrics at a scrape.
#[derive(Debug)]
pub struct Scrape {
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Numbers of the store.
    pub counts: Arc<Counts>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        SUBMITTED.encode(&mut encoder, &self.metrics.submitted)?;
        REFUSED.encode(&mut encoder, &self.metrics.refused)?;
        FINISHED.encode(&mut encoder, &self.metrics.finished)?;
        CALLS.encode(&mut encoder, &self.metrics.calls)?;
        let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        JOBS.encode(&mut encoder, &gauge(self.counts.jobs.load(Ordering::Relaxed)))?;
        PENDING.encode(&mut encoder, &gauge(self.counts.pending.load(Ordering::Relaxed)))?;
        BYTES.encode(&mut encoder, &gauge(self.counts.bytes.load(Ordering::Relaxed)))?;
        WAITING.encode(
            &mut encoder,
            &ConstGauge::new(self.metrics.waiting.load(Ordering::Relaxed)),
        )
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn every_series_exists_from_the_start() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape {
            metrics: Arc::default(),
            counts: Arc::default(),
        }));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for series in [
            "asya_gateway_jobs_refused_total{reason=\"unavailable\"} 0",
            "asya_gateway_jobs_refused_total{reason=\"full\"} 0",
            "asya_gateway_results_total{status=\"unreadable\"} 0",
            "asya_gateway_results_total{status=\"foreign\"} 0",
            "asya_gateway_callbacks_total{status=\"given_up\"} 0",
        ] {
            assert!(text.contains(series), "{series}: {text}");
        }
    }
}
