//! `spec.scaling.autoscaling` of a ModelDeployment.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Messages of the rules. The CRD has the same rules as admission.
pub mod messages {
    /// None or several of the fields that decide the number of replicas are set.
    pub const ONE_METRIC: &str =
        "scaling.autoscaling requires exactly one of requestsInFlight, queuedRequests, tokensPerSecond and trigger";
    /// The minimum is above the maximum.
    pub const MIN_ABOVE_MAX: &str = "scaling.autoscaling.minReplicas must not be above scaling.autoscaling.maxReplicas: raise maxReplicas or lower minReplicas";
    /// Scaling to zero by a metric of the pods.
    pub const ZERO_WITHOUT_TRIGGER: &str = "scaling.autoscaling.minReplicas: 0 requires scaling.autoscaling.trigger: the other metrics come from the model's own pods, so that nothing could start the first one";
}

/// Autoscaling by a metric of the model's pods, which creates a HorizontalPodAutoscaler, or by a trigger of KEDA, which creates a
/// ScaledObject. Exactly one of requestsInFlight, queuedRequests, tokensPerSecond and trigger is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("[has(self.requestsInFlight), has(self.queuedRequests), has(self.tokensPerSecond), has(self.trigger)].filter(given, given).size() == 1").message(messages::ONE_METRIC),
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas").message(messages::MIN_ABOVE_MAX),
    validation = Rule::new("!has(self.minReplicas) || self.minReplicas > 0 || has(self.trigger)").message(messages::ZERO_WITHOUT_TRIGGER)
)]
pub struct Autoscaling {
    /// Minimum number of replicas. Defaults to 1. 0 requires a trigger, and a provider that can scale the model to zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: Option<i32>,
    /// Maximum number of replicas.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Average number of requests that one replica processes at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests_in_flight: Option<i32>,
    /// Average number of requests that wait in the engine of one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub queued_requests: Option<i32>,
    /// Average number of tokens that one replica generates per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub tokens_per_second: Option<i32>,
    /// Trigger of KEDA, which must be installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
}

/// Trigger of a ScaledObject, and the times that apply to it. KEDA's documentation describes the types and their metadata (https://keda.sh/docs/latest/scalers).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trigger {
    /// Type, such as prometheus, rabbitmq or cron.
    #[serde(rename = "type")]
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Settings of the type, such as serverAddress, query and threshold.
    #[serde(default)]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"type": "string", "maxLength": 4096}))]
    pub metadata: BTreeMap<String, String>,
    /// Kind of the target: AverageValue (default of most types), Value or Utilization.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub metric_type: Option<String>,
    /// Seconds between two reads of the metric while the model has no replica. Defaults to 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub polling_interval: Option<i32>,
    /// Seconds without activity after which the model is scaled to zero. Defaults to 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_592_000))]
    pub cooldown_period: Option<i32>,
    /// Credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authentication_ref: Option<TriggerAuthentication>,
}

/// Reference to a TriggerAuthentication in the same namespace. A ClusterTriggerAuthentication cannot be used: its credentials
/// belong to the cluster, not to the author of a ModelDeployment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TriggerAuthentication {
    /// Name of the TriggerAuthentication.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Metric of the model's pods, by which a HorizontalPodAutoscaler scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Requests that are processed.
    RequestsInFlight,
    /// Requests that wait.
    QueuedRequests,
    /// Tokens generated per second.
    TokensPerSecond,
}

impl Metric {
    /// Every metric.
    pub const ALL: [Self; 3] = [Self::RequestsInFlight, Self::QueuedRequests, Self::TokensPerSecond];

    /// Name of the field in `spec.scaling.autoscaling`.
    pub fn field(self) -> &'static str {
        match self {
            Self::RequestsInFlight => "requestsInFlight",
            Self::QueuedRequests => "queuedRequests",
            Self::TokensPerSecond => "tokensPerSecond",
        }
    }
}

/// Source of the desired number of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal<'a> {
    /// A metric of the pods, and its average.
    Pods(Metric, i32),
    /// A trigger of KEDA.
    Trigger(&'a Trigger),
}

impl Autoscaling {
    /// Minimum number of replicas, with the default applied.
    pub fn min(&self) -> i32 {
        self.min_replicas.unwrap_or(1)
    }

    /// Source of the desired number of replicas; `None` only if the spec is invalid.
    pub fn signal(&self) -> Option<Signal<'_>> {
        let metrics = [
            (Metric::RequestsInFlight, self.requests_in_flight),
            (Metric::QueuedRequests, self.queued_requests),
            (Metric::TokensPerSecond, self.tokens_per_second),
        ];
        let metric = metrics
            .into_iter()
            .find_map(|(metric, target)| Some(Signal::Pods(metric, target?)));
        metric.or_else(|| self.trigger.as_ref().map(Signal::Trigger))
    }
}
