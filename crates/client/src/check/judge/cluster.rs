//! The API server, and what the user may do there.

use kube::ResourceExt;

use super::super::observed::Unread;
use super::{Check, Finding, Observed};
use crate::check::{Judged, Skip};
use crate::manifests::{NAMESPACE, OLDEST_KUBERNETES};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "api-reachable",
        title: "the API server answers",
        looks_at: "A request for the server's version, with the kubeconfig and the context that are in use.",
        remedy: "kubectl config get-contexts, then give the right one with --context NAME; is the cluster running?",
        judge: Some(reachable),
    },
    Check {
        id: "api-credentials",
        title: "the API server accepts the credentials",
        looks_at: "Whether the server answers 401: a token or certificate that has expired, or is another cluster's.",
        remedy: "log in to the cluster again, then: kubectl auth whoami",
        judge: Some(credentials),
    },
    Check {
        id: "api-version",
        title: "Kubernetes is new enough",
        looks_at: "The server's version: 1.26 is the oldest that will do (CEL in CRDs, server-side apply).",
        remedy: "upgrade the cluster to Kubernetes 1.26 or newer",
        judge: Some(version),
    },
    Check {
        id: "rights-read",
        title: "you may read what is checked here",
        looks_at: "Every list that was refused. The checks that need it are skipped, the others go on.",
        remedy: "ask an administrator for the right, or run the check as one",
        judge: Some(rights_to_read),
    },
    Check {
        id: "rights-deploy",
        title: "you may create ModelDeployments",
        looks_at: "A SelfSubjectAccessReview for the namespace of the context, or the one that was given.",
        remedy: "ask an administrator for the role edit in this namespace, then: kubectl auth can-i create modeldeployments",
        judge: Some(rights_to_deploy),
    },
];

pub(super) const BEFORE: &[Check] = &[
    Check {
        id: "pre-rights",
        title: "you may install",
        looks_at: "A SelfSubjectAccessReview for each kind that the installation writes.",
        remedy: "log in as a cluster administrator",
        judge: Some(rights_to_install),
    },
    Check {
        id: "pre-namespace",
        title: "the namespace can be used",
        looks_at: "Whether kubeairunway-system is being deleted at this moment.",
        remedy: "wait until it is gone: kubectl wait --for=delete namespace/kubeairunway-system",
        judge: Some(namespace_is_free),
    },
    Check {
        id: "pre-kinds",
        title: "nobody else has our kinds",
        looks_at: "CRDs of our names that somebody else installed, or that are being deleted.",
        remedy: "kubectl get crd NAME -o yaml shows whose it is; one that is being deleted waits for its objects to go",
        judge: Some(kinds_are_free),
    },
    Check {
        id: "pre-nodes",
        title: "a node can take the controllers",
        looks_at: "Whether a node is Ready and takes new pods.",
        remedy: "kubectl get nodes; kubectl uncordon NODE",
        judge: Some(super::nodes::some_ready),
    },
];

#[expect(clippy::unnecessary_wraps, reason = "as every judge")]
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
        return Err(Skip("the server did not tell its version".to_owned()));
    };
    match minor(observed) {
        Some(minor) if minor >= OLDEST_KUBERNETES => Ok(Vec::new()),
        _ => {
            let text = format!("it runs Kubernetes {version}, and 1.{OLDEST_KUBERNETES} or newer is needed");
            Ok(vec![Finding::error("API server", text)])
        }
    }
}

fn rights_to_read(observed: &Observed) -> Judged {
    observed.answers()?;
    let mut findings = Vec::new();
    if let Some(namespace) = &observed.facts.narrowed {
        let text = format!("you may not look at all namespaces: only '{namespace}' was looked at (-n gives another)");
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
        None => Err(Skip("it was not asked".to_owned())),
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
        .map(|_| Finding::error(format!("Namespace {NAMESPACE}"), "it is being deleted"))
        .collect())
}

fn kinds_are_free(observed: &Observed) -> Judged {
    let ours: Vec<String> = super::COMPONENTS
        .iter()
        .flat_map(|c| &c.crds)
        .map(ResourceExt::name_any)
        .collect();
    let there = observed.crds()?.iter().filter(|crd| ours.contains(&crd.name_any()));
    Ok(there
        .filter_map(|crd| {
            let subject = format!("CustomResourceDefinition {}", crd.name_any());
            if crd.metadata.deletion_timestamp.is_some() {
                return Some(Finding::error(subject, "it is being deleted"));
            }
            let is_ours = crd.labels().contains_key(runway_api::labels::MANAGED_BY);
            (!is_ours).then(|| Finding::warning(subject, "it is there, and was not installed by this product"))
        })
        .collect())
}
