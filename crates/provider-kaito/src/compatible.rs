//! Validates a request for this provider: what KAITO does not support is refused here, so that building objects cannot fail.

use k8s_openapi::api::core::v1::EnvVar;
use runway_api::model_deployment::{DEFAULT_GPU, ModelSource};
use runway_provider::upstream::crd_name;
use runway_provider::{Installed, Refusal, Request, State, Topology, Worker, llama_server, parallel, pods, refuse};

use crate::config::{KaitoConfig, NodeProvisioning};
use crate::engine::Engine;
use crate::family::{self, Family};
use crate::flags::{self, PORT};
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
    /// For one replica.
    Workspace { version: String },
    /// For any other number, including 0.
    InferenceSet { version: String, replicas: i32 },
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
        shape: shape(request, worker, installed)?,
        instance_type: instance_type(config, worker)?,
        caches: caches(request, engine)?,
    })
}

/// Texts from design 8.
fn engine(request: &Request) -> Result<Engine, Refusal> {
    match request.engine.as_str() {
        "vllm" => Ok(Engine::Vllm),
        "llamacpp" => Ok(Engine::LlamaCpp(family::of(
            request,
            request.image.as_deref().unwrap_or_default(),
        )?)),
        other => refuse(format!("KAITO does not support {other} engine")),
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
        return refuse("vLLM engine requires GPU (set resources.gpu.count > 0)");
    }
    if let (Some(_), Some(gpu)) = (&request.image, &worker.gpu) {
        parallel::check(&request.args, "resources.gpu.count", gpu)?;
    }
    match (engine, &request.image, &request.model_id) {
        (_, Some(image), model) => {
            if let (Engine::LlamaCpp(family), Some(id), ModelSource::Huggingface) = (engine, model, request.source) {
                file_is_named(request, family, id)?;
            }
            template_can_do(request)?;
            Ok(Workload::Container { image })
        }
        _ if request.source == ModelSource::Custom => refuse(
            "spec.image is required when model.source is custom: the model is taken from the image. Set spec.image, or use model.source huggingface",
        ),
        (Engine::LlamaCpp(_), ..) => refuse(LLAMACPP_IMAGE),
        (Engine::Vllm, None, Some(model)) => {
            preset_can_do(request, worker)?;
            Ok(Workload::Preset { model })
        }
        (Engine::Vllm, None, None) => refuse("model.id is required when source is huggingface"),
    }
}

/// A file is named at most once, and at least once for a server that loads no repository.
fn file_is_named(request: &Request, family: Family, id: &str) -> Result<(), Refusal> {
    let (_, in_id) = llama_server::split(id);
    match (in_id, request.args.get(llama_server::FILE)) {
        (Some(_), Some(_)) => refuse(format!(
            "engine.args.{} and model.id '{id}' both name a file: use one of them",
            llama_server::FILE
        )),
        (None, None) if family == Family::LocalAi => refuse(format!(
            "model.id '{id}' names no GGUF file, and LocalAI loads a file, not a repository: \
             set engine.args.{} to the file, or model.id to {id}/FILE",
            llama_server::FILE
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
        if let Some((key, value)) = flags::find(&request.args, name)
            && value.rsplit(':').next() != Some(PORT)
        {
            return refuse(format!(
                "engine.args.{key} is '{value}', but KAITO's Service sends requests to port {PORT}: remove it, or set it to port {PORT}"
            ));
        }
    }
    let model_is_given = request.source == ModelSource::Huggingface || matches!(workload, Workload::Preset { .. });
    let names: &[&str] = match engine {
        Engine::LlamaCpp(family) if family.is_llama_server() => &llama_server::MODEL_FLAGS,
        _ => &["model"],
    };
    match names.iter().find_map(|name| flags::find(&request.args, name)) {
        Some((key, _)) if model_is_given => refuse(format!(
            "engine.args.{key} would replace the model: name the model in model.id and remove the flag"
        )),
        _ => Ok(()),
    }
}

fn shape(request: &Request, worker: &Worker, installed: &Installed) -> Result<Shape, Refusal> {
    let replicas = worker.replicas;
    if replicas == 1 {
        return match installed.version(WORKSPACE) {
            Some(version) => Ok(Shape::Workspace { version }),
            None => refuse("Provider 'kaito' CRD not installed in cluster"),
        };
    }
    // KAITO names the Workspaces of a set after it, with a dash and five characters (inferenceset_controller.go).
    let longest = LONGEST_NAME - 6;
    if request.name.len() > longest {
        return refuse(format!(
            "metadata.name has {} characters, but KAITO supports at most {longest} unless scaling.replicas is 1: choose a shorter name, or set scaling.replicas to 1",
            request.name.len()
        ));
    }
    match installed.state(INFERENCE_SET) {
        State::Known { version, .. } => Ok(Shape::InferenceSet { version, replicas }),
        State::Missing => refuse(several(
            replicas,
            "which is not installed",
            "install a KAITO release that has it",
        )),
        State::Unknown { problems, .. } => {
            let why = format!(
                "whose installed schema this provider does not know ({})",
                problems.join("; ")
            );
            refuse(several(replicas, &why, "update the provider or KAITO"))
        }
    }
}

fn several(replicas: i32, why: &str, way_out: &str) -> String {
    format!(
        "scaling.replicas is {replicas}: a KAITO Workspace is exactly one replica, and any other number needs the CRD {}, {why}: \
         set scaling.replicas to 1, or {way_out}",
        crd_name(INFERENCE_SET)
    )
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
