//! Metrics of inference engines: the engines that are read, the parser of their text, and what two readings say about the use of a
//! model. Pure.
//!
//! | module | content |
//! |---|---|
//! | here | the engines, and where a pod serves their metrics |
//! | [`text`] | the text format of Prometheus |
//! | [`usage`] | running and waiting requests, tokens per second, use of the KV cache |

pub mod text;
pub mod usage;

use k8s_openapi::api::core::v1::Pod;
use runway_provider::engine::{LLAMACPP, Metrics, SGLANG, VLLM, llamacpp, sglang, vllm};

pub use usage::{Reading, Usage};

/// An engine whose metrics are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Name for users.
    pub title: &'static str,
    /// Names of its metrics.
    pub metrics: Metrics,
}

/// The engines whose metrics are read. Ray exports the metrics of vLLM with underscores and a prefix: vLLM
/// `vllm/v1/metrics/ray_wrappers.py`, Ray `python/ray/dashboard/modules/metrics/dashboards/serve_llm_dashboard_panels.py`.
pub const ENGINES: [Engine; 4] = [
    Engine {
        title: VLLM.title,
        metrics: vllm::METRICS,
    },
    Engine {
        title: SGLANG.title,
        metrics: sglang::METRICS,
    },
    Engine {
        title: LLAMACPP.title,
        metrics: llamacpp::METRICS,
    },
    Engine {
        title: "vLLM on Ray",
        metrics: Metrics {
            family: "ray_vllm_",
            running: "ray_vllm_num_requests_running",
            waiting: "ray_vllm_num_requests_waiting",
            tokens: "ray_vllm_generation_tokens_total",
            tokens_per_second: None,
            kv_cache: &["ray_vllm_kv_cache_usage_perc", "ray_vllm_gpu_cache_usage_perc"],
            first_token: Some("ray_vllm_time_to_first_token_seconds"),
        },
    },
];

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
