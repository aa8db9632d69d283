//! AsyncActors: validated as the API server does it, then planned by the operator's own plan.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::async_actor::AsyncActorStatus;
use runway_api::{AsyncActor, labels};
use runway_asya_operator::needs::{Lookup, objects};
use runway_asya_operator::object::{Found, Key};
use runway_asya_operator::observe::{Observed, Settings};
use runway_asya_operator::plan::{self, Plan};
use runway_asya_operator::queue::QueueState;
use runway_asya_operator::request::violations;
use runway_asya_operator::rivals::Rival;
use runway_asya_operator::transports::Transports;
use runway_operator::plan::Finalizer;
use serde_json::{Value, json};

use super::note::event;
use crate::diagnostic::{Diagnostic, Level};
use crate::offline::documents::Document;
use crate::offline::state::{DEFAULT_NAMESPACE, State};
use crate::offline::unknown::unknown_fields;
use crate::text;
use runway_operator::telemetry::chain;

/// Settings of the AsyncActor operator.
#[derive(Clone, Debug, Default)]
pub struct Actors {
    /// Transports.
    pub transports: Arc<Transports>,
    /// Default image of asya-sidecar.
    pub sidecar_image: String,
}

/// Result of rendering an AsyncActor.
pub(super) struct RenderedActor {
    /// The document as written, with added fields.
    pub(super) document: DynamicObject,
    /// The objects that would be applied.
    pub(super) objects: Vec<DynamicObject>,
}

/// Validates the actor and runs the operator's plan. Planned queues are assumed to exist.
pub(super) fn follow(
    document: &Document,
    state: &State,
    actors: &Actors,
    now: Timestamp,
    said: &mut Vec<Diagnostic>,
) -> Option<RenderedActor> {
    let subject = document.subject();
    let mut say = |level, text: String| said.push(Diagnostic::about(level, &subject, text));
    let actor = match parsed(document) {
        Ok(actor) => actor,
        Err(text) => {
            say(Level::Error, text);
            return None;
        }
    };
    if !actor.is_deleting() {
        for field in unknown_fields(&document.value["spec"], &json!(actor.spec), "spec") {
            say(
                Level::Warning,
                format!("unknown field {field}: it has no effect, and kubectl apply rejects it"),
            );
        }
        let wrong = violations(&actor);
        if !wrong.is_empty() {
            for text in wrong {
                say(Level::Error, text);
            }
            return None;
        }
    }
    let (plan, now_looking) = planned(&actor, state, actors, now);
    for note in &plan.kube.events {
        say(Level::Note, event(note));
    }
    for apply in plan.kube.apply.iter().filter(|a| !a.unchanged) {
        if let Some(note) = &apply.note {
            say(Level::Note, event(note));
        }
    }
    for delete in &plan.kube.delete {
        say(
            Level::Note,
            format!("deletes {} '{}'", delete.resource.kind, delete.name),
        );
    }
    for edit in &plan.kube.edit {
        say(
            Level::Note,
            format!("changes {} '{}': {}", edit.resource.kind, edit.name, edit.patch),
        );
    }
    if let Some(wait) = now_looking {
        say(Level::Note, format!("requeues after {}", text::age(wait)));
    }
    let mut shown: DynamicObject = serde_json::from_value(document.value.clone()).ok()?;
    shown.metadata.namespace.clone_from(&actor.metadata.namespace);
    let finalizers = shown.metadata.finalizers.get_or_insert_default();
    match plan.kube.finalizer {
        Finalizer::Keep => {}
        Finalizer::Add => finalizers.push(labels::ASYA_FINALIZER.to_owned()),
        Finalizer::Remove => {
            say(Level::Note, format!("removes finalizer {}", labels::ASYA_FINALIZER));
            finalizers.retain(|f| f != labels::ASYA_FINALIZER);
        }
    }
    shown.metadata.finalizers = shown.metadata.finalizers.filter(|f| !f.is_empty());
    if let Some(status) = plan.kube.status {
        shown.data["status"] = status;
    }
    if plan.kube.apply.is_empty() && plan.kube.edit.is_empty() {
        let status: AsyncActorStatus = serde_json::from_value(shown.data["status"].clone()).unwrap_or_default();
        let why = if actor.is_deleting() {
            "it is being deleted".to_owned()
        } else {
            status.message.unwrap_or_default()
        };
        say(Level::Note, format!("nothing to apply: {why}"));
    }
    Some(RenderedActor {
        objects: plan.kube.apply.into_iter().map(|apply| apply.object).collect(),
        document: shown,
    })
}

/// An AsyncActor as a cluster holds it, or why it cannot be one.
fn parsed(document: &Document) -> Result<AsyncActor, String> {
    if !document.value.get("spec").is_some_and(Value::is_object) {
        return Err(format!(
            "spec is required: it sets the workload to run or to bind to ({})",
            document.origin
        ));
    }
    let mut actor: AsyncActor = document.parse().map_err(|error| chain(&error))?;
    actor.metadata.namespace = Some(document.namespace().unwrap_or(DEFAULT_NAMESPACE).to_owned());
    Ok(actor)
}

fn planned(actor: &AsyncActor, state: &State, actors: &Actors, now: Timestamp) -> (Plan, Option<Duration>) {
    let namespace = actor.namespace().unwrap_or_default();
    let others = state.actors.iter().filter_map(|document| parsed(document).ok());
    let others =
        others.filter(|other| other.namespace().as_deref() == Some(&namespace) && other.name_any() != actor.name_any());
    let mut seen = Observed {
        actor: Arc::new(actor.clone()),
        objects: objects(
            actor,
            &Seen {
                state,
                namespace: &namespace,
            },
        ),
        pods: state.pods_of_actor(&namespace, &actor.name_any()),
        rivals: others.filter_map(|other| Rival::of(&other)).map(Arc::new).collect(),
        queue: QueueState::Unknown,
        transports: actors.transports.clone(),
        tenant: None,
        is_last: false,
        settings: Arc::new(Settings::with_sidecar(&actors.sidecar_image)),
        now,
    };
    let mut plan = plan::plan(&seen);
    if plan.queue.is_some() {
        seen.queue = if actor.is_deleting() {
            QueueState::Removed { left: None }
        } else {
            QueueState::Ready { drift: None }
        };
        plan = plan::plan(&seen);
    }
    let look_again = plan.kube.look_again;
    (plan, look_again)
}

/// Objects of the state that the operator observes.
struct Seen<'a> {
    state: &'a State,
    namespace: &'a str,
}

impl Lookup for Seen<'_> {
    fn find(&self, key: &Key) -> Found {
        let crd = format!("{}.{}", key.kind.plural, key.kind.group);
        if !key.kind.is_built_in() && !self.state.has_crd(&crd) {
            return Found::NotInstalled;
        }
        match self
            .state
            .object(key.kind.group, key.kind.kind, self.namespace, &key.name)
        {
            None => Found::Absent {
                version: key.kind.version.to_owned(),
            },
            Some(object) => {
                let api_version = object
                    .types
                    .as_ref()
                    .map(|t| t.api_version.as_str())
                    .unwrap_or_default();
                Found::Here {
                    version: api_version.rsplit('/').next().unwrap_or(key.kind.version).to_owned(),
                    object,
                }
            }
        }
    }
}
