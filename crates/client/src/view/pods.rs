//! State of pods for users: why one is not ready.

use std::fmt;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;
use runway_api::ModelDeployment;
use runway_api::labels::{self, llama_stack};
use runway_manifests as manifests;
use runway_operator::kubelet;

use crate::target::{closest, did_you_mean};

/// Reason why a pod is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// No node takes it.
    Unscheduled {
        /// Reason.
        reason: String,
        /// Message of the scheduler.
        message: String,
    },
    /// A container of it does not run.
    Container(Stopped),
    /// The pod was terminated, for example by an eviction.
    Ended {
        /// Reason.
        reason: String,
        /// Message of the kubelet.
        message: String,
    },
    /// The pod is running, but not ready.
    Unready,
    /// Not processed by scheduler or kubelet yet, with its phase.
    Unseen(String),
}

/// A container that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Name.
    pub name: String,
    /// Image.
    pub image: String,
    /// Reason of the state `waiting`; `None` if it is not waiting.
    pub waits: Option<String>,
    /// Message of the kubelet.
    pub message: String,
    /// Current or last termination.
    pub ended: Option<End>,
}

/// Termination of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Reason, such as `OOMKilled`.
    pub reason: Option<String>,
    /// Exit code.
    pub code: i32,
    /// Termination message.
    pub message: String,
}

impl Stopped {
    /// Whether it may become ready without a change.
    pub fn is_starting(&self) -> bool {
        let waits = self.waits.as_deref();
        waits.is_some_and(|reason| ["ContainerCreating", "PodInitializing", ""].contains(&reason))
    }
}

impl From<&ContainerStateTerminated> for End {
    fn from(end: &ContainerStateTerminated) -> Self {
        Self {
            reason: end.reason.clone(),
            code: end.exit_code,
            message: end.message.clone().unwrap_or_default().trim().to_owned(),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unscheduled { reason, message } | Self::Ended { reason, message } => said(f, reason, message),
            Self::Container(stopped) => stopped.fmt(f),
            Self::Unready => f.write_str("running, but its readiness probe fails: see its log"),
            Self::Unseen(phase) => write!(
                f,
                "{phase}, not scheduled yet (does a node exist, and is kube-scheduler running?)"
            ),
        }
    }
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.waits, &self.ended) {
            (Some(reason), ended) => {
                said(f, reason, &self.message)?;
                ended.as_ref().map_or(Ok(()), |end| write!(f, "; {end}"))
            }
            (None, Some(end)) => end.fmt(f),
            (None, None) => f.write_str("no reason given"),
        }
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self
            .reason
            .as_ref()
            .map_or_else(String::new, |reason| format!("{reason}, "));
        said(f, &format!("{reason}exit code {}", self.code), &self.message)
    }
}

fn said(f: &mut fmt::Formatter<'_>, reason: &str, message: &str) -> fmt::Result {
    match (reason, message) {
        ("", "") => f.write_str("no reason given"),
        (one, "") | ("", one) => f.write_str(one),
        (reason, message) => write!(f, "{reason}: {message}"),
    }
}

/// Reason why a pod is not ready; `None` if it is ready or completed.
pub fn trouble(pod: &Pod) -> Option<Trouble> {
    let status = pod.status.as_ref()?;
    let phase = status.phase.as_deref();
    let condition = |type_: &str, value: &str| {
        let found = status.conditions.iter().flatten();
        found.into_iter().find(|c| c.type_ == type_ && c.status == value)
    };
    if phase == Some("Succeeded") || condition("Ready", "True").is_some() {
        return None;
    }
    if let Some(unscheduled) = condition("PodScheduled", "False") {
        return Some(Trouble::Unscheduled {
            reason: unscheduled.reason.clone().unwrap_or_default(),
            message: unscheduled.message.clone().unwrap_or_default(),
        });
    }
    let of_pod = (status.reason.is_some() || status.message.is_some()).then(|| Trouble::Ended {
        reason: status.reason.clone().unwrap_or_default(),
        message: status.message.clone().unwrap_or_default(),
    });
    // The exit of its containers is a consequence.
    if kubelet::has_ended(pod) && of_pod.is_some() {
        return of_pod;
    }
    if let Some(stopped) = stopped(status) {
        return Some(Trouble::Container(stopped));
    }
    if of_pod.is_some() {
        return of_pod;
    }
    Some(match phase {
        Some("Running") => Trouble::Unready,
        phase => Trouble::Unseen(phase.unwrap_or("Pending").to_owned()),
    })
}

/// The first container that does not run; one that only needs time gives way to one that has failed.
fn stopped(status: &PodStatus) -> Option<Stopped> {
    let done = |c: &&ContainerStatus| {
        let ended = c.state.as_ref().and_then(|s| s.terminated.as_ref());
        ended.is_some_and(|end| end.exit_code == 0)
    };
    let first = status.init_container_statuses.iter().flatten().filter(|c| !done(c));
    let all: Vec<Stopped> = first
        .chain(status.container_statuses.iter().flatten())
        .filter_map(stopped_container)
        .collect();
    let failed = all.iter().find(|stopped| !stopped.is_starting());
    failed.or_else(|| all.first()).cloned()
}

/// A container that does not run.
pub fn stopped_container(container: &ContainerStatus) -> Option<Stopped> {
    let state = container.state.as_ref()?;
    let last = container.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    if state.waiting.is_none() && (state.running.is_some() || state.terminated.is_none()) {
        return None;
    }
    Some(Stopped {
        name: container.name.clone(),
        image: container.image.clone(),
        waits: state.waiting.as_ref().map(|w| w.reason.clone().unwrap_or_default()),
        message: state
            .waiting
            .as_ref()
            .and_then(|w| w.message.clone())
            .unwrap_or_default(),
        ended: state.terminated.as_ref().or(last).map(End::from),
    })
}

/// Whether a pod that is not ready may become ready without a change: no container has failed.
pub fn is_starting(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return true };
    let restarted = status.init_container_statuses.iter().chain(&status.container_statuses);
    let restarted = restarted.flatten().any(|c| c.restart_count > 0);
    let waits = match trouble(pod) {
        Some(Trouble::Unscheduled { .. }) => false,
        Some(Trouble::Container(stopped)) => stopped.is_starting(),
        _ => true,
    };
    waits && !restarted && !kubelet::has_ended(pod)
}

/// A container that is not in the pod.
#[derive(Debug, thiserror::Error)]
#[error("Pod/{pod} has no container '{given}'{hint} (containers: {known})")]
pub struct UnknownContainer {
    pod: String,
    given: String,
    hint: String,
    known: String,
}

/// Selected containers of a pod: the given one, all of them, or the main one. If a container has not started because an
/// earlier one has not ended, the earlier one is selected.
///
/// # Errors
/// The pod has no container of this name.
pub fn containers(pod: &Pod, given: Option<&str>, all: bool) -> Result<Vec<String>, UnknownContainer> {
    let spec = pod.spec.clone().unwrap_or_default();
    let first: Vec<String> = spec.init_containers.iter().flatten().map(|c| c.name.clone()).collect();
    let main: Vec<String> = spec.containers.iter().map(|c| c.name.clone()).collect();
    let every = || first.iter().chain(&main).cloned();
    if let Some(given) = given {
        if every().any(|name| name == given) {
            return Ok(vec![given.to_owned()]);
        }
        let known: Vec<String> = every().collect();
        return Err(UnknownContainer {
            pod: pod.name_any(),
            given: given.to_owned(),
            hint: did_you_mean(closest(given, known.iter().map(String::as_str)).as_deref()),
            known: known.join(", "),
        });
    }
    if all {
        return Ok(every().collect());
    }
    let holds_up = pod
        .status
        .iter()
        .flat_map(|s| s.init_container_statuses.iter().flatten())
        .find(|c| {
            let state = c.state.as_ref();
            let begun = state.is_some_and(|s| s.running.is_some() || s.terminated.is_some());
            let ended_well = state
                .and_then(|s| s.terminated.as_ref())
                .is_some_and(|end| end.exit_code == 0);
            // One that runs beside the others is ready while it runs.
            begun && !ended_well && !(c.ready || c.started == Some(true))
        });
    if let Some(container) = holds_up {
        return Ok(vec![container.name.clone()]);
    }
    let named = pod.annotations().get("kubectl.kubernetes.io/default-container");
    let chosen = named.filter(|name| main.contains(name)).or_else(|| main.first());
    Ok(chosen.into_iter().cloned().collect())
}

/// Labels of which each pod of a ModelDeployment carries one, with its name.
pub(crate) fn pod_labels(md: &ModelDeployment) -> Vec<String> {
    let provider = manifests::built_in_providers()
        .into_iter()
        .find(|p| md.selected_provider() == Some(p.name()));
    let labels = provider.map_or_else(|| vec![labels::DEPLOYMENT], |p| p.pod_labels());
    labels.into_iter().map(str::to_owned).collect()
}

/// Selectors of which each finds pods of a ModelDeployment.
pub(crate) fn pod_selectors(md: &ModelDeployment) -> Vec<String> {
    let labels = pod_labels(md).into_iter();
    labels.map(|label| format!("{label}={}", md.name_any())).collect()
}

/// Finds the pods with the containers of an AsyncActor.
pub(crate) fn actor_selector(name: &str) -> String {
    format!("{}={name}", labels::ASYA_ACTOR)
}

/// Finds what was made for a LlamaStackDistribution, pods included.
pub(crate) fn distribution_selector(name: &str) -> String {
    format!(
        "{}={name},{}={}",
        llama_stack::INSTANCE,
        llama_stack::MANAGED_BY,
        llama_stack::MANAGER
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(annotation: Option<&str>, init: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "p", "annotations": { "kubectl.kubernetes.io/default-container": annotation.unwrap_or("none") } },
            "spec": { "initContainers": [{ "name": "fetch" }], "containers": [{ "name": "main" }, { "name": "side" }] },
            "status": { "initContainerStatuses": [{ "name": "fetch", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": init }] },
        }))
        .unwrap()
    }

    #[test]
    fn the_main_container_is_selected_unless_an_init_container_blocks_it() {
        let done = json!({ "terminated": { "exitCode": 0 } });
        let names = |pod: &Pod, given, all| containers(pod, given, all).map_err(|e| e.to_string());
        assert_eq!(names(&pod(None, &done), None, false).unwrap(), ["main"]);
        assert_eq!(names(&pod(Some("side"), &done), None, false).unwrap(), ["side"]);
        assert_eq!(names(&pod(None, &done), None, true).unwrap(), ["fetch", "main", "side"]);
        assert_eq!(
            names(&pod(None, &json!({ "running": {} })), None, false).unwrap(),
            ["fetch"]
        );
        assert_eq!(
            names(&pod(None, &json!({ "waiting": {} })), None, false).unwrap(),
            ["main"]
        );
        assert_eq!(
            names(&pod(None, &done), Some("mian"), false).unwrap_err(),
            "Pod/p has no container 'mian' (did you mean 'main'?) (containers: fetch, main, side)"
        );
    }
}
