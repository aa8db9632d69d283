//! Engines, and the components that serve a model with them.

use runway_provider::engine::{self, Dialect};

use crate::role::Role;
use crate::runtime::{self, Releases};

/// Name by which Dynamo finds the container of a component.
pub(crate) const CONTAINER: &str = "main";

/// Name of the frontend. Dynamo's Service has the name of the deployment with this in lower case.
pub(crate) const FRONTEND: &str = "Frontend";

/// An engine with a Dynamo worker.
pub(crate) struct Engine {
    /// Command line of the engine. Dynamo's workers for vLLM and SGLang accept it; that for TensorRT-LLM has flags of its own.
    pub(crate) dialect: &'static Dialect,
    /// Python module of the worker.
    pub(crate) module: &'static str,
    /// Name of the image (Dynamo `docs/reference/release-artifacts.md`). The design's `trtllm-runtime` does not exist.
    pub(crate) repository: &'static str,
    /// Flag that names the model.
    pub(crate) model: &'static str,
    /// Flag for the tensor-parallel size.
    pub(crate) tensor_parallel: &'static str,
    /// Flag for options that have no flags, as JSON.
    pub(crate) options: Option<&'static str>,
    /// Flags that differ between releases of Dynamo.
    pub(crate) releases: Releases,
    /// Names of the workers: aggregated, prefill and decode. They are part of the names of Dynamo's objects, the same in all schemas:
    /// Dynamo does not allow to add or remove components (`dynamographdeployment.go`, validateDynamoGraphDeploymentSpecUpdate).
    workers: [&'static str; 3],
}

/// Every engine with a Dynamo worker.
pub(crate) const ALL: [&Engine; 3] = [
    &Engine {
        dialect: &engine::VLLM,
        module: "dynamo.vllm",
        repository: "vllm-runtime",
        model: "model",
        tensor_parallel: "tensor-parallel-size",
        options: None,
        releases: runtime::VLLM,
        workers: ["VllmWorker", "VllmPrefillWorker", "VllmDecodeWorker"],
    },
    &Engine {
        dialect: &engine::SGLANG,
        module: "dynamo.sglang",
        repository: "sglang-runtime",
        model: "model-path",
        tensor_parallel: "tp",
        options: None,
        releases: runtime::SGLANG,
        workers: ["SglangWorker", "SglangPrefillWorker", "SglangDecodeWorker"],
    },
    &Engine {
        dialect: &engine::TRTLLM,
        module: "dynamo.trtllm",
        repository: "tensorrtllm-runtime",
        model: "model-path",
        tensor_parallel: "tensor-parallel-size",
        options: Some(runtime::ENGINE_OPTIONS),
        releases: runtime::TRT_LLM,
        workers: ["TrtllmWorker", "TrtllmPrefillWorker", "TrtllmDecodeWorker"],
    },
];

impl Engine {
    /// The engine of this name.
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        ALL.into_iter().find(|engine| engine.dialect.name == name)
    }

    /// Name of a component.
    pub(crate) fn component(&self, role: Role) -> &'static str {
        let [worker, prefill, decode] = self.workers;
        match role {
            Role::Frontend => FRONTEND,
            Role::Worker => worker,
            Role::Prefill => prefill,
            Role::Decode => decode,
        }
    }
}
