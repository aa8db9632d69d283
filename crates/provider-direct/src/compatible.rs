//! Validates a request for this provider: what it does not support is refused here, so that building objects cannot fail.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::EnvVar;
use runway_api::model_deployment::ModelSource;
use runway_provider::engine::{self, Dialect, LLAMACPP, llamacpp, parallel};
use runway_provider::flags::find;
use runway_provider::request::Gpu;
use runway_provider::settings::Mirror;
use runway_provider::{Refusal, Request, Topology, Worker, location, pods, refuse};

use crate::overrides::{self, Rollout};
use crate::registration::NAMES;
use crate::settings::DirectSettings;

/// A supported request.
pub(crate) struct Accepted<'a> {
    pub(crate) engine: &'static Dialect,
    pub(crate) worker: &'a Worker,
    pub(crate) model: Model<'a>,
    pub(crate) image: Cow<'a, str>,
    pub(crate) port: u16,
    pub(crate) rollout: Rollout,
    pub(crate) service_type: &'static str,
    /// Variables for the caches of `model.storage`.
    pub(crate) caches: Vec<EnvVar>,
}

/// Location of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model<'a> {
    /// On Hugging Face, by its ID.
    Hub(&'a str),
    /// In the image, at the path in a flag of `engine.args`.
    Path { key: &'a str, path: &'a str },
    /// In the image; its entrypoint knows the path.
    Image,
}

/// Flags with a path in the image.
const PATHS: [&str; 2] = ["model", "model-path"];

/// All checks, in the order in which their messages are useful.
pub(crate) fn accept<'a>(request: &'a Request, settings: &DirectSettings) -> Result<Accepted<'a>, Refusal> {
    let engine = engine(request)?;
    let worker = worker(request, engine)?;
    NAMES.check(request)?;
    let model = model(request, engine)?;
    Ok(Accepted {
        engine,
        worker,
        model,
        image: image(request, engine, worker, settings)?,
        port: port(request, engine)?,
        rollout: overrides::rollout(request, worker.gpu.is_some())?,
        service_type: overrides::service_type(&request.overrides)?,
        caches: pods::cache_variables(request)?,
    })
}

fn engine(request: &Request) -> Result<&'static Dialect, Refusal> {
    match engine::find(&request.engine) {
        Some(engine) => Ok(engine),
        None => refuse(format!(
            "Provider direct does not support {} engine: set engine.type to one of {}",
            request.engine,
            engine::ALL.map(|dialect| dialect.name).join(", ")
        )),
    }
}

fn worker<'a>(request: &'a Request, engine: &Dialect) -> Result<&'a Worker, Refusal> {
    let Topology::Aggregated(worker) = &request.topology else {
        return refuse(
            "Provider direct does not support disaggregated mode: set serving.mode to aggregated, or provider.name to one that does",
        );
    };
    if worker.gpu.is_none() && engine.cpu_image.is_none() {
        return refuse(engine.requires_gpu());
    }
    if let Some(gpu) = &worker.gpu {
        parallel::check(&request.args, "resources.gpu.count", gpu)?;
    }
    Ok(worker)
}

fn model<'a>(request: &'a Request, engine: &Dialect) -> Result<Model<'a>, Refusal> {
    if request.source == ModelSource::Custom {
        return in_image(request);
    }
    location::check_flags(&request.args, engine.model_flags)?;
    let id = location::id_on_hub(request)?;
    if engine.name == LLAMACPP.name {
        llamacpp::one_file(&request.args, id)?;
    }
    Ok(Model::Hub(id))
}

fn in_image(request: &Request) -> Result<Model<'_>, Refusal> {
    location::check_image(request)?;
    match PATHS.iter().find_map(|name| find(&request.args, name)) {
        Some((key, "")) => refuse(format!(
            "engine.args.{key} is empty, but it names the model: set it to the model's path in the image, \
             or remove it if the image's own entrypoint knows"
        )),
        Some((key, path)) => Ok(Model::Path { key, path }),
        None => Ok(Model::Image),
    }
}

/// The user's image, or the engine's default, which is built for NVIDIA GPUs.
fn image<'a>(
    request: &'a Request,
    engine: &Dialect,
    worker: &Worker,
    settings: &DirectSettings,
) -> Result<Cow<'a, str>, Refusal> {
    let default = |image| Ok(Mirror::of_default(settings.registry_mirror.as_ref(), image));
    match (&request.image, &worker.gpu, engine.cpu_image) {
        (Some(image), ..) => Ok(image.into()),
        (None, None, Some(image)) => default(image),
        (None, Some(Gpu { resource, .. }), _) if !resource.starts_with("nvidia.com/") => refuse(format!(
            "resources.gpu.type is {resource}, but the default image for {} is for NVIDIA GPUs: set spec.image to one for these GPUs",
            engine.name
        )),
        (None, ..) => default(engine.gpu_image),
    }
}

/// The Service and the probes use the port of the server.
fn port(request: &Request, engine: &Dialect) -> Result<u16, Refusal> {
    let Some((key, text)) = find(&request.args, "port") else {
        return Ok(engine.port);
    };
    match text.parse::<u16>() {
        Ok(port) if port > 0 => Ok(port),
        _ => refuse(format!(
            "engine.args.{key} is '{text}': set it to a port from 1 to 65535, or remove it for port {}",
            engine.port
        )),
    }
}
