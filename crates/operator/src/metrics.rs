//! Metrics in the OpenMetrics text format. Recorded only in the controller loop and in the client.

use std::fmt::Debug;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::header::CONTENT_TYPE;
use axum::http::{Request, Response};
use futures::future::BoxFuture;
use kube::client::Body;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tokio::runtime::Handle;
use tower::{Layer, Service};

use crate::lease::Leadership;

/// Description of a metric, for the endpoint and the reference.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name without a suffix for counters.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Meaning of the metric and its label values.
    pub help: &'static str,
}

impl Metric {
    /// Name for the registry and the encoder, which add `_total` to counters.
    fn registered(&self) -> &'static str {
        self.name.strip_suffix("_total").unwrap_or(self.name)
    }

    /// Encodes the values of this metric at a scrape.
    ///
    /// # Errors
    /// The text cannot be written.
    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>, values: &impl EncodeMetric) -> std::fmt::Result {
        let encoder = encoder.encode_descriptor(self.registered(), self.help, None, values.metric_type())?;
        values.encode(encoder)
    }
}

/// Duration of reconciles.
const DURATION: Metric = Metric {
    name: "kubeairunway_reconciliation_duration_seconds",
    kind: "histogram",
    labels: &["provider"],
    help: "Time a reconcile took, requests included. provider is the controller: core, or the name of a provider",
};
/// Failures of reconciles.
const ERRORS: Metric = Metric {
    name: "kubeairunway_reconciliation_errors_total",
    kind: "counter",
    labels: &["provider", "error_type"],
    help: "Reconciles that failed and are retried. error_type is conflict, forbidden, not_found, invalid, api, connection or timeout",
};
/// Requests to the API server.
const REQUESTS: Metric = Metric {
    name: "kubeairunway_api_requests_total",
    kind: "counter",
    labels: &["provider", "verb", "code"],
    help: "Requests to the API server. verb is read, watch, create, apply, patch or delete; code is the HTTP status, or none without a response. Retries by the client are not counted",
};
/// Leadership.
const LEADER: Metric = Metric {
    name: "kubeairunway_leader",
    kind: "gauge",
    labels: &["provider"],
    help: "1 for the leader, 0 for standby replicas",
};

/// Tasks of the runtime.
const TASKS: Metric = Metric {
    name: "kubeairunway_tasks",
    kind: "gauge",
    labels: &["provider"],
    help: "Tasks of the process that have not ended. Their number follows that of requests and reconciles under way; steady growth is a leak",
};

/// Metrics of every controller.
pub const METRICS: [Metric; 5] = [DURATION, ERRORS, REQUESTS, LEADER, TASKS];

/// From one millisecond to one minute, the timeout of a reconcile.
const BUCKETS: [f64; 13] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 20.0, 60.0,
];

/// The metrics of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    duration: Histogram,
    errors: Family<ErrorLabels, Counter>,
    requests: Family<RequestLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    error_type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    code: String,
}

impl Metrics {
    /// Metrics of the controller with this value of the label `provider`.
    pub fn new(provider: &str, leadership: Leadership) -> Self {
        let duration = Histogram::new(BUCKETS);
        let errors = Family::default();
        let requests = Family::default();
        let mut registry = Registry::default();
        let ours = registry.sub_registry_with_label(("provider".into(), provider.to_owned().into()));
        ours.register(DURATION.name, DURATION.help, duration.clone());
        ours.register(ERRORS.registered(), ERRORS.help, errors.clone());
        ours.register(REQUESTS.registered(), REQUESTS.help, requests.clone());
        ours.register_collector(Box::new(Current(leadership)));
        Self {
            registry: Arc::new(Mutex::new(registry)),
            duration,
            errors,
            requests,
        }
    }

    /// Adds metrics that are computed at each scrape.
    pub fn collect(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    /// All metrics as OpenMetrics text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock();
        // Writing to a String does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }

    /// Records the duration of a reconcile.
    pub(crate) fn reconciled(&self, took: Duration) {
        self.duration.observe(took.as_secs_f64());
    }

    /// Records a failed reconcile.
    pub(crate) fn failed(&self, error_type: &'static str) {
        self.errors.get_or_create(&ErrorLabels { error_type }).inc();
    }
}

/// Values at the time of a scrape.
#[derive(Debug)]
struct Current(Leadership);

impl Collector for Current {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        LEADER.encode(&mut encoder, &ConstGauge::new(i64::from(self.0.is_leading())))?;
        let tasks = Handle::try_current().map_or(0, |runtime| runtime.metrics().num_alive_tasks());
        TASKS.encode(&mut encoder, &ConstGauge::new(i64::try_from(tasks).unwrap_or(i64::MAX)))
    }
}

/// Counts the requests of a client.
#[derive(Clone, Debug)]
pub(crate) struct Counting(pub(crate) Metrics);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            inner,
            requests: self.0.requests.clone(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Counted<S> {
    inner: S,
    requests: Family<RequestLabels, Counter>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let verb = verb(&request);
        let requests = self.requests.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer
                .as_ref()
                .map_or_else(|_| "none".to_owned(), |a| a.status().as_str().to_owned());
            requests.get_or_create(&RequestLabels { verb, code }).inc();
            answer
        })
    }
}

fn verb(request: &Request<Body>) -> &'static str {
    let is = |key: &str| {
        request
            .uri()
            .query()
            .is_some_and(|query| query.split('&').any(|pair| pair == key))
    };
    let content = request
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    match request.method().as_str() {
        "GET" if is("watch=true") || is("watch=1") => "watch",
        "GET" => "read",
        "POST" => "create",
        "PATCH" if content.is_some_and(|content| content.starts_with("application/apply-patch")) => "apply",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_served_under_its_name_and_with_its_labels() {
        let metrics = Metrics::new("kaito", Leadership::always());
        metrics.reconciled(Duration::from_millis(3));
        metrics.failed("conflict");
        let labels = RequestLabels {
            verb: "apply",
            code: "200".to_owned(),
        };
        metrics.requests.get_or_create(&labels).inc();
        let text = metrics.text();
        for line in [
            "kubeairunway_reconciliation_duration_seconds_count{provider=\"kaito\"} 1",
            "kubeairunway_reconciliation_errors_total{provider=\"kaito\",error_type=\"conflict\"} 1",
            "kubeairunway_api_requests_total{provider=\"kaito\",verb=\"apply\",code=\"200\"} 1",
            "kubeairunway_leader{provider=\"kaito\"} 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing from\n{text}");
        }
    }

    #[test]
    fn requests_are_counted_by_verb() {
        let of = |method: &str, uri: &str, content: &str| {
            let request = Request::builder().method(method).uri(uri).header(CONTENT_TYPE, content);
            verb(&request.body(Body::empty()).unwrap())
        };
        assert_eq!(of("GET", "/api/v1/pods?limit=5", ""), "read");
        assert_eq!(of("GET", "/api/v1/pods?limit=5&watch=true", ""), "watch");
        assert_eq!(of("PATCH", "/x?force=true", "application/apply-patch+yaml"), "apply");
        assert_eq!(of("PATCH", "/x", "application/merge-patch+json"), "patch");
        assert_eq!(of("POST", "/x", ""), "create");
    }
}
