//! Validates a request for this provider: what KAITO does not support is refused here, so that building objects cannot fail.

use k8s_openapi::api::core::v1::EnvVar;
use runway_api::model_deployment::{DEFAULT_GPU, ModelSource};
use runway_provider::engine::{LLAMACPP, VLLM, llamacpp, parallel};
use runway_provider::flags::{find, values};
use runway_provider::upstream::crd_name;
use runway_provider::{Installed, Refusal, Request, State, Topology, Worker, location, pods, refuse};

use crate::config::{InferenceSets, KaitoConfig, NodeProvisioning};
use crate::engine::{Engine, PORT};
use crate::family::{self, Family};
use crate::registration::{LLAMACPP_IMAGE, LONGEST_NAME, NAMES, PRESET_ENV, PRESET_TOLERATIONS};
use crate::schema::{INFERENCE_SET, WORKSPACE};

/// A supported request.
pub(crate) struct Accepted<'a> {
    pub(crate) engine: Engine,
    pub(crate) workload: Workload<'a>,
    pub(crate) worker: &'a Worker,
    pub(crate) shape: Shape,
    pub(crate) instance_type: Option<&'a str>,
    /// Variables for the caches of `model.storage`.
    pub(crate) caches: Vec<EnvVar>,
}

/// Origin of the engine's command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Workload<'a> {
    /// A preset of KAITO for this model.
    Preset { model: &'a str },
    /// The user's image.
    Container { image: &'a str },
}

/// Kind of the created object, with its API version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Any number of replicas, including 0.
    InferenceSet { version: String, replicas: i32 },
    /// Exactly one replica.
    Workspace {
        version: String,
        /// Effect of a change of the number of replicas, with the remedy.
        scaling_limit: String,
    },
}

/// All checks, in the order in which their messages are useful.
pub(crate) fn accept<'a>(
    request: &'a Request,
    installed: &Installed,
    config: &'a KaitoConfig,
) -> Result<Accepted<'a>, Refusal> {
    family::given(request)?;
    let engine = engine(request)?;
    let worker = worker(request)?;
    NAMES.check(request)?;
    let workload = workload(request, engine, worker)?;
    flags_are_possible(request, engine, &workload)?;
    Ok(Accepted {
        engine,
        workload,
        worker,
        shape: shape(request, worker, installed, config)?,
        instance_type: instance_type(config, worker)?,
        caches: caches(request, engine)?,
    })
}

fn engine(request: &Request) -> Result<Engine, Refusal> {
    let name = request.engine.as_str();
    if name == VLLM.name {
        Ok(Engine::Vllm)
    } else if name == LLAMACPP.name {
        let image = request.image.as_deref().unwrap_or_default();
        Ok(Engine::LlamaCpp(family::of(request, image)?))
    } else {
        refuse(format!("KAITO does not support {name} engine"))
    }
}

fn worker(request: &Request) -> Result<&Worker, Refusal> {
    match &request.topology {
        Topology::Aggregated(worker) => Ok(worker),
        Topology::Disaggregated { .. } => refuse("KAITO does not support disaggregated mode"),
    }
}

fn workload<'a>(request: &'a Request, engine: Engine, worker: &Worker) -> Result<Workload<'a>, Refusal> {
    if engine == Engine::Vllm && worker.gpu.is_none() {
        return refuse(VLLM.requires_gpu());
    }
    if let (Some(_), Some(gpu)) = (&request.image, &worker.gpu) {
        parallel::check(&request.args, "resources.gpu.count", gpu)?;
    }
    location::check_image(request)?;
    match (engine, &request.image) {
        (_, Some(image)) => {
            if let (Engine::LlamaCpp(family), ModelSource::Huggingface) = (engine, request.source) {
                file_is_named(request, family, location::id_on_hub(request)?)?;
            }
            template_can_do(request)?;
            Ok(Workload::Container { image })
        }
        (Engine::LlamaCpp(_), None) => refuse(LLAMACPP_IMAGE),
        (Engine::Vllm, None) => {
            preset_can_do(request, worker)?;
            Ok(Workload::Preset {
                model: location::id_on_hub(request)?,
            })
        }
    }
}

/// A file is named at most once, and at least once for a server that loads no repository.
fn file_is_named(request: &Request, family: Family, id: &str) -> Result<(), Refusal> {
    llamacpp::one_file(&request.args, id)?;
    match family::model(request, id) {
        (_, None) if family == Family::LocalAi => refuse(format!(
            "model.id '{id}' names no GGUF file, and LocalAI loads a file, not a repository: \
             set engine.args.{} to the file, or model.id to {id}/FILE",
            llamacpp::FILE
        )),
        _ => Ok(()),
    }
}

/// KAITO creates the pods of a preset, and a Workspace has no field for these settings. Settings whose loss would break the
/// deployment without notice are refused here; settings without effect are ignored with a warning in `preset.rs`.
fn preset_can_do(request: &Request, worker: &Worker) -> Result<(), Refusal> {
    if !request.env.is_empty() {
        return refuse(PRESET_ENV);
    }
    if !request.tolerations.is_empty() {
        return refuse(PRESET_TOLERATIONS);
    }
    let of_pods = pods::fields_of_pods(request);
    if !of_pods.is_empty() {
        return refuse(format!(
            "{} cannot be passed to KAITO's preset pods: set spec.image to run vLLM in your own container, or remove the fields",
            of_pods.join(", ")
        ));
    }
    match &worker.gpu {
        Some(gpu) if gpu.resource != DEFAULT_GPU => refuse(format!(
            "resources.gpu.type is {}, but KAITO's presets run on {DEFAULT_GPU} only: \
             set spec.image to run vLLM in your own container, or remove resources.gpu.type",
            gpu.resource
        )),
        _ => Ok(()),
    }
}

/// KAITO overwrites the affinity of a template (KAITO `pkg/workspace/manifests/manifests.go`, GenerateManifestWithPodTemplate).
fn template_can_do(request: &Request) -> Result<(), Refusal> {
    if request.pods.affinity.is_some() {
        return refuse(
            "podTemplate.spec.affinity is replaced by KAITO's own affinity: select nodes with spec.nodeSelector, or remove it",
        );
    }
    Ok(())
}

/// Only `llama-server` reads a variable with the directory of its models.
fn caches(request: &Request, engine: Engine) -> Result<Vec<EnvVar>, Refusal> {
    match (request.model_cache(), engine) {
        (Some(volume), Engine::LlamaCpp(family)) if !family.is_llama_server() => refuse(format!(
            "{}: modelCache is not supported for this image, which decides where models are kept: \
             use purpose custom with that directory as mountPath",
            volume.field("purpose")
        )),
        _ => pods::cache_variables(request),
    }
}

/// KAITO's Service uses one port, and flags must not name the model.
fn flags_are_possible(request: &Request, engine: Engine, workload: &Workload) -> Result<(), Refusal> {
    for name in ["port", "address"] {
        if let Some((key, value)) = find(&request.args, name)
            && value.rsplit(':').next() != Some(&PORT.to_string())
        {
            return refuse(format!(
                "engine.args.{key} is '{value}', but KAITO's Service sends requests to port {PORT}: remove it, or set it to port {PORT}"
            ));
        }
    }
    if let Workload::Preset { .. } = workload
        && let Some((key, _)) = request.args.iter().find(|(key, text)| values(key, text).len() > 1)
    {
        return refuse(format!(
            "engine.args.{key} has several values, but KAITO passes one for each flag of its presets: set spec.image for a container of your own, or give one value"
        ));
    }
    if request.source == ModelSource::Huggingface || matches!(workload, Workload::Preset { .. }) {
        location::check_flags(&request.args, engine.dialect().model_flags)?;
    }
    Ok(())
}

/// An InferenceSet, which serves any number of replicas, if its controller can be expected to run. Otherwise, and for a Workspace
/// of an earlier release, which an upgrade of the provider must not restart, a Workspace, as long as it is one replica.
fn shape(request: &Request, worker: &Worker, installed: &Installed, config: &KaitoConfig) -> Result<Shape, Refusal> {
    let replicas = worker.replicas;
    let is_one = replicas == 1;
    let scaling_limit = match inference_set(request, installed, config) {
        Ok(version) if !is_one || !request.has(WORKSPACE, &request.name) => {
            return Ok(Shape::InferenceSet { version, replicas });
        }
        Err(Obstacle::OffByDefault { version }) if !is_one || request.has(INFERENCE_SET, &request.name) => {
            return Ok(Shape::InferenceSet { version, replicas });
        }
        Ok(_) => earlier_workspace(request),
        Err(Obstacle::OffByDefault { .. }) => OFF_BY_DEFAULT.to_owned(),
        Err(Obstacle::Unusable(why)) => format!(
            "scaling.replicas {}: a KAITO Workspace is exactly one replica, and any other number needs an InferenceSet, {why}",
            if is_one {
                "can only be 1".to_owned()
            } else {
                format!("is {replicas}")
            },
        ),
    };
    match installed.version(WORKSPACE) {
        _ if !is_one => refuse(format!("{scaling_limit}, or set scaling.replicas to 1")),
        Some(version) => Ok(Shape::Workspace { version, scaling_limit }),
        None => refuse("Provider 'kaito' CRD not installed in cluster"),
    }
}

const OFF_BY_DEFAULT: &str = "another number of replicas replaces the Workspace by an InferenceSet and interrupts the model, because \
                              this release of KAITO has the controller of InferenceSets off by default: install KAITO 0.11 or \
                              newer, or enable its feature gate enableInferenceSetController and set inferenceSets: Enabled in \
                              spec.settings of InferenceProviderConfig kaito";

fn earlier_workspace(request: &Request) -> String {
    let (name, namespace) = (&request.name, &request.namespace);
    format!(
        "Workspace '{name}' was created by an earlier release: another number of replicas replaces it by an InferenceSet, and the \
         model is unavailable until that is ready. To replace it at another time: \
         kubectl delete workspace {name} -n {namespace} --cascade=foreground"
    )
}

/// Reason why an InferenceSet is not used for one replica.
enum Obstacle {
    /// The CRD is installed, but its controller probably does not run.
    OffByDefault { version: String },
    /// The reason and the remedy, after "needs an InferenceSet".
    Unusable(String),
}

/// Version of the InferenceSet that serves this model. KAITO runs the controller of InferenceSets by default since 0.11, which
/// introduced their v1beta1; releases from 0.8 on install the CRD in v1alpha1 with the controller off
/// (KAITO `charts/kaito/workspace/values.yaml`, featureGates.enableInferenceSetController, in v0.8.0 to v0.12.0).
fn inference_set(request: &Request, installed: &Installed, config: &KaitoConfig) -> Result<String, Obstacle> {
    let unusable = |why: String| Err(Obstacle::Unusable(why));
    if config.inference_sets == InferenceSets::Disabled {
        return unusable(
            "which the setting inferenceSets of the provider disables: ask an administrator to change it".to_owned(),
        );
    }
    let version = match installed.state(INFERENCE_SET) {
        State::Known { version, .. } => version,
        State::Missing => {
            return unusable(format!(
                "whose CRD {} is not installed: install KAITO 0.11 or newer",
                crd_name(INFERENCE_SET)
            ));
        }
        State::Unknown { problems, .. } => {
            return unusable(format!(
                "whose installed schema this provider does not know ({}): update the provider or KAITO",
                problems.join("; ")
            ));
        }
    };
    // KAITO names the Workspaces of a set after it, with a dash and five characters (KAITO
    // `pkg/utils/inferenceset/inferenceset.go`, NewWorkspaceForInferenceSet).
    let longest = LONGEST_NAME - 6;
    if request.name.len() > longest {
        return unusable(format!(
            "whose name has at most {longest} characters, and metadata.name has {}: choose a shorter name",
            request.name.len()
        ));
    }
    if config.inference_sets == InferenceSets::Auto && version == "v1alpha1" {
        return Err(Obstacle::OffByDefault { version });
    }
    Ok(version)
}

/// KAITO requires an instance type if it provisions nodes, and rejects one otherwise.
fn instance_type<'a>(config: &'a KaitoConfig, worker: &Worker) -> Result<Option<&'a str>, Refusal> {
    if config.node_provisioning == NodeProvisioning::Byo {
        return Ok(None);
    }
    let gpu = worker.gpu.as_ref().map(|gpu| gpu.resource.as_str());
    match config.instance_type(gpu) {
        (_, Some(instance_type)) => Ok(Some(instance_type)),
        (setting, None) => refuse(format!(
            "resources.gpu: KAITO provisions nodes in this cluster, and the settings of the provider name no instance type for {}: \
             ask an administrator to set {setting} in spec.settings of InferenceProviderConfig kaito",
            gpu.unwrap_or("models without GPUs")
        )),
    }
}
