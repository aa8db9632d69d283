//! Engines, and the components that serve a model with them.

use runway_provider::engine::{Dialect, SGLANG, TRTLLM, VLLM};

/// Name by which Dynamo finds the container of a component.
pub(crate) const CONTAINER: &str = "main";

/// Name of the frontend. Dynamo's Service has the name of the deployment with this in lower case.
pub(crate) const FRONTEND: &str = "Frontend";

/// Engines with a Dynamo worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    Sglang,
    TrtLlm,
}

impl Engine {
    /// Command line of the engine. Dynamo's workers for vLLM and SGLang accept it; that for TensorRT-LLM has flags of its own.
    pub(crate) fn dialect(self) -> &'static Dialect {
        match self {
            Self::Vllm => &VLLM,
            Self::Sglang => &SGLANG,
            Self::TrtLlm => &TRTLLM,
        }
    }
}

/// Role of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Frontend,
    Worker,
    Prefill,
    Decode,
}

/// Names of the workers by role. They are part of the names of Dynamo's objects, the same in all schemas: Dynamo does not allow
/// to add or remove components (`dynamographdeployment.go`, validateDynamoGraphDeploymentSpecUpdate).
pub(crate) fn worker_name(engine: Engine, role: Role) -> &'static str {
    match (engine, role) {
        (_, Role::Frontend) => FRONTEND,
        (Engine::Vllm, Role::Worker) => "VllmWorker",
        (Engine::Vllm, Role::Prefill) => "VllmPrefillWorker",
        (Engine::Vllm, Role::Decode) => "VllmDecodeWorker",
        (Engine::Sglang, Role::Worker) => "SglangWorker",
        (Engine::Sglang, Role::Prefill) => "SglangPrefillWorker",
        (Engine::Sglang, Role::Decode) => "SglangDecodeWorker",
        (Engine::TrtLlm, Role::Worker) => "TrtllmWorker",
        (Engine::TrtLlm, Role::Prefill) => "TrtllmPrefillWorker",
        (Engine::TrtLlm, Role::Decode) => "TrtllmDecodeWorker",
    }
}
