//! vLLM's OpenAI server, `vllm serve MODEL` (vLLM 0.32.0 `vllm/entrypoints/launchers/cli_args.py`, make_arg_parser, which is
//! `vllm/entrypoints/openai/cli_args.py` in older releases; `vllm/engine/arg_utils.py`, AsyncEngineArgs). The lane `vllm` gives
//! it these arguments.
//!
//! It listens after the model is loaded, and `/health` reports whether the engine runs
//! (`vllm/entrypoints/serve/instrumentator/health.py`). Images differ in their entrypoint (`vllm serve` since v0.11, a Python
//! module before), so that the command is set.

use super::{Dialect, HF_HOME, Metrics, versions};

/// vLLM.
pub const VLLM: Dialect = Dialect {
    name: "vllm",
    title: "vLLM",
    gpu_image: versions::VLLM,
    cpu_image: None,
    command: &["vllm", "serve"],
    port: 8000,
    from_hub: |id| vec![id.to_owned()],
    from_path: |path| vec![path.to_owned()],
    model_flags: &["model"],
    served_name: Ok("served-model-name"),
    listed_name: |name| name,
    context_length: Ok("max-model-len"),
    trust_remote_code: Ok("trust-remote-code"),
    tensor_parallel: Some("tensor-parallel-size"),
    cache_variable: HF_HOME,
    // `vllm/envs.py`
    compilation_cache_variable: Some("VLLM_CACHE_ROOT"),
    metrics_flag: None,
    metrics: Some(METRICS),
};

/// Metrics (vLLM `vllm/v1/metrics/loggers.py`, PrometheusStatLogger; commit 005a810b). The old name of the KV cache metric was
/// deprecated in 0.9.
pub const METRICS: Metrics = Metrics {
    family: "vllm:",
    running: "vllm:num_requests_running",
    waiting: "vllm:num_requests_waiting",
    tokens: "vllm:generation_tokens_total",
    tokens_per_second: None,
    kv_cache: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
    first_token: Some("vllm:time_to_first_token_seconds"),
};
