//! `InferenceProviderConfig`: what a provider registers (design 3.9, with the additions of `docs/provider-contract.md`).

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model_deployment::ServingMode;
use crate::tone::texts;

/// A provider whose heartbeat is older than this is not chosen.
pub const HEARTBEAT_TIMEOUT: SignedDuration = SignedDuration::from_secs(180);
/// The message about a provider whose heartbeat is older than [`HEARTBEAT_TIMEOUT`], without the subject.
pub const SILENCE: &str = "has sent no heartbeat for 180 seconds";

/// What a provider can do, and when it should be chosen. Each provider controller registers itself with one of these.
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
    doc = "InferenceProviderConfig registers a provider: what it can do, and the rules by which it is chosen. Provider controllers create it themselves.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must be at most 63 characters: it is the provider's name and becomes a label value"),
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
    /// What this provider supports. A ModelDeployment is never given to a provider that does not support it.
    pub capabilities: Capabilities,

    /// Rules that give this provider a priority for a ModelDeployment. The highest priority among the rules that hold
    /// counts; with no rule that holds it is 0. A rule that cannot be evaluated counts only if its priority is below 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub selection_rules: Vec<SelectionRule>,

    /// Automatic: may be chosen for a ModelDeployment that names no provider. Explicit: only when named in
    /// spec.provider.name. Defaults to Automatic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_policy: Option<SelectionPolicy>,

    /// Rules that a ModelDeployment must meet on this provider, asked at admission when the provider is named and
    /// before it is chosen otherwise. For what a provider knows beforehand, such as the names it cannot take.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub validation_rules: Vec<ValidationRule>,

    /// The keys of spec.provider.overrides that this provider knows. Any other key is answered with a warning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub overrides: Vec<OverrideKey>,

    /// Where the provider is documented: a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub documentation: Option<String>,

    /// How the upstream operator is installed, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub installation: Option<String>,
}

/// What a provider supports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capabilities {
    /// Engines by the name used in spec.engine.type, such as vllm, sglang, trtllm, llamacpp, or one of your own.
    #[serde(default)]
    #[schemars(length(max = 32), inner(length(min = 1, max = 63)))]
    pub engines: Vec<String>,

    /// Serving modes: aggregated, disaggregated.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub serving_modes: Vec<ServingMode>,

    /// Whether models can be served without a GPU. Defaults to false.
    #[serde(default)]
    pub cpu_support: bool,

    /// Whether models can be served on GPUs. Defaults to false.
    #[serde(default)]
    pub gpu_support: bool,

    /// Refines the above for single engines; what is absent here is taken from above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub per_engine: Vec<EngineCapabilities>,
}

/// What a provider supports for one engine, where it differs from the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EngineCapabilities {
    /// The engine, as in spec.engine.type.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Serving modes with this engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    pub serving_modes: Option<Vec<ServingMode>>,
    /// Whether this engine runs without a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_support: Option<bool>,
    /// Whether this engine runs on GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_support: Option<bool>,
}

impl Capabilities {
    /// Every engine named, in `engines` or in `perEngine`.
    pub fn engine_names(&self) -> BTreeSet<&str> {
        self.engines
            .iter()
            .map(String::as_str)
            .chain(self.per_engine.iter().map(|e| e.name.as_str()))
            .collect()
    }

    /// What holds for one engine, refinements applied; `None` if the engine is not supported.
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

/// What a provider supports for one engine, all told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineSupport {
    /// Serving modes.
    pub serving_modes: Vec<ServingMode>,
    /// Without a GPU.
    pub cpu: bool,
    /// With GPUs.
    pub gpu: bool,
}

/// When a provider may be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SelectionPolicy {
    /// For any ModelDeployment it supports.
    #[default]
    Automatic,
    /// Only when spec.provider.name names it.
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
    /// The priority when the condition holds; higher wins, ties go to the provider whose name comes first.
    #[schemars(range(min = -10_000, max = 10_000))]
    pub priority: i32,
}

/// A rule that a ModelDeployment must meet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValidationRule {
    /// A CEL expression over `spec` and `metadata`, as in selectionRules, that must hold.
    #[schemars(length(min = 1, max = 4096))]
    pub rule: String,
    /// What the user is told when it does not: the field, the reason and the way out.
    #[schemars(length(min = 1, max = 1024))]
    pub message: String,
}

/// A documented key of spec.provider.overrides.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverrideKey {
    /// The path, with dots: frontend.resources.cpu
    #[schemars(length(min = 1, max = 253))]
    pub path: String,
    /// The type of the value.
    #[serde(rename = "type")]
    pub kind: OverrideType,
    /// What it does, and its default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub description: Option<String>,
}

/// The type of an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OverrideType {
    /// A text.
    String,
    /// A whole number.
    Integer,
    /// true or false.
    Boolean,
    /// A map from text to text.
    StringMap,
}

texts!(OverrideType {
    String "String",
    Integer "Integer",
    Boolean "Boolean",
    StringMap "StringMap",
});

/// What is known of a registered provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InferenceProviderConfigStatus {
    /// Whether the provider can take ModelDeployments. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// Name and version of the provider controller, as kaito-provider:v1.2.0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// When the provider controller was last alive. A provider silent for 180 seconds is not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
    /// The upstream API in use, as kaito.sh/v1beta1.
    #[serde(default, rename = "upstreamCRDVersion", skip_serializing_if = "Option::is_none")]
    pub upstream_crd_version: Option<String>,
    /// Fingerprint of the upstream schema's fields that the provider writes and reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream_schema_hash: Option<String>,
    /// UpstreamReady by the provider, RulesValid by the core controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Whether a provider can be chosen, and if not, why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Ready, and alive within [`HEARTBEAT_TIMEOUT`].
    Healthy,
    /// It says itself that it is not ready.
    NotReady(String),
    /// It never reported, or its heartbeat is too old. One that reports ready and never beats is taken at its word.
    Silent,
}

impl InferenceProviderConfig {
    /// The policy, default applied.
    pub fn policy(&self) -> SelectionPolicy {
        self.spec.selection_policy.unwrap_or_default()
    }

    /// Whether the provider can be chosen at `now`.
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
            let why = status
                .conditions
                .iter()
                .find(|c| c.type_ == crate::condition::UPSTREAM_READY && c.status != "True");
            return Health::NotReady(why.map_or_else(|| "provider is not ready".to_owned(), |c| c.message.clone()));
        }
        Health::Healthy
    }
}
