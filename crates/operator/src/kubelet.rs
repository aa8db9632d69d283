//! State of a pod and its containers, from what the kubelet reports.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions as _};
use serde_json::Value;

use crate::object::{self, Condition};
use crate::packed::Text;

/// The condition `ReplicaFailure` of a Deployment that cannot create pods of its current template: a quota, a policy, a missing
/// ServiceAccount. While pods of an earlier template wait for their replacement, the condition may be about these (`getReplicaFailures`
/// in pkg/controller/deployment/deployment_controller.go, Kubernetes 1.36); that is not reported.
pub fn replica_failure(deployment: &Value) -> Option<Condition<'_>> {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let created = status["updatedReplicas"].as_i64().unwrap_or_default();
    if created >= spec["replicas"].as_i64().unwrap_or(1) {
        return None;
    }
    object::condition(status, "ReplicaFailure").filter(Condition::is_true)
}

/// The condition of a Deployment whose pods cannot be created ([`replica_failure`]), or whose rollout makes no progress.
pub fn rollout_failure(deployment: &Value) -> Option<Condition<'_>> {
    let stuck = || object::condition(&deployment["status"], "Progressing").filter(Condition::is_false);
    replica_failure(deployment).or_else(stuck)
}

/// A pod that is not ready, with the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unready {
    /// Name of the pod.
    pub pod: String,
    /// Creation time.
    pub created: Option<Timestamp>,
    /// Rollout that the pod belongs to: the hash of its template, as Deployments and StatefulSets set it.
    pub revision: Option<String>,
    /// Time at which the pod failed as a whole. Its workload replaces it, but the object remains, which may be for weeks.
    pub ended: Option<Timestamp>,
    /// Reason why the pod is not ready.
    pub cause: Cause,
}

/// Reason why a pod is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is starting; nothing has failed.
    Starting,
    /// No node fits; the scheduler's message.
    Unschedulable(String),
    /// The scheduler does not consider the pod yet ([`gated`]).
    Gated(String),
    /// It failed as a whole, for example by eviction.
    Ended {
        /// Reason by the kubelet, such as `Evicted`.
        reason: String,
        /// Message by the kubelet.
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
    /// Image in the pod's status.
    pub image: String,
    /// Reason why the container fails.
    pub failure: Failure,
    /// Whether the kubelet restarts it again and again.
    pub repeated: bool,
    /// Memory limit, such as `512Mi`, if set.
    pub memory_limit: Option<String>,
}

/// Progress of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not started.
    Waiting,
    /// Running. A server is not ready yet.
    Running,
    /// Exited successfully, with its termination message. A server is ready.
    Done(String),
    /// Failed.
    Failed(Failure),
}

/// Reason why a container fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The image cannot be pulled; the kubelet's message.
    Image(String),
    /// The container cannot be created or started; the kubelet's message.
    Start(String),
    /// It exceeded its memory limit.
    OutOfMemory,
    /// It exited.
    Exit {
        /// Exit code.
        code: i32,
        /// Termination message, or empty.
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

/// Keeps a pod without its managed fields, and of its spec, which its workload has, only what others add: the pull Secrets of the
/// ServiceAccount, and scheduling gates.
pub fn without_spec(mut pod: Pod) -> Text {
    pod.metadata.managed_fields = None;
    pod.spec = pod.spec.take().map(|spec| PodSpec {
        image_pull_secrets: spec.image_pull_secrets,
        scheduling_gates: spec.scheduling_gates,
        ..PodSpec::default()
    });
    Text::of(&pod)
}

/// The most informative pod: one that is not ready if possible, and the newest.
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

/// Time when a pod became ready, in seconds since the epoch; 0 if it is not.
pub fn ready_since(pod: &Pod) -> i64 {
    let conditions = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
    conditions
        .filter(|c| c.type_ == "Ready")
        .find_map(|c| Some(c.last_transition_time.as_ref()?.0.as_second()))
        .unwrap_or(0)
}

/// The scheduler's message, if a pod is unschedulable.
pub fn unschedulable(pod: &Pod) -> Option<&str> {
    match condition(pod, "PodScheduled") {
        Some(("False", Some("Unschedulable"), message)) => message,
        _ => None,
    }
}

/// Prefix of the gates that Kueue sets until it admits a pod or its workload.
const KUEUE: &str = "kueue.x-k8s.io/";

/// The scheduling gates for which a pod waits, with the next step; `None` if it has none.
pub fn gated(pod: &Pod) -> Option<String> {
    let gates = pod.spec.as_ref()?.scheduling_gates.as_ref()?;
    let names: Vec<&str> = gates.iter().map(|gate| gate.name.as_str()).collect();
    let step = match names.as_slice() {
        [] => return None,
        names if names.iter().any(|name| name.starts_with(KUEUE)) => format!(
            "Kueue removes its gate when it admits the workload: check the quota of its queue with kubectl get workloads -n {}",
            pod.namespace().unwrap_or_default()
        ),
        _ => "The controller that set them has to remove them".to_owned(),
    };
    Some(format!("scheduling gates {}. {step}", names.join(", ")))
}

/// Maximum time between the failure of a pod and the change of the condition Ready.
const REPORTED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Labels that distinguish the pods of different rollouts.
const REVISIONS: [&str; 2] = ["pod-template-hash", "controller-revision-hash"];

/// Reason why a pod is not ready; `None` if it is ready, completed, or being deleted.
pub fn unready(pod: &Pod) -> Option<Unready> {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    if is_ready(pod) || phase == Some("Succeeded") || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    // With a reason for the whole pod, the exit of its containers is a consequence.
    let has_reason = pod.status.as_ref().is_some_and(|s| s.reason.is_some());
    let cause = unschedulable(pod)
        .map(|said| Cause::Unschedulable(said.to_owned()))
        .or_else(|| gated(pod).map(Cause::Gated))
        .or_else(|| ended(pod).filter(|_| has_reason))
        .or_else(|| failing(pod).map(Cause::Container))
        .or_else(|| ended(pod))
        .unwrap_or(Cause::Starting);
    Some(Unready {
        pod: pod.name_any(),
        created: pod.metadata.creation_timestamp.as_ref().map(|t| t.0),
        revision: REVISIONS.iter().find_map(|label| pod.labels().get(*label)).cloned(),
        ended: has_ended(pod).then(|| ended_at(pod)),
        cause,
    })
}

/// The most informative failing container: the first one with a termination message, or else the first.
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

/// Whether a pod failed as a whole, such as by eviction, rejection by the kubelet, or shutdown of the node. It does not run again: its
/// workload replaces it.
pub fn has_ended(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed")
}

fn ended(pod: &Pod) -> Option<Cause> {
    let status = pod.status.as_ref().filter(|_| has_ended(pod))?;
    Some(Cause::Ended {
        reason: status.reason.clone().unwrap_or_else(|| "PodFailed".to_owned()),
        message: status.message.clone().unwrap_or_default(),
    })
}

/// Time at which a pod that has ended did so: the last one that its status names, or else that of its creation.
pub fn ended_at(pod: &Pod) -> Timestamp {
    let status = pod.status.iter();
    let changed = status.clone().flat_map(|s| s.conditions.iter().flatten());
    let changed = changed.filter_map(|c| c.last_transition_time.as_ref());
    let containers = status.flat_map(|s| s.container_statuses.iter().flatten());
    let finished = containers.filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref());
    let named = changed.chain(finished).map(|time| time.0).max();
    let created = pod.metadata.creation_timestamp.as_ref();
    named.or_else(|| created.map(|time| time.0)).unwrap_or(Timestamp::MAX)
}

/// Whether the end of a pod may be why its object is not Ready now. If the object was Ready after it, something else is the cause.
pub fn may_explain(ended: Timestamp, conditions: &[meta::v1::Condition], now: Timestamp) -> bool {
    let was_ready_until = match conditions.get_condition(condition::READY) {
        None => return true,
        Some(_) if conditions.is_true(condition::READY) => now,
        Some(ready) => ready.last_transition_time.0,
    };
    was_ready_until.duration_since(ended) <= REPORTED_WITHIN
}

/// Message of the kubelet on an eviction, such as a volume over its limit; `None` if the pod was not evicted.
pub fn evicted(pod: &Pod) -> Option<&str> {
    let status = pod.status.as_ref()?;
    (has_ended(pod) && status.reason.as_deref() == Some("Evicted"))
        .then(|| status.message.as_deref().unwrap_or("evicted"))
}

fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<(&'a str, Option<&'a str>, Option<&'a str>)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|c| c.type_ == type_)?;
    Some((&found.status, found.reason.as_deref(), found.message.as_deref()))
}

/// Progress of an init container.
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

/// Progress of a container that serves.
pub fn server_stage(pod: &Pod, container: &str) -> Stage {
    let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter().flatten());
    match statuses.into_iter().find(|s| s.name == container) {
        Some(status) if status.ready => Stage::Done(String::new()),
        Some(status) => stage(status, true),
        None => Stage::Waiting,
    }
}

/// Progress of a container, ready or not. With `serves`, exit code 0 is a failure. While a container restarts, its last failure
/// counts: otherwise the result would alternate.
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

/// The error without the back-off prefix that the kubelet adds between two attempts.
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
        // The second text is runc's, if the limit is too low for the container to start.
        _ if reason == "OOMKilled" || text(ended).contains("OOM-killed") => Some(Failure::OutOfMemory),
        // The runtime could not start it, so that there is no exit code of the process.
        _ if matches!(reason, "StartError" | "ContainerCannotRun") => Some(Failure::Start(text(ended))),
        code => Some(Failure::Exit {
            code,
            message: text(ended),
        }),
    }
}

/// Exit code 0 of a container that should keep running.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_replica_failure_counts_until_the_pods_of_the_current_template_exist() {
        let counts = |wanted: Option<i64>, updated: Option<i64>, status: &str| {
            let deployment = json!({ "spec": { "replicas": wanted }, "status": { "updatedReplicas": updated, "conditions": [
                { "type": "Progressing", "status": "True" },
                { "type": "ReplicaFailure", "status": status, "message": "exceeded quota" },
            ] } });
            replica_failure(&deployment).is_some_and(|failure| failure.message == "exceeded quota")
        };
        assert!(counts(None, None, "True"));
        assert!(counts(Some(3), Some(2), "True"));
        assert!(!counts(Some(3), Some(3), "True"));
        assert!(!counts(None, Some(1), "True"));
        assert!(!counts(Some(3), Some(2), "False"));
        assert!(replica_failure(&json!({})).is_none());
    }

    fn failed(status: Value) -> Pod {
        let mut status = status;
        status["phase"] = json!("Failed");
        let created = json!({ "name": "m-0", "creationTimestamp": "2026-03-01T10:00:00Z" });
        serde_json::from_value(json!({ "metadata": created, "status": status })).unwrap()
    }

    /// As a kubelet leaves it that was restarted with too little memory (Kubernetes 1.36).
    #[test]
    fn the_reason_of_a_pod_precedes_exit_codes_of_its_containers() {
        let killed = json!([{ "name": "model", "ready": false, "restartCount": 1, "image": "i", "imageID": "", "state":
            { "terminated": { "exitCode": 137, "finishedAt": "2026-03-01T10:05:00Z" } } }]);
        let said = "Pod was rejected: Node didn't have enough resource: memory";
        let rejected = failed(json!({ "reason": "OutOfmemory", "message": said, "containerStatuses": killed }));
        let unready = unready(&rejected).unwrap();
        assert_eq!(unready.ended, Some("2026-03-01T10:05:00Z".parse().unwrap()));
        assert!(matches!(unready.cause, Cause::Ended { message, .. } if message == said));
        let unnamed = super::unready(&failed(json!({ "containerStatuses": killed }))).unwrap();
        assert!(matches!(unnamed.cause, Cause::Container(_)), "{unnamed:?}");
    }

    #[test]
    fn the_end_of_a_pod_does_not_explain_what_began_later() {
        let ended = ended_at(&failed(json!({})));
        let after = |seconds| ended + SignedDuration::from_secs(seconds);
        let ready = |status: &str, since| {
            let ready =
                json!({ "type": "Ready", "status": status, "reason": "R", "message": "", "lastTransitionTime": since });
            [serde_json::from_value::<meta::v1::Condition>(ready).unwrap()]
        };
        assert!(may_explain(ended, &[], after(9000)));
        assert!(may_explain(ended, &ready("True", after(-9000)), after(5)));
        assert!(may_explain(ended, &ready("False", after(5)), after(9000)));
        assert!(may_explain(ended, &ready("False", after(-9000)), after(9000)));
        assert!(!may_explain(ended, &ready("True", after(5)), after(9000)));
        assert!(!may_explain(ended, &ready("False", after(9000)), after(9001)));
    }
}
