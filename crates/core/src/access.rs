//! What the core controller may do in a cluster: exactly what it uses.

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_operator::access::{named, rule};

use crate::admission::manifests::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};

/// The rules of the core's ClusterRole.
pub fn access() -> Vec<PolicyRule> {
    vec![
        rule("kubeairunway.ai", &["modeldeployments"], &["list", "watch", "patch"]),
        rule(
            "kubeairunway.ai",
            &["modeldeployments/status", "inferenceproviderconfigs/status"],
            &["patch"],
        ),
        rule("kubeairunway.ai", &["inferenceproviderconfigs"], &["list", "watch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        named(
            rule(
                "admissionregistration.k8s.io",
                &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
                &["list", "watch", "patch"],
            ),
            &[MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION],
        ),
    ]
}

/// The rules of the core's Role in its own namespace: the one Secret with its certificate authority.
pub fn access_in_namespace(secret: &str) -> Vec<PolicyRule> {
    vec![
        // A create cannot be limited to a name.
        rule("", &["secrets"], &["create"]),
        named(rule("", &["secrets"], &["list", "watch", "patch"]), &[secret]),
    ]
}
