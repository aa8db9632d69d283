//! Validates a request for this provider: what KAITO does not support is refused here, so that building objects cannot fail.

use runway_api::model_deployment::{DEFAULT_GPU, ModelSource};
use runway_provider::upstream::crd_name;
use runway_provider::{Installed, Refusal, Request, State, Topology, Worker, parallel};

use crate::config::KaitoConfig;
use crate::flags::{self, PORT};
use crate::registration::{LONGEST_NAME, NAMES, PRESET_ENV, PRESET_TOLERATIONS};
use crate::schema::{INFERENCE_SET, WORKSPACE};

/// A supported request.
pub(crate) struct Accepted<'a> {
    pub(crate) engine: Engine,
    pub(crate) workload: Workload<'a>,
    pub(crate) worker: &'a Worker,
    pub(crate) shape: Shape,
    pub(crate) instance_type: Option<&'a str>,
}

/// Engines that KAITO supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    LlamaCpp,
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
    let engine = engine(request)?;
    let worker = worker(request)?;
    NAMES.check(request)?;
    let workload = workload(request, engine, worker)?;
    flags_are_possible(request, &workload)?;
    Ok(Accepted {
        engine,
        workload,
        worker,
        shape: shape(request, worker, installed)?,
        instance_type: instance_type(config, worker.gpu.is_some())?,
    })
}

/// Texts from design 8.
fn engine(request: &Request) -> Result<Engine, Refusal> {
    match request.engine.as_str() {
        "vllm" => Ok(Engine::Vllm),
        "llamacpp" => Ok(Engine::LlamaCpp),
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
        (_, Some(image), _) => Ok(Workload::Container { image }),
        _ if request.source == ModelSource::Custom => refuse(
            "spec.image is required when model.source is custom: the model is taken from the image. Set spec.image, or use model.source huggingface",
        ),
        (Engine::LlamaCpp, ..) => refuse(format!(
            "llamacpp engine requires spec.image to be set: KAITO has no image of its own for llama.cpp. \
             Set spec.image to one that runs llama.cpp and listens on port {PORT}"
        )),
        (Engine::Vllm, None, Some(model)) => {
            preset_can_do(request, worker)?;
            Ok(Workload::Preset { model })
        }
        (Engine::Vllm, None, None) => refuse("model.id is required when source is huggingface"),
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
    match &worker.gpu {
        Some(gpu) if gpu.resource != DEFAULT_GPU => refuse(format!(
            "resources.gpu.type is {}, but KAITO's presets run on {DEFAULT_GPU} only: \
             set spec.image to run vLLM in your own container, or remove resources.gpu.type",
            gpu.resource
        )),
        _ => Ok(()),
    }
}

/// KAITO's Service uses one port, and flags must not name the model.
fn flags_are_possible(request: &Request, workload: &Workload) -> Result<(), Refusal> {
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
    match flags::find(&request.args, "model") {
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
fn instance_type(config: &KaitoConfig, gpu: bool) -> Result<Option<&str>, Refusal> {
    if !config.node_auto_provisioning {
        return Ok(None);
    }
    match config.instance_type(gpu) {
        (_, Some(instance_type)) => Ok(Some(instance_type)),
        (argument, None) => refuse(format!(
            "resources.gpu: KAITO provisions nodes in this cluster, and the kaito provider was started without {argument}, \
             so it cannot say which nodes to make: have it started with {argument}, or ask for {}",
            if gpu { "a model that needs no GPU" } else { "GPUs" }
        )),
    }
}

fn refuse<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::incompatible(message))
}
