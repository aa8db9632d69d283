//! `kubeairunway status`: one screen about one ModelDeployment.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::condition::{self, Conditions};
use runway_api::model_deployment::ModelDeploymentStatus;
use runway_api::{ModelDeployment, Phase, ProviderReason, Tone};
use runway_provider::Reading;
use serde_json::Value;

use crate::text::{self, Look, Mood};
use crate::view::events::last_seen;

/// Events shown at most.
const MAX_EVENTS: usize = 5;

/// Conditions of the lifecycle of a ModelDeployment, in order, with the step that each waits for.
pub const LIFECYCLE: [(&str, &str); 5] = [
    (condition::VALIDATED, "the core controller to check the spec"),
    (condition::PROVIDER_SELECTED, "the core controller to select a provider"),
    (
        condition::PROVIDER_COMPATIBLE,
        "the provider's controller to reconcile it",
    ),
    (
        condition::RESOURCE_CREATED,
        "the provider's controller to create the upstream object",
    ),
    (condition::READY, "the model to become ready"),
];

/// Everything the screen shows.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The ModelDeployment.
    pub md: ModelDeployment,
    /// State of its upstream object.
    pub upstream: Upstream,
    /// The health of its provider, for people; `None` if it is well or not known.
    pub provider_trouble: Option<String>,
    /// Events about it.
    pub events: Vec<Event>,
    /// Lookups that failed, as messages for the user.
    pub missing: Vec<String>,
}

/// State of the upstream object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Upstream {
    /// Unknown, because it cannot be read.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// State as read by its provider.
    Says(Reading),
}

/// The screen.
pub fn screen(view: &View, now: Timestamp, look: Look) -> String {
    let status = view.md.status.clone().unwrap_or_default();
    let sections = [
        headline(&view.md, &status, look),
        facts(view, &status, now),
        conditions(&status.conditions, status.message.as_deref(), now, look),
        events(&view.events, now),
    ];
    sections
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

fn headline(md: &ModelDeployment, status: &ModelDeploymentStatus, look: Look) -> String {
    let name = look.strong(&format!("{}/{}", md.namespace().unwrap_or_default(), md.name_any()));
    let tone = status.phase.map_or(Tone::Unknown, Phase::tone);
    let phase = look.paint(tone.into(), status.phase.map_or("no status yet", Phase::as_str));
    let message = status
        .message
        .as_deref()
        .map_or_else(String::new, |m| format!("  {}\n", text::cell(m)));
    format!("{name}: {phase}\n{message}")
}

fn facts(view: &View, status: &ModelDeploymentStatus, now: Timestamp) -> String {
    let mut lines: Vec<(&str, String)> = vec![("Model", model(&view.md)), ("Provider", provider(view, status))];
    lines.extend(upstream(view, status).map(|text| ("Upstream", text)));
    if let Some(replicas) = &status.replicas {
        let number = |n: Option<i32>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        lines.push((
            "Replicas",
            format!("{} of {} ready", number(replicas.ready), number(replicas.desired)),
        ));
    }
    lines.extend(endpoint(&view.md));
    let next = waits_for(view);
    // The headline's words are not repeated.
    if status.message.as_ref().is_none_or(|said| !next.ends_with(said)) {
        lines.push(("Next", next));
    }
    lines.extend(view.md.creation_timestamp().map(|t| ("Age", text::since(t.0, now))));
    lines.extend(view.missing.iter().map(|text| ("Not shown", text.clone())));
    let aligned = lines
        .iter()
        .map(|(label, text)| format!("{label:<10} {}", text::cell(text)));
    text::lines(aligned)
}

fn model(md: &ModelDeployment) -> String {
    let id = md.spec.model_id().unwrap_or("in the image");
    format!(
        "{id}, engine {}, {}",
        md.spec.engine_type().unwrap_or("not set"),
        md.spec.mode().as_str()
    )
}

fn provider(view: &View, status: &ModelDeploymentStatus) -> String {
    let Some(name) = view.md.selected_provider() else {
        return match view.md.spec.provider_name() {
            Some(asked) => format!("none yet, '{asked}' is requested"),
            None => "none yet".to_owned(),
        };
    };
    let reason = status
        .provider
        .as_ref()
        .and_then(|p| p.selected_reason.as_deref())
        .map_or_else(String::new, |r| format!(" ({r})"));
    let trouble = view
        .provider_trouble
        .as_deref()
        .map_or_else(String::new, |t| format!(", {t}"));
    format!("{name}{reason}{trouble}")
}

fn upstream(view: &View, status: &ModelDeploymentStatus) -> Option<String> {
    let provider = status.provider.as_ref()?;
    let object = format!(
        "{}/{}",
        provider.resource_kind.as_deref()?,
        provider.resource_name.as_deref()?
    );
    Some(match &view.upstream {
        Upstream::Unknown => object,
        Upstream::Absent => format!("{object}, does not exist"),
        Upstream::Says(reading) => {
            let phase = reading.phase.as_str();
            match reading.message.as_str() {
                "" if reading.reason == phase => format!("{object}, reports {phase}"),
                "" => format!("{object}, reports {phase}: {}", reading.reason),
                said if status.message.as_deref().is_some_and(|m| m.contains(said)) => {
                    format!("{object}, reports {phase}")
                }
                said => format!("{object}, reports {phase}: {said}"),
            }
        }
    })
}

fn endpoint(md: &ModelDeployment) -> Vec<(&'static str, String)> {
    let Some(forward) = port_forward(md) else {
        return Vec::new();
    };
    let (service, port) = (&forward.service, forward.port);
    vec![
        (
            "Endpoint",
            format!("service {service}, port {port}, inside the cluster"),
        ),
        ("", forward.command),
    ]
}

/// Port forwarding to a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// Service.
    pub service: String,
    /// The port of the Service.
    pub port: i32,
    /// The port on this machine.
    pub local: i32,
    /// The command that does it.
    pub command: String,
}

/// Port forwarding to a model that has an endpoint.
pub fn port_forward(md: &ModelDeployment) -> Option<Forward> {
    let endpoint = md.status.as_ref()?.endpoint.as_ref()?;
    let (service, port) = (endpoint.service.clone()?, endpoint.port?);
    // Low ports are not for everybody.
    let local = if port < 1024 { 8000 + port } else { port };
    let namespace = md.namespace().unwrap_or_default();
    let command = format!("kubectl port-forward -n {namespace} service/{service} {local}:{port}");
    Some(Forward {
        service,
        port,
        local,
        command,
    })
}

/// The next step, or the first thing on the way that is not there yet, for people.
pub fn waits_for(view: &View) -> String {
    let status = &view.md.status.clone().unwrap_or_default();
    let conditions = status.conditions.as_slice();
    if view.md.is_deleting() {
        return "deletion of its upstream object".to_owned();
    }
    if let Some(stalled) = conditions.when_true(condition::STALLED) {
        return way_out(view).unwrap_or_else(|| format!("a change: {}", stalled.message));
    }
    if let Some(unavailable) = conditions.when_true(condition::PROVIDER_UNAVAILABLE) {
        return format!("{}. Run: kubeairunway check", unavailable.message);
    }
    for abnormal in [condition::PAUSED, condition::DRY_RUN] {
        if let Some(held) = conditions.when_true(abnormal) {
            return held.message.clone();
        }
    }
    if let Some(stale) = conditions.when_true(condition::STALE_STATUS) {
        let describe = describe(view).unwrap_or_default();
        return format!("{} {describe}", stale.message).trim_end().to_owned();
    }
    if let Some(way_out) = way_out(view) {
        return way_out;
    }
    let open = LIFECYCLE.iter().find(|(type_, _)| !conditions.is_true(type_));
    match open {
        None => "nothing: the model is serving".to_owned(),
        Some((type_, who)) => conditions
            .get_condition(type_)
            .map_or_else(|| (*who).to_owned(), |c| c.message.clone()),
    }
}

/// Remedy for a status that only describes the problem.
fn way_out(view: &View) -> Option<String> {
    let status = view.md.status.as_ref()?;
    let (name, namespace) = (view.md.name_any(), view.md.namespace().unwrap_or_default());
    let ready = status.conditions.get_condition(condition::READY)?;
    match ready.reason.as_str() {
        "CRDNotInstalled" => installation(view.md.selected_provider()?),
        "NoHealthyProviders" => Some("to see why, run: kubeairunway check".to_owned()),
        "Incompatible" => Some(format!(
            "change the spec, or select another provider: kubeairunway why {name} -n {namespace}"
        )),
        // No pod can be made: there are no logs.
        _ if ready.message.contains("exceeded quota") => Some(format!(
            "reduce spec.resources, or raise the quota: kubectl describe resourcequota -n {namespace}"
        )),
        _ if speaks_for_itself(view, status) => {
            let describe = describe(view)?;
            Some(format!("{describe}; kubeairunway logs {name} -n {namespace}"))
        }
        _ => None,
    }
}

/// The command that shows the upstream object, with its Events.
fn describe(view: &View) -> Option<String> {
    let made = view.md.status.as_ref()?.provider.as_ref()?;
    let kind = made.resource_kind.as_deref()?.to_lowercase();
    let (name, namespace) = (made.resource_name.as_deref()?, view.md.namespace()?);
    Some(format!("kubectl describe {kind} {name} -n {namespace}"))
}

/// Whether the status repeats the message of an upstream object that failed, or whose replica did.
fn speaks_for_itself(view: &View, status: &ModelDeploymentStatus) -> bool {
    let Upstream::Says(reading) = &view.upstream else {
        return false;
    };
    let repeats = status.message.as_ref().is_none_or(|m| m.contains(&reading.message));
    let says = reading.phase == Phase::Failed || !reading.message.is_empty();
    status.phase == Some(Phase::Failed) && says && repeats
}

fn installation(provider: &str) -> Option<String> {
    let built_in = runway_manifests::built_in_providers();
    built_in
        .iter()
        .find(|p| p.name() == provider)?
        .registration()
        .installation
}

/// Table of conditions. The message `above` is not repeated.
fn conditions(all: &[Condition], above: Option<&str>, now: Timestamp, look: Look) -> String {
    if all.is_empty() {
        return String::new();
    }
    let order = |c: &&Condition| {
        LIFECYCLE
            .iter()
            .position(|(type_, _)| *type_ == c.type_)
            .unwrap_or(LIFECYCLE.len())
    };
    let mut sorted: Vec<&Condition> = all.iter().collect();
    sorted.sort_by_key(|c| (order(c), c.type_.clone()));
    let mut table = text::table(&["CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE"]);
    for c in sorted {
        let status = match (look.terminal, condition::is_unusual(&c.type_), c.status.as_str()) {
            (true, false, "True") => "✓",
            (true, false, "False") => "✗",
            (true, true, "True") => "!",
            (_, _, status) => status,
        };
        let since = text::since(c.last_transition_time.0, now);
        let message = if above == Some(c.message.as_str()) {
            "(as above)".to_owned()
        } else {
            text::cell(&c.message)
        };
        table.add_row([c.type_.as_str(), status, &since, &c.reason, &message]);
    }
    text::aligned(&table)
}

fn events(all: &[Event], now: Timestamp) -> String {
    let mut sorted: Vec<(Timestamp, &Event)> = all.iter().filter_map(|e| Some((last_seen(e)?, e))).collect();
    sorted.sort_by_key(|(when, _)| *when);
    if sorted.is_empty() {
        return String::new();
    }
    let mut table = text::table(&["EVENT", "AGE", "REASON", "MESSAGE"]);
    for (when, event) in sorted.iter().skip(sorted.len().saturating_sub(MAX_EVENTS)) {
        let text = |text: &Option<String>| text::cell(text.as_deref().unwrap_or("-"));
        table.add_row([
            text(&event.type_),
            text::since(*when, now),
            text(&event.reason),
            text(&event.message),
        ]);
    }
    text::aligned(&table)
}

/// Progress of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Ready, for the current generation.
    Ready,
    /// In progress.
    Open,
    /// Failed, with the message of the status.
    Failed(String),
}

/// Progress of an object of any of our kinds, with a line of text.
pub fn standing(object: &DynamicObject) -> (Standing, String) {
    let status = &object.data["status"];
    let (phase, message) = phase_of(status);
    let line = if message.is_empty() {
        phase.to_owned()
    } else {
        format!("{phase}: {message}")
    };
    if object.metadata.deletion_timestamp.is_some() {
        let text = "it is being deleted".to_owned();
        return (Standing::Failed(text.clone()), text);
    }
    let conditions = conditions_of(status);
    // What the status says of an earlier spec counts for nothing.
    let is_current =
        object.metadata.generation.is_none() || status["observedGeneration"].as_i64() == object.metadata.generation;
    let standing = if !is_current {
        Standing::Open
    } else if conditions.is_true(condition::READY) || is_scaled_to_zero(&conditions) {
        Standing::Ready
    } else if phase == Phase::Failed.as_str() || conditions.is_true(condition::STALLED) {
        let stalled = conditions.get_condition(condition::STALLED).map(|c| c.message.clone());
        let said = if message.is_empty() {
            stalled.unwrap_or_default()
        } else {
            message.to_owned()
        };
        Standing::Failed(said)
    } else {
        Standing::Open
    };
    (standing, line)
}

/// Whether the object is scaled to zero, so that there is nothing to wait for.
fn is_scaled_to_zero(conditions: &[Condition]) -> bool {
    let ready = conditions.get_condition(condition::READY);
    ready.is_some_and(|c| c.reason == ProviderReason::ScaledToZero)
}

/// Phase and message.
fn phase_of(status: &Value) -> (&str, &str) {
    let text = |key: &str| status.get(key).and_then(Value::as_str);
    let phase = text("phase").or_else(|| text("status")).unwrap_or("no status yet");
    (phase, text("message").unwrap_or_default())
}

fn conditions_of(status: &Value) -> Vec<Condition> {
    serde_json::from_value(status["conditions"].clone()).unwrap_or_default()
}

/// The screen of an object of another kind of ours. `facts` are what its status does not hold.
pub fn object_screen(
    object: &DynamicObject,
    facts: &[(&str, String)],
    reported: &[Event],
    now: Timestamp,
    look: Look,
) -> String {
    let status = &object.data["status"];
    let (phase, message) = phase_of(status);
    let place = object
        .namespace()
        .map_or_else(String::new, |namespace| format!("{namespace}/"));
    let name = look.strong(&format!("{place}{}", object.name_any()));
    let mood = match standing(object).0 {
        Standing::Ready => Mood::Good,
        Standing::Open => Mood::Open,
        Standing::Failed(_) => Mood::Bad,
    };
    let mut head = format!("{name}: {}\n", look.paint(mood, &text::cell(phase)));
    if !message.is_empty() {
        head = format!("{head}  {}\n", text::cell(message));
    }
    let facts = facts
        .iter()
        .map(|(label, text)| format!("{label:<10} {}", text::cell(text)));
    let sections = [
        head,
        text::lines(facts),
        conditions(&conditions_of(status), Some(message), now, look),
        events(reported, now),
    ];
    sections
        .into_iter()
        .filter(|s| !s.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> View {
        let conditions = serde_json::json!([
            { "type": "Validated", "status": "True", "reason": "ValidationPassed", "message": "Schema validation passed",
              "lastTransitionTime": "2026-11-21T09:59:00Z" },
            { "type": "Ready", "status": "False", "reason": "Paused", "message": "two\nlines \u{1b}[31m",
              "lastTransitionTime": "2026-11-21T09:59:00Z" },
            { "type": "Paused", "status": "True", "reason": "Paused", "message": "Reconciliation is paused",
              "lastTransitionTime": "2026-11-21T09:59:30Z" },
            { "type": "AutoscalerReady", "status": "True", "reason": "AutoscalerActive", "message": "",
              "lastTransitionTime": "2026-11-21T09:59:30Z" },
            { "type": "GatewayReady", "status": "False", "reason": "ModelNotServing", "message": "",
              "lastTransitionTime": "2026-11-21T09:59:30Z" },
        ]);
        let md = serde_json::json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": "a", "namespace": "b" },
            "spec": { "model": { "id": "org/a" }, "engine": { "type": "vllm" } },
            "status": { "phase": "Pending", "conditions": conditions },
        });
        View {
            md: serde_json::from_value(md).unwrap(),
            ..View::default()
        }
    }

    #[test]
    fn terminal_gets_marks_and_colors_that_say_no_more_than_words() {
        let now = "2026-11-21T10:00:00Z".parse().unwrap();
        let plain = screen(&waiting(), now, Look::default());
        let colored = screen(&waiting(), now, Look { terminal: true });
        assert!(plain.starts_with("b/a: Pending\n"), "{plain}");
        assert!(plain.is_ascii() || !plain.contains('\u{1b}'), "{plain}");
        assert!(
            colored.starts_with("\u{1b}[1mb/a\u{1b}[0m: \u{1b}[33mPending\u{1b}[0m\n"),
            "{colored}"
        );
        for (word, mark) in [
            ("Validated        True ", "Validated        ✓ "),
            ("Ready            False", "Ready            ✗"),
            ("Paused           True ", "Paused           ! "),
            ("AutoscalerReady  True ", "AutoscalerReady  ✓ "),
            ("GatewayReady     False", "GatewayReady     ✗"),
        ] {
            assert!(plain.contains(word), "{plain}");
            assert!(colored.contains(mark), "{colored}");
        }
        assert!(
            plain.contains("two lines \u{fffd}[31m"),
            "what an object says does not reach the terminal: {plain}"
        );
        assert!(plain.contains("Next       Reconciliation is paused"), "{plain}");
    }
}
