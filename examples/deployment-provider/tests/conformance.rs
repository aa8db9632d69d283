//! Any provider proves that it keeps the contract like this: samples, and one call.

use deployment_provider::DeploymentProvider;
use runway_provider::conformance::{Report, Samples, check};
use serde_json::json;

#[test]
fn keeps_the_contract() -> Result<(), Report> {
    check(&DeploymentProvider, &samples()).map(drop)
}

fn samples() -> Samples {
    Samples {
        served: json!({
            "apiVersion": "kubeairunway.ai/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": { "name": "echo" },
            "spec": {
                "model": { "id": "some/model" },
                "engine": { "type": "custom" },
                "image": "echo:1",
                "resources": { "memory": "1Gi" },
            },
        }),
        identity: vec![
            ("model.id", json!({ "spec": { "model": { "id": "some/other" } } })),
            (
                "model.source",
                json!({ "spec": { "model": { "id": null, "source": "custom" } } }),
            ),
            ("engine.type", json!({ "spec": { "engine": { "type": "llamacpp" } } })),
            (
                "serving.mode",
                json!({ "spec": { "serving": { "mode": "disaggregated" }, "scaling": { "prefill": {}, "decode": {} } } }),
            ),
        ],
        updates: vec![
            json!({ "spec": { "scaling": { "replicas": 3 } } }),
            json!({ "spec": { "image": "echo:2", "env": [{ "name": "A", "value": "b" }] } }),
            json!({ "spec": { "provider": { "overrides": { "serviceType": "NodePort" } } } }),
        ],
        // A Deployment forbids a change of its selector only, which is made from the name.
        recreates: Vec::new(),
        refused: vec![
            ("spec.image is required", json!({ "spec": { "image": null } })),
            (
                "does not support disaggregated mode",
                json!({ "spec": { "serving": { "mode": "disaggregated" }, "scaling": { "prefill": {}, "decode": {} } } }),
            ),
        ],
        ready: |deployment| {
            deployment["status"] = json!({
                "observedGeneration": deployment["metadata"]["generation"],
                "readyReplicas": deployment["spec"]["replicas"],
                "availableReplicas": deployment["spec"]["replicas"],
            });
        },
        failed: |deployment| {
            deployment["status"] = json!({
                "observedGeneration": deployment["metadata"]["generation"],
                "conditions": [{ "type": "Progressing", "status": "False", "message": "exceeded its progress deadline" }],
            });
        },
        failure: "exceeded its progress deadline",
    }
}
