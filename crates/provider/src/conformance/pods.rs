//! R39: a model is Ready only if its pods serve, whatever the upstream reports.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use runway_api::condition;
use runway_api::model_deployment::Phase;
use serde_json::{Value, json};

use super::cluster::Cluster;
use super::trial::{Trial, condition_of, message, phase, said};
use super::{RuleResult, ensure};
use crate::contract::{Component, Reading, Translation};
use crate::model_pods::ModelPod;

/// A pod of the served sample as the caches show it, with this status.
pub(super) fn pod(trial: &Trial, name: &str, status: &Value) -> Result<ModelPod, String> {
    let component = translation(trial)?.components.pop().unwrap_or_default();
    build(trial, name, &component, &Reading::silent(), status)
}

/// The upstream object looks ready, and its pods are missing, start, crash, or are gone again.
pub(super) fn r39_ready_needs_ready_pods_at_all_times(trial: &Trial) -> RuleResult {
    let mut cluster = trial.made()?;
    let pods = ready_pods(trial, &mut cluster)?;
    cluster.pods = Some(Vec::new());
    // By then messages about progress are written.
    cluster.pass(SignedDuration::from_secs(10));
    not_ready(&mut cluster, "there is no pod")?;
    ensure!(
        message(&cluster).contains("0 of "),
        "there is no pod, and the status does not count them: {}",
        said(&cluster)
    );
    cluster.pods = Some(pods.clone());
    ready(&mut cluster, "all pods are ready")?;
    let crash = json!({ "phase": "Running", "containerStatuses": [{
        "name": "model", "image": "model:1", "imageID": "", "ready": false, "restartCount": 12,
        "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 5m0s" } },
        "lastState": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } },
    }] });
    let crashing = (0..pods.len()).map(|number| pod(trial, &format!("model-{number}"), &crash));
    cluster.pods = Some(crashing.collect::<Result<_, _>>()?);
    not_ready(&mut cluster, "every pod crashes")?;
    ensure!(
        condition_of(&cluster, condition::READY).ends_with("OOMKilled"),
        "every pod was killed for lack of memory, and the status is {}",
        said(&cluster)
    );
    cluster.pods = Some(pods);
    ready(&mut cluster, "all pods are ready again")?;
    cluster.pods = Some(Vec::new());
    cluster.outage = Some("the upstream operator is not running".to_owned());
    not_ready(&mut cluster, "all pods are gone")?;
    ensure!(
        condition_of(&cluster, condition::STALE_STATUS).starts_with("True"),
        "the pods are gone and the upstream operator is down, and StaleStatus is missing"
    );
    Ok(())
}

/// One pod of one component is missing.
pub(super) fn r39_every_component_is_rolled_out(trial: &Trial) -> RuleResult {
    let mut cluster = trial.made()?;
    let pods = ready_pods(trial, &mut cluster)?;
    for missing in 0..pods.len() {
        let mut fewer = pods.clone();
        fewer.remove(missing);
        cluster.pods = Some(fewer);
        not_ready(&mut cluster, &format!("pod {missing} of {} is missing", pods.len()))?;
        cluster.pods = Some(pods.clone());
        ready(&mut cluster, "all pods are ready")?;
    }
    Ok(())
}

/// Pods of an earlier rollout, or edited ones.
pub(super) fn r39_pods_that_run_something_else_do_not_count(trial: &Trial) -> RuleResult {
    let translation = translation(trial)?;
    let mut compared: Vec<Component> = translation.components.clone();
    compared.retain(|component| component.container.is_some());
    for component in compared {
        let mut cluster = trial.made()?;
        let pods = ready_pods(trial, &mut cluster)?;
        let mut other = component.clone();
        if let Some(container) = &mut other.container {
            container.image.push_str("-earlier");
        }
        let reading = reading(trial, &cluster)?;
        let mut mixed = pods.clone();
        mixed.push(build(trial, "earlier-0", &other, &reading, &serving())?);
        cluster.pods = Some(mixed);
        not_ready(&mut cluster, "a pod of an earlier image is ready")?;
        ensure!(
            message(&cluster).contains("earlier-0") && message(&cluster).contains("image"),
            "a pod runs another image, and the status is {}",
            said(&cluster)
        );
        cluster.pods = Some(pods);
        ready(&mut cluster, "all pods run the desired container")?;
    }
    Ok(())
}

/// Pods of other owners carry all labels.
pub(super) fn r39_pods_of_other_owners_do_not_count(trial: &Trial) -> RuleResult {
    let mut cluster = trial.made()?;
    let pods = ready_pods(trial, &mut cluster)?;
    let foreign = |pod: &ModelPod| ModelPod {
        controller: None,
        name: format!("foreign-{}", pod.name).into(),
        ..pod.clone()
    };
    cluster.pods = Some(pods.iter().map(foreign).collect());
    not_ready(&mut cluster, "only pods without a controller are ready")?;
    let unready = pod(trial, "x", &json!({ "phase": "Pending" }))?.unready;
    let mut broken = pods.clone();
    broken.extend(pods.iter().map(|pod| ModelPod {
        unready: unready.clone(),
        ..foreign(pod)
    }));
    cluster.pods = Some(broken);
    ready(&mut cluster, "all pods are ready, and a pod of another owner is not")
}

/// No replica is desired.
pub(super) fn r39_scaled_to_zero_means_that_no_pod_runs(trial: &Trial) -> RuleResult {
    let none = json!({"spec": {"scaling": {"replicas": 0}}});
    let translated = trial.translate(&trial.request(&none)?);
    if translated.is_err() || translated.is_ok_and(|translation| translation.replicas > 0) {
        return Ok(());
    }
    let mut cluster = trial.made()?;
    let pods = ready_pods(trial, &mut cluster)?;
    ready(&mut cluster, "all pods are ready")?;
    trial.change(&mut cluster, &none)?;
    cluster.outage = Some("the upstream operator is not running".to_owned());
    cluster.settle()?;
    cluster.upstream_says(trial.samples.ready);
    cluster.settle()?;
    ensure!(
        phase(&cluster) == Some(Phase::Deploying) && message(&cluster).contains("still run"),
        "{} pods still run, and the status is {}",
        pods.len(),
        said(&cluster)
    );
    ensure!(
        condition_of(&cluster, condition::STALE_STATUS).starts_with("True"),
        "pods still run and the upstream operator is down, and StaleStatus is missing"
    );
    cluster.pods = Some(Vec::new());
    cluster.settle()?;
    ensure!(
        !message(&cluster).contains("still run"),
        "no pod runs, and the status is {}",
        said(&cluster)
    );
    Ok(())
}

/// Makes the upstream object ready, and returns the pods that it would have.
fn ready_pods(trial: &Trial, cluster: &mut Cluster) -> Result<Vec<ModelPod>, String> {
    cluster.upstream_says(trial.samples.ready);
    let reading = reading(trial, cluster)?;
    let translation = translation(trial)?;
    let whole = Component {
        pods: translation.replicas,
        ..Component::default()
    };
    let components = match translation.components.as_slice() {
        [] => vec![whole],
        components => components.to_vec(),
    };
    let mut pods = Vec::new();
    for (number, component) in components.iter().enumerate() {
        for pod in 0..component.pods {
            pods.push(build(
                trial,
                &format!("pod-{number}-{pod}"),
                component,
                &reading,
                &serving(),
            )?);
        }
    }
    cluster.pods = Some(pods.clone());
    Ok(pods)
}

fn translation(trial: &Trial) -> Result<Translation, String> {
    let request = trial.request(&json!({}))?;
    trial
        .translate(&request)
        .map_err(|refusal| format!("samples: the served one is refused: {refusal}"))
}

/// Reading of the main object.
fn reading(trial: &Trial, cluster: &Cluster) -> Result<Reading, String> {
    let request = trial.request(&json!({}))?;
    let objects = cluster.upstream_objects();
    let object = objects.last().ok_or("there is no upstream object")?;
    Ok(trial.provider.read_status(&request, &object.object))
}

fn build(
    trial: &Trial,
    name: &str,
    component: &Component,
    reading: &Reading,
    status: &Value,
) -> Result<ModelPod, String> {
    let deployment = trial.md(&json!({}))?.name_any();
    let mut labels = serde_json::Map::new();
    for label in trial.provider.pod_labels() {
        labels.insert(label.to_owned(), json!(deployment));
    }
    for (label, value) in component.labels.iter().chain(&reading.current) {
        labels.insert((*label).to_owned(), json!(value));
    }
    let container = component.container.clone().unwrap_or_default();
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": name, "labels": labels, "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{deployment}-0"), "uid": "pods", "controller": true,
        }] },
        "spec": { "containers": [{
            "name": container.name,
            "image": container.image,
            "command": container.command,
            "args": container.args,
            "env": container.env,
        }] },
        "status": status,
    }))
    .map_err(|error| format!("not a pod: {error}"))?;
    let pod = ModelPod::of(
        trial.provider.component_labels(),
        trial.provider.compared_containers(),
        &pod,
    )
    .ok_or("the pod is being deleted")?;
    ensure_owned(trial, &deployment, &pod)?;
    Ok(pod)
}

fn ensure_owned(trial: &Trial, deployment: &str, pod: &ModelPod) -> RuleResult {
    ensure!(
        trial.provider.owns_pod(deployment, pod.controller.as_ref()),
        "owns_pod rejects a pod that ReplicaSet '{deployment}-0' controls"
    );
    Ok(())
}

fn serving() -> Value {
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] })
}

fn ready(cluster: &mut Cluster, why: &str) -> RuleResult {
    cluster.settle()?;
    ensure!(
        condition_of(cluster, condition::READY).starts_with("True") && phase(cluster) == Some(Phase::Running),
        "{why}, and yet the status is {}",
        said(cluster)
    );
    Ok(())
}

fn not_ready(cluster: &mut Cluster, why: &str) -> RuleResult {
    cluster.settle()?;
    ensure!(
        condition_of(cluster, condition::READY).starts_with("False") && phase(cluster) != Some(Phase::Running),
        "{why}, and the upstream says that it is ready: the status is {}",
        said(cluster)
    );
    Ok(())
}
