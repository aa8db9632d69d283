//! Facts about inference engines that providers share, each once, with its source: command lines, ports, images, variables and
//! metrics. A new engine is a module with a [`Dialect`], and a line in [`ALL`].

mod flags;
pub mod llamacpp;
pub mod parallel;
pub mod sglang;
mod trtllm;
mod versions;
pub mod vllm;

pub use flags::Flags;
pub use llamacpp::LLAMACPP;
pub use sglang::SGLANG;
pub use trtllm::TRTLLM;
pub use vllm::VLLM;

use runway_api::provider_config::{EngineCapabilities, PodMetrics};

use crate::request::Worker;

/// Path at which every engine reports whether the model is loaded and serves.
pub const HEALTH_PATH: &str = "/health";

/// Path at which engines serve their metrics.
pub const METRICS_PATH: &str = "/metrics";

/// Variable for the directory of downloads from Hugging Face (huggingface_hub `constants.py`).
const HF_HOME: &str = "HF_HOME";

/// Every engine.
pub const ALL: [&Dialect; 4] = [&LLAMACPP, &VLLM, &SGLANG, &TRTLLM];

/// The server of an engine: its command and the names of its flags.
#[derive(Debug)]
pub struct Dialect {
    /// Name in `engine.type`.
    pub name: &'static str,
    /// Name in messages.
    pub title: &'static str,
    /// Image for NVIDIA GPUs.
    pub gpu_image: &'static str,
    /// Image for models without GPUs; `None` if the engine requires GPUs.
    pub cpu_image: Option<&'static str>,
    /// Command of the server; empty if the entrypoint of every image is the server.
    pub command: &'static [&'static str],
    /// Default port of the server.
    pub port: u16,
    /// Arguments that load a model from Hugging Face by ID.
    pub from_hub: fn(&str) -> Vec<String>,
    /// Arguments that load a model from a path in the image.
    pub from_path: fn(&str) -> Vec<String>,
    /// Flags that name a model. They are refused next to `model.id`.
    pub model_flags: &'static [&'static str],
    /// Flag for the name under which `/v1/models` lists the model, or why there is none: the name follows from the location of the
    /// model.
    pub served_name: Result<&'static str, &'static str>,
    /// Name that `/v1/models` lists, of a value of that flag.
    pub listed_name: fn(&str) -> &str,
    /// Flag for the maximum context length, or why there is none.
    pub context_length: Result<&'static str, &'static str>,
    /// Flag for trust in code that comes with a model, or why there is none.
    pub trust_remote_code: Result<&'static str, &'static str>,
    /// Flag for the number of GPUs that share each layer; `None` if the engine always uses all GPUs.
    pub tensor_parallel: Option<&'static str>,
    /// Variable for the directory of downloads.
    pub cache_variable: &'static str,
    /// Variable for the directory of compiled code, if the engine keeps any.
    pub compilation_cache_variable: Option<&'static str>,
    /// Flag that enables the engine's metrics; `None` if they are always enabled, or there are none.
    pub metrics_flag: Option<&'static str>,
    /// Metrics; `None` if the server exports none by default.
    pub metrics: Option<Metrics>,
}

/// Names of the metrics that an engine serves at [`METRICS_PATH`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// Beginning of the names of all its metrics.
    pub family: &'static str,
    /// Gauge: requests that are processed.
    pub running: &'static str,
    /// Gauge: requests that wait in the engine.
    pub waiting: &'static str,
    /// Counter: generated tokens.
    pub tokens: &'static str,
    /// Gauge: tokens that are generated per second, if the engine exports one.
    pub tokens_per_second: Option<&'static str>,
    /// Gauges: used share of the KV cache, from 0 to 1. Releases of the engine differ in the name; empty if it exports none.
    pub kv_cache: &'static [&'static str],
    /// Histogram: time to the first token, in seconds.
    pub first_token: Option<&'static str>,
}

impl Metrics {
    /// Names in the custom metrics API, for autoscaling. prometheus-adapter serves a gauge under its own name, and a counter without
    /// `_total`, per second (kubernetes-sigs/prometheus-adapter v0.12.0, `deploy/manifests/config-map.yaml`).
    pub fn of_pods(&self) -> PodMetrics {
        let rate = || self.tokens.trim_end_matches("_total");
        PodMetrics {
            requests_in_flight: Some(self.running.to_owned()),
            queued_requests: Some(self.waiting.to_owned()),
            tokens_per_second: Some(self.tokens_per_second.unwrap_or_else(rate).to_owned()),
        }
    }
}

/// The engine of this name.
pub fn find(name: &str) -> Option<&'static Dialect> {
    ALL.into_iter().find(|dialect| dialect.name == name)
}

impl Dialect {
    /// Capabilities of a provider that runs the engine's own server.
    pub fn capabilities(&self) -> EngineCapabilities {
        EngineCapabilities {
            name: self.name.to_owned(),
            serving_modes: None,
            cpu_support: Some(self.cpu_image.is_some()),
            gpu_support: Some(true),
            pod_metrics: self.metrics.map(|metrics| metrics.of_pods()),
        }
    }

    /// Refusal of a model without GPUs; the text is that of admission.
    pub fn requires_gpu(&self) -> String {
        format!("{} engine requires GPU (set resources.gpu.count > 0)", self.title)
    }

    /// Whether a worker needs a volume for `/dev/shm`: the processes of one server, one per GPU, communicate through shared memory,
    /// of which a container has 64 MiB by default. llama.cpp is one process.
    pub fn needs_shared_memory(&self, worker: &Worker) -> bool {
        self.tensor_parallel.is_some() && worker.gpu.as_ref().is_some_and(|gpu| gpu.count > 1)
    }
}
