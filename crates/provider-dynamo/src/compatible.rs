//! Validates a request for this provider: what Dynamo does not support is refused here, so that building objects cannot fail.

use runway_api::model_deployment::ModelSource;
use runway_provider::engine::parallel;
use runway_provider::flags::find;
use runway_provider::{Installed, Refusal, Request, Topology, Worker, location, pods, refuse};

use crate::accepted::{Accepted, GpuWorker, Model};
use crate::config::DynamoConfig;
use crate::engine::Engine;
use crate::flags;
use crate::overrides;
use crate::registration::NAMES;
use crate::role::Role;
use crate::runtime::Runtime;
use crate::schema::Shape;

/// All checks, in the order in which their messages are useful.
pub(crate) fn accept<'a>(
    request: &'a Request,
    installed: &Installed,
    config: &DynamoConfig,
) -> Result<Accepted<'a>, Refusal> {
    let engine = engine(request)?;
    let workers = workers(request)?;
    NAMES.check(request)?;
    let model = model(request, engine)?;
    flags_are_possible(request, engine)?;
    let Some(shape) = Shape::installed(installed) else {
        return refuse("Provider 'dynamo' CRD not installed in cluster");
    };
    let runtime = Runtime::of(
        request.image.as_deref(),
        engine.repository,
        config.runtime_version(shape, installed),
        config.registry_mirror.as_ref(),
    );
    Ok(Accepted {
        engine,
        model,
        workers,
        frontend: overrides::frontend(&request.overrides, runtime.version)?,
        runtime,
        shape,
        caches: pods::cache_variables(request)?,
    })
}

fn engine(request: &Request) -> Result<&'static Engine, Refusal> {
    match Engine::find(&request.engine) {
        Some(engine) => Ok(engine),
        None => refuse(format!("Dynamo does not support {} engine", request.engine)),
    }
}

fn workers(request: &Request) -> Result<Vec<GpuWorker<'_>>, Refusal> {
    match &request.topology {
        Topology::Aggregated(worker) => Ok(vec![on_gpu(request, Role::Worker, worker, "resources.gpu.count")?]),
        Topology::Disaggregated { prefill, decode } => Ok(vec![
            on_gpu(request, Role::Prefill, prefill, "scaling.prefill.gpu.count")?,
            on_gpu(request, Role::Decode, decode, "scaling.decode.gpu.count")?,
        ]),
    }
}

/// Names of a request's workers, even if it is not supported.
pub(crate) fn worker_names(request: &Request) -> Vec<&'static str> {
    let roles: &[Role] = match request.topology {
        Topology::Aggregated(_) => &[Role::Worker],
        Topology::Disaggregated { .. } => &[Role::Prefill, Role::Decode],
    };
    let engine = Engine::find(&request.engine);
    engine
        .iter()
        .flat_map(|engine| roles.iter().map(|role| engine.component(*role)))
        .collect()
}

/// A worker with GPUs, or the refusal of the given field. A worker is one pod.
fn on_gpu<'a>(request: &Request, role: Role, worker: &'a Worker, field: &str) -> Result<GpuWorker<'a>, Refusal> {
    match &worker.gpu {
        Some(gpu) => {
            parallel::check(&request.args, field, gpu)?;
            Ok(GpuWorker { role, worker, gpu })
        }
        None => refuse(format!("Dynamo requires GPU (set {field} > 0)")),
    }
}

/// Dynamo starts a worker without a command as `/bin/sh -c`, whatever the image would run
/// (`deploy/operator/internal/dynamo/component_common.go`, getCommonContainer, and `graph.go`, mergeContainerByName), so that a
/// worker needs a command, and with it the model.
fn model<'a>(request: &'a Request, engine: &Engine) -> Result<Model<'a>, Refusal> {
    if request.source == ModelSource::Huggingface {
        location::check_flags(&request.args, &flags::MODEL)?;
        return Ok(Model::Id(location::id_on_hub(request)?));
    }
    location::check_image(request)?;
    match flags::MODEL.iter().find_map(|flag| find(&request.args, flag)) {
        Some((key, "")) => refuse(format!(
            "engine.args.{key} is empty, but it names the model: set it to where the model is in the image"
        )),
        Some(_) => Ok(Model::InArgs),
        None => refuse(format!(
            "engine.args.{} is required when model.source is custom: Dynamo does not run the command of an image; \
             set it to where the model is in the image",
            engine.model
        )),
    }
}

/// All workers get the same flags, so that these cannot set their roles.
fn flags_are_possible(request: &Request, engine: &Engine) -> Result<(), Refusal> {
    const ROLES: [&str; 3] = ["disaggregation-mode", "is-prefill-worker", "is-decode-worker"];
    if let Some((key, _)) = ROLES.iter().find_map(|flag| find(&request.args, flag)) {
        return refuse(format!(
            "engine.args.{key} would make all workers the same: set serving.mode to disaggregated for prefill and decode workers, and remove the flag"
        ));
    }
    match flags::reported_twice(request, engine) {
        Some((option, flag)) => refuse(format!(
            "engine.args.{option} is an option of TensorRT-LLM and is passed in --{flag}, which engine.args.{flag} sets as well: use one of them"
        )),
        None => Ok(()),
    }
}
