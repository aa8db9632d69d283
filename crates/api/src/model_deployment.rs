//! `ModelDeployment`: a model that a user wants to serve.
//!
//! Absent and zero are different: a field that a user may omit is an `Option`, and no serde default turns one into the other.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::autoscaling::{Autoscaling, Metric, Signal, Trigger, TriggerAuthentication};
use crate::condition::{self, Conditions as _, Owner};
use crate::labels;
use crate::managed::managed;
pub use crate::pod_template::{PodMetadata, PodSettings, PodTemplate};
use crate::reason::ProviderReason;
pub use crate::storage::{AccessMode, ImageVolume, PullPolicy, Storage, Volume, VolumePurpose};
use crate::tone::words;

/// A model to serve, with its engine and resources.
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
    doc = "ModelDeployment serves a model. A provider is selected for it, or named in spec.provider.name, and creates the necessary objects.",
    validation = Rule::new("self.metadata.name.size() <= 63").message("metadata.name must be at most 63 characters: names of Services and labels are derived from it"),
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
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1),
    printcolumn(name = "Autoscaler", type_ = "string", json_path = ".status.conditions[?(@.type=='AutoscalerReady')].reason", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::bounded)]
pub struct ModelDeploymentSpec {
    /// Model to serve.
    pub model: Model,

    /// Provider that serves the model. If omitted, it is selected by capabilities and rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provider>,

    /// Inference engine. engine.type is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,

    /// Serving mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serving: Option<Serving>,

    /// Number of replicas, or autoscaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,

    /// Resources of each replica. In disaggregated mode, GPUs are set in scaling.prefill and scaling.decode instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Container image. Defaults to the provider's image for the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub image: Option<String>,

    /// Environment variables of the containers that run the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::env")]
    pub env: Vec<EnvVar>,

    /// Metadata and settings for the pods that run the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<PodTemplate>,

    /// Names of Secrets. No controller reads their content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets: Option<Secrets>,

    /// Labels that a node must have to run the model's pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,

    /// Taints that the model's pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,

    /// Secrets in the same namespace with the credentials of image registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub image_pull_secrets: Vec<SecretName>,

    /// ServiceAccount of the pods that run the model. The direct provider does not mount its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("serviceAccountName must be the name of a ServiceAccount: lower case letters, digits, '-' and '.'"))]
    pub service_account_name: Option<String>,

    /// Route to the model at the Gateway that the administrator named, if the routes controller is installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<Gateway>,
}

/// Route to the model at a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gateway {
    /// Whether the model is reached through the Gateway. Defaults to true. With false, the HTTPRoute and the InferencePool that
    /// were created for it are deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Name of the model at the Gateway: the value of the header X-Gateway-Model-Name. It must be unique among the models of the
    /// Gateway. Defaults to model.servedName, or the last part of the ID; for a custom source, to the name of the
    /// ModelDeployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[!-~]*$')").message("gateway.modelName is the value of a header: use ASCII characters without spaces"))]
    pub model_name: Option<String>,
    /// HTTPRoute of your own in the same namespace, instead of one that is created. It is checked, and not changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("gateway.httpRouteRef must be the name of an HTTPRoute: lower case letters, digits, '-' and '.'"))]
    pub http_route_ref: Option<String>,
}

/// Reference to a Secret in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretName {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("the name of a Secret must be lower case letters, digits, '-' and '.'"))]
    pub name: String,
}

/// Model to serve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Hugging Face model ID, such as meta-llama/Llama-3.1-8B-Instruct. Required if source is huggingface; omitted for custom. A
    /// change recreates the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("!self.matches('[[:space:][:cntrl:]]')").message("model.id must not contain spaces or control characters: use the ID on the hub, such as org/model"))]
    pub id: Option<String>,

    /// Name of the model in client requests. Defaults to the last part of the ID. Ignored if source is custom: the image
    /// decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub served_name: Option<String>,

    /// Source of the model: huggingface (default), or custom for a model in the image. A change recreates the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ModelSource>,

    /// Volumes with a cache for downloads, or with the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
}

/// Source of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ModelSource {
    /// Loaded from the Hugging Face Hub by ID.
    #[default]
    Huggingface,
    /// Contained in the image.
    Custom,
}

impl ModelSource {
    /// Text in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Huggingface => "huggingface",
            Self::Custom => "custom",
        }
    }
}

/// Provider that serves the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    /// Name of an InferenceProviderConfig, such as kaito, dynamo, kuberay or direct. Selected automatically if omitted. A change
    /// deletes the resources of the old provider before the new provider creates its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("provider.name must be the name of an InferenceProviderConfig: lower case letters, digits, '-' and '.' (list them with: kubectl get ipc)"))]
    pub name: Option<String>,

    /// Provider-specific settings. The provider's documented keys are accepted; other keys cause a warning and have no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::settings")]
    pub overrides: Option<Map<String, Value>>,
}

/// Inference engine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Engine {
    /// Engine: vllm, sglang, trtllm, llamacpp, or another one that a registered provider supports. Required. A change recreates
    /// the deployment.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$')").message("engine.type must be a name such as vllm, sglang, trtllm or llamacpp: letters, digits, '-', '_' and '.'"))]
    pub kind: Option<String>,

    /// Maximum context length in tokens. Passed as --max-model-len (vllm), --context-length (sglang) or --ctx-size (llamacpp);
    /// ignored for trtllm, where it is fixed when the engine is built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100_000_000))]
    pub context_length: Option<i32>,

    /// Run code that comes with the model (vllm and sglang). Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trust_remote_code: Option<bool>,

    /// Engine flags without leading dashes, such as gpu-memory-utilization: "0.9". An empty value passes the flag without a
    /// value. A JSON list of texts passes several values after the flag, such as `lora-modules: '["a=org/a", "b=org/b"]'`. A value
    /// that is itself a JSON list is the only item of one: `'["[1, 2]"]'`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "additionalProperties" = {"type": "string", "maxLength": 4096}))]
    #[x_kube(validation = Rule::new("self.all(key, key.matches('^[A-Za-z0-9][-_.A-Za-z0-9]{0,126}$'))").message("engine.args keys must be flag names without leading dashes, such as max-num-seqs: letters, digits, '-', '_' and '.', at most 127 characters"))]
    pub args: BTreeMap<String, String>,
}

/// Serving mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Serving {
    /// aggregated (default), or disaggregated: prefill and decode run on separate workers. A change recreates the deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<ServingMode>,
}

/// Serving mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ServingMode {
    /// Each worker runs prefill and decode.
    #[default]
    Aggregated,
    /// Prefill and decode run on separate workers.
    Disaggregated,
}

impl ServingMode {
    /// Text in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aggregated => "aggregated",
            Self::Disaggregated => "disaggregated",
        }
    }
}

/// Number of replicas, or autoscaling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// Replicas in aggregated mode. Defaults to 1; 0 scales to zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// Prefill workers, for disaggregated mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefill: Option<Component>,
    /// Decode workers, for disaggregated mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<Component>,
    /// Autoscaling of replicas, in aggregated mode. An autoscaler then writes replicas: omit it from the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,
}

/// One kind of worker in disaggregated mode.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Component {
    /// Number of replicas. Defaults to 1; 0 means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// GPUs of each replica. gpu.count is required.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Memory of each replica, such as 64Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[+]?[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$')").message("memory must be a quantity such as 64Gi"))]
    pub memory: Option<String>,
}

/// GPUs of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Number of GPUs. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024))]
    pub count: Option<i32>,
    /// Resource name of the GPU. Defaults to nvidia.com/gpu. Others, such as amd.com/gpu, work if the provider supports them.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9.-]+/[-A-Za-z0-9_.]+$')").message("gpu.type must be an extended resource name such as nvidia.com/gpu or amd.com/gpu"))]
    pub kind: Option<String>,
}

/// Resources of each replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// GPUs. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// Memory, such as 32Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[+]?[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$')").message("resources.memory must be a quantity such as 32Gi"))]
    pub memory: Option<String>,
    /// CPUs, such as 4 or 500m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[+]?[0-9]+([.][0-9]+)?m?$')").message("resources.cpu must be a quantity such as 4 or 500m"))]
    pub cpu: Option<String>,
}

/// Names of Secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Secrets {
    /// Name of a Secret in the same namespace. Its keys become environment variables of the model's containers. The key of the
    /// Hugging Face token must be HF_TOKEN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("secrets.huggingFaceToken must be the name of a Secret, not a token"))]
    pub hugging_face_token: Option<String>,
}

/// Observed state of a ModelDeployment. Written by the core controller, by the provider once one is selected, and by the
/// routes controller for its Gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelDeploymentStatus {
    /// Pending, Deploying, Running, Failed or Terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// Summary of the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Generation of the spec that this status is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Selected provider and its upstream object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderStatus>,
    /// Replicas that serve the model, without routers and frontends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Endpoint of the model, inside the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// Label selector of the model's pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Address of the model at the Gateway, once that has accepted the route. Written by the routes controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayStatus>,
    /// Objects that would be applied. Set while the annotation kubeairunway.ai/dry-run is "true".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<DryRun>,
    /// Validated, ProviderSelected, ProviderCompatible, ResourceCreated, Ready, and others while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

words! {
    /// Phase of a ModelDeployment.
    #[derive(Serialize, Deserialize, JsonSchema)]
    Phase {
        /// No provider is selected, or the provider has not created a workload.
        InProgress Pending: "See the reason of `Ready`",
        /// The upstream objects exist; pods are starting, or the model has not answered yet.
        InProgress Deploying: "Wait. If `Ready` names an obstacle, remove it",
        /// The model serves, or is scaled to zero as requested.
        Current Running: "Nothing",
        /// The model cannot serve without a change.
        Failed Failed: "Follow the message of `Stalled`; any change of the spec starts another attempt",
        /// The object is being deleted, or handed over to another provider.
        Terminating Terminating:
            "Wait. After five minutes the controllers stop waiting and record an Event `FinalizerTimeout`",
    }
}

/// Selected provider and its upstream object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderStatus {
    /// Name of the selected provider. Written by the core controller, or by your own selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Reason for the selection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_reason: Option<String>,
    /// Providers that were considered, with the result for each; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "atomic"))]
    pub candidates: Vec<Candidate>,
    /// Kind of the upstream object. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_kind: Option<String>,
    /// Name of the upstream object. Set while the provider has an object in the cluster. Written by the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_name: Option<String>,
}

/// Provider that was considered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    /// Name of the InferenceProviderConfig.
    pub name: String,
    /// Whether the provider can serve the model.
    pub eligible: bool,
    /// Priority by the provider's selection rules, if eligible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Reason why the provider was selected, not selected, or not eligible.
    pub reason: String,
}

/// Replicas that serve the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replicas {
    /// Number of replicas that the spec asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired: Option<i32>,
    /// Number of replicas that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i32>,
    /// Number of replicas that have been ready for long enough to count as available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available: Option<i32>,
}

/// Endpoint of the model: a Service in the same namespace.
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

/// Address of the model at the Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayStatus {
    /// Address of the Gateway: an IP address or a host name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Name of the model in the header X-Gateway-Model-Name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
}

/// Result of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// Objects in apply order.
    #[schemars(schema_with = "crate::schema::objects")]
    pub objects: Vec<Value>,
}

/// Default GPU resource name.
pub const DEFAULT_GPU: &str = "nvidia.com/gpu";

impl ModelDeploymentSpec {
    /// Name of the engine, if set.
    pub fn engine_type(&self) -> Option<&str> {
        self.engine.as_ref()?.kind.as_deref().filter(|name| !name.is_empty())
    }

    /// ID of the model, if set.
    pub fn model_id(&self) -> Option<&str> {
        self.model.id.as_deref().filter(|id| !id.is_empty())
    }

    /// Source of the model, with the default applied.
    pub fn source(&self) -> ModelSource {
        self.model.source.unwrap_or_default()
    }

    /// Serving mode, with the default applied.
    pub fn mode(&self) -> ServingMode {
        self.serving.as_ref().and_then(|s| s.mode).unwrap_or_default()
    }

    /// Name of the provider that the user set, if any.
    pub fn provider_name(&self) -> Option<&str> {
        self.provider.as_ref()?.name.as_deref().filter(|name| !name.is_empty())
    }

    /// GPUs of one aggregated replica; 0 if omitted.
    pub fn gpu_count(&self) -> i32 {
        self.resources
            .as_ref()
            .and_then(|r| r.gpu.as_ref())
            .and_then(|g| g.count)
            .unwrap_or(0)
    }

    /// Whether any worker requests a GPU, in either mode.
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

    /// Identity fields: a change of one of them recreates the upstream object. `provider.name` is one as well; its
    /// change is a handover.
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
    /// the name of its object, or a phase other than Pending. `Ready` and `message` do not count: the core writes them until a
    /// provider is selected, and in place of a provider that does not act.
    pub fn has_provider_part(&self) -> bool {
        let is_of_provider = |c: &Condition| condition::owner(&c.type_) == Some(Owner::Provider);
        self.conditions.iter().any(is_of_provider)
            || self.provider.as_ref().is_some_and(|p| p.resource_name.is_some())
            || self.phase.is_some_and(|phase| phase != Phase::Pending)
    }
}

/// Whether a model serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingState {
    /// It serves the current generation, and has answered since its rollout.
    Ready,
    /// Replicas are ready, but not all of them, or of an earlier generation.
    Partly,
    /// No replica is desired, and none runs.
    ScaledToZero,
    /// It does not serve.
    No,
}

impl ServingState {
    /// Whether the model is as its spec asks for: it serves, or no replica is desired.
    pub fn is_as_desired(self) -> bool {
        matches!(self, Self::Ready | Self::ScaledToZero)
    }
}

impl ModelDeployment {
    /// Whether the model serves, by its status. Command, console and router decide by nothing else.
    pub fn serving_state(&self) -> ServingState {
        let Some(status) = &self.status else {
            return ServingState::No;
        };
        let is_current = self.metadata.generation.is_none() || status.observed_generation == self.metadata.generation;
        let ready = status.conditions.get_condition(condition::READY);
        let is_of = |reason: ProviderReason| ready.is_some_and(|c| c.reason == reason);
        if is_current && status.conditions.is_true(condition::READY) {
            return ServingState::Ready;
        }
        if is_current && is_of(ProviderReason::ScaledToZero) {
            return ServingState::ScaledToZero;
        }
        let replicas = status.replicas.as_ref().and_then(|replicas| replicas.ready);
        if replicas.is_some_and(|ready| ready > 0) || status.conditions.is_true(condition::READY) {
            ServingState::Partly
        } else {
            ServingState::No
        }
    }

    /// Whether the annotation for a dry run is set.
    pub fn is_dry_run(&self) -> bool {
        labels::is_set(&self.metadata, labels::DRY_RUN)
    }

    /// Name of the selected provider.
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
