//! llama.cpp's `llama-server`. Its flags are those of `llama-server --help` of build 11669 (`common/arg.cpp`).
//!
//! `/health` answers 503 until the model is loaded. Without `--hf-file`, `--hf-repo` loads the repository's Q4_K_M file, or its
//! first. The images' entrypoint is the server (`.devops/cpu.Dockerfile`), in a directory that is not in the PATH. With several
//! GPUs it distributes a model's layers over all of them.

use crate::llama_server;

use super::{Dialect, Metrics, ServedName};

pub(super) const DIALECT: Dialect = Dialect {
    name: "llamacpp",
    title: "llama.cpp",
    // The same build for both images, which are tested together upstream; newer tags appear every day.
    gpu_image: "ghcr.io/ggml-org/llama.cpp:server-cuda-b10257",
    cpu_image: Some("ghcr.io/ggml-org/llama.cpp:server-b10257"),
    command: &[],
    port: 8080,
    from_hub: llama_server::from_hub,
    from_path: |path| vec!["--model".to_owned(), path.to_owned()],
    model_flags: &llama_server::MODEL_FLAGS,
    served_name: ServedName::Flag(llama_server::SERVED_NAME),
    context_length: Ok(llama_server::CONTEXT_LENGTH),
    trust_remote_code: Err("llama.cpp runs no code that comes with a model"),
    tensor_parallel: None,
    // The first directory that llama.cpp reads, also before it shared Hugging Face's cache (common/hf-cache.cpp).
    cache_variable: "LLAMA_CACHE",
    metrics_flag: Some("metrics"),
    metrics: Metrics {
        requests_in_flight: Some("llamacpp:requests_processing"),
        queued_requests: Some("llamacpp:requests_deferred"),
        tokens_per_second: Some("llamacpp:tokens_predicted"),
    },
};
