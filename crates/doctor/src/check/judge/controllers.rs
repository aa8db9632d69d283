//! Our controllers: their Deployments, pods, Leases and roles.

use jiff::SignedDuration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use runway_api::labels;
use runway_client::pods::End;
use runway_client::text;
use runway_manifests::{self as manifests, COMPONENT_LABEL, Component, NAMESPACE};
use runway_operator::access::by_scope;
use runway_operator::kubelet;
use serde_json::json;

use super::pods;
use super::shared::{COMPONENTS, each, unless_none};
use crate::check::observed::Admission;
use crate::check::{Check, Finding, Observed};
use crate::check::{Judged, Skip};

const INSTALL: &str = "kubeairunway controller install";
const UPGRADE: &str = "kubeairunway controller upgrade";

/// A controller that fell over as often as that does not do well.
const RESTARTS: i32 = 5;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "namespace",
        title: "controller namespace exists",
        looks_at: "The Namespace kubeairunway-system exists and is not being deleted.",
        remedy: INSTALL,
        judge: Some(namespace),
    },
    Check {
        id: "core-installed",
        title: "core controller is installed",
        looks_at: "The Deployment kubeairunway-controller exists. A controller that runs outside of the cluster counts if admission responds.",
        remedy: INSTALL,
        judge: Some(core_installed),
    },
    Check {
        id: "controllers-ready",
        title: "controller pods are ready",
        looks_at: "The controllers' Deployments and pods: image pull errors, crash loops, unschedulable pods, quota.",
        remedy: "kubectl -n kubeairunway-system get pods",
        judge: Some(ready),
    },
    Check {
        id: "controllers-restarts",
        title: "controllers do not restart repeatedly",
        looks_at: "Restarts of the controllers' containers: five or more are reported.",
        remedy: "kubectl -n kubeairunway-system logs POD --previous",
        judge: Some(restarts),
    },
    Check {
        id: "controllers-version",
        title: "all controllers have the version of this command",
        looks_at: "The label app.kubernetes.io/version of each Deployment equals the version of this command.",
        remedy: UPGRADE,
        judge: Some(version),
    },
    Check {
        id: "controllers-lease",
        title: "each controller has an active leader",
        looks_at: "The holder of each controller's Lease is an existing pod and renews the Lease.",
        remedy: "kubectl -n kubeairunway-system get lease,pods; another replica takes over when the Lease expires",
        judge: Some(leases),
    },
    Check {
        id: "controllers-roles",
        title: "each controller has its permissions",
        looks_at: "The ClusterRole, Role and bindings of each controller grant the permissions that this version requires. In an installation for namespaces, those in each of them.",
        remedy: INSTALL,
        judge: Some(roles),
    },
];

fn namespace(observed: &Observed) -> Judged {
    let subject = format!("Namespace {NAMESPACE}");
    let found = observed.namespaces()?.iter().find(|n| n.name_any() == NAMESPACE);
    Ok(match found {
        None => vec![Finding::error(subject, "does not exist")],
        Some(n) if n.metadata.deletion_timestamp.is_some() => {
            vec![Finding::error(subject, "being deleted, including the controllers")]
        }
        Some(_) => Vec::new(),
    })
}

/// The components of the product that are installed, with their Deployments.
pub(super) fn installed(observed: &Observed) -> Result<Vec<(&'static Component, &Deployment)>, Skip> {
    let deployments = observed.deployments()?;
    let find = |name: &str| {
        let is_it = |d: &&Deployment| d.name_any() == name && d.namespace().as_deref() == Some(NAMESPACE);
        deployments.iter().find(is_it)
    };
    Ok(COMPONENTS
        .iter()
        .filter_map(|component| {
            let deployment = find(&component.name)?;
            Some((component, deployment))
        })
        .collect())
}

fn some_installed(observed: &Observed) -> Result<Vec<(&'static Component, &Deployment)>, Skip> {
    let found = installed(observed)?;
    unless_none(&found, "controllers in the cluster")?;
    Ok(found)
}

fn core_installed(observed: &Observed) -> Judged {
    let found = installed(observed)?;
    if found
        .iter()
        .any(|(component, _)| component.name == labels::CORE_MANAGER)
    {
        return Ok(Vec::new());
    }
    let subject = format!("Deployment {NAMESPACE}/{}", labels::CORE_MANAGER);
    Ok(vec![match observed.facts.admission {
        Admission::Answers => Finding::warning(
            subject,
            "does not exist, but admission responds: the controller runs outside of the cluster",
        )
        .remedy("none if this is intended; otherwise: kubeairunway controller install"),
        _ => Finding::error(subject, "does not exist: ModelDeployments are not reconciled"),
    }])
}

fn subject(name: &str) -> String {
    format!("Deployment {NAMESPACE}/{name}")
}

fn pods_of<'a>(observed: &'a Observed, name: &str) -> Vec<&'a Pod> {
    let is_its = |pod: &&Pod| {
        pod.namespace().as_deref() == Some(NAMESPACE) && pod.labels().get(COMPONENT_LABEL).is_some_and(|c| c == name)
    };
    observed.pods().unwrap_or_default().iter().filter(is_its).collect()
}

fn ready(observed: &Observed) -> Judged {
    let find = |(component, deployment): &(&Component, &Deployment)| {
        let status = deployment.status.clone().unwrap_or_default();
        let wanted = deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1);
        let available = status.available_replicas.unwrap_or(0);
        let subject = subject(&component.name);
        if wanted == 0 {
            let remedy = format!(
                "kubectl -n {NAMESPACE} scale deployment {} --replicas={}",
                component.name, component.replicas
            );
            return Some(Finding::error(subject, "scaled to 0").remedy(remedy));
        }
        if available >= wanted && status.observed_generation >= deployment.metadata.generation {
            return None;
        }
        let its = pods_of(observed, &component.name);
        if let Some(trouble) = pods::trouble(&subject, &[], &its, observed.now()) {
            return Some(trouble);
        }
        let text = match kubelet::replica_failure(&json!(deployment)) {
            Some(failure) => format!("cannot create pods: {}", failure.message),
            None => format!("{available} of {wanted} pods are ready"),
        };
        let remedy = if text.contains("exceeded quota") {
            format!("kubectl -n {NAMESPACE} describe quota")
        } else {
            format!("kubectl -n {NAMESPACE} describe deployment {}", component.name)
        };
        // The others still work.
        let found = if available > 0 {
            Finding::warning(subject, text)
        } else {
            Finding::error(subject, text)
        };
        Some(found.remedy(remedy))
    };
    Ok(each(&some_installed(observed)?, find))
}

fn restarts(observed: &Observed) -> Judged {
    let pods: Vec<&Pod> = some_installed(observed)?
        .iter()
        .flat_map(|(component, _)| pods_of(observed, &component.name))
        .collect();
    let find = |pod: &&Pod| {
        let containers = pod.status.as_ref()?.container_statuses.as_ref()?;
        let worst = containers.iter().max_by_key(|c| c.restart_count)?;
        if worst.restart_count < RESTARTS {
            return None;
        }
        let last = worst.last_state.as_ref().and_then(|s| s.terminated.as_ref());
        let why = last.map_or_else(String::new, |end| format!(", last exit: {}", End::from(end)));
        let text = format!("container {} restarted {} times{why}", worst.name, worst.restart_count);
        let remedy = format!("kubectl -n {NAMESPACE} logs {} --previous", pod.name_any());
        Some(Finding::warning(format!("Pod {NAMESPACE}/{}", pod.name_any()), text).remedy(remedy))
    };
    Ok(each(&pods, find))
}

fn version(observed: &Observed) -> Judged {
    let ours = manifests::component::TAG;
    let find = |(component, deployment): &(&Component, &Deployment)| {
        let label = deployment.labels().get("app.kubernetes.io/version")?;
        (label != ours).then(|| {
            Finding::warning(
                subject(&component.name),
                format!("version {label} differs from this command ({ours})"),
            )
        })
    };
    Ok(each(&some_installed(observed)?, find))
}

fn leases(observed: &Observed) -> Judged {
    let (leases, now) = (observed.leases()?, observed.now());
    observed.readable("Pod")?;
    let find = |(component, _): &(&Component, &Deployment)| {
        let name = component.name.as_str();
        let subject = format!("Lease {NAMESPACE}/{name}");
        let Some(lease) = leases.iter().find(|l| l.name_any() == name) else {
            return Some(Finding::error(subject, "does not exist: no replica has become leader"));
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        let duration = i64::from(spec.lease_duration_seconds.unwrap_or(15));
        let silent = spec.renew_time.map(|t| now.duration_since(t.0));
        let logs = format!("kubectl -n {NAMESPACE} logs deployment/{name}");
        if holder.is_empty() {
            return Some(Finding::warning(subject, "has no holder").remedy(logs));
        }
        // The identity is the pod's name, with something unique after it.
        let lives = pods_of(observed, name)
            .iter()
            .any(|pod| holder.starts_with(&pod.name_any()));
        let late = silent.filter(|s| *s > SignedDuration::from_secs(duration * 3));
        let since = late.and_then(|s| std::time::Duration::try_from(s).ok()).map(text::age);
        match (lives, since) {
            (true, None) => None,
            (true, Some(age)) => {
                Some(Finding::error(subject, format!("holder {holder} has not renewed it for {age}")).remedy(logs))
            }
            (false, Some(age)) => {
                let text = format!("holder {holder} no longer exists, and no other replica has taken over for {age}");
                Some(Finding::error(subject, text).remedy(logs))
            }
            (false, None) => {
                let text = format!(
                    "holder {holder} is not one of the pods: a controller outside of the cluster is the leader"
                );
                Some(Finding::warning(subject, text))
            }
        }
    };
    Ok(each(&some_installed(observed)?, find))
}

fn roles(observed: &Observed) -> Judged {
    let (cluster_roles, bindings) = (observed.cluster_roles()?, observed.cluster_role_bindings()?);
    let (roles, role_bindings) = (observed.roles()?, observed.role_bindings()?);
    let find = |(component, deployment): &(&Component, &Deployment)| {
        let name = component.name.as_str();
        let watched = manifests::watched_by(deployment);
        let (everywhere, within) = if watched.are_all() {
            (component.access.clone(), Vec::new())
        } else {
            by_scope(&component.access)
        };
        let role = cluster_roles.iter().find(|role| role.name_any() == name);
        let bound = bindings.iter().find(|binding| binding.name_any() == name);
        let everywhere = Grant {
            kind: "ClusterRole",
            place: name.to_owned(),
            role: role.map(|role| role.rules.as_deref().unwrap_or_default()),
            binding: bound.map(|binding| (&binding.role_ref, binding.subjects.as_deref().unwrap_or_default())),
        }
        .lacks(name, &everywhere);
        let in_one = |namespace: &str, needed: &[PolicyRule]| {
            let is_it = |object: &ObjectMeta| {
                object.name.as_deref() == Some(name) && object.namespace.as_deref() == Some(namespace)
            };
            let role = roles.iter().find(|role| is_it(&role.metadata));
            let bound = role_bindings.iter().find(|binding| is_it(&binding.metadata));
            Grant {
                kind: "Role",
                place: format!("{namespace}/{name}"),
                role: role.map(|role| role.rules.as_deref().unwrap_or_default()),
                binding: bound.map(|binding| (&binding.role_ref, binding.subjects.as_deref().unwrap_or_default())),
            }
            .lacks(name, needed)
        };
        let (subject, text) = everywhere
            .or_else(|| in_one(NAMESPACE, &component.access_in_namespace))
            .or_else(|| watched.names().iter().find_map(|namespace| in_one(namespace, &within)))?;
        let again = match name.strip_suffix("-provider") {
            _ if name == labels::CORE_MANAGER => INSTALL.to_owned(),
            Some(provider) => format!("kubeairunway provider install {provider}"),
            None if watched.are_all() => format!("kubectl apply -k deploy/kustomize/{name}"),
            None => UPGRADE.to_owned(),
        };
        Some(Finding::error(subject, text).remedy(again))
    };
    Ok(each(&some_installed(observed)?, find))
}

/// A role of a controller as it is in the cluster, and its binding.
struct Grant<'a> {
    kind: &'static str,
    /// Name, with the namespace if there is one.
    place: String,
    role: Option<&'a [PolicyRule]>,
    binding: Option<(&'a RoleRef, &'a [Subject])>,
}

impl Grant<'_> {
    /// The first object without which the controller lacks a permission, and the reason.
    fn lacks(&self, controller: &str, needed: &[PolicyRule]) -> Option<(String, String)> {
        if needed.is_empty() {
            return None;
        }
        if let Some(missing) = lacks(needed, self.role) {
            return Some((format!("{} {}", self.kind, self.place), missing));
        }
        let subject = format!("{}Binding {}", self.kind, self.place);
        let Some((role, subjects)) = self.binding else {
            return Some((subject, "does not exist: the controller has no permissions".to_owned()));
        };
        let is_its = role.name == controller && subjects.iter().any(|s| s.name == controller);
        (!is_its).then(|| {
            let text = format!("does not bind the controller {controller} to its role");
            (subject, text)
        })
    }
}

/// The first right that is needed and not given.
fn lacks(needed: &[PolicyRule], given: Option<&[PolicyRule]>) -> Option<String> {
    let Some(given) = given else {
        return Some("does not exist: the controller has no permissions".to_owned());
    };
    let has = |list: &Option<Vec<String>>, wanted: &str| list.iter().flatten().any(|one| one == wanted || one == "*");
    needed.iter().find_map(|rule| {
        let groups = rule.api_groups.clone().unwrap_or_default();
        let mut rights = groups.iter().flat_map(|group| {
            let resources = rule.resources.iter().flatten();
            resources.flat_map(move |resource| rule.verbs.iter().map(move |verb| (group, resource, verb)))
        });
        rights
            .find(|(group, resource, verb)| {
                !given.iter().any(|rule| {
                    has(&rule.api_groups, group)
                        && has(&rule.resources, resource)
                        && rule.verbs.iter().any(|v| v == *verb || v == "*")
                })
            })
            .map(|(group, resource, verb)| {
                let dot = if group.is_empty() { "" } else { "." };
                format!("does not allow to {verb} {resource}{dot}{group}, which this version requires")
            })
    })
}
