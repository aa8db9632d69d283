//! Status of a RayService (KubeRay `apis/ray/v1/rayservice_types.go`, and rayservice_controller.go,
//! calculateStatus).
//!
//! On a first rollout only the pending cluster reports its applications. While both exist, only the pending one does, and the
//! active one continues to serve. `Ready` means that something serves, not that everything does.

use jiff::{SignedDuration, Timestamp};
use runway_api::Phase;
use runway_api::condition::shorten;
use runway_api::labels::QUEUE;
use runway_operator::json;
use runway_operator::object::{Condition, condition, conditions};
use runway_provider::Reading;
use serde_json::Value;

use crate::labels;

/// Reasons of `Ready` for a permanent failure.
const TERMINAL: [&str; 2] = ["InitializingTimeout", "ValidationFailed"];

/// Maximum length of an application's message, in bytes: it may contain stack traces.
const LONGEST: usize = 500;

/// Time after which the applications that KubeRay reports for a generation are those of its Serve config. KubeRay reads the
/// applications before it submits a changed config, reports them with the new generation, and reads them again after two seconds
/// (`rayservice_controller.go`, reconcileServe, ServiceDefaultRequeueDuration): two rounds, and the second to which it rounds times.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// Reads a RayService with this desired spec and number of replicas.
pub(crate) fn of(object: &Value, desired: i32, wanted: &Value) -> Reading {
    if object["status"].as_object().is_none_or(serde_json::Map::is_empty) {
        return Reading::silent();
    }
    let service = Service::of(object, desired, wanted);
    let (phase, reason, message) = match service.given_up() {
        Some(state) => state,
        None if desired == 0 => service.suspended(),
        None => service.resuming().unwrap_or_else(|| service.serving()),
    };
    let ready = service.ready(phase);
    Reading {
        phase,
        reason,
        message,
        ready,
        available: ready,
        last_change: service.last_change(),
        current: service.active_cluster(),
        settled_at: service.last_update().map(|at| at + SETTLES_WITHIN),
    }
}

/// Phase, reason and message.
type State = (Phase, String, String);

fn state(phase: Phase, reason: &str, message: impl Into<String>) -> State {
    (phase, reason.to_owned(), message.into())
}

struct Service<'a> {
    object: &'a Value,
    status: &'a Value,
    desired: i32,
    wanted: &'a Value,
    pending: Vec<Application<'a>>,
    active: Vec<Application<'a>>,
}

impl<'a> Service<'a> {
    fn of(object: &'a Value, desired: i32, wanted: &'a Value) -> Self {
        let status = &object["status"];
        Self {
            object,
            status,
            desired,
            wanted,
            pending: applications(&status["pendingServiceStatus"]),
            active: applications(&status["activeServiceStatus"]),
        }
    }

    fn given_up(&self) -> Option<State> {
        let ready = self.condition("Ready").filter(|c| TERMINAL.contains(&c.reason))?;
        // After a timeout KubeRay observes no change any more.
        if ready.reason == "ValidationFailed" && !self.is_seen() {
            return None;
        }
        Some(state(Phase::Failed, ready.reason, text(ready)))
    }

    fn suspended(&self) -> State {
        let asked = self.object["spec"]["suspend"] == true;
        if asked && self.condition("Suspended").is_some_and(|c| c.is_true()) {
            state(
                Phase::Running,
                "Suspended",
                "Scaled to zero: no replica is desired, and no pod runs",
            )
        } else {
            state(Phase::Deploying, "Suspending", "KubeRay is deleting the pods")
        }
    }

    /// State of a RayService that is suspended, or was until a moment ago, although replicas are desired.
    fn resuming(&self) -> Option<State> {
        if self.object["spec"]["suspend"] == true {
            let reported = if self.object["metadata"]["labels"][QUEUE].is_string() {
                "The RayService is suspended until Kueue admits it: check the quota of its queue with kubectl get workloads"
            } else {
                "Another writer has suspended the RayService; it is resumed"
            };
            return Some(state(Phase::Deploying, "Suspended", reported));
        }
        let is = |type_| self.condition(type_).is_some_and(|c| c.is_true());
        if is("Suspending") {
            let reported = "KubeRay deletes the cluster, as it was suspended, and then creates it again";
            return Some(state(Phase::Deploying, "Resuming", reported));
        }
        let ready = self.condition("Ready");
        let is_resuming = is("Suspended") || ready.is_some_and(|c| !c.is_true() && c.reason == "SuspendComplete");
        is_resuming.then(|| state(Phase::Deploying, "Resuming", "KubeRay creates the cluster again"))
    }

    fn serving(&self) -> State {
        // What is reported, such as a failure, is about the spec before the change.
        if !self.is_seen() {
            let reported = "Waiting for KubeRay to observe the latest change";
            return state(Phase::Deploying, "Updating", reported);
        }
        match (self.answers(), self.upgrades()) {
            (true, true) => self.upgrading(),
            (true, false) => self.changing(),
            (false, _) => self.starting(),
        }
    }

    /// Two clusters: the earlier one serves.
    fn upgrading(&self) -> State {
        if let Some(app) = failing(&self.pending) {
            let reported = format!(
                "An earlier version still serves, and the new one does not start: {}",
                app.text()
            );
            return state(Phase::Deploying, "UpgradeFailing", reported);
        }
        let reported = "An earlier version serves while the new one starts in a second cluster";
        let reported =
            unfinished(&self.pending).map_or_else(|| reported.to_owned(), |app| format!("{reported}: {}", app.text()));
        state(Phase::Deploying, "UpgradeInProgress", reported)
    }

    /// One cluster that has served before, and still does.
    fn changing(&self) -> State {
        if let Some(app) = failing(&self.active) {
            return state(
                Phase::Failed,
                app.reason(),
                format!("{} (the previous version may still serve)", app.text()),
            );
        }
        match unfinished(&self.active) {
            Some(app) => state(Phase::Deploying, app.reason(), app.text()),
            // Ready is about endpoints, and stays True when the head is lost.
            None if self.active.is_empty() && self.reports_applications() => state(
                Phase::Deploying,
                "NoApplications",
                "Ray Serve reports no application: the head of the cluster may have been replaced, and the model is loaded again",
            ),
            None => state(Phase::Running, "Ready", ""),
        }
    }

    /// Whether KubeRay has observed the desired spec. In its status only the conditions carry a generation.
    fn is_seen(&self) -> bool {
        let seen = self.condition("Ready").and_then(|c| c.generation);
        let generation = self.object["metadata"]["generation"].as_i64();
        let is_applied = self.wanted.is_null() || json::contains(&self.object["spec"], self.wanted);
        is_applied && seen.zip(generation).is_none_or(|(seen, now)| seen >= now)
    }

    /// Whether this release of KubeRay reports the applications of the active cluster. All that have conditions do.
    fn reports_applications(&self) -> bool {
        self.condition("Ready").is_some()
    }

    /// Name of the cluster to which the Service leads.
    fn active_cluster(&self) -> Vec<(&'static str, String)> {
        let name = self.status["activeServiceStatus"]["rayClusterName"].as_str();
        let name = name.filter(|name| !name.is_empty());
        name.map(|name| (labels::CLUSTER, name.to_owned()))
            .into_iter()
            .collect()
    }

    /// No cluster serves.
    fn starting(&self) -> State {
        let apps = if self.pending.is_empty() {
            &self.active
        } else {
            &self.pending
        };
        if let Some(app) = failing(apps) {
            return state(Phase::Failed, app.reason(), app.text());
        }
        // States of KubeRay before it had conditions, and of the design.
        match self.status["serviceStatus"].as_str().unwrap_or_default() {
            "Failed" => {
                return state(
                    Phase::Failed,
                    "Failed",
                    unfinished(apps).map(Application::text).unwrap_or_default(),
                );
            }
            "Pending" => return state(Phase::Pending, "Pending", ""),
            _ => {}
        }
        if let Some(app) = unfinished(apps) {
            return state(Phase::Deploying, app.reason(), app.text());
        }
        match (self.condition("Ready"), self.status["serviceStatus"].as_str()) {
            (Some(ready), _) if !ready.is_true() => state(Phase::Deploying, ready.reason, text(ready)),
            (None, Some(word)) if !word.is_empty() => state(Phase::Deploying, word, format!("serviceStatus: {word}")),
            _ => state(Phase::Deploying, "Deploying", ""),
        }
    }

    /// Whether any cluster serves requests.
    fn answers(&self) -> bool {
        match self.condition("Ready") {
            Some(ready) => ready.is_true(),
            None => self.status["serviceStatus"] == "Running",
        }
    }

    /// Whether a second cluster is starting.
    fn upgrades(&self) -> bool {
        self.condition("UpgradeInProgress").is_some_and(|c| c.is_true())
            || self.status["pendingServiceStatus"]["rayClusterName"]
                .as_str()
                .is_some_and(|name| !name.is_empty())
    }

    /// Number of ready replicas. KubeRay reports only that Ray Serve runs all of them (Running), or that something serves. Then
    /// there is at least one, such as of an earlier version, and at most as many as ready workers, but not all of several.
    fn ready(&self, phase: Phase) -> i32 {
        if self.desired == 0 || !self.answers() {
            return 0;
        }
        if phase == Phase::Running {
            return self.desired;
        }
        let ready = self.status["activeServiceStatus"]["rayClusterStatus"]["readyWorkerReplicas"]
            .as_i64()
            .unwrap_or(0);
        let groups = self.wanted["rayClusterConfig"]["workerGroupSpecs"].as_array();
        let all: i64 = groups
            .into_iter()
            .flatten()
            .filter_map(|group| group["replicas"].as_i64())
            .sum();
        let replicas = ready
            .saturating_mul(i64::from(self.desired))
            .checked_div(all)
            .unwrap_or(0);
        i32::try_from(replicas)
            .unwrap_or(i32::MAX)
            .clamp(1, (self.desired - 1).max(1))
    }

    fn condition(&self, type_: &str) -> Option<Condition<'a>> {
        condition(self.status, type_)
    }

    fn last_change(&self) -> Option<Timestamp> {
        conditions(self.status)
            .filter_map(|c| c.since)
            .chain(self.last_update())
            .max()
    }

    /// Time of the last change of the status.
    fn last_update(&self) -> Option<Timestamp> {
        self.status["lastUpdateTime"].as_str()?.parse().ok()
    }
}

fn text(condition: Condition) -> String {
    format!("{}: {}", condition.type_, essence(condition.message_or_reason()))
}

/// A Serve application, as Ray's dashboard reports it.
struct Application<'a> {
    name: &'a str,
    status: &'a str,
    message: &'a str,
    /// Messages of its unhealthy deployments.
    troubles: Vec<String>,
}

fn applications(cluster: &Value) -> Vec<Application<'_>> {
    let all = cluster["applicationStatuses"].as_object().into_iter().flatten();
    all.map(|(name, app)| Application {
        name,
        status: app["status"].as_str().unwrap_or_default(),
        message: app["message"].as_str().unwrap_or_default(),
        troubles: troubles(app),
    })
    .collect()
}

fn troubles(app: &Value) -> Vec<String> {
    let deployments = app["serveDeploymentStatuses"].as_object().into_iter().flatten();
    deployments
        .filter_map(|(name, deployment)| {
            let message = deployment["message"].as_str().filter(|m| !m.is_empty())?;
            let status = deployment["status"].as_str().filter(|s| *s != "HEALTHY")?;
            Some(format!("{name} is {status}: {}", essence(message)))
        })
        .collect()
}

fn failing<'a, 'b>(apps: &'b [Application<'a>]) -> Option<&'b Application<'a>> {
    apps.iter()
        .find(|app| matches!(app.status, "DEPLOY_FAILED" | "UNHEALTHY"))
}

fn unfinished<'a, 'b>(apps: &'b [Application<'a>]) -> Option<&'b Application<'a>> {
    apps.iter().find(|app| app.status != "RUNNING")
}

impl Application<'_> {
    /// Reason of a condition.
    fn reason(&self) -> &'static str {
        match self.status {
            "NOT_STARTED" => "NotStarted",
            "DEPLOY_FAILED" => "DeployFailed",
            "UNHEALTHY" => "Unhealthy",
            "DELETING" => "Deleting",
            _ => "Deploying",
        }
    }

    /// The state and its cause. After the last attempt the application only says that it failed, and its deployments say why.
    fn text(&self) -> String {
        let own = (!self.message.is_empty()).then(|| essence(self.message));
        let reported: Vec<String> = own.into_iter().chain(self.troubles.clone()).collect();
        let reported = reported.join("; ");
        if reported.is_empty() {
            format!("Serve application {} is {}", self.name, self.status)
        } else {
            format!("Serve application {} is {}: {reported}", self.name, self.status)
        }
    }
}

/// The first and the last line of a text: between them are stack traces.
fn essence(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let whole = match lines.next_back() {
        Some(last) => format!("{first} … {last}"),
        None => first.to_owned(),
    };
    shorten(whole, LONGEST)
}
