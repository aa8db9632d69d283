//! Settings of an installation: images and nodes.

use runway_provider::settings::{Image, Mirror, NodeLabels, PullSecrets};
use runway_provider::{Request, Topology};
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the direct provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DirectSettings {
    /// Default images of engines, for ModelDeployments without spec.image.
    pub images: Images,
    /// Registry that replaces the registry in the names of the default images, such as `registry.example.com/mirror`. Not applied
    /// to `images`.
    pub registry_mirror: Option<Mirror>,
    /// Names of Secrets with credentials for registries, in the namespace of each model. None by default.
    pub image_pull_secrets: PullSecrets,
    /// Labels of the nodes for models, added to the node selector.
    pub node_labels: NodeLabels,
}

/// Default images of engines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Images {
    /// Image with llama-server for models with GPUs. Defaults to ghcr.io/ggml-org/llama.cpp for NVIDIA GPUs.
    pub llamacpp: Option<Image>,
    /// Image with llama-server for models without GPUs. Defaults to ghcr.io/ggml-org/llama.cpp for CPUs.
    pub llamacpp_cpu: Option<Image>,
    /// Image with vLLM. Defaults to vllm/vllm-openai.
    pub vllm: Option<Image>,
    /// Image with SGLang. Defaults to lmsysorg/sglang.
    pub sglang: Option<Image>,
    /// Image with TensorRT-LLM. Defaults to nvcr.io/nvidia/tensorrt-llm/release.
    pub trtllm: Option<Image>,
}

impl DirectSettings {
    /// The default image for a request.
    pub(crate) fn image(&self, request: &Request) -> Option<&Image> {
        let needs_gpu = matches!(&request.topology, Topology::Aggregated(worker) if worker.gpu.is_some());
        match request.engine.as_str() {
            "llamacpp" if needs_gpu => self.images.llamacpp.as_ref(),
            "llamacpp" => self.images.llamacpp_cpu.as_ref(),
            "vllm" => self.images.vllm.as_ref(),
            "sglang" => self.images.sglang.as_ref(),
            "trtllm" => self.images.trtllm.as_ref(),
            _ => None,
        }
    }
}
