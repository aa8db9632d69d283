//! `AsyncActor`: a queue-driven actor (ADR-001). It runs a workload of its own (`workload`), or is bound to somebody else's
//! (`workloadRef`).
//!
//! Absent and zero are different things: what a user may leave out is an `Option`. Defaults are in the documentation of each
//! field and in the accessors below, never in the schema.

use k8s_openapi::api::core::v1::{EnvVar, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::condition::{self, Conditions as _};
use crate::labels;
use crate::managed::managed;
use crate::tone::{Tone, texts, words};

/// The target was found. Present with `workloadRef` only.
pub const TARGET_RESOLVED: &str = "TargetResolved";
/// The sidecar and the runtime run beside (or in front of) the target. Present with `workloadRef` only.
pub const RUNTIME_INJECTED: &str = "RuntimeInjected";
/// The workload that was made runs. Present with `workload` only.
pub const WORKLOAD_READY: &str = "WorkloadReady";
/// The transport is configured and the queue is there.
pub const TRANSPORT_READY: &str = "TransportReady";
/// KEDA scales the workload. Present while scaling is on.
pub const SCALING_READY: &str = "ScalingReady";
/// There is something a user should know, though nothing is broken; present only while true.
pub const WARNING: &str = "Warning";

/// What admission says, word for word the same from the API server and from `render`.
pub mod messages {
    /// A name that nothing can be named after.
    pub const NAME: &str = "metadata.name must be at most 63 characters, lower case letters, digits and '-', and start with a letter: workloads, labels and queues are named after it";
    /// The ADR's own words.
    pub const XOR: &str = "Exactly one of 'workload' or 'workloadRef' must be set";
    /// `workloadRef` without `runtime`.
    pub const RUNTIME_MISSING: &str =
        "runtime is required with workloadRef: set runtime.image and runtime.handler, the code that calls the model";
    /// `runtime` with `workload`.
    pub const RUNTIME_MISPLACED: &str = "runtime is for workloadRef only: with workload, the container asya-runtime of workload.template says what runs";
    /// `binding` with `workload`.
    pub const BINDING_MISPLACED: &str =
        "binding is for workloadRef only: with workload there is nothing to bind to, remove binding";
    /// None or several.
    pub const ONE_RUNTIME: &str = "workload.template.spec.containers must have exactly one container named asya-runtime: name the one with your handler so";
    /// The name is taken.
    pub const NO_SIDECAR: &str = "workload.template.spec.containers must not have a container named asya-sidecar: the operator adds it, remove or rename yours";
    /// The names are taken.
    pub const NO_INIT: &str =
        "workload.template.spec.initContainers must not have one named asya-sidecar or asya-runtime: rename it";
    /// The operator starts the runtime.
    pub const NO_COMMAND: &str = "workload.template.spec.containers: asya-runtime must not set command, because the operator starts the runtime in it; remove command, and set workload.pythonExecutable if Python is called otherwise";
    /// A target elsewhere.
    pub const NAMESPACE: &str = "workloadRef.namespace must not be set: an AsyncActor binds to workloads in its own namespace only; create the AsyncActor in the namespace of its target";
    /// No Python path.
    pub const HANDLER: &str =
        "runtime.handler must be a Python path such as adapters.openai.forward: module.function or module.Class.method";
    /// No HTTP URL.
    pub const URL: &str = "runtime.targetURL must be http://HOST[:PORT][/PATH] or https://…, without user and password, such as http://phi-3:8080";
    /// A URL that leads to credentials of the cloud.
    pub const URL_HIDDEN: &str = "runtime.targetURL must not point at a link-local or metadata address (169.254.0.0/16, fe80::/10, metadata.google.internal), nor hide an address in a number: name the model's Service";
    /// Two names for one number.
    pub const MIN_TWICE: &str = "scaling.minReplicas and scaling.minReplicaCount are the same thing: set one of them";
    /// Two names for one number.
    pub const MAX_TWICE: &str = "scaling.maxReplicas and scaling.maxReplicaCount are the same thing: set one of them";
    /// An empty range.
    pub const MIN_ABOVE_MAX: &str = "scaling.minReplicas must not be above scaling.maxReplicas (default 50): raise maxReplicas or lower minReplicas";
    /// Modifiers without a formula.
    pub const FORMULA: &str = "scaling.advanced.formula is required with advanced.target, activationTarget or metricType: set it, for example to queue (the name of the queue's trigger)";
    /// A formula without a target.
    pub const FORMULA_TARGET: &str = "scaling.advanced.target is required with advanced.formula: what the result of the formula is divided by, such as '5'";
}

/// An actor behind a queue.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "asya.sh",
    version = "v1alpha1",
    kind = "AsyncActor",
    plural = "asyncactors",
    singular = "asyncactor",
    shortname = "asya",
    shortname = "asyas",
    category = "ai",
    namespaced,
    status = "AsyncActorStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "AsyncActor puts a queue in front of a workload: one that it makes (workload), or one that exists and belongs to somebody else (workloadRef).",
    validation = Rule::new("self.metadata.name.size() <= 63 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message(messages::NAME),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.status"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
    printcolumn(name = "Running", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.desiredReplicas"),
    printcolumn(name = "Min", type_ = "integer", json_path = ".status.minReplicas"),
    printcolumn(name = "Max", type_ = "integer", json_path = ".status.maxReplicas"),
    printcolumn(name = "Last-Scale", type_ = "date", json_path = ".status.lastScaleTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Target", type_ = "string", json_path = ".status.resolvedTarget.name", priority = 1),
    printcolumn(name = "Strategy", type_ = "string", json_path = ".status.binding.strategy", priority = 1),
    printcolumn(name = "Transport", type_ = "string", json_path = ".spec.transport", priority = 1),
    printcolumn(name = "Scaling", type_ = "string", json_path = ".status.scalingMode", priority = 1),
    printcolumn(name = "Queue", type_ = "string", json_path = ".status.queue", priority = 1),
    printcolumn(name = "Messages", type_ = "boolean", json_path = ".status.queueActive", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::bounded)]
#[x_kube(
    validation = Rule::new("(has(self.workload) && !has(self.workloadRef)) || (!has(self.workload) && has(self.workloadRef))").message(messages::XOR),
    validation = Rule::new("!has(self.workloadRef) || has(self.runtime)").message(messages::RUNTIME_MISSING),
    validation = Rule::new("has(self.workloadRef) || !has(self.runtime)").message(messages::RUNTIME_MISPLACED),
    validation = Rule::new("has(self.workloadRef) || !has(self.binding)").message(messages::BINDING_MISPLACED),
)]
pub struct AsyncActorSpec {
    /// Name of a transport that the operator is configured with, such as rabbitmq or sqs.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9_.]*[a-z0-9])?$')").message("transport must be the name of a transport of the operator: lower case letters, digits, '-', '_' and '.', such as rabbitmq"))]
    pub transport: String,

    /// The workload to make. Exactly one of workload and workloadRef is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,

    /// The workload to bind to: it belongs to somebody else and stays theirs. Always in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,

    /// The container asya-runtime that calls the target. Required with workloadRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,

    /// How to bind. Only with workloadRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,

    /// The container asya-sidecar, which moves messages between queues and the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<Sidecar>,

    /// How long things may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,

    /// How many replicas run, by the length of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// The workload to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Deployment (default) or StatefulSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<WorkloadKind>,

    /// Replicas while scaling is off. Defaults to 1; 0 means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub replicas: Option<i32>,

    /// The Python that runs the handler, in the image of asya-runtime. Defaults to python3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub python_executable: Option<String>,

    /// Pod template with exactly one container named asya-runtime, which holds the handler.
    #[schemars(schema_with = "crate::schema::actor_pod_template")]
    #[x_kube(
        validation = Rule::new("self.spec.containers.filter(c, c.name == 'asya-runtime').size() == 1").message(messages::ONE_RUNTIME),
        validation = Rule::new("self.spec.containers.all(c, c.name != 'asya-sidecar')").message(messages::NO_SIDECAR),
        validation = Rule::new("!has(self.spec.initContainers) || self.spec.initContainers.all(c, c.name != 'asya-sidecar' && c.name != 'asya-runtime')").message(messages::NO_INIT),
        validation = Rule::new("self.spec.containers.all(c, c.name != 'asya-runtime' || !has(c.command))").message(messages::NO_COMMAND),
    )]
    pub template: Map<String, Value>,
}

/// The kind of workload to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadKind {
    /// Replicas without identity.
    #[default]
    Deployment,
    /// Replicas with a stable name each.
    StatefulSet,
}

impl WorkloadKind {
    /// As written in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// The workload to bind to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!has(self.__namespace__)").message(messages::NAMESPACE),
)]
pub struct WorkloadRef {
    /// API version of the target, such as apps/v1 or kaito.sh/v1beta1.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9]+((alpha|beta)[0-9]+)?$')").message("workloadRef.apiVersion must be GROUP/VERSION, such as apps/v1 or serving.kserve.io/v1beta1"))]
    pub api_version: String,
    /// Kind of the target: Deployment, StatefulSet, Workspace, InferenceSet, InferenceService, LLMInferenceService, RayService,
    /// SeldonDeployment, ModelDeployment, or any other with binding.strategy Proxy and runtime.targetURL.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Z][A-Za-z0-9]*$')").message("workloadRef.kind must be a kind, such as Deployment"))]
    pub kind: String,
    /// Name of the target.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("workloadRef.name must be the name of an object: lower case letters, digits, '-' and '.'"))]
    pub name: String,
    /// Must not be set: a target is always in the namespace of its AsyncActor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
}

/// The container that calls the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runtime {
    /// Image with the handler and the package asya-runtime, such as asya-rest-adapter:latest.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches('[[:space:][:cntrl:]]')").message("runtime.image must be an image reference, without spaces"))]
    pub image: String,
    /// Always, IfNotPresent or Never. Omitted: as Kubernetes chooses by the tag.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Python path of the handler: module.function or module.Class.method.
    #[schemars(length(min = 3, max = 255))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)+$')").message(messages::HANDLER))]
    pub handler: String,
    /// What the handler gets: payload (default) or envelope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler_mode: Option<HandlerMode>,
    /// Where the model answers; the handler finds it in ASYA_TARGET_URL. Omitted: found from the target, on 127.0.0.1 where the
    /// handler runs in the model's own pod.
    #[serde(default, rename = "targetURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = Rule::new("self.matches('^https?://([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|\\\\[[0-9A-Fa-f:.]+\\\\])(:[0-9]{1,5})?([/?][^[:space:][:cntrl:]]*)?$')").message(messages::URL),
        validation = Rule::new("!self.lowerAscii().matches('^https?://(169[.]254[.]|\\\\[(fe[89ab]|fd00:ec2|::ffff:)|metadata[.]google[.]internal|metadata([:/?]|$)|instance-data([:/?]|$))') && (!self.matches('^https?://(0[xX])?[0-9A-Fa-f.]+([:/?]|$)') || self.matches('^https?://(0|[1-9][0-9]{0,2})([.](0|[1-9][0-9]{0,2})){3}([:/?]|$)'))").message(messages::URL_HIDDEN),
    )]
    pub target_url: Option<String>,
    /// The Python of the image. Defaults to python3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub python_executable: Option<String>,
    /// Environment variables for the handler; they win over generated ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::env")]
    pub env: Vec<EnvVar>,
    /// Resources of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Each time.
    Always,
    /// Unless the node has it.
    IfNotPresent,
    /// The node must have it.
    Never,
}

/// What a handler gets and returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HandlerMode {
    /// The payload.
    #[default]
    Payload,
    /// The whole envelope, with its route.
    Envelope,
}

/// How to bind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Auto (default) picks what works for the target: TemplatePatch adds two containers to its pods, ParentSpec adds them to
    /// the pod spec of the custom resource that makes the pods, Proxy runs them in a Deployment of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<AskedStrategy>,
    /// What to do when another controller takes the containers out again, more than 5 times: Stop (default), or Proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,
    /// With Proxy: also scale the target itself by the queue, where it has a scale subresource (Deployment, StatefulSet, InferenceSet,
    /// ModelDeployment). Defaults to false: only the proxy is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_target: Option<bool>,
}

/// A strategy as asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AskedStrategy {
    /// What works for the target.
    #[default]
    Auto,
    /// Two containers in the target's pods, by server-side apply.
    TemplatePatch,
    /// Two containers in the pod spec of the target's custom resource.
    ParentSpec,
    /// A Deployment of our own that calls the target.
    Proxy,
}

/// A strategy as carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// Two containers in the target's pods, by server-side apply.
    TemplatePatch,
    /// Two containers in the pod spec of the target's custom resource.
    ParentSpec,
    /// A Deployment of our own that calls the target.
    Proxy,
}

texts!(Strategy {
    TemplatePatch "TemplatePatch",
    ParentSpec "ParentSpec",
    Proxy "Proxy",
});

impl Strategy {
    /// Whether it writes to an object that is not ours.
    pub fn is_in_place(self) -> bool {
        self != Self::Proxy
    }
}

/// What to do in a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnConflict {
    /// Leave the target alone and say so.
    #[default]
    Stop,
    /// Leave the target alone and call it from a Deployment of our own.
    Proxy,
}

/// The container asya-sidecar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Its image. Omitted: the operator's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches('[[:space:][:cntrl:]]')").message("sidecar.image must be an image reference, without spaces"))]
    pub image: Option<String>,
    /// Always, IfNotPresent (default) or Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Resources of the container. Omitted: requests of 10m CPU and 16Mi memory, and a memory limit of 256Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Environment variables; they win over generated ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::env")]
    pub env: Vec<EnvVar>,
}

/// How long things may take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeout {
    /// Seconds one message may take. Defaults to 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub processing: Option<i32>,
    /// Seconds a pod of workload may take to end. Defaults to processing and 30 more, so that scaling in cuts no work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub graceful_shutdown: Option<i32>,
}

/// How many replicas run. KEDA's own names are accepted beside the short ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.minReplicas) && has(self.minReplicaCount))").message(messages::MIN_TWICE),
    validation = Rule::new("!(has(self.maxReplicas) && has(self.maxReplicaCount))").message(messages::MAX_TWICE),
    validation = Rule::new("(has(self.minReplicas) ? self.minReplicas : (has(self.minReplicaCount) ? self.minReplicaCount : 0)) <= (has(self.maxReplicas) ? self.maxReplicas : (has(self.maxReplicaCount) ? self.maxReplicaCount : 50))").message(messages::MIN_ABOVE_MAX),
    validation = Rule::new("!has(self.advanced) || has(self.advanced.formula) || !(has(self.advanced.target) || has(self.advanced.activationTarget) || has(self.advanced.metricType))").message(messages::FORMULA),
    validation = Rule::new("!has(self.advanced) || !has(self.advanced.formula) || has(self.advanced.target)").message(messages::FORMULA_TARGET),
)]
pub struct Scaling {
    /// Whether KEDA scales by the queue. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Fewest replicas. Defaults to 0, and to 1 where the target's own pods are scaled (it may serve others too): set 0 to let it sleep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub min_replicas: Option<i32>,
    /// The same as minReplicas, in KEDA's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub min_replica_count: Option<i32>,
    /// Most replicas. Defaults to 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: Option<i32>,
    /// The same as maxReplicas, in KEDA's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_replica_count: Option<i32>,
    /// Seconds between looks at the queue. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub polling_interval: Option<i32>,
    /// Seconds without messages before the last replica goes. Defaults to 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub cooldown_period: Option<i32>,
    /// Seconds after attaching during which nothing is scaled to 0. Defaults to cooldownPeriod with workloadRef, else to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub initial_cooldown_period: Option<i32>,
    /// Messages per replica, those under way included. Defaults to 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub queue_length: Option<i32>,
    /// For KEDA, as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advanced: Option<AdvancedScaling>,
}

/// Scaling by a formula.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdvancedScaling {
    /// KEDA's scalingModifiers.formula. The queue's trigger is called queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub formula: Option<String>,
    /// KEDA's scalingModifiers.target: a number above 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]+([.][0-9]+)?$') && self.matches('[1-9]')").message("scaling.advanced.target must be a number above 0, such as '5'"))]
    pub target: Option<String>,
    /// KEDA's scalingModifiers.activationTarget: a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]+([.][0-9]+)?$')").message("scaling.advanced.activationTarget must be a number, such as '1'"))]
    pub activation_target: Option<String>,
    /// KEDA's scalingModifiers.metricType: AverageValue (default) or Value. KEDA refuses Utilization here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric_type: Option<MetricType>,
    /// Whether the replicas of before come back when the actor goes. Defaults to true with workloadRef, else to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_to_original_replica_count: Option<bool>,
}

/// What a formula's result is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MetricType {
    /// Per replica.
    AverageValue,
    /// As it is.
    Value,
}

/// What is known of an AsyncActor. Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AsyncActorStatus {
    /// In one word what is going on, such as Running, Napping (asleep until a message comes: not an error) or TransportError.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// What there is to say, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Standalone (workload) or Binding (workloadRef).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// With workloadRef: the object that it comes down to, whose pods serve the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_target: Option<ObjectRef>,
    /// With workloadRef: how the binding stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingStatus>,
    /// How often somebody took out of the target what was put into it, since it was last left in peace for an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_count: Option<i32>,
    /// When that was seen last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_conflict_time: Option<Time>,
    /// The workload that was made: with workload, or as proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<ObjectRef>,
    /// The ScaledObject that was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled_object_ref: Option<ObjectRef>,
    /// KEDA, or Manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_mode: Option<ScalingMode>,
    /// Name of the actor's queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Replicas that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Replicas that exist, ready or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_replicas: Option<i32>,
    /// Replicas asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// Whether KEDA sees messages in the queue, waiting or under way. Not there without scaling. How many there are is not told here:
    /// a status that changes with each message would never be at rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_active: Option<bool>,
    /// When the replicas asked for changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    /// Which way: up or down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_direction: Option<ScaleDirection>,
    /// Fewest replicas, defaults applied. Not there without scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// Most replicas, defaults applied. Not there without scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// TargetResolved, RuntimeInjected or WorkloadReady, TransportReady, ScalingReady, Ready, and others while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// What is going on with an AsyncActor: the word in `status.status`. The schema takes any text there, so that operators of other
/// versions may write words of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ActorState {
    /// Enough replicas are ready.
    Running,
    /// Scaled to 0 by the queue, until a message comes.
    Napping,
    /// 0 replicas, as asked for.
    Stopped,
    /// Replicas or the queue are being made.
    Creating,
    /// The first replica after a nap starts.
    WakingUp,
    /// More replicas start.
    ScalingUp,
    /// Replicas end.
    ScalingDown,
    /// Pods with a new template take the place of those of before.
    Updating,
    /// The binding moves from one target or strategy to another.
    Moving,
    /// The target, its kind or its URL is not there yet.
    WaitingForTarget,
    /// Nothing is changed until it is resumed.
    Paused,
    /// The spec breaks a rule.
    Invalid,
    /// The target cannot be bound to.
    BindingError,
    /// The transport is not known, or its broker cannot be used.
    TransportError,
    /// Somebody else changes what was put into the target.
    Conflict,
    /// The same, so often that the operator has stopped.
    ConflictStopped,
    /// Another actor is bound to the target.
    AlreadyManaged,
    /// An object of the right name belongs to somebody else.
    NameTaken,
    /// Somebody else holds a field that must be set.
    FieldConflict,
    /// The API server refused an object.
    Refused,
    /// No node has room for a pod.
    PendingResources,
    /// An image cannot be pulled.
    ImagePullError,
    /// A Secret or ConfigMap that a pod needs is missing.
    ConfigError,
    /// The container asya-runtime fails.
    RuntimeError,
    /// The container asya-sidecar fails.
    SidecarError,
    /// Pods cannot be made, or another container fails.
    WorkloadError,
    /// KEDA cannot scale it.
    ScalingError,
}

words!(ActorState {
    Running "Running" Current,
    Napping "Napping" Current,
    Stopped "Stopped" Current,
    Creating "Creating" InProgress,
    WakingUp "WakingUp" InProgress,
    ScalingUp "ScalingUp" InProgress,
    ScalingDown "ScalingDown" InProgress,
    Updating "Updating" InProgress,
    Moving "Moving" InProgress,
    WaitingForTarget "WaitingForTarget" InProgress,
    Paused "Paused" Paused,
    Invalid "Invalid" Failed,
    BindingError "BindingError" Failed,
    TransportError "TransportError" Failed,
    Conflict "Conflict" Failed,
    ConflictStopped "ConflictStopped" Failed,
    AlreadyManaged "AlreadyManaged" Failed,
    NameTaken "NameTaken" Failed,
    FieldConflict "FieldConflict" Failed,
    Refused "Refused" Failed,
    PendingResources "PendingResources" Failed,
    ImagePullError "ImagePullError" Failed,
    ConfigError "ConfigError" Failed,
    RuntimeError "RuntimeError" Failed,
    SidecarError "SidecarError" Failed,
    WorkloadError "WorkloadError" Failed,
    ScalingError "ScalingError" Failed,
});

impl ActorState {
    /// The state of a word; absent for a word of another version.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|state| state.as_str() == word)
    }
}

impl AsyncActorStatus {
    /// How well the actor is. While it is ready, what is under way (scaling, a rollout) is no concern.
    pub fn tone(&self) -> Tone {
        if self.conditions.is_true(condition::READY) {
            return Tone::Current;
        }
        let state = self.status.as_deref().and_then(ActorState::of);
        state.map_or(Tone::Unknown, ActorState::tone)
    }
}

/// Whether an actor made its workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// It made its workload.
    Standalone,
    /// It is bound to somebody else's.
    Binding,
}

texts!(Mode {
    Standalone "Standalone",
    Binding "Binding",
});

/// Who scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScalingMode {
    /// KEDA does, by the queue.
    #[serde(rename = "KEDA")]
    Keda,
    /// Nobody of ours does.
    Manual,
}

texts!(ScalingMode {
    Keda "KEDA",
    Manual "Manual",
});

/// Which way replicas changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScaleDirection {
    /// More are asked for than before.
    Up,
    /// Fewer are.
    Down,
}

/// An object in the actor's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// Its API version.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// How a binding stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindingStatus {
    /// TemplatePatch, ParentSpec or Proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Whether this is the Proxy that onConflict asks for, after a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<bool>,
    /// The object that holds our containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<ObjectRef>,
    /// Its uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_uid: Option<String>,
    /// Hash of what was put into it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_hash: Option<String>,
    /// Whether somebody took it out and it has not been put back: so no loss is counted twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<bool>,
    /// The generation of the object that workloadRef names: a new one gives the binding a new chance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_generation: Option<i64>,
}

impl Scaling {
    /// Whether KEDA scales.
    pub fn is_on(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    /// Fewest replicas, under either name.
    pub fn min(&self) -> Option<i32> {
        self.min_replicas.or(self.min_replica_count)
    }

    /// Most replicas, under either name, default applied.
    pub fn max(&self) -> i32 {
        self.max_replicas.or(self.max_replica_count).unwrap_or(50)
    }
}

impl AsyncActorSpec {
    /// Scaling, if it is on.
    pub fn scaling_on(&self) -> Option<&Scaling> {
        self.scaling.as_ref().filter(|s| s.is_on())
    }

    /// Seconds one message may take, default applied.
    pub fn processing_seconds(&self) -> i32 {
        self.timeout.as_ref().and_then(|t| t.processing).unwrap_or(300)
    }

    /// The strategy asked for, default applied.
    pub fn strategy(&self) -> AskedStrategy {
        self.binding.as_ref().and_then(|b| b.strategy).unwrap_or_default()
    }

    /// What to do in a conflict, default applied.
    pub fn on_conflict(&self) -> OnConflict {
        self.binding.as_ref().and_then(|b| b.on_conflict).unwrap_or_default()
    }
}

managed!(AsyncActor, paused: labels::ASYA_PAUSED, finalizer: labels::ASYA_FINALIZER);
