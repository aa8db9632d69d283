//! RBAC rules of the core controller: exactly what it uses.

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_api::labels;
use runway_operator::access::{named, rule};
use runway_operator::lease;

use crate::admission::manifests::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use crate::conversion;

/// Rules of the core's ClusterRole.
pub fn access() -> Vec<PolicyRule> {
    let mut rules = vec![
        rule("kubeairunway.ai", &["modeldeployments"], &["list", "watch", "patch"]),
        rule(
            "kubeairunway.ai",
            &["modeldeployments/status", "inferenceproviderconfigs/status"],
            &["patch"],
        ),
        rule("kubeairunway.ai", &["inferenceproviderconfigs"], &["list", "watch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        configuration("mutatingwebhookconfigurations", MUTATING_CONFIGURATION),
        configuration("validatingwebhookconfigurations", VALIDATING_CONFIGURATION),
    ];
    if conversion::is_needed() {
        let all = rule(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            &["list", "watch", "patch"],
        );
        rules.push(named(all, &[conversion::crd_name()]));
    }
    rules
}

/// Rule for the CA bundle in one webhook configuration.
fn configuration(resource: &str, name: &str) -> PolicyRule {
    let all = rule("admissionregistration.k8s.io", &[resource], &["list", "watch", "patch"]);
    named(all, &[name])
}

/// Rules of the core's Role in its own namespace: the one Secret with its certificate authority, and its Lease.
pub fn access_in_namespace(secret: &str) -> Vec<PolicyRule> {
    let mut rules = vec![
        // A create cannot be limited to a name.
        rule("", &["secrets"], &["create"]),
        named(rule("", &["secrets"], &["list", "watch", "patch"]), &[secret]),
    ];
    rules.extend(lease::access(labels::CORE_MANAGER));
    rules
}
