//! Waits for Deployments, and says what keeps them.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::Error;
use super::survey::Survey;
use crate::patience::Patience;
use crate::terminal::Terminal;
use runway_client::{pods, text};
use runway_manifests::COMPONENT_LABEL;
use runway_operator::kubelet;
use serde_json::json;

/// Waits until all pods of these Deployments are updated and ready, and reports progress.
///
/// # Errors
/// The timeout expires, or the cluster cannot be read.
pub async fn until_ready(
    survey: &Survey<'_>,
    deployments: &[(String, String)],
    timeout: Duration,
    terminal: &mut Terminal<'_>,
) -> Result<(), Error> {
    let patience = Patience::of(timeout);
    let mut said = vec![String::new(); deployments.len()];
    loop {
        let mut open = Vec::new();
        for (index, (namespace, name)) in deployments.iter().enumerate() {
            let api: Api<Deployment> = Api::namespaced(survey.client(), namespace);
            let found = api.get_opt(name).await;
            let found = found.map_err(|e| survey.failed(e, format!("read Deployment/{name}")))?;
            let progress = found.as_ref().map_or_else(|| "deleted".to_owned(), progress);
            let done = found.as_ref().is_some_and(is_ready);
            let line = format!("Deployment/{name}: {progress}");
            if said[index] != line {
                terminal.say(&line);
                said[index] = line;
            }
            if !done {
                open.push((namespace, name, found));
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        if !patience.lasts().await {
            let mut reasons = Vec::new();
            for (namespace, name, deployment) in open {
                reasons.push(format!(
                    "Deployment/{name}: {}",
                    why(survey, namespace, name, deployment.as_ref()).await
                ));
            }
            return Err(Error::NotReady {
                after: text::age(timeout),
                reasons,
            });
        }
    }
}

/// Waits until the server serves a kind.
///
/// # Errors
/// The timeout expires, or the cluster cannot be read.
pub async fn until_established(survey: &Survey<'_>, name: &str, timeout: Duration) -> Result<(), Error> {
    let patience = Patience::of(timeout);
    let api: Api<CustomResourceDefinition> = Api::all(survey.client());
    loop {
        let crd = api
            .get(name)
            .await
            .map_err(|e| survey.failed(e, format!("read {name}")))?;
        let conditions = crd.status.and_then(|s| s.conditions).unwrap_or_default();
        if conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
        {
            return Ok(());
        }
        if !patience.lasts().await {
            let refused = conditions
                .iter()
                .find(|c| c.status == "False")
                .and_then(|c| c.message.clone());
            return Err(Error::NotReady {
                after: text::age(timeout),
                reasons: vec![format!(
                    "CustomResourceDefinition/{name}: {}",
                    refused.unwrap_or_default()
                )],
            });
        }
    }
}

/// Desired number of pods.
fn wanted(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// Whether all pods are updated and available, and no others are left.
pub fn is_ready(deployment: &Deployment) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    let wanted = wanted(deployment);
    status.observed_generation >= deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) == wanted
        && status.available_replicas.unwrap_or(0) == wanted
        && status.replicas.unwrap_or(0) == wanted
}

/// Rollout state, as text.
pub fn progress(deployment: &Deployment) -> String {
    let status = deployment.status.clone().unwrap_or_default();
    let (ready, updated) = (
        status.available_replicas.unwrap_or(0),
        status.updated_replicas.unwrap_or(0),
    );
    let wanted = wanted(deployment);
    if is_ready(deployment) {
        return format!("ready, {ready} of {wanted} pods");
    }
    format!("{ready} of {wanted} pods ready, {updated} updated")
}

async fn why(survey: &Survey<'_>, namespace: &str, name: &str, deployment: Option<&Deployment>) -> String {
    let Some(deployment) = deployment else {
        return "deleted".to_owned();
    };
    let selector = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.selector.match_labels.clone())
        .unwrap_or_else(|| [(COMPONENT_LABEL.to_owned(), name.to_owned())].into());
    let selector: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let pods: Api<Pod> = Api::namespaced(survey.client(), namespace);
    match pods.list(&ListParams::default().labels(&selector.join(","))).await {
        Ok(found) => reason(deployment, &found.items),
        Err(_) => format!("{}; cannot read its pods", progress(deployment)),
    }
}

/// Reason why a Deployment is not ready: the problem of its pods, or why it has none.
pub fn reason(deployment: &Deployment, pods: &[Pod]) -> String {
    let mut reasons: Vec<String> = Vec::new();
    for pod in pods {
        let Some(trouble) = pods::trouble(pod) else { continue };
        let said = trouble.to_string();
        let line = format!("pod {}: {said}", pod.name_any());
        // Two pods rarely have two troubles.
        if !reasons.iter().any(|other| other.ends_with(&said)) {
            reasons.push(line);
        }
    }
    if !reasons.is_empty() {
        return reasons.join(", ");
    }
    match kubelet::rollout_failure(&json!(deployment)) {
        Some(failure) if pods.is_empty() => format!("no pods: {}", failure.message),
        Some(failure) => failure.message.to_owned(),
        None if pods.is_empty() => "no pods created yet (is kube-controller-manager running?)".to_owned(),
        None => progress(deployment),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": status })).unwrap()
    }

    fn deployment(status: &serde_json::Value) -> Deployment {
        let object = json!({ "metadata": { "name": "d", "generation": 2 },
            "spec": { "replicas": 2, "selector": {}, "template": {} }, "status": status });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn ready_means_all_pods_of_the_newest_version_and_no_other() {
        let ready = json!({ "observedGeneration": 2, "updatedReplicas": 2, "availableReplicas": 2, "replicas": 2 });
        assert!(is_ready(&deployment(&ready)));
        for (field, value) in [
            ("observedGeneration", 1),
            ("updatedReplicas", 1),
            ("availableReplicas", 1),
            ("replicas", 3),
        ] {
            let mut status = ready.clone();
            status[field] = json!(value);
            assert!(!is_ready(&deployment(&status)), "{field}");
        }
    }

    #[test]
    fn the_reason_of_a_pod_is_reported() {
        let waiting = |reason: &str, last: serde_json::Value| {
            json!({ "containerStatuses": [{ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 1,
                "state": { "waiting": { "reason": reason, "message": "m" } }, "lastState": last }] })
        };
        let cases = [
            (
                json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/1 nodes are available: 1 Insufficient memory." }] }),
                "pod p: Unschedulable: 0/1 nodes are available: 1 Insufficient memory.",
            ),
            (waiting("ImagePullBackOff", json!({})), "pod p: ImagePullBackOff: m"),
            (
                waiting(
                    "CrashLoopBackOff",
                    json!({ "terminated": { "exitCode": 1, "message": "no cluster\n" } }),
                ),
                "pod p: CrashLoopBackOff: m; exit code 1: no cluster",
            ),
            (
                json!({ "phase": "Running" }),
                "pod p: running, but its readiness probe fails: see its log",
            ),
            (
                json!({ "phase": "Pending" }),
                "pod p: Pending, not scheduled yet (does a node exist, and is kube-scheduler running?)",
            ),
        ];
        for (status, expected) in cases {
            assert_eq!(reason(&deployment(&json!({})), &[pod(&status), pod(&status)]), expected);
        }
    }

    #[test]
    fn a_deployment_without_pods_reports_its_condition() {
        let refused =
            json!({ "conditions": [{ "type": "ReplicaFailure", "status": "True", "message": "exceeded quota" }] });
        assert_eq!(reason(&deployment(&refused), &[]), "no pods: exceeded quota");
    }
}
