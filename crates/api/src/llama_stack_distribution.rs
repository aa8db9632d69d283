//! `LlamaStackDistribution`: a Llama Stack server with providers that are installed from images when it starts.
//!
//! Field-compatible with the public operator's `llamastack.io/v1alpha1`. `spec.server.externalProviders` and
//! `status.externalProviders` follow the specification of deploy-time modularity, level 1.

#![allow(clippy::struct_field_names, reason = "names of the public API")]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, EnvFromSource, EnvVar, LocalObjectReference, PodSecurityContext, Probe, ResourceClaim, Toleration,
    TopologySpreadConstraint, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::labels;
use crate::managed::managed;
use crate::tone::words;

/// A Llama Stack server and its storage, network and scaling.
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
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,53}[a-z0-9])?$')").message("metadata.name must be at most 55 lower case letters, digits and '-', beginning with a letter: the name of the Service is derived from it"),
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
    /// Number of servers. Defaults to 1; 0 scales to zero. Ignored while server.autoscaling is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,

    /// Settings of the server.
    pub server: Server,

    /// Network access to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
}

/// Settings of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    /// Distribution to run, by name or by image.
    pub distribution: Distribution,

    /// Container of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_spec: Option<ContainerSpec>,

    /// Number of worker processes. Defaults to 1. If set, the server is started with uvicorn and requests one CPU per worker; the
    /// image needs llama-stack 0.3 or newer, or OGX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub workers: Option<i32>,

    /// Settings of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_overrides: Option<Box<PodOverrides>>,

    /// Number of pods that may be unavailable during maintenance. Defaults to one if there is more than one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_disruption_budget: Option<PodDisruptionBudget>,

    /// Spread of the pods over the cluster. Defaults to a spread over regions, zones and nodes where possible, if there is more
    /// than one replica.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,

    /// Lets a HorizontalPodAutoscaler set the number of replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// Stores the server's data in a PersistentVolumeClaim. If omitted, the data is lost with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,

    /// Configuration that replaces the distribution's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_config: Option<UserConfig>,

    /// Certificate authorities that the server trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_config: Option<TlsConfig>,

    /// Providers that are installed from images before the server starts, by the API that they implement. They are installed in
    /// the order of the APIs here, and within an API in the order of its list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_providers: Option<ExternalProviders>,
}

/// Distribution to run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("!(has(self.name) && self.name != '' && has(self.image) && self.image != '')").message("Only one of name or image can be specified"),
    validation = Rule::new("has(self.name) && self.name != '' || has(self.image) && self.image != ''").message("server.distribution needs a name (starter, remote-vllm, meta-reference-gpu, postgres-demo, or one the operator was given) or an image")
)]
pub struct Distribution {
    /// Name of a distribution: starter, remote-vllm, meta-reference-gpu, postgres-demo, or one that is set with
    /// --distribution-image of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub name: Option<String>,
    /// Container image of the distribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[^[:space:][:cntrl:]]*$')").message("server.distribution.image must not contain spaces or control characters"))]
    pub image: Option<String>,
}

/// Container of the server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContainerSpec {
    /// Name of the container. Defaults to llama-stack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("containerSpec.name must be lower case letters, digits and '-'"))]
    pub name: Option<String>,
    /// Port that the server listens on. Defaults to 8321, also if it is 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<i32>,
    /// Resources of the server. Requests default to one CPU per worker and 1Gi of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
    /// Environment variables of the server. They override those that the operator sets, except the location of the configuration
    /// if externalProviders is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 200))]
    pub env: Vec<EnvVar>,
    /// ConfigMaps and Secrets whose keys become environment variables of the server.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub env_from: Vec<EnvFromSource>,
    /// Replaces the command of the server. External providers are then not checked before the server starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::words")]
    pub command: Vec<String>,
    /// Replaces the arguments of the server. External providers are then not checked before the server starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::words")]
    pub args: Vec<String>,
}

/// Resources of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// Maximum resources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub limits: BTreeMap<String, Quantity>,
    /// Reserved resources.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub requests: BTreeMap<String, Quantity>,
    /// Resource claims of the pod that the container uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub claims: Vec<ResourceClaim>,
}

/// A quantity: a number, or a text such as 500m or 2Gi.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Quantity {
    /// A number, such as 4.
    Number(i64),
    /// A text, such as 500m or 2Gi.
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
    /// ServiceAccount of the pods; its imagePullSecrets are used for every image unless imagePullSecrets is set. If omitted, the operator creates one with the
    /// name of the distribution and the suffix -sa.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
    /// Termination grace period in seconds. Kubernetes' default is 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86400))]
    pub termination_grace_period_seconds: Option<i64>,
    /// Volumes added to the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub volumes: Vec<Volume>,
    /// Mounts of these volumes in the server's container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 50))]
    pub volume_mounts: Vec<VolumeMount>,

    /// Labels that a node must have to run the pods.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
    /// Scheduling constraints of the pods. Replaces the default, which prefers different nodes if there is more than one replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Security context of the pods. Replaces the default as a whole: runAsNonRoot, seccomp profile RuntimeDefault, and user and
    /// fsGroup 1001, or those that OpenShift assigns. With an empty one, containers run as the users of their images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    /// Priority class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// Runtime class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub runtime_class_name: Option<String>,
    /// Secrets with the credentials of registries, for all images of the pods, including that of the operator. They replace
    /// those of the ServiceAccount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// Time in seconds from the start of the server's container until the server must be healthy; the kubelet then restarts the
    /// container. The check of external providers is part of it. Defaults to 1800.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 86400))]
    pub startup_timeout_seconds: Option<i32>,
    /// Readiness probe of the server. Defaults to /v1/health, with 6 failures 10 seconds apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub readiness_probe: Option<Probe>,
    /// Liveness probe of the server. Defaults to none, since a restart loses the work of a busy server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub liveness_probe: Option<Probe>,
    /// PersistentVolumeClaim that keeps unpacked packages of external providers, so that pods install them faster. Every pod that
    /// mounts it can change the code that the others run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub provider_cache_claim: Option<String>,
    /// Resources of the init containers, by name in addition to their defaults. The installation of a provider requests 100m CPU
    /// and 256Mi of memory, and is limited to 1Gi.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_resources: Option<Resources>,
}

/// Number of pods that may be unavailable during maintenance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.minAvailable) && has(self.maxUnavailable))").message("podDisruptionBudget takes one of minAvailable and maxUnavailable, not both"))]
pub struct PodDisruptionBudget {
    /// Pods that must stay available: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_available: Option<IntOrString>,
    /// Pods that may be unavailable: a number or a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
}

/// Lets a HorizontalPodAutoscaler set the number of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.minReplicas) || self.minReplicas <= self.maxReplicas").message("autoscaling.minReplicas must not be larger than maxReplicas"))]
pub struct Autoscaling {
    /// Minimum number of replicas. Defaults to spec.replicas, and is never below it; at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: Option<i32>,
    /// Maximum number of replicas.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// Target CPU utilization, in percent of the request. Defaults to 80 if no target is set.
    #[serde(
        default,
        rename = "targetCPUUtilizationPercentage",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(range(min = 1, max = 1000))]
    pub target_cpu_utilization_percentage: Option<i32>,
    /// Target memory utilization, in percent of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub target_memory_utilization_percentage: Option<i32>,
}

/// Storage of the server's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Size of the PersistentVolumeClaim. Defaults to 10Gi. It can grow if the storage class supports that, but never shrink.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<Quantity>,
    /// Mount path in the server's container. Defaults to /.llama.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self == '' || self.startsWith('/') && !self.contains(':')").message("storage.mountPath must be an absolute path without ':'"))]
    pub mount_path: Option<String>,
}

/// Configuration that replaces the distribution's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserConfig {
    /// Name of a ConfigMap with the key config.yaml or run.yaml. A change of its content restarts the server.
    #[schemars(length(min = 1, max = 253))]
    pub config_map_name: String,
    /// Namespace of the ConfigMap. It must be that of the LlamaStackDistribution, since pods cannot read others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub config_map_namespace: Option<String>,
}

/// Certificate authorities that the server trusts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlsConfig {
    /// Your own certificate authorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,
}

/// Your own certificate authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaBundle {
    /// Name of a ConfigMap with certificates in PEM format. A change of its content restarts the server.
    #[schemars(length(min = 1, max = 253))]
    pub config_map_name: String,
    /// Namespace of the ConfigMap. It must be that of the LlamaStackDistribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub config_map_namespace: Option<String>,
    /// Keys that contain certificates, joined in this order. Defaults to ca-bundle.crt.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 50),
        inner(length(max = 253), regex(pattern = "^[a-zA-Z0-9]([a-zA-Z0-9\\-_.]*[a-zA-Z0-9])?$"))
    )]
    pub config_map_keys: Vec<String>,
}

/// Network access to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Creates an Ingress. Defaults to false: the server can be reached from inside the cluster only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expose_route: Option<bool>,
    /// Host, class and certificate of the Ingress. Has no effect without exposeRoute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<IngressSettings>,
    /// Creates a NetworkPolicy that admits pods of the same namespace, the operator, and the namespaces listed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_from: Option<AllowedFrom>,
}

/// Host, class and certificate of the Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.tlsSecretName) || has(self.host)").message("network.ingress.tlsSecretName requires network.ingress.host"))]
pub struct IngressSettings {
    /// Host name of requests. Defaults to any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^([*][.])?[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("network.ingress.host must be a DNS name in lower case, such as stack.example.com"))]
    pub host: Option<String>,
    /// Class of the Ingress. Defaults to that of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub class_name: Option<String>,
    /// Secret of the type kubernetes.io/tls with the certificate of the host. Without it, the server is served over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub tls_secret_name: Option<String>,
    /// Annotations of the Ingress, for its controller, such as cert-manager.io/cluster-issuer.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub annotations: BTreeMap<String, String>,
}

/// Namespaces whose pods may reach the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct AllowedFrom {
    /// Names of namespaces; "*" stands for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(name, name.matches('^([*]|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$'))").message("network.allowedFrom.namespaces must be names of namespaces, or '*'"))]
    pub namespaces: Vec<String>,
    /// Label keys. A namespace with one of these labels is admitted, whatever the value.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 317)))]
    #[x_kube(validation = Rule::new("self.all(key, key.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$'))").message("network.allowedFrom.labels must be label keys such as example.com/team, without a value"))]
    pub labels: Vec<String>,
}

/// Providers that are installed from images, by the API that they implement.
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
    /// Providers of the API agents. Servers of release 0.7.0 and later have responses instead.
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
    /// Providers of the API post_training. Not supported by servers of release 0.7.0 and later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub post_training: Vec<ExternalProvider>,
    /// Providers of the API responses, of servers of release 0.7.0 and later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub responses: Vec<ExternalProvider>,
    /// Providers of the API files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub files: Vec<ExternalProvider>,
    /// Providers of the API batches.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub batches: Vec<ExternalProvider>,
}

/// CEL rule that no ID occurs twice across all lists. Lists of different types cannot be joined in CEL; lists of strings can.
const UNIQUE_IDS: &str = concat!(
    "[(has(self.inference) ? self.inference.map(p, p.providerId) : [])",
    " + (has(self.safety) ? self.safety.map(p, p.providerId) : [])",
    " + (has(self.agents) ? self.agents.map(p, p.providerId) : [])",
    " + (has(self.vectorIo) ? self.vectorIo.map(p, p.providerId) : [])",
    " + (has(self.datasetIo) ? self.datasetIo.map(p, p.providerId) : [])",
    " + (has(self.scoring) ? self.scoring.map(p, p.providerId) : [])",
    " + (has(self.eval) ? self.eval.map(p, p.providerId) : [])",
    " + (has(self.toolRuntime) ? self.toolRuntime.map(p, p.providerId) : [])",
    " + (has(self.postTraining) ? self.postTraining.map(p, p.providerId) : [])",
    " + (has(self.responses) ? self.responses.map(p, p.providerId) : [])",
    " + (has(self.files) ? self.files.map(p, p.providerId) : [])",
    " + (has(self.batches) ? self.batches.map(p, p.providerId) : [])]",
    ".all(ids, ids.all(id, ids.exists_one(other, other == id)))"
);

/// CEL expression for the message that names every provider with a duplicate ID, with section and image.
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
    " + (has(self.postTraining) ? self.postTraining.map(p, [p.providerId, 'postTraining', p.image]) : [])",
    " + (has(self.responses) ? self.responses.map(p, [p.providerId, 'responses', p.image]) : [])",
    " + (has(self.files) ? self.files.map(p, [p.providerId, 'files', p.image]) : [])",
    " + (has(self.batches) ? self.batches.map(p, [p.providerId, 'batches', p.image]) : [])]",
    ".map(all, all.filter(p, all.filter(o, o[0] == p[0]).size() > 1)",
    ".map(p, \"'\" + p[0] + \"' (\" + p[1] + ', image ' + p[2] + ')').join(' and '))[0]",
    " + '. Give each provider a unique id'"
);

/// A provider that is installed from an image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalProvider {
    /// ID of the provider in the server, unique among the external providers. It replaces a provider of the distribution with
    /// the same ID.
    #[schemars(length(min = 1, max = 45))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("providerId must be lower case letters, digits and '-': an init container is named after it"))]
    pub provider_id: String,
    /// Image of the provider: /lls-provider/lls-provider-spec.yaml, wheels in /lls-provider/packages, and Python with pip.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[^[:space:][:cntrl:]]*$')").message("image must not contain spaces or control characters"))]
    pub image: String,
    /// Image pull policy. Defaults to IfNotPresent.
    #[serde(default)]
    pub image_pull_policy: PullPolicy,
    /// Configuration of the provider, as in run.yaml. `modelDeploymentRef: {name: NAME}` in it is replaced by `url` with the
    /// endpoint of that ModelDeployment; the optional `key` (default url) and `path` (default /v1) set the name and the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::settings")]
    pub config: Option<Map<String, Value>>,
}

/// Image pull policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PullPolicy {
    /// Pull each time a pod starts.
    Always,
    /// Never pull: the image must be on the node.
    Never,
    /// Pull if the image is not on the node.
    #[default]
    IfNotPresent,
}

impl PullPolicy {
    /// Text in a manifest.
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
    /// Field of `externalProviders`, such as `vectorIo`.
    pub field: &'static str,
    /// Name in run.yaml, such as `vector_io`.
    pub api: &'static str,
}

impl ExternalProviders {
    /// Providers with their sections, in the order of installation.
    pub fn in_order(&self) -> Vec<(ApiSection, &ExternalProvider)> {
        let sections: [(&'static str, &'static str, &Vec<ExternalProvider>); 12] = [
            ("inference", "inference", &self.inference),
            ("safety", "safety", &self.safety),
            ("agents", "agents", &self.agents),
            ("vectorIo", "vector_io", &self.vector_io),
            ("datasetIo", "datasetio", &self.dataset_io),
            ("scoring", "scoring", &self.scoring),
            ("eval", "eval", &self.eval),
            ("toolRuntime", "tool_runtime", &self.tool_runtime),
            ("postTraining", "post_training", &self.post_training),
            ("responses", "responses", &self.responses),
            ("files", "files", &self.files),
            ("batches", "batches", &self.batches),
        ];
        sections
            .into_iter()
            .flat_map(|(field, api, list)| list.iter().map(move |provider| (ApiSection { field, api }, provider)))
            .collect()
    }
}

/// Observed state of a LlamaStackDistribution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LlamaStackDistributionStatus {
    /// Pending, Initializing, Ready, Failed or Terminating.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<DistributionPhase>,
    /// Summary of the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Generation of the spec that this status is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Versions of the operator and the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionInfo>,
    /// Distribution, and the providers that the running server reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution_config: Option<DistributionConfig>,
    /// Number of available servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// URL of the server inside the cluster.
    #[serde(default, rename = "serviceURL", skip_serializing_if = "Option::is_none")]
    pub service_url: Option<String>,
    /// URL of the server from outside the cluster; empty while the Ingress has no address.
    #[serde(default, rename = "routeURL", skip_serializing_if = "Option::is_none")]
    pub route_url: Option<String>,
    /// External providers, in the order of installation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 192), extend("x-kubernetes-list-type" = "atomic"))]
    pub external_providers: Vec<ExternalProviderStatus>,
    /// Ready, DeploymentReady, ServiceReady, and others while they apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

words! {
    /// Phase of a LlamaStackDistribution.
    #[derive(Serialize, Deserialize, JsonSchema)]
    DistributionPhase {
        /// Nothing runs yet; something that the spec refers to is missing.
        InProgress Pending: "See the reason of `Ready`",
        /// Objects are created, and pods are starting.
        InProgress Initializing: "Wait",
        /// The server serves, or is scaled to zero as requested.
        Current Ready: "Nothing",
        /// The server cannot start without a change.
        Failed Failed: "Follow the message of `Stalled`",
        /// The object is being deleted; its children go with it.
        Terminating Terminating: "Wait",
    }
}

/// Versions of the operator and the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionInfo {
    /// Version of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    /// Version that the server reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llama_stack_server_version: Option<String>,
    /// Time of the last change of either version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
}

/// Distribution, and the providers that the running server reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DistributionConfig {
    /// Name from the spec, or custom if an image is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_distribution: Option<String>,
    /// Names that the operator knows, with their images.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub available_distributions: BTreeMap<String, String>,
    /// Providers that the server reports; at most 256.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "atomic"))]
    pub providers: Vec<ProviderInfo>,
}

/// Provider that the server reports.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderInfo {
    /// API that the provider implements.
    pub api: String,
    /// ID of the provider.
    pub provider_id: String,
    /// Type of the provider, such as remote::vllm.
    pub provider_type: String,
    /// Configuration of the provider; the server masks values that look like secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object")]
    pub config: Option<Map<String, Value>>,
    /// Health that the provider reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<ProviderHealth>,
}

/// Health that a provider reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderHealth {
    /// Status, such as OK, Error or Not Implemented.
    pub status: String,
    /// Details, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// State of an external provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExternalProviderStatus {
    /// ID of the provider.
    pub provider_id: String,
    /// API that the provider is listed under, such as vectorIo.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Image of the provider.
    pub image: String,
    /// Pending, Installing, Ready or Failed.
    pub phase: ProviderPhase,
    /// Reason for the phase: CamelCase, stable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Summary of the current state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Next step for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<String>,
    /// Init container that installs the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_container_name: Option<String>,
    /// Time of the last change of the phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

words! {
    /// Phase of an external provider.
    #[derive(Serialize, Deserialize, JsonSchema)]
    ProviderPhase {
        /// The init container has not started.
        InProgress Pending: "Wait; the distribution's `Ready` names obstacles",
        /// The init container is installing the provider.
        InProgress Installing: "Wait",
        /// The provider is installed, and no later step failed because of it.
        Current Ready: "Nothing",
        /// The provider keeps the server from starting.
        Failed Failed: "Follow `resolution` beside the phase",
    }
}

#[expect(clippy::derivable_impls, reason = "`words!` takes no attributes of variants")]
impl Default for ProviderPhase {
    fn default() -> Self {
        Self::Pending
    }
}

impl LlamaStackDistribution {
    /// External providers with their sections, in the order of installation.
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
