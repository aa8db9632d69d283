//! Status of a DynamoGraphDeployment (Dynamo
//! `deploy/operator/internal/controller/dynamographdeployment_controller.go` and the status of both API versions).
//!
//! Dynamo's `state` is initializing, pending, successful or failed; the design's deploying is supported as well. Dynamo reports
//! pending while pods are starting, so that it is Deploying here.

use jiff::Timestamp;
use runway_api::Phase;
use runway_operator::object::{Condition, condition, conditions};
use runway_provider::{Component, Reading};
use serde_json::Value;

/// Reads the status for workers with these names, of the desired components.
pub(crate) fn read(object: &Value, workers: &[&str], desired: i32, wanted: &[Component]) -> Reading {
    let status = &object["status"];
    if status.is_null() {
        return Reading::silent();
    }
    // Its reason and message say why the deployment does not serve.
    let ready_condition = condition(status, "Ready");
    let state = status["state"].as_str().unwrap_or_default();
    let phase = match state {
        _ if is_outdated(object) => Phase::Deploying,
        "successful" if rolls_out(status, wanted) || ready_condition.is_some_and(|c| !c.is_true()) => Phase::Deploying,
        "successful" => Phase::Running,
        "failed" => Phase::Failed,
        _ => Phase::Deploying,
    };
    let counted = Counts::of(status, workers);
    let counts = counted.unwrap_or_else(|| Counts::all(if phase == Phase::Running { desired } else { 0 }));
    let unmet = ready_condition.filter(|c| !c.is_true());
    Reading {
        phase,
        reason: reason(phase, unmet),
        message: message(status, phase, unmet, &counts, desired),
        ready: counts.ready,
        available: counts.available,
        last_change: newest(status),
        ..Reading::silent()
    }
}

/// Dynamo has not observed the latest spec: its status is about an earlier one.
fn is_outdated(object: &Value) -> bool {
    let seen = object["status"]["observedGeneration"].as_i64();
    let newest = object["metadata"]["generation"].as_i64();
    matches!((seen, newest), (Some(seen), Some(newest)) if seen < newest)
}

/// Whether a rollout is in progress. Dynamo reports `successful` as soon as enough pods are ready, those of the earlier spec
/// included, and observes the new generation before (issues 3567 and 10527). A new pod is updated before it is ready, and beside it one of
/// the earlier spec is counted.
fn rolls_out(status: &Value, wanted: &[Component]) -> bool {
    let is_rolling = matches!(
        status["rollingUpdate"]["phase"].as_str(),
        Some("Pending" | "InProgress" | "Failed")
    );
    let reported = components(status);
    is_rolling
        || wanted.iter().any(|wanted| {
            let Some(component) = reported.and_then(|all| all.get(&wanted.name)) else {
                return reported.is_some();
            };
            let number = |field: &str| component[field].as_i64();
            let ready = number("readyReplicas").or_else(|| number("availableReplicas"));
            let updated = number("updatedReplicas");
            let has_old = updated.is_some_and(|updated| number("replicas").is_some_and(|all| all > updated));
            let is_missing = |count: i64| count < i64::from(wanted.pods);
            has_old || [updated, ready].into_iter().flatten().any(is_missing)
        })
}

/// The components of a status, by name: v1beta1 and v1alpha1.
fn components(status: &Value) -> Option<&serde_json::Map<String, Value>> {
    [&status["components"], &status["services"]]
        .into_iter()
        .find_map(Value::as_object)
}

fn reason(phase: Phase, unmet: Option<Condition>) -> String {
    let own = match phase {
        Phase::Running => return "Ready".to_owned(),
        Phase::Failed => "Failed",
        _ => "Deploying",
    };
    let noted = unmet.map(|c| camel_case(c.reason)).filter(|noted| !noted.is_empty());
    noted.unwrap_or_else(|| own.to_owned())
}

fn message(status: &Value, phase: Phase, unmet: Option<Condition>, counts: &Counts, desired: i32) -> String {
    // The field of the design. Dynamo itself has the condition.
    let noted = status["message"].as_str().filter(|text| !text.is_empty());
    let noted = noted
        .or_else(|| unmet.map(|c| c.message))
        .filter(|text| !text.is_empty());
    match (phase, noted) {
        (Phase::Running, _) if desired == 0 => "Scaled to zero: no worker is desired".to_owned(),
        (Phase::Running, _) => String::new(),
        (_, Some(noted)) => noted.to_owned(),
        (Phase::Failed, None) => unmet.map(|c| c.reason.to_owned()).unwrap_or_default(),
        (_, None) if counts.ready >= desired => "Waiting for Dynamo to complete the rollout".to_owned(),
        (_, None) => format!("{} of {desired} workers ready", counts.ready),
    }
}

/// Number of ready workers. The object behind a component decides which number exists: a scaling group has no ready number, a
/// clique and a LeaderWorkerSet have no available one.
struct Counts {
    ready: i32,
    available: i32,
}

impl Counts {
    fn all(number: i32) -> Self {
        Self {
            ready: number,
            available: number,
        }
    }

    /// `None` if Dynamo reports no number.
    fn of(status: &Value, workers: &[&str]) -> Option<Self> {
        let components = components(status)?;
        let mut sum = Self::all(0);
        for component in workers.iter().filter_map(|name| components.get(*name)) {
            let number = |field: &str| component[field].as_i64().and_then(|n| i32::try_from(n.max(0)).ok());
            let (ready, available) = (number("readyReplicas"), number("availableReplicas"));
            sum.ready = sum.ready.saturating_add(ready.or(available).unwrap_or(0));
            sum.available = sum.available.saturating_add(available.or(ready).unwrap_or(0));
        }
        Some(sum)
    }
}

fn newest(status: &Value) -> Option<Timestamp> {
    conditions(status).filter_map(|c| c.since).max()
}

/// Dynamo's reasons contain underscores.
fn camel_case(reason: &str) -> String {
    let word = |word: &str| {
        let mut letters = word.chars();
        let first = letters.next().map(char::to_uppercase);
        first.into_iter().flatten().chain(letters).collect::<String>()
    };
    reason.split('_').map(word).collect()
}
