//! RBAC rules of the operator: exactly the requests that it sends. It reads no Secrets.

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::CustomResourceExt;
use runway_api::ModelDeployment;
use runway_api::labels::llama_stack::MANAGER;
use runway_operator::access::{named, rule};
use runway_operator::lease;

use crate::kinds;

/// The rules of the operator's ClusterRole.
pub fn access() -> Vec<PolicyRule> {
    let mut rules = vec![
        rule("llamastack.io", &["llamastackdistributions"], &["list", "watch"]),
        rule("llamastack.io", &["llamastackdistributions/status"], &["patch"]),
        // Owner references that block deletion ask for this where the cluster enforces it.
        rule("llamastack.io", &["llamastackdistributions/finalizers"], &["update"]),
        rule("", &["pods"], &["list", "watch"]),
        rule("kubeairunway.ai", &["modeldeployments"], &["list", "watch"]),
        named(
            rule(
                "apiextensions.k8s.io",
                &["customresourcedefinitions"],
                &["list", "watch"],
            ),
            &[ModelDeployment::crd_name()],
        ),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ];
    rules.extend(kinds::ALL.iter().map(|kind| {
        let verbs: &[&str] = match *kind {
            // These go with their owner, and never by us: a claim holds data, the other two are always wanted.
            kinds::CLAIM | kinds::SERVICE | kinds::DEPLOYMENT => &["list", "watch", "create", "patch"],
            _ => &["list", "watch", "create", "patch", "delete"],
        };
        rule(kind.group, &[kind.plural], verbs)
    }));
    rules
}

/// The rules of the operator's Role in its own namespace: its own pod, whose image it uses, and its Lease.
pub fn access_in_namespace() -> Vec<PolicyRule> {
    let mut rules = vec![rule("", &["pods"], &["get"])];
    rules.extend(lease::access(MANAGER));
    rules
}
