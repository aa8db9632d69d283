//! A request that has passed the checks of `compatible`, in narrow types.

use k8s_openapi::api::core::v1::EnvVar;
use runway_provider::Worker;
use runway_provider::request::Gpu;

use crate::engine::Engine;
use crate::overrides::Frontend;
use crate::role::Role;
use crate::runtime::Runtime;
use crate::schema::Shape;

/// A supported request.
pub(crate) struct Accepted<'a> {
    pub(crate) engine: &'static Engine,
    pub(crate) model: Model<'a>,
    pub(crate) workers: Vec<GpuWorker<'a>>,
    pub(crate) frontend: Frontend,
    pub(crate) runtime: Runtime,
    pub(crate) shape: Shape,
    /// Variables for the caches of `model.storage`.
    pub(crate) caches: Vec<EnvVar>,
}

/// Location of the model, and the command that loads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model<'a> {
    /// Dynamo's worker loads it by its ID.
    Id(&'a str),
    /// Dynamo's worker loads it from the path in a flag of `engine.args`.
    InArgs,
}

/// Workers of one kind. Dynamo requires GPUs.
pub(crate) struct GpuWorker<'a> {
    pub(crate) role: Role,
    pub(crate) worker: &'a Worker,
    pub(crate) gpu: &'a Gpu,
}
