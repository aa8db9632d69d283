//! `InferenceProviderConfig`: the registration of a provider (`docs/reference/provider-contract.md`).

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model_deployment::{Metric, ServingMode};
use crate::tone::texts;

/// Age of the heartbeat from which a provider is not selected.
pub const HEARTBEAT_TIMEOUT: SignedDuration = SignedDuration::from_secs(180);
/// The message about a provider whose heartbeat is older than [`HEARTBEAT_TIMEOUT`], without the subject.
pub const SILENCE: &str = "has sent no heartbeat for 180 seconds";

/// Capabilities of a provider, and rules for its selection. Each provider controller creates its own.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kubeairunway.ai",
    version = "v1alpha1",
    kind = "InferenceProviderConfig",
    plural = "inferenceproviderconfigs",
    shortname = "ipc",
    category = "ai",
    status = "InferenceProviderConfigStatus",
    derive = "PartialEq",
    doc = "InferenceProviderConfig registers a provider: its capabilities, and the rules for its selection. Provider controllers create it.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must be at most 63 characters: it is used as a label value"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Engines", type_ = "string", json_path = ".spec.capabilities.engines"),
    printcolumn(name = "Policy", type_ = "string", json_path = ".spec.selectionPolicy"),
    printcolumn(name = "Heartbeat", type_ = "date", json_path = ".status.lastHeartbeat"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Upstream", type_ = "string", json_path = ".status.upstreamCRDVersion", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version", priority = 1)
)]
#[serde(rename_all = "camelCase")]
pub struct InferenceProviderConfigSpec {
    /// Capabilities of the provider. It is never selected for a ModelDeployment that it does not support. Absent until the
    /// provider's controller has registered.
    #[serde(default)]
    #[schemars(transform = crate::schema::without_default)]
    pub capabilities: Capabilities,

    /// Rules for the provider's priority for a ModelDeployment: the highest priority of the rules that are true, or 0 without
    /// one. A rule that cannot be evaluated counts only if its priority is below 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub selection_rules: Vec<SelectionRule>,

    /// Automatic: may be selected for a ModelDeployment that names no provider. Explicit: must be named in spec.provider.name.
    /// Defaults to Automatic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_policy: Option<SelectionPolicy>,

    /// Rules that a ModelDeployment must satisfy to use this provider, such as supported names. Checked at admission if the
    /// provider is named, otherwise before it is selected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub validation_rules: Vec<ValidationRule>,

    /// Documented keys of spec.provider.overrides. Other keys cause a warning and have no effect; an empty list means that the
    /// provider has none. If omitted, keys are not checked at admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub overrides: Option<Vec<OverrideKey>>,

    /// URL of the provider's documentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub documentation: Option<String>,

    /// Installation instructions for the upstream operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub installation: Option<String>,

    /// Settings of this installation, such as images, registries and nodes: the provider's documentation lists them. Owned by
    /// administrators; the provider's controller never writes them. A change applies to all models of the provider. The condition
    /// SettingsValid reports what the provider does not accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::owned_settings")]
    pub settings: Option<Map<String, Value>>,
}

/// Capabilities of a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Engines by their names in spec.engine.type, such as vllm, sglang, trtllm or llamacpp. Your own names are allowed.
    #[serde(default)]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub engines: Vec<String>,

    /// Serving modes: aggregated, disaggregated.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub serving_modes: Vec<ServingMode>,

    /// Whether models can run without a GPU. Defaults to false.
    #[serde(default)]
    pub cpu_support: bool,

    /// Whether models can run on GPUs. Defaults to false.
    #[serde(default)]
    pub gpu_support: bool,

    /// Differences for single engines. Omitted fields default to the values above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub per_engine: Vec<EngineCapabilities>,
}

/// Capabilities for one engine, if they differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EngineCapabilities {
    /// Name of the engine, as in spec.engine.type.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Serving modes with this engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub serving_modes: Option<Vec<ServingMode>>,
    /// Whether this engine can run without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_support: Option<bool>,
    /// Whether this engine can run on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_support: Option<bool>,
    /// Metrics of the model's pods, for spec.scaling.autoscaling. Without a name, autoscaling by that metric is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_metrics: Option<PodMetrics>,
}

/// Names of metrics in the custom metrics API, one value per pod that serves the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMetrics {
    /// Number of requests that a pod processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub requests_in_flight: Option<String>,
    /// Number of requests that wait in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub queued_requests: Option<String>,
    /// Number of tokens that a pod generates per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tokens_per_second: Option<String>,
}

impl PodMetrics {
    /// Name of a metric.
    pub fn name(&self, metric: Metric) -> Option<&str> {
        match metric {
            Metric::RequestsInFlight => self.requests_in_flight.as_deref(),
            Metric::QueuedRequests => self.queued_requests.as_deref(),
            Metric::TokensPerSecond => self.tokens_per_second.as_deref(),
        }
    }
}

impl Capabilities {
    /// All engines in `engines` and `perEngine`.
    pub fn engine_names(&self) -> BTreeSet<&str> {
        self.engines
            .iter()
            .map(String::as_str)
            .chain(self.per_engine.iter().map(|e| e.name.as_str()))
            .collect()
    }

    /// Name of a metric of the pods that serve a model with this engine.
    pub fn pod_metric(&self, engine: &str, metric: Metric) -> Option<&str> {
        let refined = self.per_engine.iter().find(|e| e.name == engine)?;
        refined.pod_metrics.as_ref()?.name(metric)
    }

    /// Capabilities for one engine, with the differences applied; `None` if the engine is not supported.
    pub fn for_engine(&self, engine: &str) -> Option<EngineSupport> {
        self.engine_names().contains(engine).then(|| {
            let refined = self.per_engine.iter().find(|e| e.name == engine);
            EngineSupport {
                serving_modes: refined
                    .and_then(|e| e.serving_modes.clone())
                    .unwrap_or_else(|| self.serving_modes.clone()),
                cpu: refined.and_then(|e| e.cpu_support).unwrap_or(self.cpu_support),
                gpu: refined.and_then(|e| e.gpu_support).unwrap_or(self.gpu_support),
            }
        })
    }
}

/// Effective capabilities for one engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSupport {
    /// Serving modes.
    pub serving_modes: Vec<ServingMode>,
    /// Whether it can run without a GPU.
    pub cpu: bool,
    /// Whether it can run on GPUs.
    pub gpu: bool,
}

/// When a provider may be selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectionPolicy {
    /// For any ModelDeployment that it supports.
    #[default]
    Automatic,
    /// Only if spec.provider.name names it.
    Explicit,
}

/// A rule that gives a provider a priority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SelectionRule {
    /// A CEL expression over `spec`, the ModelDeployment's spec with every documented object present and absent numbers
    /// as 0, and `metadata` (name, namespace, labels). Example: spec.engine.type == 'llamacpp'
    #[schemars(length(min = 1, max = 4096))]
    pub condition: String,
    /// Priority if the condition is true. The highest wins; ties go to the provider whose name comes first.
    #[schemars(range(min = -10_000, max = 10_000))]
    pub priority: i32,
}

/// A rule that a ModelDeployment must satisfy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValidationRule {
    /// CEL expression over `spec` and `metadata`, as in selectionRules, that must be true.
    #[schemars(length(min = 1, max = 4096))]
    pub rule: String,
    /// Message if it is false: the field, the reason and the remedy.
    #[schemars(length(min = 1, max = 1024))]
    pub message: String,
}

/// Documented key of spec.provider.overrides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverrideKey {
    /// Dotted path of the key, such as frontend.resources.cpu.
    #[schemars(length(min = 1, max = 253))]
    pub path: String,
    /// Type of the value.
    #[serde(rename = "type")]
    pub kind: OverrideType,
    /// Description with the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
}

/// Type of an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OverrideType {
    /// A string.
    String,
    /// An integer.
    Integer,
    /// A bool.
    Boolean,
    /// A map of strings.
    StringMap,
}

texts!(OverrideType {
    String "String",
    Integer "Integer",
    Boolean "Boolean",
    StringMap "StringMap",
});

/// Observed state of a registered provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceProviderConfigStatus {
    /// Whether the provider is ready for ModelDeployments. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Name and version of the provider controller, such as kaito-provider:v1.2.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Time of the provider controller's last heartbeat. A provider without one for 180 seconds is not selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
    /// API version of the upstream in use, such as kaito.sh/v1beta1.
    #[serde(default, rename = "upstreamCRDVersion", skip_serializing_if = "Option::is_none")]
    pub upstream_crd_version: Option<String>,
    /// Fingerprint of the upstream schema's fields that the provider writes and reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_schema_hash: Option<String>,
    /// Release of the upstream operator, such as 1.6.1, if its Deployment shows one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_release: Option<String>,
    /// UpstreamReady and SettingsValid, written by the provider, and RulesValid, written by the core controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Whether a provider can be selected, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Ready, with a heartbeat within [`HEARTBEAT_TIMEOUT`].
    Healthy,
    /// The provider reports that it is not ready.
    NotReady(String),
    /// The status is missing, or its heartbeat is too old. A provider that reports ready without any heartbeat counts as healthy.
    Silent,
}

impl InferenceProviderConfig {
    /// Selection policy, with the default applied.
    pub fn policy(&self) -> SelectionPolicy {
        self.spec.selection_policy.unwrap_or_default()
    }

    /// Whether the provider can be selected at `now`.
    pub fn health(&self, now: Timestamp) -> Health {
        let Some(status) = &self.status else {
            return Health::Silent;
        };
        if status
            .last_heartbeat
            .as_ref()
            .is_some_and(|beat| now.duration_since(beat.0) > HEARTBEAT_TIMEOUT)
        {
            return Health::Silent;
        }
        if status.ready != Some(true) {
            let of_provider = [crate::condition::UPSTREAM_READY, crate::condition::SETTINGS_VALID];
            let why = of_provider.iter().find_map(|type_| {
                status
                    .conditions
                    .iter()
                    .find(|c| c.type_ == *type_ && c.status != "True")
            });
            return Health::NotReady(why.map_or_else(|| "provider is not ready".to_owned(), |c| c.message.clone()));
        }
        Health::Healthy
    }
}
