//! Conformance of the Dynamo provider, aggregated and disaggregated.

use runway_provider::conformance::{Report, Samples, check};
use runway_provider_dynamo::Dynamo;
use serde_json::{Value, json};

#[test]
fn aggregated_keeps_the_contract() -> Result<(), Report> {
    let served = model_deployment(&json!({
        "model": { "id": "meta-llama/Llama-3.1-8B-Instruct" },
        "engine": { "type": "vllm", "contextLength": 8192 },
        "resources": { "gpu": { "count": 1 }, "memory": "32Gi", "cpu": "4" },
        "scaling": { "replicas": 2 },
        "secrets": { "huggingFaceToken": "hf-token" },
    }));
    let samples = Samples {
        identity: vec![
            ("model.id", json!({ "spec": { "model": { "id": "microsoft/phi-4" } } })),
            (
                "model.source",
                json!({ "spec": { "model": { "id": null, "source": "custom" }, "image": "llama:latest", "engine": { "args": { "model": "/m" } } } }),
            ),
            ("engine.type", json!({ "spec": { "engine": { "type": "sglang" } } })),
            ("serving.mode", in_parts()),
        ],
        updates: vec![
            json!({ "spec": { "scaling": { "replicas": 0 } } }),
            json!({ "spec": { "image": "vllm-runtime:latest", "env": [{ "name": "A", "value": "b" }] } }),
            json!({ "spec": { "provider": { "overrides": { "routerMode": "kv", "frontend": { "replicas": 2 } } } } }),
            json!({ "spec": { "resources": { "gpu": { "count": 4, "type": "amd.com/gpu" } }, "nodeSelector": { "pool": "b" }, "tolerations": [{ "operator": "Exists" }] } }),
            json!({ "spec": { "podTemplate": { "metadata": { "labels": { "team": "a" }, "annotations": { "note": "b" } } } } }),
        ],
        refused: vec![
            (
                "Dynamo does not support llamacpp engine",
                json!({ "spec": { "engine": { "type": "llamacpp" } } }),
            ),
            (
                "Dynamo requires GPU (set resources.gpu.count > 0)",
                json!({ "spec": { "resources": { "gpu": null } } }),
            ),
            (
                "routerMode is 'fastest'",
                json!({ "spec": { "provider": { "overrides": { "routerMode": "fastest" } } } }),
            ),
        ],
        ..samples(served)
    };
    check(&Dynamo::default(), &samples).map(drop)
}

#[test]
fn disaggregated_keeps_the_contract() -> Result<(), Report> {
    let served = model_deployment(&json!({
        "model": { "id": "meta-llama/Llama-3.1-70B-Instruct" },
        "engine": { "type": "trtllm" },
        "serving": { "mode": "disaggregated" },
        "scaling": { "prefill": { "replicas": 2, "gpu": { "count": 4 } }, "decode": { "replicas": 4, "gpu": { "count": 2 }, "memory": "64Gi" } },
    }));
    let samples = Samples {
        identity: vec![
            ("model.id", json!({ "spec": { "model": { "id": "microsoft/phi-4" } } })),
            (
                "model.source",
                json!({ "spec": { "model": { "id": null, "source": "custom" }, "image": "llama:1.3.1", "engine": { "args": { "model-path": "/m" } } } }),
            ),
            ("engine.type", json!({ "spec": { "engine": { "type": "vllm" } } })),
            (
                "serving.mode",
                json!({ "spec": { "serving": null, "scaling": null, "resources": { "gpu": { "count": 1 } } } }),
            ),
        ],
        updates: vec![json!({ "spec": { "scaling": { "decode": { "replicas": 8, "memory": "80Gi" } } } })],
        refused: vec![(
            "Dynamo requires GPU (set scaling.decode.gpu.count > 0)",
            json!({ "spec": { "scaling": { "decode": { "gpu": { "count": 0 } } } } }),
        )],
        ..samples(served)
    };
    check(&Dynamo::default(), &samples).map(drop)
}

/// Dynamo allows to change everything outside the identity.
fn samples(served: Value) -> Samples {
    Samples {
        served,
        identity: Vec::new(),
        updates: Vec::new(),
        recreates: Vec::new(),
        refused: Vec::new(),
        ready: |object| {
            let components = object["spec"]["components"].as_array().into_iter().flatten();
            let counts: serde_json::Map<String, Value> = components
                .map(|c| {
                    (
                        c["name"].as_str().unwrap_or_default().to_owned(),
                        json!({ "readyReplicas": c["replicas"] }),
                    )
                })
                .collect();
            object["status"] = json!({ "state": "successful", "components": counts, "conditions": [condition("True", "all_resources_are_ready", "ready")] });
        },
        failed: |object| {
            object["status"] = json!({ "state": "failed", "conditions": [condition("False", "error", "out of GPUs")] });
        },
        failure: "out of GPUs",
    }
}

fn model_deployment(spec: &Value) -> Value {
    json!({ "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": "llama" }, "spec": spec })
}

fn in_parts() -> Value {
    json!({ "spec": {
        "serving": { "mode": "disaggregated" },
        "resources": null,
        "scaling": { "replicas": null, "prefill": { "gpu": { "count": 1 } }, "decode": { "gpu": { "count": 1 } } },
    } })
}

fn condition(status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" })
}
