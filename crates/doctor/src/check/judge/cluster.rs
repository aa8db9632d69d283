//! The API server, and what the user may do there.

use kube::ResourceExt;
use runway_manifests::{NAMESPACE, OLDEST_KUBERNETES};

use super::shared::COMPONENTS;
use crate::check::observed::Unread;
use crate::check::{Check, Finding, Observed};
use crate::check::{Judged, Skip};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "api-reachable",
        title: "API server responds",
        looks_at: "The API server responds to a request for its version, with the selected kubeconfig and context.",
        remedy: "select the correct context (kubectl config get-contexts) with --context NAME; check that the cluster is running",
        judge: Some(reachable),
    },
    Check {
        id: "api-credentials",
        title: "API server accepts the credentials",
        looks_at: "The API server does not respond with 401, for example because a token or certificate is expired or belongs to another cluster.",
        remedy: "log in to the cluster again, then: kubectl auth whoami",
        judge: Some(credentials),
    },
    Check {
        id: "api-version",
        title: "Kubernetes version is supported",
        looks_at: "The API server has version 1.26 or newer (CEL in CRDs, server-side apply).",
        remedy: "upgrade the cluster to Kubernetes 1.26 or newer",
        judge: Some(version),
    },
    Check {
        id: "rights-read",
        title: "you may read all objects that are checked",
        looks_at: "No list request was denied. Checks that require a denied list are skipped; all others run.",
        remedy: "ask an administrator for the permission, or to run the check",
        judge: Some(rights_to_read),
    },
    Check {
        id: "rights-deploy",
        title: "you may create ModelDeployments",
        looks_at: "A SelfSubjectAccessReview for the namespace of the context or of --namespace allows it.",
        remedy: "ask an administrator for the role edit in this namespace, then: kubectl auth can-i create modeldeployments",
        judge: Some(rights_to_deploy),
    },
];

pub(super) const BEFORE: &[Check] = &[
    Check {
        id: "pre-rights",
        title: "you may install",
        looks_at: "A SelfSubjectAccessReview for each kind that the installation writes allows it.",
        remedy: "log in as a cluster administrator",
        judge: Some(rights_to_install),
    },
    Check {
        id: "pre-namespace",
        title: "controller namespace is not being deleted",
        looks_at: "The Namespace kubeairunway-system is not being deleted.",
        remedy: "wait for the deletion: kubectl wait --for=delete namespace/kubeairunway-system",
        judge: Some(namespace_is_free),
    },
    Check {
        id: "pre-kinds",
        title: "no other product owns the CRDs",
        looks_at: "No CRD with one of the required names was installed by another product or is being deleted.",
        remedy: "kubectl get crd NAME -o yaml shows its owner; a CRD that is being deleted waits for the deletion of its objects",
        judge: Some(kinds_are_free),
    },
    Check {
        id: "pre-nodes",
        title: "a node can run the controllers",
        looks_at: "At least one node is Ready and schedulable.",
        remedy: "kubectl get nodes; kubectl uncordon NODE",
        judge: Some(super::nodes::some_ready),
    },
];

#[expect(clippy::unnecessary_wraps, reason = "same signature as the other judges")]
fn reachable(observed: &Observed) -> Judged {
    let trouble = |why: &String| Finding::error(format!("API server {}", observed.facts.url), why.clone());
    Ok(observed.facts.unreachable.iter().map(trouble).collect())
}

fn credentials(observed: &Observed) -> Judged {
    if observed.facts.unreachable.is_some() {
        observed.answers()?;
    }
    let trouble = |why: &String| Finding::error(format!("API server {}", observed.facts.url), why.clone());
    Ok(observed.facts.unauthorized.iter().map(trouble).collect())
}

/// Minor version of Kubernetes 1. Some servers say `v1.27.3-gke.1`.
pub(super) fn minor(observed: &Observed) -> Option<u32> {
    let version = observed.facts.version.as_deref()?;
    version.trim_start_matches('v').split('.').nth(1)?.parse().ok()
}

fn version(observed: &Observed) -> Judged {
    observed.answers()?;
    let Some(version) = &observed.facts.version else {
        return Err(Skip("the API server did not report its version".to_owned()));
    };
    match minor(observed) {
        Some(minor) if minor >= OLDEST_KUBERNETES => Ok(Vec::new()),
        _ => {
            let text = format!("runs Kubernetes {version}, but 1.{OLDEST_KUBERNETES} or newer is required");
            Ok(vec![Finding::error("API server", text)])
        }
    }
}

fn rights_to_read(observed: &Observed) -> Judged {
    observed.answers()?;
    let mut findings = Vec::new();
    if let Some(namespace) = &observed.facts.narrowed {
        let text =
            format!("you may not list objects in all namespaces: only '{namespace}' was checked (use -n for another)");
        findings.push(Finding::warning("Namespaces", text));
    }
    for (kind, why) in &observed.facts.unread {
        match why {
            Unread::NotInstalled => {}
            Unread::Forbidden(message) => findings.push(Finding::warning(kind, message)),
            Unread::Failed(message) => findings.push(Finding::warning(kind, format!("cannot be read: {message}"))),
        }
    }
    Ok(findings)
}

/// The right that `rights-deploy` asks for, as it is written in the facts.
pub(in crate::check) const DEPLOY: &str = "create modeldeployments.kubeairunway.ai";

fn rights_to_deploy(observed: &Observed) -> Judged {
    observed.answers()?;
    let is_it = |right: &&String| right.starts_with(DEPLOY);
    match observed.facts.may_not.iter().find(is_it) {
        Some(right) => Ok(vec![Finding::warning("You", format!("you may not {right}"))]),
        None if observed.facts.may.iter().any(|right| is_it(&right)) => Ok(Vec::new()),
        None => Err(Skip("not checked".to_owned())),
    }
}

fn rights_to_install(observed: &Observed) -> Judged {
    observed.answers()?;
    let missing = observed.facts.may_not.iter().filter(|right| !right.starts_with(DEPLOY));
    Ok(missing
        .map(|right| Finding::error("You", format!("you may not {right}")))
        .collect())
}

fn namespace_is_free(observed: &Observed) -> Judged {
    let ours = observed.namespaces()?.iter().filter(|n| n.name_any() == NAMESPACE);
    let leaving = ours.filter(|n| n.metadata.deletion_timestamp.is_some());
    Ok(leaving
        .map(|_| Finding::error(format!("Namespace {NAMESPACE}"), "being deleted"))
        .collect())
}

fn kinds_are_free(observed: &Observed) -> Judged {
    let ours: Vec<String> = COMPONENTS
        .iter()
        .flat_map(|c| &c.crds)
        .map(ResourceExt::name_any)
        .collect();
    let there = observed.crds()?.iter().filter(|crd| ours.contains(&crd.name_any()));
    Ok(there
        .filter_map(|crd| {
            let subject = format!("CustomResourceDefinition {}", crd.name_any());
            if crd.metadata.deletion_timestamp.is_some() {
                return Some(Finding::error(subject, "being deleted"));
            }
            let is_ours = crd.labels().contains_key(runway_api::labels::MANAGED_BY);
            (!is_ours).then(|| Finding::warning(subject, "exists, but was not installed by this product"))
        })
        .collect())
}
