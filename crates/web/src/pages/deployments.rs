//! The list of ModelDeployments.

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::{ModelDeployment, Phase};
use runway_operator::clock;

use super::list::{Filter, List, Listed};
use crate::guard::Asker;
use crate::moment::Moment;
use crate::page::{Shell, mood};
use crate::refusal;

/// A ModelDeployment as a row.
pub struct Row {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// CSS class of the phase.
    pub mood: &'static str,
    /// Phase.
    pub phase: &'static str,
    /// The model.
    pub model: String,
    /// The engine.
    pub engine: String,
    /// Provider.
    pub provider: String,
    /// Ready and desired replicas, such as `1/2`.
    pub replicas: String,
    /// Creation time.
    pub age: Option<Moment>,
    /// Message.
    pub message: String,
    /// Whether it is paused.
    pub paused: bool,
}

impl Row {
    /// A row as seen now.
    pub fn new(md: &ModelDeployment, now: Timestamp) -> Self {
        let status = md.status.as_ref();
        let phase = status.and_then(|s| s.phase);
        Self {
            namespace: md.namespace().unwrap_or_default(),
            name: md.name_any(),
            mood: mood(phase),
            phase: phase.map_or("New", Phase::as_str),
            model: md.spec.model_id().unwrap_or("in the image").to_owned(),
            engine: md.spec.engine_type().unwrap_or_default().to_owned(),
            provider: md.selected_provider().unwrap_or("–").to_owned(),
            replicas: runway_client::get::replicas(md),
            age: md.creation_timestamp().map(|t| Moment::new(t.0, now)),
            message: status.and_then(|s| s.message.clone()).unwrap_or_default(),
            paused: md.is_paused(),
        }
    }
}

#[derive(Template)]
#[template(path = "deployments.html")]
struct Page {
    shell: Shell,
    list: List<ModelDeployment>,
    rows: Vec<Row>,
    /// Texts that a search finds.
    searched: &'static str,
}

/// The page.
pub async fn show(Asker(session): Asker, Query(filter): Query<Filter>) -> Response {
    let seen = session.view.deployments().await;
    let mut shell = Shell::new(&session, "deployments", "Models").live("modeldeployments");
    shell.note("ModelDeployments", &seen);
    let list = List::new("/deployments", seen.items, filter);
    let now = clock::now();
    refusal::html(&Page {
        shell,
        rows: list.items.iter().map(|md| Row::new(md, now)).collect(),
        searched: "name, model, provider, message",
        list,
    })
}

impl Listed for ModelDeployment {
    fn phase(&self) -> String {
        phase(self).map_or("New", Phase::as_str).to_owned()
    }

    fn urgency(&self) -> usize {
        urgency(phase(self))
    }

    fn texts(&self) -> Vec<Option<&str>> {
        vec![
            self.spec.model_id(),
            self.spec.engine_type(),
            self.selected_provider(),
            self.status.as_ref().and_then(|status| status.message.as_deref()),
        ]
    }
}

fn phase(md: &ModelDeployment) -> Option<Phase> {
    md.status.as_ref().and_then(|status| status.phase)
}

/// Sort key: failures first.
pub fn urgency(phase: Option<Phase>) -> usize {
    match phase {
        Some(Phase::Failed) => 0,
        None => 1,
        Some(Phase::Pending) => 2,
        Some(Phase::Deploying) => 3,
        Some(Phase::Terminating) => 4,
        Some(Phase::Running) => 5,
    }
}
