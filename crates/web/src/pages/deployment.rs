//! One ModelDeployment: where it stands, what it waits for, how it came to that, how to reach it.

use std::sync::Arc;

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, Name, Namespace, Phase, reason};
use runway_client::source::Source;
use runway_client::status::{self, Forward, Upstream, View};
use runway_client::why::{self, Why};
use runway_operator::clock;

use super::deployments::Row;
use super::entries::{Entry, of_condition, of_condition_once, of_event};
use super::objects::{self, Objects, Selected};
use crate::guard::{Asker, Of};
use crate::history::Chart;
use crate::moment::Moment;
use crate::page::{self, Shell};
use crate::refusal;
use crate::said::{Once, Said};
use crate::sessions::Session;

/// The kinds that the page shows, its own first.
const KINDS: &str = "modeldeployments,inferenceproviderconfigs";
/// Entries of the timeline.
const MAX_ENTRIES: usize = 60;

/// Head of all pages about one ModelDeployment.
pub struct Head {
    /// Row of the list.
    pub row: Row,
    /// Current tab.
    pub tab: &'static str,
    /// URL.
    pub href: String,
    /// Whether it is being deleted.
    pub deleting: bool,
}

impl Head {
    /// For a page of `md`.
    pub fn new(md: &ModelDeployment, tab: &'static str, now: Timestamp) -> Self {
        let row = Row::new(md, now);
        Self {
            href: format!("/deployments/{}/{}", row.namespace, row.name),
            row,
            tab,
            deleting: md.is_deleting(),
        }
    }

    /// Whether `tab` is the current tab.
    pub fn on(&self, tab: &str) -> bool {
        self.tab == tab
    }
}

#[derive(Template)]
#[template(path = "deployment.html")]
struct Detail {
    shell: Shell,
    head: Head,
    /// State in a message, said once.
    said: Said,
    /// The next step; empty if the message says it.
    next: String,
    served: String,
    mode: &'static str,
    chosen: String,
    trouble: Option<String>,
    upstream: Option<(String, String)>,
    forward: Option<Forward>,
    request: String,
    chart: Option<Chart>,
    objects: Objects,
    entries: Vec<Entry>,
    conditions: Vec<Entry>,
    why: Option<Why>,
    missing: Vec<String>,
}

#[derive(Template)]
#[template(path = "yaml.html")]
struct Yaml {
    shell: Shell,
    head: Head,
    text: String,
}

/// The page.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of, Query(selected): Query<Selected>) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    let now = clock::now();
    let source = Source::from(session.view.cluster());
    let (view, tree, providers) = tokio::join!(
        source.view(md.as_ref().clone(), now),
        source.tree_of_deployment(md.as_ref().clone(), now),
        source.providers()
    );
    let why = providers.ok().map(|providers| why::explain(&md, &providers, now));
    let mut once = Once::default();
    once.is_new(&message(&view.md));
    let objects = objects::of(&session.view, tree, &selected, &mut once).await;
    refusal::html(&detail(&session, &view, objects, why, once, now))
}

/// Message of the status.
fn message(md: &ModelDeployment) -> String {
    md.status
        .as_ref()
        .and_then(|status| status.message.clone())
        .unwrap_or_default()
}

fn detail(
    session: &Session,
    view: &View,
    objects: Objects,
    why: Option<Why>,
    mut once: Once,
    now: Timestamp,
) -> Detail {
    let md = &view.md;
    let head = Head::new(md, "status", now);
    let status = md.status.clone().unwrap_or_default();
    let provider = status.provider.clone().unwrap_or_default();
    let message = message(md);
    let said = match status.phase {
        Some(Phase::Running) => Said::plain(&message),
        _ => Said::new(&message, cause(md.conditions()), reason::MODEL_DEPLOYMENT),
    };
    let next = once.text(&status::waits_for(view));
    let upstream = provider.resource_kind.zip(provider.resource_name).map(|(kind, name)| {
        let says = match &view.upstream {
            Upstream::Unknown => "cannot be read".to_owned(),
            Upstream::Absent => "does not exist".to_owned(),
            Upstream::Says(reading) => {
                let phase = reading.phase.as_str();
                let text = if reading.message.is_empty() {
                    &reading.reason
                } else {
                    &reading.message
                };
                if text != phase && once.is_new(text) {
                    format!("reports {phase}: {text}")
                } else {
                    format!("reports {phase}")
                }
            }
        };
        (format!("{kind}/{name}"), says)
    });
    let forward = status::port_forward(md);
    let served = served_name(md);
    let request = forward.as_ref().map_or_else(String::new, |f| {
        let body = serde_json::json!({"model": served, "messages": [{"role": "user", "content": "Hello"}]});
        format!(
            "curl http://localhost:{}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n  -d '{body}'",
            f.local
        )
    });
    Detail {
        shell: Shell::new(session, "deployments", head.row.name.clone()).live_of(
            KINDS,
            &head.row.namespace,
            &head.row.name,
        ),
        said,
        next,
        served,
        mode: md.spec.mode().as_str(),
        chosen: provider.selected_reason.unwrap_or_default(),
        trouble: view.provider_trouble.clone(),
        upstream,
        forward,
        request,
        chart: Chart::of_replicas(
            &session.view.deployment_history(&head.row.namespace, &head.row.name),
            now,
        ),
        conditions: conditions(md, &mut once, now),
        entries: timeline(md, &view.events, &mut once, now),
        objects,
        why,
        missing: view.missing.clone(),
        head,
    }
}

/// The name that clients use for the model: as given, or the last part of its id.
pub fn served_name(md: &ModelDeployment) -> String {
    let given = md.spec.model.served_name.as_deref().filter(|name| !name.is_empty());
    let last = || md.spec.model_id().and_then(|id| id.rsplit('/').next());
    given.or_else(last).unwrap_or("model").to_owned()
}

/// The object itself.
pub async fn yaml(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    refusal::html(&Yaml {
        shell: Shell::new(&session, "deployments", format!("{name}, YAML")).live_of(
            "modeldeployments",
            &namespace,
            &name,
        ),
        head: Head::new(&md, "yaml", clock::now()),
        text: page::yaml(md.as_ref()),
    })
}

/// The ModelDeployment, or an error page.
///
/// # Errors
/// The page to show instead.
pub async fn find(session: &Session, namespace: &Namespace, name: &Name) -> Result<Arc<ModelDeployment>, Response> {
    if let Some(md) = session.view.deployment(namespace, name).await {
        return Ok(md);
    }
    // The watch may not reach there, or not yet: the cluster knows.
    let view = &session.view;
    let cluster = view.cluster();
    cluster
        .deployment(namespace, name)
        .await
        .map(Arc::new)
        .map_err(|error| super::actions::refused(&error))
}

/// The condition that the status message is about, if the model does not serve.
fn cause(conditions: &[Condition]) -> Option<&Condition> {
    let held = [condition::STALLED, condition::PROVIDER_UNAVAILABLE];
    let held = held.iter().find_map(|type_| conditions.when_true(type_));
    let refused = [condition::VALIDATED, condition::PROVIDER_SELECTED, condition::READY];
    held.or_else(|| refused.iter().find_map(|type_| conditions.when_false(type_)))
}

/// Transitions and Events, the newest first. The messages of the transitions are in the table of the conditions.
fn timeline(md: &ModelDeployment, events: &[Event], once: &mut Once, now: Timestamp) -> Vec<Entry> {
    let mut all: Vec<(Timestamp, Entry)> = Vec::new();
    for c in md.conditions() {
        let entry = Entry {
            message: String::new(),
            ..of_condition(c, now)
        };
        all.push((c.last_transition_time.0, entry));
    }
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| std::cmp::Reverse(runway_client::events::last_seen(event)));
    for event in events {
        all.extend(of_event(event, once, now));
    }
    if let Some(created) = md.creation_timestamp() {
        let entry = Entry {
            when: Moment::new(created.0, now),
            mood: "none",
            what: "Created".to_owned(),
            reason: String::new(),
            message: String::new(),
            count: 1,
        };
        all.push((created.0, entry));
    }
    all.sort_by_key(|(when, _)| std::cmp::Reverse(*when));
    all.into_iter().map(|(_, entry)| entry).take(MAX_ENTRIES).collect()
}

fn conditions(md: &ModelDeployment, once: &mut Once, now: Timestamp) -> Vec<Entry> {
    let order = |type_: &str| {
        status::LIFECYCLE
            .iter()
            .position(|(t, _)| *t == type_)
            .unwrap_or(usize::MAX)
    };
    let mut all: Vec<_> = md.conditions().iter().collect();
    all.sort_by_key(|c| (order(&c.type_), c.type_.clone()));
    all.into_iter().map(|c| of_condition_once(c, once, now)).collect()
}

#[cfg(test)]
mod tests {
    use runway_api::condition::{
        AUTOSCALER_READY, GATEWAY_READY, IMAGES_NOT_PINNED, PAUSED, PREFLIGHT_BYPASSED, READY, STALLED, no, settle, yes,
    };

    use super::*;

    #[test]
    fn conditions_have_the_color_of_what_they_report() {
        let now = "2026-11-21T10:00:00Z".parse().unwrap();
        for (draft, mood) in [
            (yes(READY, "Reason", ""), "good"),
            (no(READY, "Reason", ""), "open"),
            (yes(AUTOSCALER_READY, "Reason", ""), "good"),
            (no(GATEWAY_READY, "Reason", ""), "open"),
            (yes(STALLED, "Reason", ""), "bad"),
            (yes(PAUSED, "Reason", ""), "open"),
            (yes(PREFLIGHT_BYPASSED, "Reason", ""), "open"),
            (yes(IMAGES_NOT_PINNED, "Reason", ""), "open"),
        ] {
            let [condition] = settle(vec![draft], &[], None, now).try_into().unwrap();
            assert_eq!(of_condition(&condition, now).mood, mood, "{condition:?}");
        }
    }

    #[test]
    fn a_model_is_served_by_the_last_part_of_its_id() {
        let md = |model: serde_json::Value| -> ModelDeployment {
            let value = serde_json::json!({
                "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
                "metadata": {}, "spec": { "model": model },
            });
            serde_json::from_value(value).unwrap()
        };
        assert_eq!(served_name(&md(serde_json::json!({"id": "org/a-b"}))), "a-b");
        assert_eq!(
            served_name(&md(serde_json::json!({"id": "org/a", "servedName": "x"}))),
            "x"
        );
    }
}
