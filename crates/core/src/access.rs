//! RBAC rules of the core controller: exactly what it uses.

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_api::labels;
use runway_operator::access::{named, rule};
use runway_operator::object::Kind;
use runway_operator::{lease, webhook};

use crate::admission::manifests::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use crate::autoscalers::{HORIZONTAL_POD_AUTOSCALER, SCALED_OBJECT};
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
        // Required for owner references that block deletion, in clusters that enforce it.
        rule("kubeairunway.ai", &["modeldeployments/finalizers"], &["update"]),
        autoscalers(HORIZONTAL_POD_AUTOSCALER),
        autoscalers(SCALED_OBJECT),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        configuration("mutatingwebhookconfigurations", MUTATING_CONFIGURATION),
        configuration("validatingwebhookconfigurations", VALIDATING_CONFIGURATION),
    ];
    let crds = |verbs: &[&str]| rule("apiextensions.k8s.io", &["customresourcedefinitions"], verbs);
    rules.push(named(crds(&["list", "watch"]), &[&SCALED_OBJECT.crd_name()]));
    if conversion::is_needed() {
        rules.push(named(crds(&["list", "watch", "patch"]), &[conversion::crd_name()]));
    }
    rules
}

/// Rule for a kind of autoscaler. Those of others are read: they may scale a ModelDeployment.
fn autoscalers(kind: Kind) -> PolicyRule {
    let verbs = ["list", "watch", "create", "patch", "delete"];
    rule(kind.group, &[kind.plural], &verbs)
}

/// Rule for the CA bundle in one webhook configuration.
fn configuration(resource: &str, name: &str) -> PolicyRule {
    let all = rule("admissionregistration.k8s.io", &[resource], &["list", "watch", "patch"]);
    named(all, &[name])
}

/// Rules of the core's Role in its own namespace: the one Secret with its certificate authority, and its Lease.
pub fn access_in_namespace(secret: &str) -> Vec<PolicyRule> {
    let mut rules = webhook::access_in_namespace(secret);
    rules.extend(lease::access(labels::CORE_MANAGER));
    rules
}
