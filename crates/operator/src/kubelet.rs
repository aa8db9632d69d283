//! How far a pod has come, and what keeps it: read from what the kubelet says of its containers.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod};
use kube::ResourceExt;

use crate::packed::Text;

/// A pod that is not ready, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    /// Name of the pod.
    pub pod: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The rollout that it belongs to: the hash of its template, as Deployments and StatefulSets write it.
    pub revision: Option<String>,
    /// What keeps it from being ready.
    pub cause: Cause,
}

/// What keeps a pod from being ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It needs time: nothing has failed.
    Starting,
    /// No node fits: the scheduler's message.
    Unschedulable(String),
    /// It ended as a whole, by an eviction for instance.
    Ended {
        /// CamelCase, as the kubelet gives it, such as `Evicted`.
        reason: String,
        /// The kubelet's message.
        message: String,
    },
    /// A container fails.
    Container(Failing),
}

/// A container that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failing {
    /// Name of the container.
    pub name: String,
    /// Whether it is an init container.
    pub init: bool,
    /// Its image, as the pod names it.
    pub image: String,
    /// Why it fails.
    pub failure: Failure,
    /// Whether the kubelet has restarted it before, and so will again and again.
    pub repeated: bool,
    /// The most memory it may use, such as `512Mi`, if it is limited.
    pub memory_limit: Option<String>,
}

/// How far a container has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It has not started.
    Waiting,
    /// It runs; one that serves is not ready yet.
    Running,
    /// It has ended well, with what it left to say; one that serves is ready.
    Done(String),
    /// It cannot go on.
    Failed(Failure),
}

/// Why a container cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Its image cannot be had: what the kubelet says.
    Image(String),
    /// It cannot be made, or not be started: what the kubelet says.
    Start(String),
    /// It used more memory than it may.
    OutOfMemory,
    /// It ended: the exit code, and what it left to say.
    Exit {
        /// Its exit code.
        code: i32,
        /// What it left to say, or nothing.
        message: String,
    },
}

/// Reasons with which the kubelet waits for an image (kubernetes `pkg/kubelet/images/types.go`).
pub const IMAGE_REASONS: [&str; 7] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
];

/// Reasons with which the kubelet waits to create or start a container (kubernetes `pkg/kubelet/container/sync_result.go`).
pub const START_REASONS: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreCreateHookError",
    "PreStartHookError",
    "PostStartHookError",
];

/// Keeps a pod without its spec, which its workload has, and its managed fields.
pub fn without_spec(mut pod: Pod) -> Text {
    pod.metadata.managed_fields = None;
    pod.spec = None;
    Text::of(&pod)
}

/// The pod to speak of: one that is not ready if there is one, and the newest.
pub fn telling<'a>(pods: &[&'a Pod]) -> Option<&'a Pod> {
    pods.iter().copied().max_by_key(|pod| {
        (
            !is_ready(pod),
            pod.metadata.creation_timestamp.as_ref().map(|t| t.0),
            pod.name_any(),
        )
    })
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|(status, _, _)| status == "True")
}

/// When a pod became ready, in seconds.
pub fn ready_since(pod: &Pod) -> i64 {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .filter(|c| c.type_ == "Ready")
        .find_map(|c| Some(c.last_transition_time.as_ref()?.0.as_second()))
        .unwrap_or(0)
}

/// Why a pod cannot be placed on a node.
pub fn unschedulable(pod: &Pod) -> Option<&str> {
    match condition(pod, "PodScheduled") {
        Some(("False", Some("Unschedulable"), message)) => message,
        _ => None,
    }
}

/// Labels by which the pods of one rollout are told from those of another.
const REVISIONS: [&str; 2] = ["pod-template-hash", "controller-revision-hash"];

/// Why a pod is not ready; `None` if it is ready, has done its work, or is being deleted.
pub fn unready(pod: &Pod) -> Option<Unready> {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if is_ready(pod) || phase == Some("Succeeded") || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let cause = unschedulable(pod)
        .map(|said| Cause::Unschedulable(said.to_owned()))
        .or_else(|| failing(pod).map(Cause::Container))
        .or_else(|| ended(pod))
        .unwrap_or(Cause::Starting);
    Some(Unready {
        pod: pod.name_any(),
        created: pod.metadata.creation_timestamp.as_ref().map(|t| t.0),
        revision: REVISIONS.iter().find_map(|label| pod.labels().get(*label)).cloned(),
        cause,
    })
}

/// The container to speak of: the first that fails and left a message, or else the first that fails.
fn failing(pod: &Pod) -> Option<Failing> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten().map(|c| (c, true));
    let main = status.container_statuses.iter().flatten().map(|c| (c, false));
    let mut all: Vec<Failing> = init
        .chain(main)
        .filter(|(container, _)| !container.ready)
        .filter_map(|(container, init)| match stage(container, !init) {
            Stage::Failed(failure) => Some(Failing {
                name: container.name.clone(),
                init,
                image: container.image.clone(),
                failure,
                repeated: container.restart_count > 1 || is_backing_off(container),
                memory_limit: memory_limit(pod, &container.name),
            }),
            _ => None,
        })
        .collect();
    all.sort_by_key(|c| matches!(&c.failure, Failure::Exit { message, .. } if message.is_empty()));
    all.into_iter().next()
}

fn is_backing_off(container: &ContainerStatus) -> bool {
    let waiting = container.state.as_ref().and_then(|s| s.waiting.as_ref());
    waiting.is_some_and(|w| w.reason.as_deref() == Some("CrashLoopBackOff"))
}

fn memory_limit(pod: &Pod, container: &str) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    let limits = all.find(|c| c.name == container)?.resources.as_ref()?.limits.as_ref()?;
    limits.get("memory").map(|quantity| quantity.0.clone())
}

fn ended(pod: &Pod) -> Option<Cause> {
    let status = pod.status.as_ref()?;
    let reason = status.reason.clone().unwrap_or_else(|| "PodFailed".to_owned());
    (status.phase.as_deref() == Some("Failed")).then(|| Cause::Ended {
        reason,
        message: status.message.clone().unwrap_or_default(),
    })
}

/// Why a pod was ended by the kubelet, as when a volume grew over its limit.
pub fn evicted(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    (status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted"))
        .then(|| status.message.as_deref().unwrap_or("evicted"))
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, Option<&'a str>, Option<&'a str>)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == type_)?;
    Some((&found.status, found.reason.as_deref(), found.message.as_deref()))
}

/// How far an init container has come.
pub fn init_stage(pod: &Pod, container: &str) -> Stage {
    let statuses = pod
        .status
        .iter()
        .flat_map(|s| s.init_container_statuses.iter().flatten());
    match statuses.into_iter().find(|s| s.name == container) {
        Some(status) => stage(status, false),
        None => Stage::Waiting,
    }
}

/// How far a container that serves has come.
pub fn server_stage(pod: &Pod, container: &str) -> Stage {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    match statuses.into_iter().find(|s| s.name == container) {
        Some(status) if status.ready => Stage::Done(String::new()),
        Some(status) => stage(status, true),
        None => Stage::Waiting,
    }
}

/// How far a container has come, whether it is ready or not; `serves` says that it has no good end. While it is tried again, it
/// is as it was the last time: or its status would say one thing and another in turn.
pub fn stage(status: &ContainerStatus, serves: bool) -> Stage {
    let last = status.last_state.as_ref().and_then(ended_badly);
    let Some(state) = &status.state else {
        return Stage::Waiting;
    };
    if let Some(ended) = &state.terminated {
        return match ended_badly(state) {
            Some(failure) => Stage::Failed(failure),
            None if serves => Stage::Failed(Failure::Exit {
                code: 0,
                message: text(ended),
            }),
            None => Stage::Done(text(ended)),
        };
    }
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let said = || waiting.message.clone().unwrap_or_else(|| reason.to_owned());
        if IMAGE_REASONS.contains(&reason) {
            return Stage::Failed(Failure::Image(pull_error(&said())));
        }
        if START_REASONS.contains(&reason) {
            return Stage::Failed(Failure::Start(said()));
        }
        return match last {
            Some(failure) => Stage::Failed(failure),
            None if reason == "CrashLoopBackOff" => Stage::Failed(
                ended_well(status)
                    .filter(|_| serves)
                    .unwrap_or_else(|| Failure::Start(said())),
            ),
            None => Stage::Waiting,
        };
    }
    match last {
        Some(failure) => Stage::Failed(failure),
        None => Stage::Running,
    }
}

/// Between two attempts the kubelet repeats the error in other words: that is no news.
fn pull_error(said: &str) -> String {
    said.split_once("ErrImagePull: ")
        .map_or(said, |(_, error)| error)
        .to_owned()
}

fn ended_badly(state: &ContainerState) -> Option<Failure> {
    let ended = state.terminated.as_ref()?;
    let reason = ended.reason.as_deref().unwrap_or_default();
    match ended.exit_code {
        0 => None,
        // The second is runc's, when the limit is too low for a container to start at all.
        _ if reason == "OOMKilled" || text(ended).contains("OOM-killed") => Some(Failure::OutOfMemory),
        // The runtime could not start it: there is no exit code of its own.
        _ if matches!(reason, "StartError" | "ContainerCannotRun") => Some(Failure::Start(text(ended))),
        code => Some(Failure::Exit {
            code,
            message: text(ended),
        }),
    }
}

/// The end of a container that was to go on.
fn ended_well(status: &ContainerStatus) -> Option<Failure> {
    let ended = status.last_state.as_ref()?.terminated.as_ref()?;
    (ended.exit_code == 0).then(|| Failure::Exit {
        code: 0,
        message: text(ended),
    })
}

fn text(ended: &ContainerStateTerminated) -> String {
    ended.message.as_deref().unwrap_or_default().trim().to_owned()
}
