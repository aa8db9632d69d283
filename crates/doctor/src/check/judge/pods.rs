//! Problems of pods, and their remedies.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use runway_client::pods::{self, Stopped, Trouble};
use runway_operator::kubelet;

use crate::check::Finding;

/// A container that runs and is not ready for so long is in trouble.
const STARTING: SignedDuration = SignedDuration::from_mins(30);
/// Time after which a pod without conditions counts as ignored by scheduler and kubelet.
const UNSEEN: SignedDuration = SignedDuration::from_secs(60);

/// The problem of the first pod that has one, as an error about `subject`, which has these conditions. Pods that have ended come
/// last: their replacements are closer to the cause.
pub(super) fn trouble(subject: &str, conditions: &[Condition], pods: &[&Pod], now: Timestamp) -> Option<Finding> {
    let (ended, alive): (Vec<&Pod>, Vec<&Pod>) = pods.iter().partition(|pod| kubelet::has_ended(pod));
    let may_explain = |pod: &&Pod| kubelet::may_explain(kubelet::ended_at(pod), conditions, now);
    let asked = alive.into_iter().chain(ended.into_iter().filter(may_explain));
    asked.into_iter().find_map(|pod| {
        let (text, remedy) = of_pod(pod, now)?;
        Some(Finding::error(subject, format!("pod {}: {text}", pod.name_any())).remedy(remedy))
    })
}

/// The cause of failed pod creation, such as a quota.
pub(super) fn not_made(subject: &str, namespace: &str, prefix: &str, events: &[Event]) -> Option<Finding> {
    let about = |event: &&Event| {
        let object = &event.involved_object;
        event.namespace().as_deref() == Some(namespace)
            && object.name.as_deref().is_some_and(|name| belongs(name, prefix))
            && event.reason.as_deref() == Some("FailedCreate")
    };
    let event = events.iter().filter(about).max_by_key(|e| seen(e))?;
    let message = event.message.clone().unwrap_or_default();
    let remedy = if message.contains("exceeded quota") {
        format!(
            "kubectl -n {namespace} describe quota; raise the quota, reduce spec.resources, or delete unused workloads"
        )
    } else {
        format!("kubectl -n {namespace} get events --field-selector reason=FailedCreate")
    };
    Some(Finding::error(subject, format!("cannot create pods: {message}")).remedy(remedy))
}

/// Whether the name is `prefix`, or begins with `prefix` and a hyphen.
fn belongs(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn seen(event: &Event) -> Option<Timestamp> {
    let last = event.last_timestamp.as_ref().map(|t| t.0);
    last.max(event.metadata.creation_timestamp.as_ref().map(|t| t.0))
}

/// The problem of a pod and its remedy.
fn of_pod(pod: &Pod, now: Timestamp) -> Option<(String, String)> {
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let trouble = pods::trouble(pod)?;
    let (name, place) = (pod.name_any(), format!("-n {} ", pod.namespace().unwrap_or_default()));
    let describe = format!("kubectl {place}describe pod {name}");
    let age = pod
        .creation_timestamp()
        .map_or(SignedDuration::ZERO, |t| now.duration_since(t.0));
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    match &trouble {
        Trouble::Unscheduled { message, .. } => Some((trouble.to_string(), unschedulable(message, &place, &describe))),
        Trouble::Container(stopped) if stopped.is_starting() => None,
        // A container that completed successfully is not a problem.
        Trouble::Container(Stopped {
            waits: None,
            ended: Some(end),
            ..
        }) if end.code == 0 => None,
        Trouble::Container(stopped) => {
            let remedy = of_container(stopped, &name, &place, &describe);
            Some((format!("container {}: {trouble}", stopped.name), remedy))
        }
        Trouble::Ended { .. } => Some((trouble.to_string(), describe)),
        Trouble::Unready if age > STARTING => Some((
            "running, but not ready after 30 minutes".to_owned(),
            format!("kubectl {place}logs {name}"),
        )),
        Trouble::Unseen(phase) if phase == "Failed" => Some((phase.clone(), describe)),
        Trouble::Unseen(_) if conditions.is_none_or(Vec::is_empty) && age > UNSEEN => Some((
            "not processed by a scheduler".to_owned(),
            "kubectl get nodes; kubectl -n kube-system get pods -l component=kube-scheduler".to_owned(),
        )),
        Trouble::Unready | Trouble::Unseen(_) => None,
    }
}

fn unschedulable(message: &str, place: &str, describe: &str) -> String {
    if message.contains("persistentvolumeclaim") || message.contains("PersistentVolumeClaim") {
        return format!("kubectl {place}get pvc; kubectl get storageclass");
    }
    if message.contains("/gpu") {
        return "add a node with free GPUs, or reduce spec.resources.gpu; kubectl describe nodes shows the allocated resources"
            .to_owned();
    }
    if message.contains("Insufficient memory") || message.contains("Insufficient cpu") {
        return "add a node, or reduce spec.resources; kubectl describe nodes shows the allocated resources".to_owned();
    }
    if message.contains("taint") {
        return "tolerate the taint in spec.podTemplate, or remove it: kubectl taint nodes NODE KEY-".to_owned();
    }
    describe.to_owned()
}

/// Remedy for a container that is not running.
fn of_container(stopped: &Stopped, pod: &str, place: &str, describe: &str) -> String {
    let logs = |previous: &str| format!("kubectl {place}logs {pod} -c {}{previous}", stopped.name);
    if stopped
        .ended
        .as_ref()
        .is_some_and(|end| end.reason.as_deref() == Some("OOMKilled"))
    {
        return "increase spec.resources.memory".to_owned();
    }
    match stopped.waits.as_deref() {
        None => logs(""),
        Some(reason) if kubelet::IMAGE_REASONS.contains(&reason) => format!(
            "check that the image {} exists and that the cluster may pull it (imagePullSecrets): {describe}",
            stopped.image
        ),
        Some(reason) if kubelet::START_REASONS.contains(&reason) => {
            missing(&stopped.message, place).unwrap_or_else(|| describe.to_owned())
        }
        Some("CrashLoopBackOff") => logs(" --previous"),
        Some(_) => describe.to_owned(),
    }
}

/// Remedy for a missing Secret or ConfigMap.
pub(super) fn missing(message: &str, place: &str) -> Option<String> {
    let named = |kind: &str| {
        let rest = message.split_once(&format!("{kind} \""))?.1;
        Some(rest.split('"').next().unwrap_or(rest).to_owned())
    };
    if message.contains("couldn't find key") {
        let key = message
            .split_whitespace()
            .skip_while(|word| *word != "key")
            .nth(1)
            .unwrap_or("KEY");
        let name = message.rsplit(['/', ' ']).next().unwrap_or("NAME");
        return Some(format!(
            "kubectl {place}create secret generic {name} --from-literal={key}=VALUE --dry-run=client -o yaml | kubectl apply -f -"
        ));
    }
    if let Some(name) = named("secret").or_else(|| named("secrets")) {
        return Some(format!(
            "kubectl {place}create secret generic {name} --from-literal=KEY=VALUE"
        ));
    }
    let name = named("configmap").or_else(|| named("configmaps"))?;
    Some(format!("kubectl {place}create configmap {name} --from-file=FILE"))
}

/// Pods by namespace and name of what they were made for.
pub(super) type Pods<'a> = BTreeMap<(String, String), Vec<&'a Pod>>;

/// Pods of one object.
pub(super) fn of<'p, 'a>(pods: &'p Pods<'a>, owner: &impl ResourceExt) -> &'p [&'a Pod] {
    let key = (owner.namespace().unwrap_or_default(), owner.name_any());
    pods.get(&key).map_or(&[], Vec::as_slice)
}

/// Pods by namespace and the value of any of these labels.
pub(super) fn by_label<'a>(pods: &'a [Pod], labels: &[&str]) -> Pods<'a> {
    let mut found = Pods::new();
    for pod in pods {
        let names = labels.iter().filter_map(|label| pod.labels().get(*label));
        // A pod may carry the same name under two labels.
        let mut names: Vec<&String> = names.collect();
        names.sort();
        names.dedup();
        for name in names {
            let key = (pod.namespace().unwrap_or_default(), name.clone());
            found.entry(key).or_default().push(pod);
        }
    }
    found
}
