//! Status of KAITO's objects (KAITO `pkg/workspace/controllers/workspace_controller.go`,
//! applyInferenceWorkspaceStatus, and `pkg/inferenceset/inferenceset_controller.go`).

use jiff::Timestamp;
use runway_api::Phase;
use runway_operator::object::{Condition, conditions};
use runway_provider::Reading;
use serde_json::Value;

/// Steps of the start, in KAITO's order: the first that is not completed is the current one.
const STEPS: [&str; 7] = [
    "NodeClaimReady",
    "NodesReady",
    "ResourceReady",
    "ModelMirrorReady",
    "InferenceReady",
    "BenchmarkCompleted",
    "WorkspaceSucceeded",
];

/// Reason of a False `WorkspaceSucceeded` during a normal start.
const PENDING: &str = "workspacePending";

/// A Workspace is one replica: ready or not.
pub(crate) fn of_workspace(object: &Value) -> Reading {
    let conditions = Conditions::of(object);
    let state = object["status"]["state"].as_str().unwrap_or_default();
    let (phase, reported) = match state {
        "Ready" | "Succeeded" | "Running" => (Phase::Running, None),
        "Failed" => (
            Phase::Failed,
            conditions.failure().or_else(|| conditions.first_unmet(&STEPS)),
        ),
        _ => {
            if let Some(failure) = conditions.failure() {
                (Phase::Failed, Some(failure))
            } else if state.is_empty() && conditions.is_true("WorkspaceSucceeded") {
                (Phase::Running, None)
            } else if state == "NotReady" {
                // It has served before: the state of the server matters, not that of the nodes.
                (
                    Phase::Deploying,
                    conditions
                        .unmet("InferenceReady")
                        .or_else(|| conditions.first_unmet(&STEPS)),
                )
            } else {
                (Phase::Deploying, conditions.first_unmet(&STEPS))
            }
        }
    };
    let ready = i32::from(phase == Phase::Running);
    let reading = reading(phase, reported, ready, &conditions);
    match reported.filter(|reported| reported.type_ == "NodesReady" && phase != Phase::Running) {
        Some(_) => Reading {
            message: format!("{}{}", reading.message, selector(object)),
            ..reading
        },
        None => reading,
    }
}

/// The labels by which a Workspace selects its nodes, as an addition to a message. KAITO does not name them.
fn selector(workspace: &Value) -> String {
    let labels = workspace["resource"]["labelSelector"]["matchLabels"].as_object();
    let labels: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    match labels.as_slice() {
        [] => String::new(),
        some => format!(" (nodes with the labels {})", some.join(", ")),
    }
}

/// An InferenceSet counts the Workspaces that serve; why the others do not, they report themselves. With none desired, it serves
/// as desired.
pub(crate) fn of_inference_set(object: &Value, desired: i32, workspaces: &[Value]) -> Reading {
    let conditions = Conditions::of(object);
    let status = &object["status"];
    if status.is_null() && desired > 0 {
        return Reading::silent();
    }
    let ready = status["readyReplicas"]
        .as_i64()
        .and_then(|n| i32::try_from(n.max(0)).ok())
        .unwrap_or(0);
    if ready >= desired {
        return match earlier(object, workspaces) {
            // Its pods have the same label, so the Service leads to them, too.
            Some(name) if desired > 0 => Reading {
                message: format!("Waiting for Workspace '{name}' of the earlier InferenceSet to be deleted"),
                ..reading(Phase::Deploying, None, ready, &conditions)
            },
            _ if desired == 0 => Reading {
                message: "Scaled to zero: no replica is desired".to_owned(),
                ..reading(Phase::Running, None, ready, &conditions)
            },
            _ => reading(Phase::Running, None, ready, &conditions),
        };
    }
    if let Some(failure) = conditions.failure() {
        return reading(Phase::Failed, Some(failure), ready, &conditions);
    }
    let counted = format!("{ready} of {desired} replicas ready");
    let own = Reading {
        message: counted.clone(),
        ..reading(
            Phase::Deploying,
            conditions.unmet("InferenceSetReady"),
            ready,
            &conditions,
        )
    };
    match slowest(object, workspaces) {
        Some((name, workspace)) => Reading {
            message: format!("{counted}; Workspace '{name}': {}", workspace.message),
            last_change: own.last_change.max(workspace.last_change),
            phase: workspace.phase,
            reason: workspace.reason,
            ..own
        },
        None => own,
    }
}

/// A Workspace of an InferenceSet that reports why it does not serve: one that failed, or the first that is not ready.
fn slowest<'a>(set: &Value, workspaces: &'a [Value]) -> Option<(&'a str, Reading)> {
    let mut waiting: Vec<_> = workspaces
        .iter()
        .filter(|workspace| belongs(workspace, set))
        .map(|workspace| {
            (
                workspace["metadata"]["name"].as_str().unwrap_or_default(),
                of_workspace(workspace),
            )
        })
        .filter(|(_, reading)| reading.phase != Phase::Running && !reading.message.is_empty())
        .collect();
    waiting.sort_by_key(|(name, reading)| (reading.phase != Phase::Failed, *name));
    waiting.into_iter().next()
}

/// Name of a Workspace that an earlier InferenceSet of this name has left.
fn earlier<'a>(set: &Value, workspaces: &'a [Value]) -> Option<&'a str> {
    let left = workspaces
        .iter()
        .find(|workspace| owner(workspace).is_some_and(|uid| *uid != set["metadata"]["uid"]));
    left?["metadata"]["name"].as_str()
}

/// Whether a Workspace is of this InferenceSet, and not of an earlier one of its name, and stays.
fn belongs(workspace: &Value, set: &Value) -> bool {
    owner(workspace) == Some(&set["metadata"]["uid"]) && workspace["metadata"]["deletionTimestamp"].is_null()
}

/// Uid of the InferenceSet that created a Workspace.
fn owner(workspace: &Value) -> Option<&Value> {
    let owners = workspace["metadata"]["ownerReferences"].as_array()?;
    owners
        .iter()
        .find(|owner| owner["controller"] == true)
        .map(|owner| &owner["uid"])
}

fn reading(phase: Phase, reported: Option<Condition>, ready: i32, conditions: &Conditions) -> Reading {
    let reason = match phase {
        Phase::Running => "Ready",
        Phase::Failed => "Failed",
        _ => "Deploying",
    };
    Reading {
        phase,
        reason: reported
            .and_then(|c| camel_case(c.reason))
            .unwrap_or_else(|| reason.to_owned()),
        // The name of the condition shows the step; for a failure only the reason matters.
        message: reported
            .map(|c| {
                if phase == Phase::Failed && !c.message.is_empty() {
                    c.message.to_owned()
                } else {
                    format!("{}: {}", c.type_, c.message_or_reason())
                }
            })
            .unwrap_or_default(),
        ready,
        available: ready,
        last_change: conditions.newest(),
        ..Reading::silent()
    }
}

/// Some of KAITO's reasons begin with a lower-case letter.
fn camel_case(reason: &str) -> Option<String> {
    let mut letters = reason.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
}

struct Conditions<'a>(Vec<Condition<'a>>);

impl<'a> Conditions<'a> {
    fn of(object: &'a Value) -> Self {
        Self(conditions(&object["status"]).collect())
    }

    fn get(&self, kind: &str) -> Option<Condition<'a>> {
        self.0.iter().find(|c| c.type_ == kind).copied()
    }

    fn is_true(&self, kind: &str) -> bool {
        self.get(kind).is_some_and(|c| c.is_true())
    }

    fn unmet(&self, kind: &str) -> Option<Condition<'a>> {
        self.get(kind).filter(Condition::is_false)
    }

    fn first_unmet(&self, kinds: &[&str]) -> Option<Condition<'a>> {
        kinds.iter().find_map(|kind| self.unmet(kind))
    }

    /// A failure that is not part of a normal start: the last condition with a specific reason, or one that reports an error.
    fn failure(&self) -> Option<Condition<'a>> {
        let ended = self.unmet("WorkspaceSucceeded").filter(|c| c.reason != PENDING);
        let failed_set = self
            .unmet("InferenceSetReady")
            .filter(|c| c.reason == "inferencesetFailed");
        let error = self
            .0
            .iter()
            .find(|c| c.is_true() && (c.type_.contains("Error") || c.type_.contains("Failed")));
        ended.or(failed_set).or_else(|| error.copied())
    }

    fn newest(&self) -> Option<Timestamp> {
        self.0.iter().filter_map(|c| c.since).max()
    }
}
