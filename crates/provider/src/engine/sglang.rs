//! SGLang's server (SGLang `python/sglang/srt/server_args.py`, ServerArgs; commit 001067ff): each field is a flag with dashes,
//! and the command line also accepts `--model` for `--model-path` and `--tensor-parallel-size` for `--tp-size`.
//!
//! `/health` answers 503 until the server has warmed up, then generates one token and waits up to 20 seconds for it
//! (`python/sglang/srt/entrypoints/http_server.py`, health_generate). The image's entrypoint runs any command.

use super::{Dialect, HF_HOME, Metrics, versions};

/// SGLang.
pub const SGLANG: Dialect = Dialect {
    name: "sglang",
    title: "SGLang",
    gpu_image: versions::SGLANG,
    cpu_image: None,
    command: &["python3", "-m", "sglang.launch_server"],
    port: 30_000,
    from_hub: model_path,
    from_path: model_path,
    model_flags: &["model-path", "model"],
    served_name: Ok("served-model-name"),
    listed_name: |name| name,
    context_length: Ok("context-length"),
    trust_remote_code: Ok("trust-remote-code"),
    tensor_parallel: Some("tp-size"),
    cache_variable: HF_HOME,
    compilation_cache_variable: None,
    metrics_flag: Some("enable-metrics"),
    metrics: Some(METRICS),
};

/// Metrics (SGLang 0.5.18 `python/sglang/srt/observability/metrics_collector.py`).
pub const METRICS: Metrics = Metrics {
    family: "sglang:",
    running: "sglang:num_running_reqs",
    waiting: "sglang:num_queue_reqs",
    tokens: "sglang:generation_tokens_total",
    tokens_per_second: Some("sglang:gen_throughput"),
    kv_cache: &["sglang:token_usage"],
    first_token: Some("sglang:time_to_first_token_seconds"),
};

fn model_path(model: &str) -> Vec<String> {
    vec!["--model-path".to_owned(), model.to_owned()]
}
