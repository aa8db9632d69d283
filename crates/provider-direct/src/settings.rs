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
    /// Seconds in which a pod that terminates continues to serve the requests it has, without receiving new ones, before its
    /// engine is stopped. Engines may drop requests when they stop. 0: the engine is stopped at once; required before
    /// Kubernetes 1.30, which does not know the `sleep` action. Defaults to 15. A change replaces the pods.
    #[schemars(range(max = 3600))]
    pub drain_seconds: DrainSeconds,
}

/// Seconds between the begin of a pod's termination and the signal to its engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "u64")]
#[schemars(with = "u64")]
pub struct DrainSeconds(u16);

impl DrainSeconds {
    const MAX: u64 = 3600;

    pub(crate) fn get(self) -> u16 {
        self.0
    }
}

impl Default for DrainSeconds {
    fn default() -> Self {
        Self(15)
    }
}

impl TryFrom<u64> for DrainSeconds {
    type Error = String;

    fn try_from(seconds: u64) -> Result<Self, String> {
        match u16::try_from(seconds) {
            Ok(short) if seconds <= Self::MAX => Ok(Self(short)),
            _ => Err(format!(
                "{seconds} is more than {} seconds, the longest drain",
                Self::MAX
            )),
        }
    }
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
