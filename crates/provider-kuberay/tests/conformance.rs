//! Conformance of the KubeRay provider, in both serving modes.

use runway_provider::conformance::{Report, Samples, check};
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

#[test]
fn an_aggregated_model_keeps_the_contract() -> Result<(), Report> {
    let served = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": "llama"},
        "spec": {
            "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
            "provider": {"name": "kuberay"},
            "engine": {"type": "vllm"},
            "resources": {"gpu": {"count": 2}},
            "scaling": {"replicas": 2},
        },
    });
    let samples = Samples {
        identity: vec![
            ("model.id", json!({"spec": {"model": {"id": "microsoft/phi-4"}}})),
            (
                "model.source",
                json!({"spec": {"model": {"id": "/models/phi-4", "source": "custom"}, "image": "phi:1"}}),
            ),
            ("engine.type", json!({"spec": {"engine": {"type": "sglang"}}})),
            ("serving.mode", disaggregated()),
        ],
        refused: vec![
            (
                "KubeRay does not support llamacpp engine",
                json!({"spec": {"engine": {"type": "llamacpp"}}}),
            ),
            (
                "KubeRay requires GPU (set resources.gpu.count > 0)",
                json!({"spec": {"resources": {"gpu": null}}}),
            ),
            (
                "engine.args.max-num-seqs is 'many'",
                json!({"spec": {"engine": {"args": {"max-num-seqs": "many"}}}}),
            ),
        ],
        updates: vec![
            json!({"spec": {"scaling": {"replicas": 4}}}),
            json!({"spec": {"scaling": {"replicas": 0}}}),
            json!({"spec": {"image": "ray-llm:2.55.0", "env": [{"name": "A", "value": "b"}]}}),
            json!({"spec": {"secrets": {"huggingFaceToken": "hf-token"}, "nodeSelector": {"pool": "b"}}}),
        ],
        ..samples(served)
    };
    check(&KubeRay::default(), &samples).map(drop)
}

#[test]
fn a_disaggregated_model_keeps_the_contract() -> Result<(), Report> {
    let mut served = disaggregated();
    served["apiVersion"] = json!("kubeairunway.ai/v1alpha1");
    served["kind"] = json!("ModelDeployment");
    served["metadata"] = json!({"name": "llama"});
    served["spec"]["model"] = json!({"id": "meta-llama/Llama-3.1-8B-Instruct"});
    served["spec"]["engine"] = json!({"type": "vllm"});
    let samples = Samples {
        identity: vec![
            ("model.id", json!({"spec": {"model": {"id": "microsoft/phi-4"}}})),
            (
                "model.source",
                json!({"spec": {"model": {"id": "/models/phi-4", "source": "custom"}, "image": "phi:1"}}),
            ),
            ("engine.type", json!({"spec": {"engine": {"type": "trtllm"}}})),
            (
                "serving.mode",
                json!({"spec": {
                    "serving": null,
                    "scaling": {"prefill": null, "decode": null},
                    "resources": {"gpu": {"count": 1}},
                }}),
            ),
        ],
        refused: vec![(
            "KubeRay requires GPU (set scaling.decode.gpu.count > 0)",
            json!({"spec": {"scaling": {"decode": {"gpu": null}}}}),
        )],
        updates: vec![json!({"spec": {"scaling": {"prefill": {"replicas": 3}}}})],
        ..samples(served)
    };
    check(&KubeRay::default(), &samples).map(drop)
}

/// KubeRay allows every change: it starts a second cluster if necessary.
fn samples(served: Value) -> Samples {
    Samples {
        served,
        identity: Vec::new(),
        updates: Vec::new(),
        recreates: Vec::new(),
        refused: Vec::new(),
        ready: |object| {
            object["status"] = if object["spec"]["suspend"] == true {
                json!({"conditions": [condition("Suspended", "True", "SuspendComplete")]})
            } else {
                let mut ready = condition("Ready", "True", "NonZeroServeEndpoints");
                ready["observedGeneration"] = object["metadata"]["generation"].clone();
                json!({
                    "conditions": [ready],
                    "activeServiceStatus": {"rayClusterName": "a", "applicationStatuses": {"llm": {"status": "RUNNING"}}},
                })
            };
        },
        failed: |object| {
            object["status"] = json!({
                "conditions": [condition("Ready", "False", "Initializing")],
                "pendingServiceStatus": {
                    "rayClusterName": "a",
                    "applicationStatuses": {"llm": {"status": "DEPLOY_FAILED", "message": "out of GPUs"}},
                },
            });
        },
        failure: "out of GPUs",
    }
}

fn disaggregated() -> Value {
    let part = json!({"replicas": 1, "gpu": {"count": 1}, "memory": "16Gi"});
    json!({"spec": {
        "serving": {"mode": "disaggregated"},
        "scaling": {"replicas": null, "prefill": part, "decode": part},
        "resources": null,
    }})
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}
