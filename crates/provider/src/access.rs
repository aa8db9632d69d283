//! RBAC rules of a provider: exactly what the loop uses.

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_api::labels;
use runway_operator::access::{named, rule};
use runway_operator::{lease, services};

use crate::contract::{CLAIM, Provider};

/// Rules of a provider's Role in its own namespace: its Lease.
pub fn access_in_namespace(provider: &dyn Provider) -> Vec<PolicyRule> {
    lease::access(&labels::provider_manager(provider.name()))
}

/// Additional rules for a controller outside the cluster, which reaches endpoints through the API server.
pub fn access_from_outside() -> Vec<PolicyRule> {
    vec![rule("", &["services/proxy"], &["get", "create"])]
}

/// Rules of a provider's ClusterRole.
pub fn access(provider: &dyn Provider) -> Vec<PolicyRule> {
    let mut rules = vec![
        rule("kubeairunway.ai", &["modeldeployments"], &["list", "watch", "patch"]),
        rule("kubeairunway.ai", &["modeldeployments/status"], &["patch"]),
        // Required for owner references that block deletion, in clusters that enforce it.
        rule("kubeairunway.ai", &["modeldeployments/finalizers"], &["update"]),
        // Limited to the provider's own object. An apply that creates is authorized by name too.
        named(
            rule(
                "kubeairunway.ai",
                &["inferenceproviderconfigs"],
                &["list", "watch", "create", "patch"],
            ),
            &[provider.name()],
        ),
        named(
            rule("kubeairunway.ai", &["inferenceproviderconfigs/status"], &["patch"]),
            &[provider.name()],
        ),
        rule("", &["pods"], &["list", "watch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ];
    let by_crd = provider.upstreams().into_iter().filter(|u| !u.kind.is_built_in());
    let crds: Vec<String> = by_crd.map(|u| u.kind.crd_name()).collect();
    // A rule without names would apply to all objects.
    if !crds.is_empty() {
        let crds: Vec<&str> = crds.iter().map(String::as_str).collect();
        rules.push(named(
            rule(
                "apiextensions.k8s.io",
                &["customresourcedefinitions"],
                &["list", "watch"],
            ),
            &crds,
        ));
    }
    if !provider.operator_deployments().is_empty() {
        rules.push(named(
            rule("apps", &["deployments"], &["list", "watch"]),
            provider.operator_deployments(),
        ));
    }
    // To ask endpoints.
    rules.extend(services::access());
    let mut kinds: Vec<_> = provider.children("any").into_iter().map(|c| c.kind).collect();
    kinds.push(CLAIM);
    kinds.dedup();
    rules.extend(kinds.iter().map(|kind| {
        rule(
            kind.group,
            &[kind.plural],
            &["list", "watch", "create", "patch", "delete"],
        )
    }));
    rules
}
