//! Validates a request for this provider: what KubeRay does not support is refused here, so that building objects cannot fail.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::EnvVar;
use runway_api::model_deployment::ModelSource;
use runway_provider::engine::VLLM;
use runway_provider::request::Gpu;
use runway_provider::settings::Mirror;
use runway_provider::{Installed, Refusal, Request, Topology, Worker, location, pods, refuse};
use serde_json::{Map, Value, json};

use crate::arguments::{self, MODEL};
use crate::head::{self, Head};
use crate::registration::NAMES;
use crate::schema::{self, RAY_SERVICE};
use crate::settings::KubeRaySettings;
use crate::versions;

/// A supported request.
pub(crate) struct Accepted<'a> {
    /// API version of the RayService.
    pub(crate) version: String,
    pub(crate) model: Model<'a>,
    pub(crate) image: Cow<'a, str>,
    pub(crate) parts: Parts<'a>,
    pub(crate) head: Head<'a>,
    /// Whether no replica is desired.
    pub(crate) suspended: bool,
    /// Variables for the caches of `model.storage`.
    pub(crate) caches: Vec<EnvVar>,
    /// Fields without effect.
    pub(crate) ignored: Vec<String>,
}

/// Model and its name.
pub(crate) struct Model<'a> {
    /// Name in client requests.
    pub(crate) name: &'a str,
    /// ID on Hugging Face, or path in the image.
    pub(crate) source: &'a str,
}

/// Workers that serve the model.
pub(crate) enum Parts<'a> {
    Aggregated(Part<'a>),
    Disaggregated { prefill: Part<'a>, decode: Part<'a> },
}

/// Replicas of one kind, and their pods.
pub(crate) struct Part<'a> {
    pub(crate) worker: &'a Worker,
    pub(crate) gpu: &'a Gpu,
    /// Arguments of the engine.
    pub(crate) arguments: Map<String, Value>,
    /// Number of pods per replica.
    pub(crate) span: i32,
}

impl Part<'_> {
    /// Number of pods of all replicas.
    pub(crate) fn pods(&self) -> i32 {
        self.worker.replicas.saturating_mul(self.span)
    }
}

/// All checks, in the order in which their messages are useful.
pub(crate) fn accept<'a>(
    request: &'a Request,
    installed: &Installed,
    settings: &KubeRaySettings,
) -> Result<Accepted<'a>, Refusal> {
    let Some(version) = installed.version(RAY_SERVICE) else {
        return refuse("Provider 'kuberay' CRD not installed in cluster");
    };
    if request.engine != VLLM.name {
        return refuse(format!("KubeRay does not support {} engine", request.engine));
    }
    NAMES.check(request)?;
    let mut ignored = Vec::new();
    let model = model(request, &mut ignored)?;
    let arguments = arguments::of(request)?;
    ignored.extend(arguments.ignored);
    let parts = parts(request, arguments.values)?;
    Ok(Accepted {
        version,
        model,
        image: image(request, &parts, settings)?,
        head: head::of(request)?,
        suspended: is_suspended(request, installed)?,
        caches: pods::cache_variables(request)?,
        parts,
        ignored,
    })
}

fn model<'a>(request: &'a Request, ignored: &mut Vec<String>) -> Result<Model<'a>, Refusal> {
    if request.source == ModelSource::Huggingface {
        let source = location::id_on_hub(request)?;
        // Without a name in the spec, it is the last part of the ID.
        let name = request.served_name.as_deref().unwrap_or(source);
        return Ok(Model { name, source });
    }
    let path = arguments::given(request, MODEL).filter(|path| !path.is_empty());
    let source = match (path, &request.model_id) {
        (Some(path), id) => {
            if let Some(id) = id {
                ignored.push(format!(
                    "model.id: {id} is ignored for custom source: engine.args.model is the path of the model"
                ));
            }
            path
        }
        (None, Some(id)) => id,
        (None, None) => {
            return refuse(
                "model.id is missing: with model.source custom the model lies in spec.image, and Ray Serve needs its path. \
                 Set model.id (or engine.args.model) to its path, as /models/llama",
            );
        }
    };
    let name = source.trim_end_matches('/').rsplit('/').next().unwrap_or(source);
    if request.served_name_given {
        ignored.push(format!(
            "model.servedName is ignored for custom source: clients must send '{name}', the last part of the model's path"
        ));
    }
    Ok(Model { name, source })
}

fn parts(request: &Request, mut arguments: Map<String, Value>) -> Result<Parts<'_>, Refusal> {
    match &request.topology {
        Topology::Aggregated(worker) => Ok(Parts::Aggregated(part("resources", worker, arguments)?)),
        Topology::Disaggregated { prefill, decode } => {
            // The parts transfer the model's state through NIXL, in both directions (Ray `prefill_decode/builder.py`,
            // PDServingArgs).
            arguments
                .entry("kv_transfer_config")
                .or_insert_with(|| json!({"kv_connector": "NixlConnector", "kv_role": "kv_both"}));
            Ok(Parts::Disaggregated {
                prefill: part("scaling.prefill", prefill, arguments.clone())?,
                decode: part("scaling.decode", decode, arguments)?,
            })
        }
    }
}

/// Ray uses one GPU for each of the parallel processes of a replica (Ray `vllm_models.py`, num_devices): all GPUs of one pod, or
/// those of several pods.
fn part<'a>(field: &str, worker: &'a Worker, mut arguments: Map<String, Value>) -> Result<Part<'a>, Refusal> {
    let Some(gpu) = &worker.gpu else {
        return refuse(format!("KubeRay requires GPU (set {field}.gpu.count > 0)"));
    };
    let count = i64::from(gpu.count);
    let size = |name: &str| arguments.get(name).and_then(Value::as_i64);
    let pipeline = size("pipeline_parallel_size").unwrap_or(1);
    let tensor = size("tensor_parallel_size").unwrap_or_else(|| (count / pipeline).max(1));
    let devices = tensor.saturating_mul(pipeline);
    let span = i32::try_from(devices / count).ok().filter(|_| devices % count == 0);
    let Some(span) = span else {
        return refuse(format!(
            "{field}.gpu.count is {count}, but a replica with tensor_parallel_size {tensor} and pipeline_parallel_size {pipeline} \
             uses {devices} GPUs: set {field}.gpu.count to {devices} or to a divisor of it, or change the sizes in engine.args"
        ));
    };
    arguments.insert("tensor_parallel_size".to_owned(), json!(tensor));
    Ok(Part {
        worker,
        gpu,
        arguments,
        span,
    })
}

fn image<'a>(request: &'a Request, parts: &Parts, settings: &KubeRaySettings) -> Result<Cow<'a, str>, Refusal> {
    if let Some(image) = &request.image {
        return Ok(image.into());
    }
    location::check_image(request)?;
    let all = match parts {
        Parts::Aggregated(part) => vec![("resources", part)],
        Parts::Disaggregated { prefill, decode } => vec![("scaling.prefill", prefill), ("scaling.decode", decode)],
    };
    match all
        .iter()
        .find(|(_, part)| !part.gpu.resource.starts_with("nvidia.com/"))
    {
        Some((field, part)) => refuse(format!(
            "{field}.gpu.type is {}, but the default image {} runs on NVIDIA's GPUs only: set spec.image to one with Ray and vLLM for these GPUs",
            part.gpu.resource,
            versions::RAY
        )),
        None => Ok(Mirror::of_default(settings.registry_mirror.as_ref(), versions::RAY)),
    }
}

/// A Serve deployment has at least one replica: zero means no cluster.
fn is_suspended(request: &Request, installed: &Installed) -> Result<bool, Refusal> {
    let field = match &request.topology {
        Topology::Aggregated(worker) if worker.replicas > 0 => return Ok(false),
        Topology::Disaggregated { prefill, decode } if prefill.replicas > 0 && decode.replicas > 0 => return Ok(false),
        Topology::Disaggregated { prefill, decode } if prefill.replicas > 0 || decode.replicas > 0 => {
            let (none, some) = if prefill.replicas == 0 {
                ("prefill", "decode")
            } else {
                ("decode", "prefill")
            };
            return refuse(format!(
                "scaling.{none}.replicas is 0, but no request is answered without {none} workers: set it to 1 or more, \
                 or set scaling.{some}.replicas to 0 too"
            ));
        }
        Topology::Aggregated(_) => "scaling.replicas is 0",
        Topology::Disaggregated { .. } => "scaling.prefill.replicas and scaling.decode.replicas are 0",
    };
    if schema::can_suspend(installed) {
        return Ok(true);
    }
    refuse(format!(
        "{field}, but the installed KubeRay has no spec.suspend for a RayService, which came with 1.7: \
         ask for 1 replica or more, update KubeRay, or delete the ModelDeployment"
    ))
}
