//! A program of ours in a cluster, and everything that follows from it.

use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::DynamicObject;
use runway_operator::scope::Namespaces;

/// A program of ours: what it needs in a cluster is derived from this.
#[derive(Clone, Debug)]
pub struct Component {
    /// Name of the component, its ServiceAccount and its objects, such as `kaito-provider`.
    pub name: String,
    /// Name of the program and its image.
    pub program: String,
    /// Whether it is a controller with leader election.
    pub is_controller: bool,
    /// Whether it watches objects of users, and can be limited to namespaces.
    pub watches: bool,
    /// Whether its pods have a token of its ServiceAccount.
    pub has_token: bool,
    /// Number of pods. If it is more than one, there is a PodDisruptionBudget.
    pub replicas: i32,
    /// Arguments beside those that every component gets.
    pub args: Vec<String>,
    /// Environment variables that contain the image of another program of this release, such as `ASYA_SIDECAR_IMAGE` and
    /// `asya-sidecar`.
    pub images: Vec<(&'static str, &'static str)>,
    /// Variables that hold a fixed value.
    pub variables: Vec<(&'static str, String)>,
    /// Folders that the administrator may fill.
    pub folders: Vec<Folder>,
    /// Volume that outlives its pod. The component then has one pod at a time.
    pub claim: Option<Claim>,
    /// Time from the request to end until a pod is killed, in seconds, if its requests take longer than those of a controller.
    pub grace_seconds: Option<u32>,
    /// Limit of the memory of a pod, as a quantity.
    pub memory_limit: &'static str,
    /// Ports, in addition to metrics and probes.
    pub ports: Vec<Port>,
    /// Permissions in all namespaces, or in those of the installation.
    pub access: Vec<PolicyRule>,
    /// Permissions in its own namespace.
    pub access_in_namespace: Vec<PolicyRule>,
    /// Additional permissions of a process outside of the cluster.
    pub access_from_outside: Vec<PolicyRule>,
    /// Objects that are applied first.
    pub first: Vec<DynamicObject>,
    /// CRDs.
    pub crds: Vec<CustomResourceDefinition>,
    /// Objects that are applied last, such as webhook configurations.
    pub extra: Vec<DynamicObject>,
    /// Optional admission policies that limit its users.
    pub policy: Vec<DynamicObject>,
    /// Admission policies that require permissions of its users for single fields.
    pub permissions: Vec<DynamicObject>,
    /// Optional PodMonitors for pods that are not the component's own.
    pub pod_monitors: Vec<DynamicObject>,
}

/// A ConfigMap or Secret of the component's namespace as a folder of its pods, empty while there is none.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Name of the volume.
    pub name: &'static str,
    /// Mount path.
    pub path: String,
    /// Content.
    pub content: Content,
}

impl Folder {
    /// The administrator's certificate and key (`tls.crt`, `tls.key`), for a server of callers.
    pub fn tls(secret: &'static str) -> Self {
        Self {
            name: "tls",
            path: "/etc/kubeairunway/tls".to_owned(),
            content: Content::Secret(secret),
        }
    }
}

/// A volume of the default storage class, named as the component.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Mount path.
    pub path: &'static str,
    /// Size, as a quantity.
    pub size: &'static str,
}

/// Content of a [`Folder`]: the object's keys as files.
#[derive(Clone, Debug)]
pub enum Content {
    /// A ConfigMap of this name.
    ConfigMap(&'static str),
    /// A Secret of this name.
    Secret(&'static str),
}

/// A port that a component serves behind a Service.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name.
    pub name: &'static str,
    /// Port number.
    pub number: u16,
    /// Name and port of the Service.
    pub service: (String, u16),
    /// Whether the Service has port 443, too.
    pub https: bool,
    /// Allowed clients.
    pub from: Origin,
}

/// Allowed clients of a port, in clusters that enforce NetworkPolicies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Everybody. For the API server, whose address no policy can name.
    Anywhere,
    /// Pods of namespaces with this label, set to `true`.
    Labelled(&'static str),
}

/// Options of an installation.
#[expect(clippy::struct_excessive_bools, reason = "each is a choice of its own")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Registry of the images, such as `ghcr.io/kubeairunway`.
    pub registry: String,
    /// Tag of the images, such as `v0.1.0`.
    pub tag: String,
    /// Whether to install ServiceMonitors, for the Prometheus Operator.
    pub monitoring: bool,
    /// Whether to install PodMonitors for the engines of models, for the Prometheus Operator.
    pub engine_monitoring: bool,
    /// Whether to install the policies that limit the users of each provider.
    pub policy: bool,
    /// Whether to install the policies that require permissions of users for single fields.
    pub permissions: bool,
    /// Whether the roles of users are aggregated to Kubernetes' own roles view, edit and admin.
    pub aggregation: bool,
    /// Namespaces of the installation. If it is not all, controllers have Roles in these instead of permissions everywhere.
    pub namespaces: Namespaces,
}

/// Registry of released images.
pub const REGISTRY: &str = "ghcr.io/kubeairunway";
/// The tag of this version's images.
pub const TAG: &str = concat!("v", env!("CARGO_PKG_VERSION"));

impl Release {
    /// The image of a program of ours.
    pub fn image(&self, name: &str) -> String {
        format!("{}/{name}:{}", self.registry, self.tag)
    }
}

impl Default for Release {
    fn default() -> Self {
        Self {
            registry: REGISTRY.to_owned(),
            tag: TAG.to_owned(),
            monitoring: false,
            engine_monitoring: false,
            policy: false,
            permissions: true,
            aggregation: true,
            namespaces: Namespaces::default(),
        }
    }
}

impl Component {
    /// A controller with one pod and no rights.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            program: name.to_owned(),
            is_controller: true,
            watches: true,
            has_token: true,
            replicas: 1,
            args: Vec::new(),
            images: Vec::new(),
            variables: Vec::new(),
            folders: Vec::new(),
            claim: None,
            grace_seconds: None,
            memory_limit: "256Mi",
            ports: Vec::new(),
            access: Vec::new(),
            access_in_namespace: Vec::new(),
            access_from_outside: Vec::new(),
            first: Vec::new(),
            crds: Vec::new(),
            extra: Vec::new(),
            policy: Vec::new(),
            permissions: super::permissions::of_component(name),
            pod_monitors: Vec::new(),
        }
    }
}
