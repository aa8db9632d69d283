//! Helpers of the judges.

use std::sync::LazyLock;

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use runway_client::target::Kind;
use runway_manifests::{self as manifests, Component};

use crate::check::{Finding, Observed, Skip};

/// Components of the product, computed once because schemas are expensive.
pub(super) static COMPONENTS: LazyLock<Vec<Component>> = LazyLock::new(manifests::components);

/// Skips a check without objects.
pub(super) fn unless_none<T>(all: &[T], what: &str) -> Result<(), Skip> {
    if all.is_empty() {
        return Err(Skip(format!("no {what}")));
    }
    Ok(())
}

/// A finding about an object that its controller has not reconciled: for another reason if that is not installed, or does not watch
/// the namespace.
pub(super) fn unobserved(observed: &Observed, kind: Kind, namespace: &str, finding: Finding) -> Finding {
    let Some((controller, install)) = kind.controller() else {
        return finding;
    };
    let is_it = |deployment: &Deployment| deployment.name_any() == controller;
    if observed.deployments().is_ok_and(|all| !all.iter().any(is_it)) {
        let text = format!("not reconciled: {controller} is not installed");
        return Finding { text, ..finding }.remedy(format!("kubeairunway {install}"));
    }
    let watched = observed.watched_by(controller);
    if watched.contain(namespace) {
        return finding;
    }
    let text = format!("not reconciled: {controller} watches only the namespaces {watched}");
    let remedy = format!("kubeairunway controller upgrade --namespaces {watched},{namespace}");
    Finding { text, ..finding }.remedy(remedy)
}

/// Findings about each object.
pub(super) fn each<T>(all: &[T], find: impl Fn(&T) -> Option<Finding>) -> Vec<Finding> {
    all.iter().filter_map(find).collect()
}
