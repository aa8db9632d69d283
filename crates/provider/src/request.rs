//! A ModelDeployment's spec in narrow types: defaults applied, empty texts absent, GPUs absent or at least one. Invalid specs
//! are refused here, so that building objects cannot fail.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{EnvVar, Toleration};
use kube::ResourceExt;
use runway_api::model_deployment::{
    self as api, DEFAULT_GPU, ModelSource, PodSettings, SecretName, ServingMode, VolumePurpose,
};
use runway_api::{ModelDeployment, labels};
use runway_operator::object::Kind;
use serde_json::{Map, Value};

use crate::volumes::{self, Volume};

/// A validated spec, as a provider gets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Name of the ModelDeployment.
    pub name: String,
    /// Namespace of the ModelDeployment.
    pub namespace: String,
    /// ID of the model; `None` only for [`ModelSource::Custom`].
    pub model_id: Option<String>,
    /// Source of the model.
    pub source: ModelSource,
    /// Name of the model in client requests: as set, or the last part of the ID.
    pub served_name: Option<String>,
    /// Whether the user set a served name.
    pub served_name_given: bool,
    /// Name of the engine, such as `vllm`.
    pub engine: String,
    /// Maximum context length in tokens.
    pub context_length: Option<i32>,
    /// Whether to run code that comes with the model.
    pub trust_remote_code: bool,
    /// Engine flags without leading dashes.
    pub args: BTreeMap<String, String>,
    /// Workers that serve the model.
    pub topology: Topology,
    /// Container image, if set.
    pub image: Option<String>,
    /// Environment variables of the model's containers.
    pub env: Vec<EnvVar>,
    /// Labels of the pods.
    pub pod_labels: BTreeMap<String, String>,
    /// Annotations of the pods.
    pub pod_annotations: BTreeMap<String, String>,
    /// Secret that contains HF_TOKEN.
    pub token_secret: Option<String>,
    /// Labels that a node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that the pods tolerate.
    pub tolerations: Vec<Toleration>,
    /// Secrets with the credentials of image registries.
    pub image_pull_secrets: Vec<SecretName>,
    /// ServiceAccount of the pods.
    pub service_account: Option<String>,
    /// Placement and security of the pods.
    pub pods: PodSettings,
    /// Volumes of the model's containers.
    pub volumes: Vec<Volume>,
    /// Overrides, unchanged.
    pub overrides: Map<String, Value>,
    /// Kinds and names of the provider's objects that exist and stay. With them, a provider whose earlier release created other
    /// objects keeps these, so that its upgrade restarts no pod. Empty if they have to be replaced anyway.
    pub present: Vec<(Kind, String)>,
    /// Whether Kueue admits the upstream object, and suspends it until then: the ModelDeployment has the label of a queue.
    pub queued: bool,
}

/// Workers that serve the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Each worker runs prefill and decode.
    Aggregated(Worker),
    /// Prefill and decode run on separate workers.
    Disaggregated {
        /// Prefill workers.
        prefill: Worker,
        /// Decode workers.
        decode: Worker,
    },
}

/// One kind of worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// Number of replicas; may be 0.
    pub replicas: i32,
    /// GPUs of each replica.
    pub gpu: Option<Gpu>,
    /// Memory of each replica, such as `32Gi`.
    pub memory: Option<String>,
    /// CPUs of each replica, such as `4` or `500m`.
    pub cpu: Option<String>,
}

/// GPUs of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Number of GPUs, at least 1.
    pub count: i32,
    /// Resource name, such as `nvidia.com/gpu`.
    pub resource: String,
}

/// Reason why a spec is invalid. Admission and the core controller report it earlier and in more detail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// `spec.engine.type` is missing.
    #[error("engine.type is required")]
    Engine,
    /// `spec.model.id` is missing.
    #[error("model.id is required when source is huggingface")]
    Model,
    /// One of `spec.scaling.prefill` and `spec.scaling.decode` is missing.
    #[error("Disaggregated mode requires scaling.prefill and scaling.decode")]
    Parts,
}

impl Topology {
    /// Serving mode.
    pub fn mode(&self) -> ServingMode {
        match self {
            Self::Aggregated(_) => ServingMode::Aggregated,
            Self::Disaggregated { .. } => ServingMode::Disaggregated,
        }
    }

    /// Number of workers of all kinds.
    pub fn replicas(&self) -> i32 {
        match self {
            Self::Aggregated(worker) => worker.replicas,
            Self::Disaggregated { prefill, decode } => prefill.replicas + decode.replicas,
        }
    }

    /// Whether any worker has a GPU.
    pub fn wants_gpu(&self) -> bool {
        match self {
            Self::Aggregated(worker) => worker.gpu.is_some(),
            Self::Disaggregated { prefill, decode } => prefill.gpu.is_some() || decode.gpu.is_some(),
        }
    }
}

impl Request {
    /// The volume in which the engine keeps downloaded models, if any.
    pub fn model_cache(&self) -> Option<&Volume> {
        self.volumes
            .iter()
            .find(|volume| volume.purpose == VolumePurpose::ModelCache)
    }

    /// Whether an object of the provider exists and stays.
    pub fn has(&self, kind: Kind, name: &str) -> bool {
        self.present
            .iter()
            .any(|present| (present.0, present.1.as_str()) == (kind, name))
    }
}

impl TryFrom<&ModelDeployment> for Request {
    type Error = Invalid;

    fn try_from(md: &ModelDeployment) -> Result<Self, Invalid> {
        let spec = &md.spec;
        let model_id = spec.model_id().map(str::to_owned);
        if model_id.is_none() && spec.source() == ModelSource::Huggingface {
            return Err(Invalid::Model);
        }
        let given_name = filled(spec.model.served_name.as_deref());
        let basename = model_id.as_deref().and_then(|id| id.rsplit('/').next());
        let engine = spec.engine.clone().unwrap_or_default();
        let template = spec.pod_template.clone().unwrap_or_default();
        let metadata = template.metadata.unwrap_or_default();
        Ok(Self {
            name: md.metadata.name.clone().unwrap_or_default(),
            namespace: md.metadata.namespace.clone().unwrap_or_default(),
            served_name: given_name.or(basename).map(str::to_owned),
            served_name_given: given_name.is_some(),
            source: spec.source(),
            engine: spec.engine_type().ok_or(Invalid::Engine)?.to_owned(),
            context_length: engine.context_length,
            trust_remote_code: engine.trust_remote_code.unwrap_or(false),
            args: engine.args,
            topology: topology(spec)?,
            image: filled(spec.image.as_deref()).map(str::to_owned),
            env: spec.env.clone(),
            pod_labels: metadata.labels,
            pod_annotations: metadata.annotations,
            token_secret: spec
                .secrets
                .as_ref()
                .and_then(|s| filled(s.hugging_face_token.as_deref()))
                .map(str::to_owned),
            node_selector: spec.node_selector.clone(),
            tolerations: spec.tolerations.clone(),
            image_pull_secrets: spec.image_pull_secrets.clone(),
            service_account: filled(spec.service_account_name.as_deref()).map(str::to_owned),
            pods: template.spec.map(|settings| *settings).unwrap_or_default(),
            volumes: volumes::of(md).collect(),
            overrides: spec
                .provider
                .as_ref()
                .and_then(|p| p.overrides.clone())
                .unwrap_or_default(),
            present: Vec::new(),
            queued: md.labels().contains_key(labels::QUEUE),
            model_id,
        })
    }
}

fn topology(spec: &runway_api::ModelDeploymentSpec) -> Result<Topology, Invalid> {
    let scaling = spec.scaling.clone().unwrap_or_default();
    let resources = spec.resources.clone().unwrap_or_default();
    match spec.mode() {
        ServingMode::Aggregated => Ok(Topology::Aggregated(Worker {
            replicas: scaling.replicas.unwrap_or(1),
            gpu: gpu(resources.gpu.as_ref()),
            memory: resources.memory,
            cpu: resources.cpu,
        })),
        ServingMode::Disaggregated => {
            let (Some(prefill), Some(decode)) = (scaling.prefill, scaling.decode) else {
                return Err(Invalid::Parts);
            };
            let worker = |part: api::Component| Worker {
                replicas: part.replicas.unwrap_or(1),
                gpu: gpu(part.gpu.as_ref()),
                memory: part.memory,
                // spec.resources does not apply to these workers.
                cpu: None,
            };
            Ok(Topology::Disaggregated {
                prefill: worker(prefill),
                decode: worker(decode),
            })
        }
    }
}

fn gpu(gpu: Option<&api::Gpu>) -> Option<Gpu> {
    let count = gpu?.count.filter(|count| *count > 0)?;
    let resource = filled(gpu?.kind.as_deref()).unwrap_or(DEFAULT_GPU).to_owned();
    Some(Gpu { count, resource })
}

fn filled(text: Option<&str>) -> Option<&str> {
    text.filter(|t| !t.is_empty())
}
