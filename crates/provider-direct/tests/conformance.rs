//! Conformance of the direct provider, with and without GPUs.

use runway_provider::conformance::{Report, Samples, check};
use runway_provider_direct::Direct;
use serde_json::{Value, json};

#[test]
fn a_model_on_cpus_keeps_the_contract() -> Result<(), Report> {
    let served = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "gemma"},
        "spec": {
            "model": {"id": "google/gemma-3-1b-it-qat-q4_0-gguf"},
            "engine": {"type": "llamacpp"},
            "resources": {"memory": "4096Mi", "cpu": "0.5"},
        },
    });
    let samples = Samples {
        identity: vec![
            ("model.id", json!({"spec": {"model": {"id": "google/another-gguf"}}})),
            (
                "model.source",
                json!({"spec": {"model": {"id": null, "source": "custom"}, "image": "gemma:1"}}),
            ),
            (
                "engine.type",
                json!({"spec": {"engine": {"type": "vllm"}, "resources": {"gpu": {"count": 2}}}}),
            ),
            ("serving.mode", disaggregated()),
        ],
        updates: vec![
            json!({"spec": {"scaling": {"replicas": 3}}}),
            json!({"spec": {"scaling": {"replicas": 0}}}),
            json!({"spec": {"resources": {"memory": "8Gi"}}}),
            json!({"spec": {"image": "llama:2", "env": [{"name": "A", "value": "b"}]}}),
            json!({"spec": {"provider": {"overrides": {"serviceType": "NodePort", "rollout": "InPlace"}}}}),
        ],
        refused: vec![
            ("does not support disaggregated mode", disaggregated()),
            (
                "does not support mystery engine",
                json!({"spec": {"engine": {"type": "mystery"}}}),
            ),
            (
                "set it to Surge or InPlace",
                json!({"spec": {"provider": {"overrides": {"rollout": "Never"}}}}),
            ),
        ],
        ..samples(served)
    };
    check(&Direct::default(), &samples).map(drop)
}

#[test]
fn a_model_on_gpus_keeps_the_contract() -> Result<(), Report> {
    let served = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "llama"},
        "spec": {
            "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"type": "vllm", "contextLength": 8192},
            "resources": {"gpu": {"count": 2}},
            "scaling": {"replicas": 2},
            "secrets": {"huggingFaceToken": "hf-token"},
        },
    });
    let samples = Samples {
        identity: vec![
            ("model.id", json!({"spec": {"model": {"id": "microsoft/phi-4"}}})),
            (
                "model.source",
                json!({"spec": {"model": {"id": null, "source": "custom"}, "image": "phi:1"}}),
            ),
            ("engine.type", json!({"spec": {"engine": {"type": "sglang"}}})),
            ("serving.mode", disaggregated()),
        ],
        updates: vec![
            json!({"spec": {"resources": {"gpu": {"count": 4}}}}),
            json!({"spec": {"nodeSelector": {"pool": "b"}, "engine": {"args": {"port": "9000"}}}}),
        ],
        refused: vec![
            (
                "vLLM engine requires GPU",
                json!({"spec": {"resources": {"gpu": null}}}),
            ),
            (
                "default image for vllm is for NVIDIA GPUs",
                json!({"spec": {"resources": {"gpu": {"type": "amd.com/gpu"}}}}),
            ),
        ],
        ..samples(served)
    };
    check(&Direct::default(), &samples).map(drop)
}

fn samples(served: Value) -> Samples {
    Samples {
        served,
        identity: Vec::new(),
        updates: Vec::new(),
        // A Deployment does not allow to change its selector only, which is derived from the name.
        recreates: Vec::new(),
        refused: Vec::new(),
        ready: |deployment| {
            let replicas = deployment["spec"]["replicas"].clone();
            deployment["status"] = json!({
                "observedGeneration": deployment["metadata"]["generation"],
                "replicas": replicas, "updatedReplicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
            });
        },
        failed: |deployment| {
            deployment["status"] = json!({
                "observedGeneration": deployment["metadata"]["generation"],
                "conditions": [{
                    "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                    "message": "pods are forbidden: exceeded quota",
                }],
            });
        },
        failure: "exceeded quota",
    }
}

fn disaggregated() -> Value {
    json!({"spec": {"serving": {"mode": "disaggregated"}, "scaling": {"replicas": null, "prefill": {}, "decode": {}}}})
}
