//! `LlamaStackDistribution`: a Llama Stack server, with providers that are installed from images when it starts.
//!
//! Field-compatible with the public operator's `llamastack.io/v1alpha1`; `spec.server.externalProviders` and
//! `status.externalProviders` are those of the specification of deploy-time modularity, level 1.

#![allow(clippy::struct_field_names, reason = "names of the public API")]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, ResourceClaim, TopologySpreadConstraint, Volume, VolumeMount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::labels;
use crate::managed::managed;
use crate::tone::words;

/// A Llama Stack server and what belongs to it.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "llamastack.io",
    version = "v1alpha1",
    kind = "LlamaStackDistribution",
    plural = "llamastackdistributions",
    shortname = "llsd",
    category = "ai",
    namespaced,
    status = "LlamaStackDistributionStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "LlamaStackDistribution runs a Llama Stack server. Third-party providers are installed from their images when it starts (spec.server.externalProviders).",
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,53}[a-z0-9])?$')").message("metadata.name must be at most 55 lower case letters, digits and '-', beginning with a letter: a Service <name>-service is made from it"),
    selectable = ".spec.server.userConfig.configMapName",
    selectable = ".spec.server.userConfig.configMapNamespace",
    selectable = ".spec.server.tlsConfig.caBundle.configMapName",
    selectable = ".spec.server.tlsConfig.caBundle.configMapNamespace",
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Server Version", type_ = "string", json_path = ".status.version.llamaStackServerVersion"),
    printcolumn(name = "Available", type_ = "integer", json_path = ".status.availableReplicas"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Operator Version", type_ = "string", json_path = ".status.version.operatorVersion", priority = 1),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type=='Ready')].reason", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = crate::schema::bounded)]
pub struct LlamaStackDistributionSpec {
    /// How many servers run. Defaults to 1; 0 means none. Ignored while server.autoscaling is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,

    /// The server.
    pub server: Server,

    /// Who may reach the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// The server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    /// The distribution that is run: by name or by image.
    pub distribution: Distribution,

    /// The container of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_spec: Option<ContainerSpec>,

    /// Processes that serve requests. Omitted: one. When given, the server is started with uvicorn and asks for one processor
    /// for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub workers: Option<i32>,

    /// Settings of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_overrides: Option<PodOverrides>,

    /// How many pods may be away at a time for maintenance. Omitted: one, if there is more than one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudget>,

    /// How pods are spread over the cluster. Omitted: over regions, zones and nodes where possible, if there is more than one
    /// replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Lets a HorizontalPodAutoscaler choose the number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// Keeps the server's data in a PersistentVolumeClaim. Omitted: it is lost with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,

    /// A configuration of your own in place of the distribution's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_config: Option<UserConfig>,

    /// Whom the server trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<TlsConfig>,

    /// Providers that are installed from their images before the server starts, by the API they implement. They are installed
    /// in the order of the APIs here, and within an API in the order of its list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_providers: Option<ExternalProviders>,
}

/// The distribution that is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.name) && self.name != '' && has(self.image) && self.image != '')").message("Only one of name or image can be specified"),
    validation = Rule::new("has(self.name) && self.name != '' || has(self.image) && self.image != ''").message("server.distribution needs a name (starter, remote-vllm, meta-reference-gpu, postgres-demo, or one the operator was given) or an image")
)]
pub struct Distribution {
    /// A name the operator knows: starter, remote-vllm, meta-reference-gpu, postgres-demo, and those it was given with
    /// --distribution-image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub name: Option<String>,
    /// A container image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[^[:space:][:cntrl:]]*$')").message("server.distribution.image must not contain spaces or control characters"))]
    pub image: Option<String>,
}

/// The container of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerSpec {
    /// Its name. Defaults to llama-stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("containerSpec.name must be lower case letters, digits and '-'"))]
    pub name: Option<String>,
    /// The port the server listens on. Defaults to 8321, also when it is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,
    /// What the server needs. Requests default to one processor for each worker and 1Gi of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Environment variables of the server. They win over those the operator sets, except for those that tell the server
    /// where its configuration is while externalProviders are given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 200))]
    pub env: Vec<EnvVar>,
    /// ConfigMaps and Secrets whose keys become environment variables of the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub env_from: Vec<EnvFromSource>,
    /// Replaces the command of the server. External providers are then not checked before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::words")]
    pub command: Vec<String>,
    /// Replaces the arguments of the server. External providers are then not checked before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::words")]
    pub args: Vec<String>,
}

/// What a container needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// The most it may use.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub limits: BTreeMap<String, Quantity>,
    /// What is set aside for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub requests: BTreeMap<String, Quantity>,
    /// Resource claims of the pod that it uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub claims: Vec<ResourceClaim>,
}

/// An amount of a resource: a number, or a text such as 500m or 2Gi.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    /// As 4.
    Number(i64),
    /// As 500m or 2Gi.
    Text(String),
}

impl JsonSchema for Quantity {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "A number, or a text such as 500m or 2Gi.",
            "x-kubernetes-int-or-string": true,
            "maxLength": 32,
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        })
    }
}

impl std::fmt::Display for Quantity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Settings of the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodOverrides {
    /// The ServiceAccount of the pods; its imagePullSecrets are used for every image. Omitted: one is made, with the name of the distribution and -sa.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
    /// Seconds a pod has to end. Kubernetes' default is 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub termination_grace_period_seconds: Option<i64>,
    /// Volumes added to the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub volumes: Vec<Volume>,
    /// Where the server's container sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub volume_mounts: Vec<VolumeMount>,
}

/// How many pods may be away at a time for maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.minAvailable) && has(self.maxUnavailable))").message("podDisruptionBudget takes one of minAvailable and maxUnavailable, not both"))]
pub struct PodDisruptionBudget {
    /// Pods that must stay: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrString>,
    /// Pods that may be away: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// Lets a HorizontalPodAutoscaler choose the number of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas").message("autoscaling.minReplicas must not be larger than maxReplicas"))]
pub struct Autoscaling {
    /// Fewest replicas. Defaults to spec.replicas, and is never below it; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: Option<i32>,
    /// Most replicas.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Use of processors to aim at, in percent of what is requested. Defaults to 80 if no target is given.
    #[serde(
        default,
        rename = "targetCPUUtilizationPercentage",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu_utilization_percentage: Option<i32>,
    /// Use of memory to aim at, in percent of what is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_memory_utilization_percentage: Option<i32>,
}

/// Where the server keeps its data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of the PersistentVolumeClaim. Defaults to 10Gi. It can grow where the storage class allows that, never shrink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Where the server sees it. Defaults to /.llama.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self == '' || self.startsWith('/') && !self.contains(':')").message("storage.mountPath must be an absolute path without ':'"))]
    pub mount_path: Option<String>,
}

/// A configuration of your own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserConfig {
    /// A ConfigMap with the key config.yaml or run.yaml. A change of its content restarts the server.
    #[schemars(length(min = 1, max = 253))]
    pub config_map_name: String,
    /// Its namespace; only the one of the LlamaStackDistribution works, since pods cannot see another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub config_map_namespace: Option<String>,
}

/// Whom the server trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfig {
    /// Certificate authorities of your own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,
}

/// Certificate authorities of your own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaBundle {
    /// A ConfigMap with certificates in PEM form. A change of its content restarts the server.
    #[schemars(length(min = 1, max = 253))]
    pub config_map_name: String,
    /// Its namespace; only the one of the LlamaStackDistribution works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub config_map_namespace: Option<String>,
    /// The keys that hold certificates, joined in this order. Defaults to ca-bundle.crt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 50),
        inner(length(max = 253), regex(pattern = "^[a-zA-Z0-9]([a-zA-Z0-9\\-_.]*[a-zA-Z0-9])?$"))
    )]
    pub config_map_keys: Vec<String>,
}

/// Who may reach the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Makes an Ingress. Defaults to false: the server is reached from inside the cluster only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose_route: Option<bool>,
    /// Makes a NetworkPolicy that lets in pods of the same namespace, the operator, and those named here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_from: Option<AllowedFrom>,
}

/// Namespaces whose pods may reach the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedFrom {
    /// Names of namespaces; "*" is all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(name, name.matches('^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$'))").message("network.allowedFrom.namespaces must be names of namespaces, or '*'"))]
    pub namespaces: Vec<String>,
    /// Label keys: a namespace that carries one of them is let in, whatever the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 317)))]
    #[x_kube(validation = Rule::new("self.all(key, key.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))").message("network.allowedFrom.labels must be label keys such as example.com/team, without a value"))]
    pub labels: Vec<String>,
}

/// Providers that are installed from their images, by the API they implement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new(UNIQUE_IDS).message(Message::Expression(DUPLICATE_IDS.to_owned())))]
pub struct ExternalProviders {
    /// Providers of the API inference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub inference: Vec<ExternalProvider>,
    /// Providers of the API safety.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub safety: Vec<ExternalProvider>,
    /// Providers of the API agents. Servers from release 0.7.0 on do not have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub agents: Vec<ExternalProvider>,
    /// Providers of the API vector_io.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub vector_io: Vec<ExternalProvider>,
    /// Providers of the API datasetio.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub dataset_io: Vec<ExternalProvider>,
    /// Providers of the API scoring.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub scoring: Vec<ExternalProvider>,
    /// Providers of the API eval.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub eval: Vec<ExternalProvider>,
    /// Providers of the API tool_runtime.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub tool_runtime: Vec<ExternalProvider>,
    /// Providers of the API post_training. Servers from release 0.7.0 on do not have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub post_training: Vec<ExternalProvider>,
}

/// No id twice over all lists. Lists of different fields have different types in CEL; lists of texts do not.
const UNIQUE_IDS: &str = concat!(
    "[(has(self.inference) ? self.inference.map(p, p.providerId) : [])",
    " + (has(self.safety) ? self.safety.map(p, p.providerId) : [])",
    " + (has(self.agents) ? self.agents.map(p, p.providerId) : [])",
    " + (has(self.vectorIo) ? self.vectorIo.map(p, p.providerId) : [])",
    " + (has(self.datasetIo) ? self.datasetIo.map(p, p.providerId) : [])",
    " + (has(self.scoring) ? self.scoring.map(p, p.providerId) : [])",
    " + (has(self.eval) ? self.eval.map(p, p.providerId) : [])",
    " + (has(self.toolRuntime) ? self.toolRuntime.map(p, p.providerId) : [])",
    " + (has(self.postTraining) ? self.postTraining.map(p, p.providerId) : [])]",
    ".all(ids, ids.all(id, ids.exists_one(other, other == id)))"
);

/// Names every provider whose id is used twice, with section and image.
const DUPLICATE_IDS: &str = concat!(
    "'Duplicate providerId in externalProviders: ' + ",
    "[(has(self.inference) ? self.inference.map(p, [p.providerId, 'inference', p.image]) : [])",
    " + (has(self.safety) ? self.safety.map(p, [p.providerId, 'safety', p.image]) : [])",
    " + (has(self.agents) ? self.agents.map(p, [p.providerId, 'agents', p.image]) : [])",
    " + (has(self.vectorIo) ? self.vectorIo.map(p, [p.providerId, 'vectorIo', p.image]) : [])",
    " + (has(self.datasetIo) ? self.datasetIo.map(p, [p.providerId, 'datasetIo', p.image]) : [])",
    " + (has(self.scoring) ? self.scoring.map(p, [p.providerId, 'scoring', p.image]) : [])",
    " + (has(self.eval) ? self.eval.map(p, [p.providerId, 'eval', p.image]) : [])",
    " + (has(self.toolRuntime) ? self.toolRuntime.map(p, [p.providerId, 'toolRuntime', p.image]) : [])",
    " + (has(self.postTraining) ? self.postTraining.map(p, [p.providerId, 'postTraining', p.image]) : [])]",
    ".map(all, all.filter(p, all.filter(o, o[0] == p[0]).size() > 1)",
    ".map(p, \"'\" + p[0] + \"' (\" + p[1] + ', image ' + p[2] + ')').join(' and '))[0]",
    " + '. Give each provider an id of its own'"
);

/// A provider that is installed from its image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalProvider {
    /// The provider's id in the server, unique among the external providers. One that the distribution has too is replaced.
    #[schemars(length(min = 1, max = 45))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("providerId must be lower case letters, digits and '-': an init container is named after it"))]
    pub provider_id: String,
    /// The provider's image: /lls-provider/lls-provider-spec.yaml, wheels in /lls-provider/packages, and Python with pip.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[^[:space:][:cntrl:]]*$')").message("image must not contain spaces or control characters"))]
    pub image: String,
    /// When the image is pulled. Defaults to IfNotPresent.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
    /// The provider's configuration, as it would stand in run.yaml. `modelDeploymentRef: {name: NAME}` in it becomes `url`
    /// with the endpoint of that ModelDeployment; its optional `key` (default url) and `path` (default /v1) say where and what.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::settings")]
    pub config: Option<Map<String, Value>>,
}

/// When an image is pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Each time a pod starts.
    Always,
    /// Never: it must be on the node.
    Never,
    /// When it is not on the node.
    #[default]
    IfNotPresent,
}

impl PullPolicy {
    /// As written in a pod.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::Never => "Never",
            Self::IfNotPresent => "IfNotPresent",
        }
    }
}

/// An API of Llama Stack that external providers may implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiSection {
    /// The field of `externalProviders`, as `vectorIo`.
    pub field: &'static str,
    /// The name in run.yaml, as `vector_io`.
    pub api: &'static str,
}

impl ExternalProviders {
    /// Every provider with its section, in the order in which they are installed.
    pub fn in_order(&self) -> Vec<(ApiSection, &ExternalProvider)> {
        let sections: [(&'static str, &'static str, &Vec<ExternalProvider>); 9] = [
            ("inference", "inference", &self.inference),
            ("safety", "safety", &self.safety),
            ("agents", "agents", &self.agents),
            ("vectorIo", "vector_io", &self.vector_io),
            ("datasetIo", "datasetio", &self.dataset_io),
            ("scoring", "scoring", &self.scoring),
            ("eval", "eval", &self.eval),
            ("toolRuntime", "tool_runtime", &self.tool_runtime),
            ("postTraining", "post_training", &self.post_training),
        ];
        sections
            .into_iter()
            .flat_map(|(field, api, list)| list.iter().map(move |provider| (ApiSection { field, api }, provider)))
            .collect()
    }
}

/// What is known of a LlamaStackDistribution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LlamaStackDistributionStatus {
    /// Pending, Initializing, Ready, Failed or Terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DistributionPhase>,
    /// What there is to say, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Versions of the operator and the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionInfo>,
    /// The distribution, and what the running server says of its providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution_config: Option<DistributionConfig>,
    /// Servers that are available.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Where the server answers, inside the cluster.
    #[serde(default, rename = "serviceURL", skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
    /// Where it answers from outside; empty while the Ingress has no address.
    #[serde(default, rename = "routeURL", skip_serializing_if = "Option::is_none")]
    pub route_url: Option<String>,
    /// The external providers, in the order in which they are installed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 144), extend("x-kubernetes-list-type" = "atomic"))]
    pub external_providers: Vec<ExternalProviderStatus>,
    /// Ready, DeploymentReady, ServiceReady, and others while they have something to say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Where a LlamaStackDistribution stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DistributionPhase {
    /// Nothing runs yet.
    Pending,
    /// Pods are starting.
    Initializing,
    /// It serves.
    Ready,
    /// It cannot serve without a change.
    Failed,
    /// It is being deleted.
    Terminating,
}

words!(DistributionPhase {
    Pending "Pending" InProgress,
    Initializing "Initializing" InProgress,
    Ready "Ready" Current,
    Failed "Failed" Failed,
    Terminating "Terminating" Terminating,
});

/// Versions of the operator and the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionInfo {
    /// The operator's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    /// The server's, as it says itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_stack_server_version: Option<String>,
    /// When one of them changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
}

/// The distribution, and what the running server says of its providers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DistributionConfig {
    /// The name given in the spec, or custom where an image is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_distribution: Option<String>,
    /// The names the operator knows, with their images.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub available_distributions: BTreeMap<String, String>,
    /// The providers that the server lists; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub providers: Vec<ProviderInfo>,
}

/// A provider as the server lists it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderInfo {
    /// The API it implements.
    pub api: String,
    /// Its id.
    pub provider_id: String,
    /// Its type.
    pub provider_type: String,
    /// Its configuration; the server hides what looks like a secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object")]
    pub config: Option<Map<String, Value>>,
    /// What it says of its health.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<ProviderHealth>,
}

/// What a provider says of its health.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderHealth {
    /// As OK, Error or Not Implemented.
    pub status: String,
    /// More, if there is more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How far an external provider has come.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalProviderStatus {
    /// Its id.
    pub provider_id: String,
    /// The API it is placed under, as vectorIo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Its image.
    pub image: String,
    /// Pending, Installing, Ready or Failed.
    pub phase: ProviderPhase,
    /// CamelCase, stable: why it is in this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What happened, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What to do about it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<String>,
    /// The init container that installs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_container_name: Option<String>,
    /// When the phase changed last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// How far an external provider has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ProviderPhase {
    /// Its init container has not started.
    #[default]
    Pending,
    /// It is being installed, or waits for the server to start.
    Installing,
    /// The server runs with it.
    Ready,
    /// It keeps the server from starting.
    Failed,
}

words!(ProviderPhase {
    Pending "Pending" InProgress,
    Installing "Installing" InProgress,
    Ready "Ready" Current,
    Failed "Failed" Failed,
});

impl LlamaStackDistribution {
    /// The external providers with their sections, in the order in which they are installed.
    pub fn external_providers(&self) -> Vec<(ApiSection, &ExternalProvider)> {
        self.spec
            .server
            .external_providers
            .as_ref()
            .map(ExternalProviders::in_order)
            .unwrap_or_default()
    }
}

managed!(LlamaStackDistribution, paused: labels::llama_stack::PAUSED);
