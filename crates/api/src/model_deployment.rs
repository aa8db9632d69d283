//! `ModelDeployment`: what a user writes (design 4.1).
//!
//! Absent and zero are different things: what a user may leave out is an `Option`, and nothing here has a serde default
//! that would turn one into the other.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::condition::{self, Owner};
use crate::labels;
use crate::managed::managed;
use crate::tone::words;

/// What to serve, with which engine, and on what.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "kubeairunway.ai",
    version = "v1alpha1",
    kind = "ModelDeployment",
    plural = "modeldeployments",
    shortname = "md",
    category = "ai",
    namespaced,
    status = "ModelDeploymentStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "ModelDeployment serves a model. A provider is chosen for it (or named in spec.provider.name) and makes what is needed in the cluster.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must be at most 63 characters: Services and labels are made from it"),
    scale(
        spec_replicas_path = ".spec.scaling.replicas",
        status_replicas_path = ".status.replicas.ready",
        label_selector_path = ".status.selector"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Provider", type_ = "string", json_path = ".status.provider.name"),
    printcolumn(name = "Engine", type_ = "string", json_path = ".spec.engine.type"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.replicas.ready"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.replicas.desired"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::bounded)]
pub struct ModelDeploymentSpec {
    /// The model to serve.
    pub model: Model,

    /// Which provider serves it. Omitted: one is chosen by capabilities and rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,

    /// The inference engine. engine.type is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,

    /// How the model is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<Serving>,

    /// How many replicas serve it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,

    /// What each replica needs. In disaggregated mode GPUs are given in scaling.prefill and scaling.decode instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Container image. Omitted or empty: the provider's default for the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,

    /// Environment variables of the containers that run the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::env")]
    pub env: Vec<EnvVar>,

    /// Metadata for the pods that run the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,

    /// Secrets, by name. No controller reads them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Secrets>,

    /// Labels a node must have to run the model's pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,

    /// Taints that the model's pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
}

/// The model to serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Hugging Face model id, as meta-llama/Llama-3.1-8B-Instruct. Required when source is huggingface, omitted for custom.
    /// Changing it recreates the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("!self.matches('[[:space:][:cntrl:]]')").message("model.id must not contain spaces or control characters: give the id as it stands on the hub, such as org/model"))]
    pub id: Option<String>,

    /// The name clients use for the model. Defaults to the last part of the id. Ignored for custom source, where the image decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub served_name: Option<String>,

    /// Where the model comes from: huggingface (default), or custom, pre-loaded in the image. Changing it recreates the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ModelSource>,
}

/// Where a model comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelSource {
    /// Loaded from the Hugging Face hub by its id.
    #[default]
    Huggingface,
    /// Pre-loaded in the image.
    Custom,
}

impl ModelSource {
    /// As written in a spec.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Huggingface => "huggingface",
            Self::Custom => "custom",
        }
    }
}

/// Which provider serves the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    /// Name of an InferenceProviderConfig, such as kaito, dynamo, kuberay, direct. Omitted: chosen automatically. Changing it
    /// deletes the old provider's resources before the new provider makes its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("provider.name must be the name of an InferenceProviderConfig: lower case letters, digits, '-' and '.' (list them with: kubectl get ipc)"))]
    pub name: Option<String>,

    /// Settings that only this provider knows; the documented keys of the provider are accepted, others answered with a warning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::settings")]
    pub overrides: Option<Map<String, Value>>,
}

/// The inference engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// vllm, sglang, trtllm, llamacpp, or another engine that a registered provider supports. Required. Changing it recreates
    /// the deployment.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$')").message("engine.type must be a name such as vllm, sglang, trtllm or llamacpp: letters, digits, '-', '_' and '.'"))]
    pub kind: Option<String>,

    /// Longest context in tokens. vllm: --max-model-len, sglang: --context-length, llamacpp: --ctx-size; ignored for trtllm,
    /// where it is fixed when the engine is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub context_length: Option<i32>,

    /// Run code that comes with the model (vllm and sglang). Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_remote_code: Option<bool>,

    /// Flags for the engine, without the leading dashes, as gpu-memory-utilization: "0.9". An empty value gives a bare flag.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "additionalProperties" = {"type": "string", "maxLength": 4096}))]
    #[x_kube(validation = Rule::new("self.all(key, key.matches('^[A-Za-z0-9][-_.A-Za-z0-9]{0,126}$'))").message("engine.args keys must be flag names without leading dashes, such as max-num-seqs: letters, digits, '-', '_' and '.', at most 127 characters"))]
    pub args: BTreeMap<String, String>,
}

/// How the model is served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Serving {
    /// aggregated (default), or disaggregated: prefill and decode on workers of their own. Changing it recreates the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ServingMode>,
}

/// How the model is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServingMode {
    /// Every worker does all the work.
    #[default]
    Aggregated,
    /// Prefill and decode on workers of their own.
    Disaggregated,
}

impl ServingMode {
    /// As written in a spec.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Disaggregated => "disaggregated",
        }
    }
}

/// How many replicas serve the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// Replicas in aggregated mode. Defaults to 1; 0 means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// The prefill workers of disaggregated mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Component>,
    /// The decode workers of disaggregated mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<Component>,
}

/// One kind of worker in disaggregated mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Replicas. Defaults to 1; 0 means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// GPUs of each replica. gpu.count is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Memory of each replica, as 64Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[+]?[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$')").message("memory must be a quantity such as 64Gi"))]
    pub memory: Option<String>,
}

/// GPUs of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// How many. Omitted or 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024))]
    pub count: Option<i32>,
    /// The resource name of the GPU. Defaults to nvidia.com/gpu; amd.com/gpu and others work where the provider supports them.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9.-]+/[-A-Za-z0-9_.]+$')").message("gpu.type must be an extended resource name such as nvidia.com/gpu or amd.com/gpu"))]
    pub kind: Option<String>,
}

/// What each replica needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// GPUs. Omitted: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Memory, as 32Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[+]?[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$')").message("resources.memory must be a quantity such as 32Gi"))]
    pub memory: Option<String>,
    /// Processors, as 4 or 500m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[+]?[0-9]+([.][0-9]+)?m?$')").message("resources.cpu must be a quantity such as 4 or 500m"))]
    pub cpu: Option<String>,
}

/// Metadata for the pods that run the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodTemplate {
    /// Labels and annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PodMetadata>,
}

/// Labels and annotations of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Labels added to the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub labels: BTreeMap<String, String>,
    /// Annotations added to the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"type": "string", "maxLength": 65536}))]
    pub annotations: BTreeMap<String, String>,
}

/// Secrets, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Secrets {
    /// Name of a Secret in the same namespace whose keys become environment variables of the model's containers; the hub's
    /// token is expected under HF_TOKEN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("secrets.huggingFaceToken must be the name of a Secret, not a token"))]
    pub hugging_face_token: Option<String>,
}

/// What is known of a ModelDeployment. Written by the core controller until a provider is chosen, then by the provider too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelDeploymentStatus {
    /// Pending, Deploying, Running, Failed or Terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// What there is to say, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The provider, and what it made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderStatus>,
    /// Replicas that serve the model; routers and frontends do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Where the model answers, inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// Label selector of the model's pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// What would be applied, while the annotation kubeairunway.ai/dry-run is "true".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<DryRun>,
    /// Validated, ProviderSelected, ProviderCompatible, ResourceCreated, Ready, and others while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Where a ModelDeployment stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// Not handed to a provider, or the provider's workload waits to start.
    Pending,
    /// The upstream objects exist and are starting.
    Deploying,
    /// It serves.
    Running,
    /// It cannot serve without a change.
    Failed,
    /// It is being deleted, or handed to another provider.
    Terminating,
}

words!(Phase {
    Pending "Pending" InProgress,
    Deploying "Deploying" InProgress,
    Running "Running" Current,
    Failed "Failed" Failed,
    Terminating "Terminating" Terminating,
});

/// The provider, and what it made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// The provider chosen. Written by the core controller (or a selector of your own).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why it was chosen, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_reason: Option<String>,
    /// Every provider that was considered and what became of it; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub candidates: Vec<Candidate>,
    /// Kind of the upstream object. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_kind: Option<String>,
    /// Name of the upstream object. While it is set, the provider has something in the cluster. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
}

/// A provider that was considered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Name of its InferenceProviderConfig.
    pub name: String,
    /// Whether it could have been chosen.
    pub eligible: bool,
    /// Its priority by its rules, if eligible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Why it was chosen, or lost, or was not eligible.
    pub reason: String,
}

/// Replicas that serve the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replicas {
    /// As asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// Serving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
    /// Serving for long enough to count as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<i32>,
}

/// Where the model answers: a Service in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Name of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Port of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
}

/// What would be applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// The objects, in apply order.
    #[schemars(schema_with = "crate::schema::objects")]
    pub objects: Vec<Value>,
}

/// GPU resource name when none is given (design 4.1).
pub const DEFAULT_GPU: &str = "nvidia.com/gpu";

impl ModelDeploymentSpec {
    /// The engine, if one is given.
    pub fn engine_type(&self) -> Option<&str> {
        self.engine.as_ref()?.kind.as_deref().filter(|name| !name.is_empty())
    }

    /// The model's id, if one is given.
    pub fn model_id(&self) -> Option<&str> {
        self.model.id.as_deref().filter(|id| !id.is_empty())
    }

    /// Where the model comes from, default applied.
    pub fn source(&self) -> ModelSource {
        self.model.source.unwrap_or_default()
    }

    /// The serving mode, default applied.
    pub fn mode(&self) -> ServingMode {
        self.serving.as_ref().and_then(|s| s.mode).unwrap_or_default()
    }

    /// The provider the user names, if any.
    pub fn provider_name(&self) -> Option<&str> {
        self.provider.as_ref()?.name.as_deref().filter(|name| !name.is_empty())
    }

    /// GPUs of one aggregated replica; omitted is 0.
    pub fn gpu_count(&self) -> i32 {
        self.resources
            .as_ref()
            .and_then(|r| r.gpu.as_ref())
            .and_then(|g| g.count)
            .unwrap_or(0)
    }

    /// Whether any worker asks for a GPU, in either mode.
    pub fn wants_gpu(&self) -> bool {
        let component = |c: &Option<Component>| {
            c.as_ref()
                .and_then(|c| c.gpu.as_ref())
                .and_then(|g| g.count)
                .unwrap_or(0)
                > 0
        };
        match self.mode() {
            ServingMode::Aggregated => self.gpu_count() > 0,
            ServingMode::Disaggregated => self
                .scaling
                .as_ref()
                .is_some_and(|s| component(&s.prefill) || component(&s.decode)),
        }
    }

    /// What the documents call identity: when one of these changes, the upstream object is recreated (design 4.11).
    /// `provider.name` belongs to it too and is handled by hand-over.
    pub fn identity(&self) -> BTreeMap<&'static str, Value> {
        BTreeMap::from([
            ("model.id", self.model_id().into()),
            ("model.source", self.source().as_str().into()),
            ("engine.type", self.engine_type().into()),
            ("serving.mode", self.mode().as_str().into()),
        ])
    }
}

impl ModelDeploymentStatus {
    /// Whether the selected provider has written its part. Decided by what only a provider writes: a condition type of its own,
    /// the name of its object, or a phase other than Pending. `Ready` and `message` say nothing about it: the core writes them
    /// until a provider is selected, and in place of one that does not act.
    pub fn has_provider_part(&self) -> bool {
        let is_of_provider = |c: &Condition| condition::owner(&c.type_) == Some(Owner::Provider);
        self.conditions.iter().any(is_of_provider)
            || self.provider.as_ref().is_some_and(|p| p.resource_name.is_some())
            || self.phase.is_some_and(|phase| phase != Phase::Pending)
    }
}

impl ModelDeployment {
    /// Whether only a plan is asked for, by annotation.
    pub fn is_dry_run(&self) -> bool {
        labels::is_set(&self.metadata, labels::DRY_RUN)
    }

    /// The provider chosen so far.
    pub fn selected_provider(&self) -> Option<&str> {
        self.status
            .as_ref()?
            .provider
            .as_ref()?
            .name
            .as_deref()
            .filter(|name| !name.is_empty())
    }
}

managed!(ModelDeployment, paused: labels::PAUSED, finalizer: labels::FINALIZER);
