//! Flags of every engine and role, by the release of Dynamo's runtime.

use serde_json::json;

use crate::{args, document, dynamo, translate};

const NIXL: &str = r#"--kv-transfer-config {"kv_connector":"NixlConnector","kv_role":"kv_both"}"#;
const VLLM_EVENTS: &str = r#"--kv-events-config {"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:20080","enable_kv_cache_events":true}"#;
const SGLANG_EVENTS: &str = r#"--kv-events-config {"publisher":"zmq","topic":"kv-events","endpoint":"tcp://*:5557"}"#;
const SGLANG_PD: &str = "--disaggregation-bootstrap-port 12345 --disaggregation-mode ROLE --disaggregation-transfer-backend nixl --host 0.0.0.0";

/// Without the model and its name, for two GPUs behind a router that uses KV caches.
#[test]
fn each_release_gets_the_flags_it_has() {
    let sglang = |role: &str, events: &str| {
        let pd = SGLANG_PD.replace("ROLE", role);
        format!("{pd}{events} --page-size 16 --served-model-name m --skip-tokenizer-init --tp 2")
    };
    let sglang_events = format!(" {SGLANG_EVENTS}");
    let trt_prefill = r#"--disaggregation-mode prefill --override-engine-args {"cache_transceiver_config":{"backend":"DEFAULT"},"disable_overlap_scheduler":true}"#;
    let trt_decode =
        r#"--disaggregation-mode decode --override-engine-args {"cache_transceiver_config":{"backend":"DEFAULT"}}"#;
    let rest = "--served-model-name m --tensor-parallel-size 2";
    let table = [
        // vLLM before 1.0.0: one flag per role, NIXL and KV events by default.
        ("0.7.1", "vllm", "VllmWorker", rest.to_owned()),
        (
            "0.7.1",
            "vllm",
            "VllmPrefillWorker",
            format!("--is-prefill-worker {rest}"),
        ),
        (
            "0.9.1",
            "vllm",
            "VllmDecodeWorker",
            format!("--is-decode-worker {rest}"),
        ),
        // vLLM since 1.0.0: one flag for the role, and no defaults.
        ("1.0.0", "vllm", "VllmWorker", format!("{VLLM_EVENTS} {rest}")),
        (
            "1.0.0",
            "vllm",
            "VllmPrefillWorker",
            format!("--disaggregation-mode prefill {VLLM_EVENTS} {NIXL} {rest}"),
        ),
        (
            "1.4.2",
            "vllm",
            "VllmDecodeWorker",
            format!("--disaggregation-mode decode {NIXL} {rest}"),
        ),
        // SGLang: the same in all releases.
        (
            "0.7.1",
            "sglang",
            "SglangWorker",
            format!("{SGLANG_EVENTS} --page-size 16 --served-model-name m --tp 2"),
        ),
        (
            "0.7.1",
            "sglang",
            "SglangPrefillWorker",
            sglang("prefill", &sglang_events),
        ),
        (
            "1.3.1",
            "sglang",
            "SglangPrefillWorker",
            sglang("prefill", &sglang_events),
        ),
        ("1.3.1", "sglang", "SglangDecodeWorker", sglang("decode", "")),
        // TensorRT-LLM: the flag for KV events was renamed in 1.3.0.
        (
            "1.2.1",
            "trtllm",
            "TrtllmWorker",
            format!("--publish-events-and-metrics {rest}"),
        ),
        ("1.3.0", "trtllm", "TrtllmWorker", format!("--publish-kv-events {rest}")),
        (
            "0.7.1",
            "trtllm",
            "TrtllmPrefillWorker",
            format!("{trt_prefill} --publish-events-and-metrics {rest}"),
        ),
        (
            "1.3.1",
            "trtllm",
            "TrtllmPrefillWorker",
            format!("{trt_prefill} --publish-kv-events {rest}"),
        ),
        ("1.3.1", "trtllm", "TrtllmDecodeWorker", format!("{trt_decode} {rest}")),
    ];
    for (runtime, engine, component, expected) in table {
        for version in crate::VERSIONS {
            let is_part = component.contains("Prefill") || component.contains("Decode");
            let mode = if is_part { "disaggregated" } else { "aggregated" };
            let md = model_deployment(engine, mode);
            let dynamo = dynamo(&json!({"runtimeVersion": runtime}));
            let translation = translate(dynamo.as_ref(), &md, version, None).unwrap();
            let args = args(&document(&translation), component);
            let (model, flags) = args.split_at(2);
            assert!(model[0] == "--model" || model[0] == "--model-path", "{model:?}");
            assert_eq!(model[1], "org/m");
            assert_eq!(flags.join(" "), expected, "{engine} {runtime} {component}");
        }
    }
}

fn model_deployment(engine: &str, mode: &str) -> serde_json::Value {
    let mut spec = json!({
        "model": {"id": "org/m"},
        "engine": {"type": engine},
        "serving": {"mode": mode},
        "provider": {"overrides": {"routerMode": "kv"}},
    });
    if mode == "aggregated" {
        spec["resources"] = json!({"gpu": {"count": 2}});
    } else {
        spec["scaling"] = json!({"prefill": {"gpu": {"count": 2}}, "decode": {"gpu": {"count": 2}}});
    }
    json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "md", "namespace": "default"}, "spec": spec})
}
