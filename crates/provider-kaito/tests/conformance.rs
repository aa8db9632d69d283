//! Conformance of the KAITO provider, with the user's container and with a preset.

use runway_provider::conformance::{Report, Samples, check};
use runway_provider_kaito::Kaito;
use serde_json::{Value, json};

#[test]
fn a_container_keeps_the_contract() -> Result<(), Report> {
    let served = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": { "name": "gemma" },
        "spec": {
            "model": { "id": "google/gemma-3-1b-it-qat-q8_0-gguf" },
            "engine": { "type": "llamacpp" },
            "resources": { "memory": "16Gi", "cpu": "8" },
            "image": "llama-cpp:1",
            "scaling": { "replicas": 2 },
        },
    });
    let samples = Samples {
        identity: vec![
            (
                "model.id",
                json!({ "spec": { "model": { "id": "google/another-gguf" } } }),
            ),
            (
                "model.source",
                json!({ "spec": { "model": { "id": null, "source": "custom" } } }),
            ),
            (
                "engine.type",
                json!({ "spec": { "engine": { "type": "vllm" }, "resources": { "gpu": { "count": 2 } } } }),
            ),
            ("serving.mode", disaggregated()),
        ],
        // KAITO rolls out no other change to existing pods.
        updates: [3, 1, 0]
            .map(|replicas| json!({ "spec": { "scaling": { "replicas": replicas } } }))
            .to_vec(),
        recreates: vec![
            ("resources", json!({ "spec": { "resources": { "memory": "20Gi" } } })),
            ("spec.image", json!({ "spec": { "image": "llama-cpp:2" } })),
            (
                "engine.args.hf-file",
                json!({ "spec": { "engine": { "args": { "hf-file": "gemma.gguf" } } } }),
            ),
            (
                "provider.overrides.imageFamily",
                json!({ "spec": { "provider": { "overrides": { "imageFamily": "LlamaServer" } } } }),
            ),
            (
                "spec.env",
                json!({ "spec": { "env": [{ "name": "A", "value": "b" }] } }),
            ),
            ("nodeSelector", json!({ "spec": { "nodeSelector": { "pool": "b" } } })),
        ],
        refused: vec![
            ("KAITO does not support disaggregated mode", disaggregated()),
            ("requires spec.image to be set", json!({ "spec": { "image": null } })),
            (
                "KAITO does not support sglang engine",
                json!({ "spec": { "engine": { "type": "sglang" } } }),
            ),
        ],
        ..samples(served)
    };
    check(&Kaito::default(), &samples).map(drop)
}

#[test]
fn a_preset_keeps_the_contract() -> Result<(), Report> {
    let served = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": { "name": "llama" },
        "spec": {
            "model": { "id": "meta-llama/Llama-3.1-8B-Instruct" },
            "engine": { "type": "vllm", "contextLength": 8192 },
            "resources": { "gpu": { "count": 1 } },
            "scaling": { "replicas": 3 },
        },
    });
    let samples = Samples {
        identity: vec![
            ("model.id", json!({ "spec": { "model": { "id": "microsoft/phi-4" } } })),
            (
                "model.source",
                json!({ "spec": { "model": { "id": null, "source": "custom" }, "image": "vllm:1" } }),
            ),
            (
                "engine.type",
                json!({ "spec": { "engine": { "type": "llamacpp" }, "image": "llama-cpp:1" } }),
            ),
            ("serving.mode", disaggregated()),
        ],
        updates: [4, 1, 0]
            .map(|replicas| json!({ "spec": { "scaling": { "replicas": replicas } } }))
            .to_vec(),
        recreates: vec![
            ("nodeSelector", json!({ "spec": { "nodeSelector": { "pool": "b" } } })),
            (
                "secrets.huggingFaceToken",
                json!({ "spec": { "secrets": { "huggingFaceToken": "hf-token" } } }),
            ),
        ],
        refused: vec![
            (
                "vLLM engine requires GPU",
                json!({ "spec": { "resources": { "gpu": null } } }),
            ),
            (
                "spec.env cannot be passed",
                json!({ "spec": { "env": [{ "name": "A", "value": "b" }] } }),
            ),
        ],
        ..samples(served)
    };
    check(&Kaito::default(), &samples).map(drop)
}

fn samples(served: Value) -> Samples {
    Samples {
        served,
        identity: Vec::new(),
        updates: Vec::new(),
        recreates: vec![("nodeSelector", json!({ "spec": { "nodeSelector": { "pool": "b" } } }))],
        refused: Vec::new(),
        ready: |object| {
            object["status"] = if object["kind"] == "InferenceSet" {
                json!({ "readyReplicas": object["spec"]["replicas"] })
            } else {
                json!({ "state": "Ready", "conditions": [condition("WorkspaceSucceeded", "True", "workspaceSucceeded", "ready")] })
            };
        },
        failed: |object| {
            object["status"] = if object["kind"] == "InferenceSet" {
                json!({ "readyReplicas": 0, "conditions": [condition("InferenceSetReady", "False", "inferencesetFailed", "out of GPUs")] })
            } else {
                json!({ "state": "NotReady", "conditions": [condition("WorkspaceSucceeded", "False", "BenchmarkFailed", "out of GPUs")] })
            };
        },
        failure: "out of GPUs",
    }
}

fn disaggregated() -> Value {
    json!({ "spec": { "serving": { "mode": "disaggregated" }, "scaling": { "replicas": null, "prefill": {}, "decode": {} } } })
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z" })
}
