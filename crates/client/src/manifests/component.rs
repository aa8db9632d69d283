//! A program of ours in a cluster, and everything that follows from it.

use k8s_openapi::api::rbac::v1::PolicyRule;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::DynamicObject;

/// A program of ours: what it needs in a cluster is derived from this.
#[derive(Clone, Debug)]
pub struct Component {
    /// Its name, that of its ServiceAccount and of its objects, as `kaito-provider`.
    pub name: String,
    /// Name of the program and its image.
    pub program: String,
    /// Whether it acts by itself, and so elects one pod that does.
    pub is_controller: bool,
    /// Whether its pods have a token of its ServiceAccount.
    pub has_token: bool,
    /// How many pods. More than one brings a PodDisruptionBudget.
    pub replicas: i32,
    /// Arguments beside those that every component gets.
    pub args: Vec<String>,
    /// Variables that hold the image of another program of this release, as `ASYA_SIDECAR_IMAGE` and `asya-sidecar`.
    pub images: Vec<(&'static str, &'static str)>,
    /// Variables that hold a fixed value.
    pub variables: Vec<(&'static str, String)>,
    /// Folders that the administrator may fill.
    pub folders: Vec<Folder>,
    /// What it listens on, beside metrics and probes.
    pub ports: Vec<Port>,
    /// What it may do everywhere.
    pub access: Vec<PolicyRule>,
    /// What it may do in its own namespace.
    pub access_in_namespace: Vec<PolicyRule>,
    /// What it may do everywhere as a process outside of the cluster, in addition.
    pub access_from_outside: Vec<PolicyRule>,
    /// What must be there before anything else.
    pub first: Vec<DynamicObject>,
    /// Its kinds.
    pub crds: Vec<CustomResourceDefinition>,
    /// What comes last, such as webhook configurations.
    pub extra: Vec<DynamicObject>,
    /// What comes only if the administrator asks for it: who may use it.
    pub policy: Vec<DynamicObject>,
}

/// A ConfigMap or Secret of the component's namespace as a folder of its pods, empty while there is none.
#[derive(Clone, Debug)]
pub struct Folder {
    /// Name of the volume.
    pub name: &'static str,
    /// Where it is.
    pub path: String,
    /// What is in it.
    pub content: Content,
}

/// What is in a [`Folder`]: the object's keys as files.
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
    /// Its name.
    pub name: &'static str,
    /// Where the program listens.
    pub number: u16,
    /// Name and port of the Service.
    pub service: (String, u16),
    /// Who may open connections.
    pub from: Origin,
}

/// Who may open connections to a port, where the network of a cluster enforces NetworkPolicies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Everybody. For the API server, whose address no policy can name.
    Anywhere,
    /// Pods of namespaces with this label, set to `true`.
    Labelled(&'static str),
}

/// What is chosen when it is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// Where the images are, as `ghcr.io/kubeairunway`.
    pub registry: String,
    /// Their tag, as `v0.1.0`.
    pub tag: String,
    /// Whether ServiceMonitors are wanted (the Prometheus operator's kind).
    pub monitoring: bool,
    /// Whether the policies are wanted that limit who may use which provider.
    pub policy: bool,
}

/// Where released images are.
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
            policy: false,
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
            has_token: true,
            replicas: 1,
            args: Vec::new(),
            images: Vec::new(),
            variables: Vec::new(),
            folders: Vec::new(),
            ports: Vec::new(),
            access: Vec::new(),
            access_in_namespace: Vec::new(),
            access_from_outside: Vec::new(),
            first: Vec::new(),
            crds: Vec::new(),
            extra: Vec::new(),
            policy: Vec::new(),
        }
    }
}
