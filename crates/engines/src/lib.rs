//! Metrics of inference engines: the names of each engine, the parser of their text, and what two readings say about the use of a
//! model. Pure.
//!
//! | module | content |
//! |---|---|
//! | here | the names, and where a pod serves them |
//! | [`text`] | the text format of Prometheus |
//! | [`usage`] | running and waiting requests, tokens per second, use of the KV cache |

pub mod text;
pub mod usage;

use k8s_openapi::api::core::v1::Pod;

pub use usage::{Reading, Usage};

/// Names of the metrics of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Name for users.
    pub title: &'static str,
    /// Beginning of the names of all its metrics.
    pub family: &'static str,
    /// Gauge: requests that are processed.
    pub running: &'static str,
    /// Gauge: requests that wait in the engine.
    pub waiting: &'static str,
    /// Counter: generated tokens.
    pub tokens: &'static str,
    /// Gauges: used share of the KV cache, from 0 to 1. Releases of the engine differ in the name; empty if it exports none.
    pub kv_cache: &'static [&'static str],
    /// Histogram: time to the first token, in seconds.
    pub first_token: Option<&'static str>,
}

/// The engines whose metrics are read. TensorRT-LLM exports no metrics at `/metrics` by default.
///
/// Sources: vLLM `vllm/v1/metrics/loggers.py`, PrometheusStatLogger (commit 005a810b; the old name of the KV cache metric was
/// deprecated in 0.9). SGLang 0.5.18 `sglang/srt/observability/metrics_collector.py`. llama.cpp
/// `tools/server/server-context.cpp`, and the text of llama-server build 11669, which is a golden file here; it counts the tokens
/// of a request when the request ends. Ray exports the metrics of vLLM with underscores and a prefix: vLLM
/// `vllm/v1/metrics/ray_wrappers.py`, Ray `python/ray/dashboard/modules/metrics/dashboards/serve_llm_dashboard_panels.py`.
pub const ENGINES: [Engine; 4] = [
    Engine {
        title: "vLLM",
        family: "vllm:",
        running: "vllm:num_requests_running",
        waiting: "vllm:num_requests_waiting",
        tokens: "vllm:generation_tokens_total",
        kv_cache: &["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"],
        first_token: Some("vllm:time_to_first_token_seconds"),
    },
    Engine {
        title: "SGLang",
        family: "sglang:",
        running: "sglang:num_running_reqs",
        waiting: "sglang:num_queue_reqs",
        tokens: "sglang:generation_tokens_total",
        kv_cache: &["sglang:token_usage"],
        first_token: Some("sglang:time_to_first_token_seconds"),
    },
    Engine {
        title: "llama.cpp",
        family: "llamacpp:",
        running: "llamacpp:requests_processing",
        waiting: "llamacpp:requests_deferred",
        tokens: "llamacpp:tokens_predicted_total",
        kv_cache: &[],
        first_token: None,
    },
    Engine {
        title: "vLLM on Ray",
        family: "ray_vllm_",
        running: "ray_vllm_num_requests_running",
        waiting: "ray_vllm_num_requests_waiting",
        tokens: "ray_vllm_generation_tokens_total",
        kv_cache: &["ray_vllm_kv_cache_usage_perc", "ray_vllm_gpu_cache_usage_perc"],
        first_token: Some("ray_vllm_time_to_first_token_seconds"),
    },
];

/// Path at which engines serve their metrics.
pub const PATH: &str = "/metrics";
/// Names of the container ports at which engines serve metrics, in order of preference: the direct provider's, Dynamo's (Dynamo
/// `deploy/operator/internal/consts/consts.go`) and KubeRay's, which it adds to every pod (KubeRay `common/pod.go`).
pub const PORT_NAMES: [&str; 3] = [runway_provider_direct::PORT_NAME, "system", "metrics"];
/// Port of KAITO's servers, which has no name.
pub const PORT_NUMBER: i32 = runway_provider_kaito::PORT;

/// Port at which the engine of a pod serves metrics; `None` if the pod has no such port.
pub fn port(pod: &Pod) -> Option<i32> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let ports: Vec<_> = containers.flat_map(|c| c.ports.iter().flatten()).collect();
    let named = |name: &&str| ports.iter().find(|port| port.name.as_deref() == Some(*name));
    let known = PORT_NAMES.iter().find_map(named);
    let known = known.or_else(|| ports.iter().find(|port| port.container_port == PORT_NUMBER));
    known.map(|port| port.container_port)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn port_of_the_engine_is_found_by_name_or_number() {
        let pod = |ports: serde_json::Value| -> Pod {
            let spec = json!({ "spec": { "containers": [{ "name": "model", "ports": ports }] } });
            serde_json::from_value(spec).unwrap()
        };
        let named = |name: &str, number: u16| json!({ "name": name, "containerPort": number });
        let dynamo = json!([named("nixl", 19_090), named("system", 9090)]);
        let ray = json!([named("serve", 8000), named("metrics", 8080)]);
        let with_sidecar = json!([named("metrics", 9464), named("http", 8000)]);
        let kaito = json!([{ "containerPort": 5000 }]);
        let other = json!([named("web", 8000)]);
        let found = [dynamo, ray, with_sidecar, kaito, other].map(|ports| port(&pod(ports)));
        assert_eq!(found, [Some(9090), Some(8080), Some(8000), Some(5000), None]);
    }
}
