//! Metrics for Prometheus. The names are those of the public Asya; `queue` is always the full name of a queue.

use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::plan::Kind;

/// Metrics of this process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    queue: String,
    transport: &'static str,
    received: Family<Received, Counter>,
    moved: Family<Queue, Counter>,
    processed: Family<Processed, Counter>,
    sent: Family<Sent, Counter>,
    failed: Family<Failed, Counter>,
    retried: Family<Queue, Counter>,
    returned: Family<Queue, Counter>,
    /// Connections to a runtime that is not ready. Their messages return to the queue.
    pub not_ready: Gauge,
    /// Connections to a runtime that is still busy with a call that timed out.
    pub hung: Gauge,
    /// Messages whose results the user may not send.
    pub blocked: Gauge,
    /// Messages received and not settled yet.
    pub active: Gauge,
    processing: Histogram,
    execution: Histogram,
    receiving: Histogram,
    sending: Histogram,
    size: Family<Direction, Histogram, fn() -> Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Received {
    queue: String,
    transport: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Queue {
    queue: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Processed {
    queue: String,
    status: Status,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Sent {
    destination_queue: String,
    message_type: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    queue: String,
    reason: Reason,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Direction {
    direction: &'static str,
}

/// Success of a message, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Status {
    /// Its results were sent to the next actor.
    #[allow(non_camel_case_types, reason = "the label value is the name")]
    success,
    /// The handler returned nothing.
    #[allow(non_camel_case_types, reason = "the label value is the name")]
    empty_response,
    /// Consumed by an end actor.
    #[allow(non_camel_case_types, reason = "the label value is the name")]
    end_consumed,
}

/// Failure of a message, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub enum Reason {
    /// Sent to error-end, or to the dead-letter queue of an end actor.
    #[allow(non_camel_case_types, reason = "the label value is the name")]
    runtime_error,
    /// Rejected before the call of the runtime.
    #[allow(non_camel_case_types, reason = "the label value is the name")]
    validation_error,
    /// The next queue does not exist.
    #[allow(non_camel_case_types, reason = "the label value is the name")]
    routing_error,
    /// error-end could not receive it; it is in the dead-letter queue.
    #[allow(non_camel_case_types, reason = "the label value is the name")]
    error_queue_send_failed,
}

impl EncodeLabelValue for Kind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        let text = match self {
            Self::Routing => "routing",
            Self::HappyEnd => "happy_end",
            Self::ErrorEnd => "error_end",
            Self::DeadLetter => "dead_letter",
        };
        EncodeLabelValue::encode(&text, encoder)
    }
}

impl Metrics {
    /// Registers the metrics for one queue. All names start with `namespace` (ASYA_METRICS_NAMESPACE).
    pub fn new(namespace: &str, queue: &str, transport: &'static str) -> Self {
        let mut registry = Registry::with_prefix(namespace);
        let seconds = || Histogram::new(exponential_buckets(0.000_1, 4.0, 12));
        let bytes: fn() -> Histogram = || Histogram::new(exponential_buckets(256.0, 8.0, 8));
        let metrics = Self {
            queue: queue.to_owned(),
            transport,
            received: Family::default(),
            moved: Family::default(),
            processed: Family::default(),
            sent: Family::default(),
            failed: Family::default(),
            retried: Family::default(),
            returned: Family::default(),
            not_ready: Gauge::default(),
            hung: Gauge::default(),
            blocked: Gauge::default(),
            active: Gauge::default(),
            processing: seconds(),
            execution: seconds(),
            receiving: seconds(),
            sending: seconds(),
            size: Family::new_with_constructor(bytes),
            registry: Registry::default(),
        };
        registry.register(
            "messages_received",
            "Messages received from the queue. queue is always the full name of a queue",
            metrics.received.clone(),
        );
        registry.register(
            "messages_moved",
            "Messages moved to the queue from its alias (ASYA_QUEUE_ALIAS). If it stays the same, no sender uses the alias",
            metrics.moved.clone(),
        );
        registry.register(
            "messages_processed",
            "Messages processed successfully. status is success (results were sent to the next actor), empty_response (the handler returned nothing: to happy-end) or end_consumed (consumed by an end actor)",
            metrics.processed.clone(),
        );
        registry.register(
            "messages_sent",
            "Messages sent and confirmed by the broker. message_type is routing, happy_end, error_end or dead_letter",
            metrics.sent.clone(),
        );
        registry.register(
            "messages_failed",
            "Messages that failed. reason is runtime_error (the handler reported an error, died or took too long), validation_error (invalid envelope or deadline exceeded, before the call of the runtime), routing_error (the next queue does not exist) or error_queue_send_failed (error-end could not receive it: it is in the dead-letter queue)",
            metrics.failed.clone(),
        );
        registry.register("messages_retried", "Attempts after the first", metrics.retried.clone());
        registry.register(
            "messages_returned",
            "Messages returned to the queue, because the runtime is not ready, or a service that it needs is down for minutes",
            metrics.returned.clone(),
        );
        metrics.register_gauges(&mut registry);
        registry.register(
            "processing_duration_seconds",
            "Time from receiving a message to its acknowledgement",
            metrics.processing.clone(),
        );
        registry.register(
            "runtime_execution_duration_seconds",
            "Time of one call of the runtime",
            metrics.execution.clone(),
        );
        registry.register(
            "queue_receive_duration_seconds",
            "Time of waiting for a message",
            metrics.receiving.clone(),
        );
        registry.register(
            "queue_send_duration_seconds",
            "Time from sending a message to its confirmation",
            metrics.sending.clone(),
        );
        registry.register(
            "envelope_size_bytes",
            "Size of messages. direction is received or sent",
            metrics.size.clone(),
        );
        Self { registry, ..metrics }
    }

    fn register_gauges(&self, registry: &mut Registry) {
        registry.register(
            "runtime_not_ready",
            "Connections to a runtime that is not ready. While all are, no messages are received",
            self.not_ready.clone(),
        );
        registry.register(
            "runtime_hung",
            "Connections to a runtime that is still busy with a call that timed out, and has to be restarted",
            self.hung.clone(),
        );
        registry.register(
            "sending_blocked",
            "Messages whose results wait because the broker does not let the user of the sidecar send them. While there are any, no messages are received",
            self.blocked.clone(),
        );
        registry.register(
            "active_messages",
            "Messages received and not settled yet",
            self.active.clone(),
        );
    }

    /// Metrics with one observation each, for the reference documentation.
    pub fn example() -> Self {
        let metrics = Self::new("asya_actor", "asya-team_greet", "rabbitmq");
        let took = Duration::from_millis(1);
        metrics.received(1, took);
        metrics.moved();
        metrics.processed(Status::success);
        metrics.failed(Reason::runtime_error);
        metrics.retried();
        metrics.returned();
        metrics.sent("asya-team_next", Kind::Routing, 1, took);
        metrics.executed(took);
        metrics.settled(took);
        metrics
    }

    /// Records a received message, after this wait.
    pub fn received(&self, bytes: usize, waited: Duration) {
        let labels = Received {
            queue: self.queue.clone(),
            transport: self.transport,
        };
        self.received.get_or_create(&labels).inc();
        self.receiving.observe(waited.as_secs_f64());
        self.observe_size("received", bytes);
    }

    /// Records a message that was moved to the queue from its alias.
    pub fn moved(&self) {
        let queue = self.queue.clone();
        self.moved.get_or_create(&Queue { queue }).inc();
    }

    /// Records a successful message.
    pub fn processed(&self, status: Status) {
        let queue = self.queue.clone();
        self.processed.get_or_create(&Processed { queue, status }).inc();
    }

    /// Records a failed message.
    pub fn failed(&self, reason: Reason) {
        let queue = self.queue.clone();
        self.failed.get_or_create(&Failed { queue, reason }).inc();
    }

    /// Records a retry.
    pub fn retried(&self) {
        let queue = self.queue.clone();
        self.retried.get_or_create(&Queue { queue }).inc();
    }

    /// Records a message that was returned to the queue.
    pub fn returned(&self) {
        let queue = self.queue.clone();
        self.returned.get_or_create(&Queue { queue }).inc();
    }

    /// Records a message that was sent and confirmed.
    pub fn sent(&self, queue: &str, kind: Kind, bytes: usize, took: Duration) {
        let labels = Sent {
            destination_queue: queue.to_owned(),
            message_type: kind,
        };
        self.sent.get_or_create(&labels).inc();
        self.observe_size("sent", bytes);
        self.sending.observe(took.as_secs_f64());
    }

    /// Records a call of the runtime.
    pub fn executed(&self, took: Duration) {
        self.execution.observe(took.as_secs_f64());
    }

    /// Records an acknowledgement.
    pub fn settled(&self, took: Duration) {
        self.processing.observe(took.as_secs_f64());
    }

    /// The metrics in the OpenMetrics text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = text::encode(&mut text, &self.registry);
        text
    }

    fn observe_size(&self, direction: &'static str, bytes: usize) {
        #[expect(clippy::cast_precision_loss, reason = "no message is larger than 2^52 bytes")]
        let bytes = bytes as f64;
        self.size.get_or_create(&Direction { direction }).observe(bytes);
    }
}
