//! RBAC rules of the operator: only those that it uses. Of Secrets it reads and writes those with one name, which are its own.

use k8s_openapi::api::rbac::v1::PolicyRule;
use runway_api::labels;
use runway_operator::access::{named, rule};
use runway_operator::lease;

use crate::names;
use crate::targets::{DEPLOYMENT, INFERENCE_SERVICE, KNOWN, STATEFUL_SET};

/// Rules of the operator's ClusterRole.
pub fn access() -> Vec<PolicyRule> {
    let mut rules = vec![
        rule("asya.sh", &["asyncactors"], &["list", "watch", "patch"]),
        rule("asya.sh", &["asyncactors/status"], &["patch"]),
        // Some clusters require this for owner references that block deletion (OwnerReferencesPermissionEnforcement).
        rule("asya.sh", &["asyncactors/finalizers"], &["update"]),
        rule(
            "apps",
            &["deployments", "statefulsets"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("", &["configmaps"], &["list", "watch", "create", "patch", "delete"]),
        // Server-side apply creates an object by its name, so that the name bounds this right too.
        named(
            rule("", &["secrets"], &["list", "watch", "create", "patch", "delete"]),
            &[names::BROKER_SECRET],
        ),
        rule(
            "keda.sh",
            &["scaledobjects", "triggerauthentications"],
            &["list", "watch", "create", "patch", "delete"],
        ),
        rule("", &["pods"], &["list", "watch"]),
        // As a dry run: pods that a changed template would create.
        named(rule("", &["pods"], &["create", "patch"]), &[names::TRIAL_POD]),
        rule(INFERENCE_SERVICE.group, &[INFERENCE_SERVICE.plural], &["patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ];
    let targets = KNOWN.iter().filter(|kind| ![DEPLOYMENT, STATEFUL_SET].contains(kind));
    rules.extend(
        targets
            .clone()
            .map(|kind| rule(kind.group, &[kind.plural], &["get", "list", "watch"])),
    );
    let crds: Vec<String> = targets
        .map(|kind| format!("{}.{}", kind.plural, kind.group))
        .chain([
            "scaledobjects.keda.sh".to_owned(),
            "triggerauthentications.keda.sh".to_owned(),
        ])
        .collect();
    let crds: Vec<&str> = crds.iter().map(String::as_str).collect();
    rules.push(named(
        rule(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            &["list", "watch"],
        ),
        &crds,
    ));
    rules
}

/// Rules of the operator's Role in its own namespace, for its Lease.
pub fn access_in_namespace() -> Vec<PolicyRule> {
    lease::access(labels::ASYA_MANAGER)
}
