//! Status of a Workspace, computed from its workload. Pure.
//!
//! Sources: kaito-project/kaito 056b8280 (v0.12.0), `pkg/workspace/controllers/workspace_controller.go` and
//! `pkg/nodeprovision/byo-provisioner/byo_provisioner.go`.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{ContainerStateTerminated, ContainerStatus, Node, Pod},
};
use kube::{ResourceExt, api::DynamicObject};
use serde_json::{Value, json};

use super::super::engine::condition;

/// The longest account of a failure (`maxInferenceMessageLen`).
const LONGEST: usize = 256;
const PULLING: [&str; 6] = [
    "ImagePullBackOff",
    "ErrImagePull",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
];
const STARTING: [&str; 6] = [
    "CreateContainerConfigError",
    "PreCreateHookError",
    "CreateContainerError",
    "PreStartHookError",
    "RunContainerError",
    "PostStartHookError",
];

/// Observed state of a reconcile of KAITO's.
pub(super) struct Seen {
    /// Those that the label selector selects.
    pub(super) nodes: Vec<Node>,
    /// Nodes that one copy of the model needs, if known.
    pub(super) target: Option<i64>,
    pub(super) workload: Option<StatefulSet>,
    pub(super) pods: Vec<Pod>,
    /// Reason why the reconcile ended early.
    pub(super) error: Option<String>,
}

impl Seen {
    /// (`EnsureNodesReady`)
    pub(super) fn has_nodes(&self) -> bool {
        let ready = self.nodes.iter().filter(|node| is_ready(node)).count();
        i64::try_from(ready).unwrap_or(i64::MAX) >= self.target.unwrap_or(0)
    }
}

/// (`syncWorkspaceStatus`, `applyInferenceWorkspaceStatus`) The generation is observed whether or not the workload is made
/// from it. Simplified: no benchmark result, and no warnings of pressure on nodes.
pub(super) fn status(workspace: &DynamicObject, seen: &Seen) -> Value {
    let has_nodes = seen.has_nodes();
    let is_serving = has_nodes && seen.workload.as_ref().is_some_and(is_complete);
    // Each with what it says when it is true and when it is not: (reason, message).
    let condition = |kind: &str, is: bool, yes: (&str, &str), no: (&str, &str)| {
        let (reason, message) = if is { yes } else { no };
        let message = with_error(message, seen.error.as_deref());
        condition(workspace, kind, is, reason, &message)
    };
    let failure = failure(&seen.pods);
    let not_serving = failure.as_ref().map_or(
        ("WorkspaceInferenceStatusPending", "Inference workload is not ready"),
        |(reason, message)| (*reason, message.as_str()),
    );
    let conditions = [
        condition(
            "NodesReady",
            has_nodes,
            ("NodesReady", "Enough Nodes are ready"),
            ("NodeNotReady", "Not enough Nodes are ready"),
        ),
        condition(
            "ResourceReady",
            has_nodes,
            ("workspaceResourceStatusSuccess", "workspace resource is ready"),
            ("workspaceResourceStatusNotReady", "node status condition not ready"),
        ),
        condition(
            "InferenceReady",
            is_serving,
            (
                "WorkspaceInferenceStatusSuccess",
                "Inference has been deployed successfully",
            ),
            not_serving,
        ),
        condition(
            "WorkspaceSucceeded",
            is_serving,
            ("workspaceSucceeded", "workspace succeeds"),
            (
                "workspacePending",
                "workspace is waiting for inference workload readiness",
            ),
        ),
    ];
    let mut status = json!({
        "state": state(workspace, is_serving),
        "workerNodes": seen.nodes.iter().map(ResourceExt::name_any).collect::<Vec<_>>(),
        "conditions": conditions,
    });
    if let Some(target) = seen.target {
        status["targetNodeCount"] = json!(target);
    }
    status
}

fn state(workspace: &DynamicObject, is_serving: bool) -> &'static str {
    let was = workspace.data["status"]["state"].as_str();
    match (is_serving, was) {
        (true, _) => "Ready",
        (false, Some("Ready" | "NotReady")) => "NotReady",
        _ => "Pending",
    }
}

/// (`collectInferenceReadyStatus`) Pods that are ready are counted, whatever they are made from.
fn is_complete(workload: &StatefulSet) -> bool {
    let wanted = workload.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = workload.status.as_ref().and_then(|status| status.ready_replicas);
    ready.unwrap_or(0) == wanted
}

/// (`NodeIsReadyAndNotDeleting`)
pub(super) fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    node.metadata.deletion_timestamp.is_none() && conditions.any(|c| c.type_ == "Ready" && c.status == "True")
}

/// (`buildReconcileErrMessageAppender`)
fn with_error(message: &str, error: Option<&str>) -> String {
    match error.filter(|error| !message.contains(error)) {
        Some(error) => format!("{message} (last reconcile error: {error})"),
        None => message.to_owned(),
    }
}

/// The reason and message of pods that cannot become ready (`classifyInferencePodFailure`).
fn failure(pods: &[Pod]) -> Option<(&'static str, String)> {
    let of_containers = [oom_killed, not_pulled, not_started, crash_looping]
        .into_iter()
        .find_map(|check| pods.iter().flat_map(containers).find_map(check));
    let (reason, message) = of_containers
        .or_else(|| pods.iter().find_map(evicted))
        .or_else(|| pods.iter().find_map(unschedulable))?;
    Some((reason, truncated(message)))
}

fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().flatten().chain(main.into_iter().flatten())
}

fn terminations(container: &ContainerStatus) -> impl Iterator<Item = &ContainerStateTerminated> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    states
        .into_iter()
        .flatten()
        .filter_map(|state| state.terminated.as_ref())
}

fn oom_killed(container: &ContainerStatus) -> Option<(&'static str, String)> {
    let killed = terminations(container).find(|t| t.reason.as_deref() == Some("OOMKilled"))?;
    let message = format!(
        "container {:?} was OOMKilled (exit code {}); reduce memory usage or use a larger instance type",
        container.name, killed.exit_code
    );
    Some(("ContainerOOMKilled", message))
}

/// Waiting reason and message of a container.
fn waiting(container: &ContainerStatus) -> Option<(&str, &str)> {
    let waiting = container.state.as_ref()?.waiting.as_ref()?;
    Some((
        waiting.reason.as_deref()?,
        waiting.message.as_deref().unwrap_or_default(),
    ))
}

fn not_pulled(container: &ContainerStatus) -> Option<(&'static str, String)> {
    let (reason, message) = waiting(container).filter(|(reason, _)| PULLING.contains(reason))?;
    let message = format!("container {:?} image pull failed ({reason}): {message}", container.name);
    Some(("ImagePullError", message))
}

fn not_started(container: &ContainerStatus) -> Option<(&'static str, String)> {
    let (reason, message) = waiting(container).filter(|(reason, _)| STARTING.contains(reason))?;
    let message = format!("container {:?} failed to start ({reason}): {message}", container.name);
    Some(("ContainerStartError", message))
}

fn crash_looping(container: &ContainerStatus) -> Option<(&'static str, String)> {
    waiting(container).filter(|(reason, _)| *reason == "CrashLoopBackOff")?;
    let mut message = format!("container {:?} is in CrashLoopBackOff", container.name);
    let last = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    if let Some(last) = last {
        let code = format!("exit code {}", last.exit_code);
        let detail = last.message.as_deref().filter(|message| !message.is_empty());
        message = format!("{message}; last termination: {}", detail.unwrap_or(&code));
    }
    Some(("ContainerCrashLoopBackOff", message))
}

fn evicted(pod: &Pod) -> Option<(&'static str, String)> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() != Some("Failed") || status.reason.as_deref() != Some("Evicted") {
        return None;
    }
    let (name, message) = (pod.name_any(), status.message.as_deref().unwrap_or_default());
    let lower = message.to_lowercase();
    Some(if lower.contains("ephemeral-storage") || lower.contains("disk") {
        (
            "NodeDiskPressure",
            format!("pod {name:?} evicted due to node disk pressure: {message}"),
        )
    } else if lower.contains("memory") {
        (
            "NodeMemoryPressure",
            format!("pod {name:?} evicted due to node memory pressure: {message}"),
        )
    } else {
        ("PodEvicted", format!("pod {name:?} was evicted: {message}"))
    })
}

fn unschedulable(pod: &Pod) -> Option<(&'static str, String)> {
    let status = pod
        .status
        .as_ref()
        .filter(|status| status.phase.as_deref() == Some("Pending"))?;
    let mut conditions = status.conditions.iter().flatten();
    let found = conditions
        .find(|c| c.type_ == "PodScheduled" && c.status == "False" && c.reason.as_deref() == Some("Unschedulable"))?;
    let message = found.message.as_deref().unwrap_or_default();
    let message = format!("pod {:?} is unschedulable: {message}", pod.name_any());
    Some(("Unschedulable", message))
}

fn truncated(message: String) -> String {
    match message.char_indices().find(|(at, _)| *at >= LONGEST) {
        Some((end, _)) => format!("{}...", &message[..end]),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workspace(state: &Value) -> DynamicObject {
        serde_json::from_value(json!({"metadata": {"name": "w", "generation": 2}, "status": {"state": state}})).unwrap()
    }

    fn seen(ready: i32, pods: &Value) -> Seen {
        let workload = json!({"spec": {"replicas": 1, "selector": {}, "template": {}}, "status": {"replicas": 1, "readyReplicas": ready}});
        Seen {
            nodes: vec![
                serde_json::from_value(json!({
                    "metadata": {"name": "n"},
                    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
                }))
                .unwrap(),
            ],
            target: Some(1),
            workload: Some(serde_json::from_value(workload).unwrap()),
            pods: serde_json::from_value(pods.clone()).unwrap(),
            error: None,
        }
    }

    fn said(state: &Value, ready: i32) -> Value {
        status(&workspace(state), &seen(ready, &json!([])))["state"].clone()
    }

    #[test]
    fn it_is_pending_until_it_was_ready_once() {
        assert_eq!(said(&Value::Null, 0), "Pending");
        assert_eq!(said(&json!("Pending"), 1), "Ready");
        assert_eq!(said(&json!("Ready"), 0), "NotReady");
        assert_eq!(said(&json!("NotReady"), 0), "NotReady");
    }

    #[test]
    fn first_cause_of_all_pods_is_reported() {
        let pod = |name: &str, status: Value| json!({"metadata": {"name": name}, "status": status});
        let crashed = json!({"containerStatuses": [{
            "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "message": "unrecognized arguments"}},
        }]});
        let waiting = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient nvidia.com/gpu"},
        ]});
        let pods = json!([pod("a", waiting), pod("b", crashed)]);
        let status = status(&workspace(&Value::Null), &seen(0, &pods));
        assert_eq!(status["conditions"][2]["reason"], "ContainerCrashLoopBackOff");
        let message = "container \"c\" is in CrashLoopBackOff; last termination: unrecognized arguments";
        assert_eq!(status["conditions"][2]["message"], message);
        let pods = json!([pods[0]]);
        assert_eq!(
            failure(&seen(0, &pods).pods),
            Some((
                "Unschedulable",
                "pod \"a\" is unschedulable: Insufficient nvidia.com/gpu".to_owned()
            ))
        );
    }

    #[test]
    fn error_is_reported_in_every_condition() {
        let mut seen = seen(0, &json!([]));
        seen.error = Some("no ready nodes found".to_owned());
        let status = status(&workspace(&Value::Null), &seen);
        let conditions = status["conditions"].as_array().unwrap();
        let reported = conditions.iter().filter_map(|condition| condition["message"].as_str());
        assert_eq!(
            reported
                .filter(|message| message.contains("(last reconcile error: no ready nodes found)"))
                .count(),
            4
        );
    }
}
