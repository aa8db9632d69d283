//! Optional NetworkPolicies for the pods of models, which a platform team applies to the namespaces of models.
//!
//! Engines serve plain HTTP without authentication, so without a policy every pod of the cluster can call a model, whatever the
//! model router allows.

use kube::core::{DynamicObject, ObjectMeta};
use serde_json::json;

use super::engines::model_pods;
use super::metadata::{NAMESPACE, object};
use super::pods::{labelled, metrics_from};

/// Label of further namespaces that may reach the pods of models, such as those of a Gateway or of KubeRay's operator.
pub const CLIENTS_LABEL: &str = "kubeairunway.ai/engine-clients";

/// The policies, without a namespace. They admit pods of the same namespace, the namespace of the router and the controllers,
/// monitoring, and namespaces with [`CLIENTS_LABEL`].
pub fn network_policies() -> Vec<DynamicObject> {
    let mut from = vec![
        json!({ "podSelector": {} }),
        json!({ "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": NAMESPACE } } }),
        labelled(CLIENTS_LABEL),
    ];
    from.extend(metrics_from().as_array().cloned().unwrap_or_default());
    let pods = model_pods();
    pods.iter()
        .map(|pods| {
            // Without the labels of an installation: an upgrade of the product leaves them alone.
            let metadata = ObjectMeta {
                name: Some(format!("kubeairunway-models{}", pods.suffix)),
                ..ObjectMeta::default()
            };
            object(&json!({
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": metadata,
                "spec": {
                    "podSelector": { "matchExpressions": pods.selector },
                    "policyTypes": ["Ingress"],
                    "ingress": [{ "from": from }],
                },
            }))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;

    use super::*;

    #[test]
    fn policies_admit_router_monitoring_and_own_namespace_only() {
        let policies = network_policies();
        let names: Vec<String> = policies.iter().map(ResourceExt::name_any).collect();
        assert_eq!(names, ["kubeairunway-models", "kubeairunway-models-kaito"]);
        for policy in &policies {
            assert!(policy.metadata.labels.is_none() && policy.metadata.namespace.is_none());
            assert_eq!(policy.data["spec"]["policyTypes"], json!(["Ingress"]));
            assert_eq!(
                policy.data["spec"]["ingress"],
                json!([{ "from": [
                    { "podSelector": {} },
                    { "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": "kubeairunway-system" } } },
                    { "namespaceSelector": { "matchLabels": { "kubeairunway.ai/engine-clients": "true" } } },
                    { "namespaceSelector": { "matchLabels": { "kubeairunway.ai/monitoring": "true" } } },
                    { "namespaceSelector": { "matchExpressions": [{
                        "key": "kubernetes.io/metadata.name",
                        "operator": "In",
                        "values": ["monitoring", "openshift-monitoring", "openshift-user-workload-monitoring"],
                    }] } },
                ] }])
            );
        }
    }
}
