//! The list of ModelDeployments: filtered, sorted and cut into pages on the server, so that thousands cost no more than ten.

use std::collections::BTreeSet;
use std::sync::Arc;

use askama::Template;
use axum::extract::Query;
use axum::response::Response;
use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::{ModelDeployment, Phase};
use runway_operator::clock;
use serde::Deserialize;

use crate::guard::Asker;
use crate::moment::Moment;
use crate::page::{Shell, mood};
use crate::refusal;

/// Rows of a page.
const ROWS: usize = 100;
/// Phases of the filter.
const PHASES: [Phase; 5] = [
    Phase::Failed,
    Phase::Pending,
    Phase::Deploying,
    Phase::Running,
    Phase::Terminating,
];

/// Filter and order of the list.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Asked {
    /// Part of a name, model, provider or message.
    #[serde(default)]
    q: String,
    /// Namespace filter.
    #[serde(default)]
    namespace: String,
    /// Phase filter.
    #[serde(default)]
    phase: String,
    /// Order: `name`, `phase` or `age`.
    #[serde(default)]
    sort: String,
    /// Page number, from 1.
    #[serde(default)]
    page: usize,
}

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
struct List {
    shell: Shell,
    asked: Asked,
    rows: Vec<Row>,
    found: usize,
    all: usize,
    first: usize,
    last: usize,
    pages: usize,
    namespaces: Vec<String>,
    phases: [&'static str; 5],
}

impl List {
    /// URL of the list with another order or page.
    fn link(&self, sort: &str, page: usize) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let page = page.to_string();
        let fields = [
            ("q", self.asked.q.as_str()),
            ("namespace", &self.asked.namespace),
            ("phase", &self.asked.phase),
            ("sort", sort),
            ("page", &page),
        ];
        for (name, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        format!("/deployments?{}", query.finish())
    }

    fn sorted(&self, by: &str) -> &'static str {
        match (self.asked.sort.as_str(), by) {
            ("phase", "phase") | ("", "name") => "ascending",
            ("age", "age") => "descending",
            (sort, "name") if !["phase", "age"].contains(&sort) => "ascending",
            _ => "none",
        }
    }
}

/// The page.
pub async fn show(Asker(session): Asker, Query(asked): Query<Asked>) -> Response {
    let seen = session.view.deployments().await;
    let mut shell = Shell::new(&session, "deployments", "Models").live("modeldeployments");
    shell.note("ModelDeployments", &seen);
    let namespaces: BTreeSet<String> = seen.items.iter().filter_map(|md| md.namespace()).collect();
    let all = seen.items.len();
    let found = choose(seen.items, &asked);
    let pages = found.len().div_ceil(ROWS).max(1);
    let current = asked.page.clamp(1, pages);
    let first = (current - 1) * ROWS;
    let now = clock::now();
    let rows: Vec<Row> = found
        .iter()
        .skip(first)
        .take(ROWS)
        .map(|md| Row::new(md, now))
        .collect();
    refusal::html(&List {
        shell,
        first: first + 1,
        last: first + rows.len(),
        rows,
        found: found.len(),
        all,
        pages,
        namespaces: namespaces.into_iter().collect(),
        phases: PHASES.map(Phase::as_str),
        asked: Asked { page: current, ..asked },
    })
}

fn choose(all: Vec<Arc<ModelDeployment>>, asked: &Asked) -> Vec<Arc<ModelDeployment>> {
    let words: Vec<String> = asked.q.split_whitespace().map(str::to_lowercase).collect();
    let mut found: Vec<Arc<ModelDeployment>> = all
        .into_iter()
        .filter(|md| asked.namespace.is_empty() || md.namespace().is_some_and(|n| n == asked.namespace))
        .filter(|md| asked.phase.is_empty() || phase(md).is_some_and(|p| p.as_str() == asked.phase))
        .filter(|md| words.is_empty() || holds(md, &words))
        .collect();
    match asked.sort.as_str() {
        "phase" => found.sort_by_key(|md| urgency(phase(md))),
        "age" => found.sort_by_key(|md| std::cmp::Reverse(md.creation_timestamp().map(|t| t.0))),
        _ => {}
    }
    found
}

fn phase(md: &ModelDeployment) -> Option<Phase> {
    md.status.as_ref().and_then(|s| s.phase)
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

fn holds(md: &ModelDeployment, words: &[String]) -> bool {
    let status = md.status.as_ref();
    let texts = [
        md.metadata.name.as_deref(),
        md.metadata.namespace.as_deref(),
        md.spec.model_id(),
        md.spec.engine_type(),
        md.selected_provider(),
        status.and_then(|s| s.message.as_deref()),
    ];
    let text = texts
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join("\n")
        .to_lowercase();
    words.iter().all(|word| text.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn md(name: &str, phase: Phase) -> Arc<ModelDeployment> {
        let value = serde_json::json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "model": { "id": "org/Llama" }, "engine": { "type": "vllm" } },
            "status": { "phase": phase },
        });
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn words_filter_and_phases_sort_by_urgency() {
        let all = vec![md("a", Phase::Running), md("b", Phase::Failed), md("c", Phase::Pending)];
        let names =
            |asked: &Asked| -> Vec<String> { choose(all.clone(), asked).iter().map(|m| m.name_any()).collect() };
        let asked = |q: &str, phase: &str, sort: &str| Asked {
            q: q.to_owned(),
            phase: phase.to_owned(),
            sort: sort.to_owned(),
            ..Asked::default()
        };
        assert_eq!(names(&asked("", "", "phase")), ["b", "c", "a"]);
        assert_eq!(names(&asked("LLAMA vllm", "Failed", "")), ["b"]);
        assert_eq!(names(&asked("nothing", "", "")), [""; 0]);
    }
}
