//! Related systems: KEDA, policies, metrics.

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::labels;
use runway_asya_operator::object::SCALED_OBJECT;
use runway_client::target::Ours;
use runway_manifests::{NAMESPACE, pods::metrics_service, policy};
use runway_operator::object::condition;
use serde_json::Value;

use super::cluster::minor;
use super::providers::OPERATORS;
use super::shared::{each, unless_none};
use crate::check::{Check, Finding, Observed};
use crate::check::{Judged, Skip};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "keda-installed",
        title: "KEDA is installed if an actor or a model is scaled by it",
        looks_at: "The CRD scaledobjects.keda.sh exists if an AsyncActor has scaling.enabled, or a ModelDeployment has scaling.autoscaling.trigger.",
        remedy: "install KEDA: https://keda.sh/docs/latest/deploy",
        judge: Some(keda),
    },
    Check {
        id: "keda-operator",
        title: "KEDA runs in a supported version",
        looks_at: "The CRD scaledobjects.keda.sh serves v1alpha1, which the controllers write, and the Deployment of KEDA's operator has a ready pod. Asked only if an AsyncActor or a ModelDeployment is scaled by KEDA.",
        remedy: "install or upgrade KEDA: https://keda.sh/docs/latest/deploy",
        judge: Some(keda_operator),
    },
    Check {
        id: "keda-metrics",
        title: "KEDA's metrics API is available",
        looks_at: "The APIService v1beta1.external.metrics.k8s.io is available; without it, no actor is scaled beyond one replica.",
        remedy: "kubectl describe apiservice v1beta1.external.metrics.k8s.io; kubectl -n keda get pods",
        judge: Some(keda_metrics),
    },
    Check {
        id: "policy-binding",
        title: "binding an actor to a workload requires permission to change the workload",
        looks_at: "The ValidatingAdmissionPolicy of the AsyncActor operator and its binding exist (Kubernetes 1.30). Without them, a user who may create AsyncActors can change every workload of the namespace.",
        remedy: "kubectl apply -k deploy/kustomize/asya-operator",
        judge: Some(binding_policy),
    },
    Check {
        id: "policy-provider",
        title: "policies for users are enforced",
        looks_at: "Each installed ValidatingAdmissionPolicy for permissions of users or for a provider has a binding, and its expressions compile.",
        remedy: "kubeairunway controller upgrade",
        judge: Some(user_policies),
    },
    Check {
        id: "metrics-services",
        title: "controller metrics have a Service",
        looks_at: "The Service for the metrics of each controller exists.",
        remedy: "kubeairunway controller install",
        judge: Some(metrics_services),
    },
    Check {
        id: "metrics-scraped",
        title: "Prometheus scrapes the controllers",
        looks_at: "ServiceMonitors for the controllers exist if the Prometheus Operator is installed.",
        remedy: "kubeairunway controller install --monitoring",
        judge: Some(metrics_scraped),
    },
];

const SCALED_OBJECTS: &str = "scaledobjects.keda.sh";
/// Label `app.kubernetes.io/name` of KEDA's operator (KEDA `config/manager/manager.yaml`, and its chart).
pub(in crate::check) const KEDA: &str = "keda-operator";

fn keda_is_there(observed: &Observed) -> Result<bool, Skip> {
    Ok(observed.crds()?.iter().any(|crd| crd.name_any() == SCALED_OBJECTS))
}

/// Objects that are scaled by KEDA. The check is skipped if there are none.
fn scaled(observed: &Observed) -> Result<Vec<String>, Skip> {
    let actors = observed.actors()?.iter();
    let actors = actors.filter(|actor| actor.spec.scaling_on().is_some());
    let models = observed.models()?.iter().filter(|model| {
        let scaling = model.spec.scaling.as_ref();
        scaling.is_some_and(|s| s.autoscaling.as_ref().is_some_and(|a| a.trigger.is_some()))
    });
    let all: Vec<String> = actors.map(subject).chain(models.map(subject)).collect();
    unless_none(&all, "objects that KEDA scales")?;
    Ok(all)
}

fn subject<K: Ours + ResourceExt>(object: &K) -> String {
    format!(
        "{} {}/{}",
        K::NAME,
        object.namespace().unwrap_or_default(),
        object.name_any()
    )
}

fn keda(observed: &Observed) -> Judged {
    let asks = scaled(observed)?;
    if keda_is_there(observed)? {
        return Ok(Vec::new());
    }
    let text = format!(
        "not installed, but {} objects request scaling by KEDA; the first is {}",
        asks.len(),
        asks[0]
    );
    Ok(vec![Finding::error(
        format!("CustomResourceDefinition {SCALED_OBJECTS}"),
        text,
    )])
}

fn keda_operator(observed: &Observed) -> Judged {
    scaled(observed)?;
    let crd = observed.crds()?.iter().find(|crd| crd.name_any() == SCALED_OBJECTS);
    let crd = crd.ok_or_else(|| Skip("KEDA is not installed".to_owned()))?;
    let served: Vec<&str> = crd
        .spec
        .versions
        .iter()
        .filter(|v| v.served)
        .map(|v| v.name.as_str())
        .collect();
    let mut findings = Vec::new();
    if !served.contains(&SCALED_OBJECT.version) {
        let text = format!("serves {}, but not {}", served.join(", "), SCALED_OBJECT.version);
        findings.push(Finding::error(
            format!("CustomResourceDefinition {SCALED_OBJECTS}"),
            text,
        ));
    }
    observed.readable(OPERATORS)?;
    let is_keda = |label: &String| label == KEDA;
    let mut deployments = observed.deployments()?.iter();
    let operator = deployments.find(|d| d.labels().get("app.kubernetes.io/name").is_some_and(is_keda));
    let Some(operator) = operator else {
        // It may be installed in another way. Objects that are not scaled report that themselves.
        return Ok(findings);
    };
    let ready = operator.status.as_ref().and_then(|status| status.available_replicas);
    if ready.unwrap_or(0) == 0 {
        let (namespace, name) = (operator.namespace().unwrap_or_default(), operator.name_any());
        let version = operator.labels().get("app.kubernetes.io/version");
        let version = version.map_or_else(|| "of unknown version".to_owned(), Clone::clone);
        let text = format!("KEDA {version} has no ready pod, so that nothing is scaled");
        let remedy = format!("kubectl -n {namespace} describe deployment {name}");
        findings.push(Finding::error(format!("Deployment {namespace}/{name}"), text).remedy(remedy));
    }
    Ok(findings)
}

fn keda_metrics(observed: &Observed) -> Judged {
    if !keda_is_there(observed)? {
        return Err(Skip("KEDA is not installed".to_owned()));
    }
    let name = "v1beta1.external.metrics.k8s.io";
    let subject = format!("APIService {name}");
    let Some(service) = observed.others("APIService")?.find(|o| o.name_any() == name) else {
        return Ok(vec![Finding::error(subject, "does not exist")]);
    };
    Ok(match condition(&service.data["status"], "Available") {
        Some(c) if c.is_true() => Vec::new(),
        c => {
            let message = c.map(|c| c.message).filter(|message| !message.is_empty());
            let message = message.unwrap_or("no condition Available yet");
            vec![Finding::error(subject, format!("not available: {message}"))]
        }
    })
}

fn policies_are_known(observed: &Observed) -> Result<(), Skip> {
    observed.answers()?;
    match minor(observed) {
        Some(minor) if minor < policy::OLDEST_KUBERNETES => Err(Skip(format!(
            "ValidatingAdmissionPolicies require Kubernetes 1.{}",
            policy::OLDEST_KUBERNETES
        ))),
        _ => Ok(()),
    }
}

fn is_bound(observed: &Observed, policy: &str) -> Result<bool, Skip> {
    let mut bindings = observed.others("ValidatingAdmissionPolicyBinding")?;
    Ok(bindings.any(|b| b.data.pointer("/spec/policyName").and_then(Value::as_str) == Some(policy)))
}

fn binding_policy(observed: &Observed) -> Judged {
    policies_are_known(observed)?;
    let deployments = observed.deployments()?;
    if deployments.iter().all(|d| d.name_any() != labels::ASYA_MANAGER) {
        return Err(Skip("the AsyncActor operator is not installed".to_owned()));
    }
    let name = runway_asya_operator::policy::POLICY;
    let subject = format!("ValidatingAdmissionPolicy {name}");
    if observed
        .others("ValidatingAdmissionPolicy")?
        .all(|p| p.name_any() != name)
    {
        return Ok(vec![Finding::error(subject, "does not exist")]);
    }
    if !is_bound(observed, name)? {
        return Ok(vec![Finding::error(subject, "has no binding and is not enforced")]);
    }
    Ok(Vec::new())
}

fn user_policies(observed: &Observed) -> Judged {
    policies_are_known(observed)?;
    let ours = |p: &&DynamicObject| p.name_any().starts_with("kubeairunway-");
    let policies: Vec<&DynamicObject> = observed.others("ValidatingAdmissionPolicy")?.filter(ours).collect();
    unless_none(&policies, "policies for users")?;
    let mut findings = Vec::new();
    for policy in policies {
        let name = policy.name_any();
        let subject = format!("ValidatingAdmissionPolicy {name}");
        if !is_bound(observed, &name)? {
            findings.push(Finding::warning(subject.as_str(), "has no binding and is not enforced"));
        }
        let warnings = policy.data.pointer("/status/typeChecking/expressionWarnings");
        for warning in warnings.and_then(Value::as_array).into_iter().flatten() {
            let text = warning["warning"].as_str().unwrap_or_default().trim();
            findings.push(Finding::warning(
                subject.as_str(),
                format!("type check of an expression failed: {text}"),
            ));
        }
    }
    Ok(findings)
}

fn metrics_services(observed: &Observed) -> Judged {
    let (services, components) = (observed.services()?, super::controllers::installed(observed)?);
    unless_none(&components, "controllers in the cluster")?;
    let find = |(component, _): &(&runway_manifests::Component, _)| {
        let name = metrics_service(&component.name);
        let there = services.iter().any(|s| s.name_any() == name);
        (!there).then(|| {
            Finding::warning(
                format!("Service {NAMESPACE}/{name}"),
                "does not exist: the metrics of the controller cannot be scraped",
            )
        })
    };
    Ok(each(&components, find))
}

fn metrics_scraped(observed: &Observed) -> Judged {
    let components = super::controllers::installed(observed)?;
    unless_none(&components, "controllers in the cluster")?;
    // Where the Prometheus operator is not installed, this skips.
    let none = observed.others("ServiceMonitor")?.next().is_none();
    Ok(none
        .then(|| {
            Finding::warning(
                "ServiceMonitors",
                "the Prometheus Operator is installed, but no ServiceMonitor selects the controllers",
            )
        })
        .into_iter()
        .collect())
}
