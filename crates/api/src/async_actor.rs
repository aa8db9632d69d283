//! `AsyncActor`: a queue-driven actor. It runs its own workload (`workload`), or is bound to an existing one
//! (`workloadRef`).
//!
//! Absent and zero are different: a field that a user may omit is an `Option`. Defaults are in the documentation of each field
//! and in the accessors below, never in the schema.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, LocalObjectReference, ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::condition::{self, Conditions as _};
use crate::labels;
use crate::managed::managed;
use crate::tone::{Tone, texts, words};

pub use crate::condition::{
    ASYNC_ACTOR as CONDITIONS, RUNTIME_INJECTED, SCALING_READY, TARGET_RESOLVED, TRANSPORT_READY, WARNING,
    WORKLOAD_READY,
};
pub use crate::reserved::{RESERVED_VARIABLES, RUNTIME_ENV};

/// Admission messages. They are the same from the API server and from `render`.
pub mod messages {
    pub use crate::reserved::refusal as reserved;

    /// The actor's name cannot be part of the names of its objects.
    pub const NAME: &str = "metadata.name must be at most 63 characters, lower case letters, digits and '-', and start with a letter: workloads, labels and queues are named after it";
    /// Exactly one of `workload` and `workloadRef` must be set.
    pub const XOR: &str = "Exactly one of 'workload' or 'workloadRef' must be set";
    /// `workloadRef` without `runtime`.
    pub const RUNTIME_MISSING: &str =
        "runtime is required with workloadRef: set runtime.image and runtime.handler, the code that calls the model";
    /// `runtime` with `workload`.
    pub const RUNTIME_MISPLACED: &str = "runtime is for workloadRef only: with workload, the handler is in the container asya-runtime of workload.template";
    /// `binding` with `workload`.
    pub const BINDING_MISPLACED: &str =
        "binding is for workloadRef only: with workload there is nothing to bind to, remove binding";
    /// `asya-runtime` is not exactly one of the containers.
    pub const ONE_RUNTIME: &str = "workload.template.spec.containers must have exactly one container named asya-runtime: rename the container with your handler";
    /// A container name is reserved.
    pub const NO_SIDECAR: &str = "workload.template.spec.containers must not have a container named asya-sidecar: the operator adds it, remove or rename yours";
    /// Volume names are reserved.
    pub const NO_INIT: &str =
        "workload.template.spec.initContainers must not have one named asya-sidecar or asya-runtime: rename it";
    /// `command` of asya-runtime is set; the operator sets it.
    pub const NO_COMMAND: &str = "workload.template.spec.containers: asya-runtime must not set command, because the operator starts the runtime in it; remove command, and set workload.pythonExecutable if Python is called otherwise";
    /// The target is in another namespace.
    pub const NAMESPACE: &str = "workloadRef.namespace must not be set: an AsyncActor binds to workloads in its own namespace only; create the AsyncActor in the namespace of its target";
    /// The handler is not a Python path.
    pub const HANDLER: &str =
        "runtime.handler must be a Python path such as adapters.openai.forward: module.function or module.Class.method";
    /// The target URL is not an HTTP URL.
    pub const URL: &str = "runtime.targetURL must be http://HOST[:PORT][/PATH] or https://…, without user and password, such as http://phi-3:8080";
    /// The target URL leads to a cloud metadata service.
    pub const URL_HIDDEN: &str = "runtime.targetURL must not point at a link-local or metadata address (169.254.0.0/16, fe80::/10, metadata.google.internal), nor hide an address in a number: name the model's Service";
    /// Both names of the minimum are set.
    pub const MIN_TWICE: &str = "scaling.minReplicas and scaling.minReplicaCount are the same thing: set one of them";
    /// Both names of the maximum are set.
    pub const MAX_TWICE: &str = "scaling.maxReplicas and scaling.maxReplicaCount are the same thing: set one of them";
    /// The minimum is above the maximum.
    pub const MIN_ABOVE_MAX: &str = "scaling.minReplicas must not be above scaling.maxReplicas (default 50): raise maxReplicas or lower minReplicas";
    /// Modifiers have no formula.
    pub const FORMULA: &str = "scaling.advanced.formula is required with advanced.target, activationTarget or metricType: set it, for example to queue (the name of the queue's trigger)";
    /// The formula has no target.
    pub const FORMULA_TARGET: &str = "scaling.advanced.target is required with advanced.formula: what the result of the formula is divided by, such as '5'";
    /// A name in the formula is not that of a trigger.
    pub fn formula_name(name: &str) -> String {
        format!(
            "scaling.advanced.formula: {name} is not the name of a trigger: use queue or, with queueAlias, alias, in KEDA's expressions such as max([queue, 1])"
        )
    }
    /// The formula does not count the messages of the alias.
    pub const FORMULA_ALIAS: &str = "scaling.advanced.formula must contain alias (the name of the alias's trigger) with queueAlias, or its messages start no replica: such as queue + alias";
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
    doc = "AsyncActor puts a queue in front of a workload: one that it creates (workload), or an existing one (workloadRef).",
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
    validation = Rule::new("!has(self.queueAlias) || !has(self.scaling) || !has(self.scaling.advanced) || !has(self.scaling.advanced.formula) || self.scaling.advanced.formula.contains('alias')").message(messages::FORMULA_ALIAS),
)]
pub struct AsyncActorSpec {
    /// Name of a transport in the operator's configuration, such as rabbitmq or sqs.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9_.]*[a-z0-9])?$')").message("transport must be the name of a transport of the operator: lower case letters, digits, '-', '_' and '.', such as rabbitmq"))]
    pub transport: String,

    /// Second name of the queue, for a migration. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_alias: Option<QueueAlias>,

    /// Workload to create. Exactly one of workload and workloadRef must be set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,

    /// Existing workload in the same namespace to bind to. Its owner does not change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<WorkloadRef>,

    /// Container asya-runtime, which calls the target. Required with workloadRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,

    /// Binding strategy and conflict handling. Only with workloadRef.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<Binding>,

    /// Container asya-sidecar, which moves messages between the queues and the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<Sidecar>,

    /// Messages that a pod processes at the same time: calls of the handler, and the least prefetch count of the sidecar. Servers that
    /// batch requests need more than one. The order of messages is kept only with 1. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub concurrency: Option<i32>,

    /// Further attempts after errors of the handler. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Retry>,

    /// Timeouts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Timeout>,

    /// Scaling by the length of the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// Second name of the queue, for a migration. AsyaV01: the actor also receives from asya-NAME, its queue in the public Asya v0.1. It
/// sends to such queues for actors that have no other, and for happy-end and error-end while they exist. Such names have no namespace,
/// so set it for one actor of this name only. Defaults to none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QueueAlias {
    /// Public Asya v0.1.
    AsyaV01,
}

/// Workload to create.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Deployment (default) or StatefulSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<WorkloadKind>,

    /// Replicas while scaling is disabled. Defaults to 1; 0 means none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub replicas: Option<i32>,

    /// Python executable that runs the handler, in the image of asya-runtime. Defaults to python3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub python_executable: Option<String>,

    /// Pod template with exactly one container named asya-runtime, which contains the handler.
    #[schemars(schema_with = "crate::schema::actor_pod_template")]
    #[x_kube(
        validation = Rule::new("self.spec.containers.filter(c, c.name == 'asya-runtime').size() == 1").message(messages::ONE_RUNTIME),
        validation = Rule::new("self.spec.containers.all(c, c.name != 'asya-sidecar')").message(messages::NO_SIDECAR),
        validation = Rule::new("!has(self.spec.initContainers) || self.spec.initContainers.all(c, c.name != 'asya-sidecar' && c.name != 'asya-runtime')").message(messages::NO_INIT),
        validation = Rule::new("self.spec.containers.all(c, c.name != 'asya-runtime' || !has(c.command))").message(messages::NO_COMMAND),
    )]
    pub template: Map<String, Value>,
}

/// Kind of the workload to create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum WorkloadKind {
    /// Replicas without identity.
    #[default]
    Deployment,
    /// Replicas with stable names.
    StatefulSet,
}

impl WorkloadKind {
    /// Text in a manifest.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deployment => "Deployment",
            Self::StatefulSet => "StatefulSet",
        }
    }
}

/// Workload to bind to.
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
    /// SeldonDeployment, ModelDeployment, or any other if binding.strategy is Proxy and runtime.targetURL is set.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Z][A-Za-z0-9]*$')").message("workloadRef.kind must be a kind, such as Deployment"))]
    pub kind: String,
    /// Name of the target.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$')").message("workloadRef.name must be the name of an object: lower case letters, digits, '-' and '.'"))]
    pub name: String,
    /// Must not be set: the target is always in the namespace of its AsyncActor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
}

/// Container that calls the target.
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
    /// Input of the handler: payload (default) or envelope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handler_mode: Option<HandlerMode>,
    /// URL of the model, available to the handler as ASYA_TARGET_URL. If omitted, it is derived from the target: 127.0.0.1 if
    /// the handler runs in the model's pod.
    #[serde(default, rename = "targetURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = Rule::new("self.matches('^https?://([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|\\\\[[0-9A-Fa-f:.]+\\\\])(:[0-9]{1,5})?([/?][^[:space:][:cntrl:]]*)?$')").message(messages::URL),
        validation = Rule::new("!self.lowerAscii().matches('^https?://(169[.]254[.]|\\\\[(fe[89ab]|fd00:ec2|::ffff:)|metadata[.]google[.]internal|metadata([:/?]|$)|instance-data([:/?]|$))') && (!self.matches('^https?://(0[xX])?[0-9A-Fa-f.]+([:/?]|$)') || self.matches('^https?://(0|[1-9][0-9]{0,2})([.](0|[1-9][0-9]{0,2})){3}([:/?]|$)'))").message(messages::URL_HIDDEN),
    )]
    pub target_url: Option<String>,
    /// Python executable of the image. Defaults to python3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    pub python_executable: Option<String>,
    /// Environment variables of the handler. They override generated ones, except the reserved ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::runtime_env")]
    pub env: Vec<EnvVar>,
    /// Resources of the container. Defaults to small requests or, in pods of the QoS class Guaranteed, to limits of 500m CPU and 512Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// User and file system of the container. If omitted, it must not run as root where the other containers of the pod must not, and
    /// in a proxy; its user is that of the image or of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<RuntimeSecurity>,
}

/// User and file system of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RuntimeSecurity {
    /// Whether the kubelet refuses to run the container as root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as_non_root: Option<bool>,
    /// Number of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub run_as_user: Option<i64>,
    /// Number of the group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub run_as_group: Option<i64>,
    /// Whether the file system of the image is read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only_root_filesystem: Option<bool>,
}

/// Image pull policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Always pull.
    Always,
    /// Pull if the node does not have the image.
    IfNotPresent,
    /// Never pull.
    Never,
}

/// Input and output of a handler.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HandlerMode {
    /// Payload only.
    #[default]
    Payload,
    /// Whole envelope, including its route.
    Envelope,
}

/// Binding strategy and conflict handling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Binding {
    /// Auto (default) selects the strategy by the target. TemplatePatch adds two containers to the target's pod template,
    /// ParentSpec adds them to the pod spec of the custom resource that owns the pods, Proxy runs them in a separate Deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<AskedStrategy>,
    /// Action if another controller removes the containers more than 5 times: Stop (default), or Proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_conflict: Option<OnConflict>,
    /// With Proxy: also scale the target by the queue, if it has a scale subresource (Deployment, StatefulSet, InferenceSet,
    /// ModelDeployment). Defaults to false: only the proxy is scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale_target: Option<bool>,
    /// Pods of the proxy. Other strategies use the pods of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<ProxyPods>,
}

/// Settings of the pods of a proxy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyPods {
    /// ServiceAccount of the pods, such as one with an IAM role for SQS. Its token is not mounted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub service_account_name: Option<String>,
    /// Secrets with credentials for registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Labels that a node must have to run the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
}

/// Requested binding strategy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AskedStrategy {
    /// Selected by the target.
    #[default]
    Auto,
    /// Two containers in the target's pods, by server-side apply.
    TemplatePatch,
    /// Two containers in the pod spec of the target's custom resource.
    ParentSpec,
    /// A separate Deployment that calls the target.
    Proxy,
}

/// Effective binding strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// Two containers in the target's pods, by server-side apply.
    TemplatePatch,
    /// Two containers in the pod spec of the target's custom resource.
    ParentSpec,
    /// A separate Deployment that calls the target.
    Proxy,
}

texts!(Strategy {
    TemplatePatch "TemplatePatch",
    ParentSpec "ParentSpec",
    Proxy "Proxy",
});

impl Strategy {
    /// Whether it writes to an object with another owner.
    pub fn is_in_place(self) -> bool {
        self != Self::Proxy
    }
}

/// Action in a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnConflict {
    /// Leave the target unchanged and report the conflict.
    #[default]
    Stop,
    /// Leave the target unchanged and call it from a separate Deployment.
    Proxy,
}

/// Container asya-sidecar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sidecar {
    /// Image. Defaults to the operator's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("!self.matches('[[:space:][:cntrl:]]')").message("sidecar.image must be an image reference, without spaces"))]
    pub image: Option<String>,
    /// Always, IfNotPresent (default) or Never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<PullPolicy>,
    /// Resources of the container. Defaults to requests of 10m CPU and 16Mi memory, and a memory limit of 256Mi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Environment variables. They override generated ones, except the reserved ones: those of identity, broker and socket.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::sidecar_env")]
    pub env: Vec<EnvVar>,
}

/// Timeouts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeout {
    /// Maximum processing time of one message, in seconds. Defaults to 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub processing: Option<i32>,
    /// Longest start of the handler in a workload's pods, such as the time to load a model, in seconds. Then the container restarts.
    /// Defaults to 1800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub startup: Option<i32>,
    /// Termination grace period of a workload's pods, in seconds. Defaults to processing plus 30, so that scaling in does not
    /// interrupt work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub graceful_shutdown: Option<i32>,
}

/// Further attempts after errors of the handler. A message whose attempts have failed goes to error-end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retry {
    /// Attempts in all. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub attempts: Option<i32>,
    /// Pause before the second attempt, in seconds. It doubles with each further one. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 3600))]
    pub backoff: Option<i32>,
    /// Longest pause between attempts, in seconds. Defaults to 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub max_backoff: Option<i32>,
}

/// Scaling by the length of the queue. KEDA's field names are accepted as well.
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
    /// Minimum number of replicas. Defaults to 0, or to 1 if the target's own pods are scaled, since they may serve other
    /// clients: set 0 to allow scaling to zero.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub min_replicas: Option<i32>,
    /// Same as minReplicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10000))]
    pub min_replica_count: Option<i32>,
    /// Maximum number of replicas. Defaults to 50.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_replicas: Option<i32>,
    /// Same as maxReplicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10000))]
    pub max_replica_count: Option<i32>,
    /// Interval between checks of the queue, in seconds. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86400))]
    pub polling_interval: Option<i32>,
    /// Time without messages before scaling to zero, in seconds. Defaults to 60.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub cooldown_period: Option<i32>,
    /// Time after binding without scaling to zero, in seconds. Defaults to cooldownPeriod with workloadRef, otherwise to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub initial_cooldown_period: Option<i32>,
    /// Messages per replica, including those in progress. Defaults to 5, or to the concurrency if that is larger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub queue_length: Option<i32>,
    /// HorizontalPodAutoscaler settings, passed to KEDA unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advanced: Option<AdvancedScaling>,
}

/// Scaling by a formula.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AdvancedScaling {
    /// KEDA's scalingModifiers.formula. The name of the queue's trigger is queue, that of the alias's trigger is alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub formula: Option<String>,
    /// KEDA's scalingModifiers.target: a number greater than 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]+([.][0-9]+)?$') && self.matches('[1-9]')").message("scaling.advanced.target must be a number above 0, such as '5'"))]
    pub target: Option<String>,
    /// KEDA's scalingModifiers.activationTarget: a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]+([.][0-9]+)?$')").message("scaling.advanced.activationTarget must be a number, such as '1'"))]
    pub activation_target: Option<String>,
    /// KEDA's scalingModifiers.metricType: AverageValue (default) or Value. KEDA does not support Utilization here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric_type: Option<MetricType>,
    /// Whether the previous number of replicas is restored when the actor is deleted. Defaults to true with workloadRef,
    /// otherwise to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore_to_original_replica_count: Option<bool>,
}

/// Value that the result of a formula is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MetricType {
    /// Target value per replica.
    AverageValue,
    /// Total target value.
    Value,
}

/// Observed state of an AsyncActor. Written by the operator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AsyncActorStatus {
    /// State in one word, such as Running, Napping (scaled to zero until a message arrives; not an error) or TransportError.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Summary of the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Generation of the spec that this status is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Standalone (workload) or Binding (workloadRef).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// With workloadRef: the object that owns the pods of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_target: Option<ObjectRef>,
    /// With workloadRef: state of the binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<BindingStatus>,
    /// Number of times that other controllers removed our containers from the target, since the last hour without such a
    /// conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_count: Option<i32>,
    /// Time of the last such conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_conflict_time: Option<Time>,
    /// Workload that the operator created: the workload itself, or the proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload_ref: Option<ObjectRef>,
    /// ScaledObject that the operator created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaled_object_ref: Option<ObjectRef>,
    /// KEDA or Manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling_mode: Option<ScalingMode>,
    /// Name of the actor's queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// User of the sidecars at RabbitMQ. Shared: all namespaces of the transport have one user, so that each holder of its password
    /// can read and answer the messages of all. Namespace: a user of this namespace, which can use the queues of this namespace only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_user: Option<BrokerUser>,
    /// Number of ready replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Number of replicas, ready or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_replicas: Option<i32>,
    /// Desired number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_replicas: Option<i32>,
    /// Whether KEDA sees messages in the queue, waiting or in progress. Absent without scaling. The number of messages is not
    /// reported: it would change the status with each message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_active: Option<bool>,
    /// Time of the last change of the desired number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_time: Option<Time>,
    /// Direction of that change: up or down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_scale_direction: Option<ScaleDirection>,
    /// Minimum number of replicas, with defaults applied. Absent without scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_replicas: Option<i32>,
    /// Maximum number of replicas, with defaults applied. Absent without scaling.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_replicas: Option<i32>,
    /// TargetResolved, RuntimeInjected or WorkloadReady, TransportReady, ScalingReady, Ready, and others while they are true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

words! {
    /// State of an AsyncActor: the word in `status.status`. The schema accepts any text, so that other versions of the operator may
    /// write their own words.
    ActorState {
        /// Enough replicas are ready.
        Current Running: "Nothing",
        /// KEDA scaled the actor to zero; the next message starts it.
        Current Napping: "Nothing",
        /// Zero replicas are desired.
        Current Stopped: "Raise the replicas to process messages",
        /// The queue, the workload or its first replicas are being created.
        InProgress Creating: "Wait",
        /// The first replica after scaling to zero is starting.
        InProgress WakingUp: "Wait",
        /// More replicas are starting.
        InProgress ScalingUp: "Nothing",
        /// Replicas are ending.
        InProgress ScalingDown: "Nothing",
        /// A rollout is in progress.
        InProgress Updating: "Wait",
        /// The binding is moving to another target or strategy.
        InProgress Moving: "Wait",
        /// The target, its CRD or its URL does not exist yet.
        InProgress WaitingForTarget: "Create the target, or correct `spec.workloadRef`",
        /// Reconciliation is paused; pods keep running.
        Paused Paused: "Remove the annotation, or run `kubeairunway resume`",
        /// The actor is being deleted; the message names what the deletion waits for, at most five minutes.
        Terminating Terminating: "Wait",
        /// The spec violates a rule of the API.
        Failed Invalid: "Correct the fields that the message names",
        /// The actor cannot be bound to the target.
        Failed BindingError: "See the conditions `TargetResolved` and `RuntimeInjected`",
        /// The transport is not configured, or its broker cannot be used.
        Failed TransportError: "See the condition `TransportReady`",
        /// Another field manager removes the injected containers; the operator adds them again after a wait.
        Failed Conflict: "Set `spec.binding.strategy` to `Proxy` if this repeats",
        /// Another field manager removed the injected containers more than five times; the operator leaves the target
        /// alone.
        Failed ConflictStopped:
            "Set `spec.binding.strategy` or `spec.binding.onConflict` to `Proxy`; any change of the spec starts another attempt",
        /// An older actor is bound to the target.
        Failed AlreadyManaged: "Delete one of the two actors, or set `spec.binding.strategy` to `Proxy`",
        /// An object with the required name exists and belongs to another owner.
        Failed NameTaken: "Rename the actor, or delete the other object",
        /// Another field manager owns a field that the operator has to set.
        Failed FieldConflict: "Remove the field from the other manager's manifest",
        /// The API server rejected an object, or has failed to write it for a minute.
        Failed Refused: "Follow the message",
        /// No node accepts a pod.
        Failed PendingResources: "Add a node, or lower the requests",
        /// The kubelet cannot pull an image.
        Failed ImagePullError: "Correct the image, or add pull credentials",
        /// A Secret or ConfigMap that a pod needs does not exist.
        Failed ConfigError: "Create it, or correct its name",
        /// The container `asya-runtime` fails.
        Failed RuntimeError: "Read its log; correct the handler",
        /// The container `asya-sidecar` fails.
        Failed SidecarError: "Read its log; check the transport",
        /// Pods cannot be created, or another container fails.
        Failed WorkloadError: "Follow the message",
        /// KEDA cannot scale the actor.
        Failed ScalingError: "See the condition `ScalingReady`",
    }
}

impl ActorState {
    /// The state with this text; absent for a text of another version.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|state| state.as_str() == word)
    }
}

impl AsyncActorStatus {
    /// Tone of the actor. While it is ready, scaling and rollouts do not count.
    pub fn tone(&self) -> Tone {
        if self.conditions.is_true(condition::READY) {
            return Tone::Current;
        }
        let state = self.status.as_deref().and_then(ActorState::of);
        state.map_or(Tone::Unknown, ActorState::tone)
    }
}

/// Mode of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// The actor runs its own workload.
    Standalone,
    /// The actor is bound to an existing workload.
    Binding,
}

texts!(Mode {
    Standalone "Standalone",
    Binding "Binding",
});

/// User of the sidecars at RabbitMQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BrokerUser {
    /// One for all namespaces of the transport.
    Shared,
    /// One for this namespace.
    Namespace,
}

/// Controller that scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ScalingMode {
    /// KEDA scales by the queue.
    #[serde(rename = "KEDA")]
    Keda,
    /// None of our controllers scales.
    Manual,
}

texts!(ScalingMode {
    Keda "KEDA",
    Manual "Manual",
});

/// Direction of a change of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScaleDirection {
    /// More replicas than before.
    Up,
    /// Fewer replicas than before.
    Down,
}

/// An object in the actor's namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectRef {
    /// API version, such as `apps/v1`.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// State of a binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindingStatus {
    /// TemplatePatch, ParentSpec or Proxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Whether this is the Proxy that onConflict requests, after a conflict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback: Option<bool>,
    /// Object that contains our containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<ObjectRef>,
    /// UID of that object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder_uid: Option<String>,
    /// Hash of the fields that the operator added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied_hash: Option<String>,
    /// Hash of the spec of the AsyncActor for which they were added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec_hash: Option<String>,
    /// Hash of the target's own pod template at that time. The fields follow the operator's settings when the template changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// Whether another controller removed the fields and they are not restored yet. Prevents that one removal is counted twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<bool>,
    /// Generation of the object that workloadRef names. A new generation resets the conflict counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_generation: Option<i64>,
}

impl Scaling {
    /// Whether KEDA scales.
    pub fn is_on(&self) -> bool {
        self.enabled.unwrap_or(false)
    }

    /// Minimum number of replicas, from either field.
    pub fn min(&self) -> Option<i32> {
        self.min_replicas.or(self.min_replica_count)
    }

    /// Maximum number of replicas, from either field, with the default applied.
    pub fn max(&self) -> i32 {
        self.max_replicas.or(self.max_replica_count).unwrap_or(50)
    }
}

impl AsyncActorSpec {
    /// Scaling, if enabled.
    pub fn scaling_on(&self) -> Option<&Scaling> {
        self.scaling.as_ref().filter(|s| s.is_on())
    }

    /// Maximum processing time of one message in seconds, with the default applied.
    pub fn processing_seconds(&self) -> i32 {
        self.timeout.as_ref().and_then(|t| t.processing).unwrap_or(300)
    }

    /// Requested strategy, with the default applied.
    pub fn strategy(&self) -> AskedStrategy {
        self.binding.as_ref().and_then(|b| b.strategy).unwrap_or_default()
    }

    /// Action in a conflict, with the default applied.
    pub fn on_conflict(&self) -> OnConflict {
        self.binding.as_ref().and_then(|b| b.on_conflict).unwrap_or_default()
    }
}

managed!(AsyncActor, paused: labels::ASYA_PAUSED, finalizer: labels::ASYA_FINALIZER);
