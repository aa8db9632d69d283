//! Fields of a ModelDeployment for property tests of a provider: none may be dropped silently.

use std::collections::BTreeSet;

use kube::CustomResourceExt;
use runway_api::ModelDeployment;
use serde_json::{Value, json};

/// Fields of the spec, as dotted paths with `[]` for the items of a list, down to maps and values. A path in `tried` counts as one
/// field. A test compares the result with `tried`, so that a new field of the API fails it.
pub fn of_spec(tried: &BTreeSet<String>) -> BTreeSet<String> {
    let schema = serde_json::to_value(ModelDeployment::crd()).unwrap_or_default();
    let spec = &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut found = BTreeSet::new();
    leaves("", spec, tried, &mut found);
    found
}

fn leaves(path: &str, schema: &Value, tried: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        None if schema["items"]["properties"].is_object() && !tried.contains(path) => {
            leaves(&format!("{path}[]"), &schema["items"], tried, found);
        }
        Some(properties) if !tried.contains(path) => {
            for (name, inner) in properties {
                let at = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(&at, inner, tried, found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Fields of pods and volumes, each with a recognizable value, and texts of which one must be in the objects or in a message.
pub fn of_pods() -> Vec<(&'static str, Value, &'static [&'static str])> {
    vec![
        (
            "imagePullSecrets",
            json!([{"name": "marked-registry"}]),
            &["marked-registry", "spec.imagePullSecrets"],
        ),
        (
            "serviceAccountName",
            json!("marked-account"),
            &["marked-account", "spec.serviceAccountName"],
        ),
        (
            "podTemplate.spec.affinity",
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "marked-host"}]}}),
            &["marked-host", "podTemplate.spec.affinity"],
        ),
        (
            "podTemplate.spec.topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "marked-zone", "whenUnsatisfiable": "DoNotSchedule"}]),
            &["marked-zone", "podTemplate.spec.topologySpreadConstraints"],
        ),
        (
            "podTemplate.spec.priorityClassName",
            json!("marked-priority"),
            &["marked-priority", "podTemplate.spec.priorityClassName"],
        ),
        (
            "podTemplate.spec.runtimeClassName",
            json!("marked-runtime"),
            &["marked-runtime", "podTemplate.spec.runtimeClassName"],
        ),
        (
            "podTemplate.spec.schedulerName",
            json!("marked-scheduler"),
            &["marked-scheduler", "podTemplate.spec.schedulerName"],
        ),
        (
            "podTemplate.spec.securityContext",
            json!({"runAsUser": 31337}),
            &["31337", "podTemplate.spec.securityContext"],
        ),
        (
            "podTemplate.spec.shmSize",
            json!("37Gi"),
            &["37Gi", "podTemplate.spec.shmSize"],
        ),
        (
            "model.storage.volumes",
            json!([{"name": "marked", "claimName": "marked-claim", "mountPath": "/marked"}]),
            &["marked-claim", "spec.model.storage"],
        ),
    ]
}
