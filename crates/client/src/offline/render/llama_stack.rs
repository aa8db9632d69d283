//! LlamaStackDistributions: what the CRD's rules say, then the operator's plan.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::labels::llama_stack::MANAGER;
use runway_api::{LlamaStackDistribution, ModelDeployment};
use runway_llama_stack_operator::observe::{Child, Observed};
use runway_llama_stack_operator::settings::Settings;
use runway_llama_stack_operator::{kinds, plan, references, validate};
use runway_manifests::{NAMESPACE, Release};
use serde_json::{Value, json};

use super::admission::parsed;
use super::note::event;
use crate::diagnostic::{Diagnostic, Level};
use crate::offline::documents::Document;
use crate::offline::state::{DEFAULT_NAMESPACE, State};
use runway_operator::telemetry::chain;

/// Result of rendering a LlamaStackDistribution: objects to apply, and the document with its status.
pub(super) struct RenderedDistribution {
    pub(super) objects: Vec<DynamicObject>,
    pub(super) document: DynamicObject,
}

pub(super) fn follow(
    document: &Document,
    state: &State,
    now: Timestamp,
    said: &mut Vec<Diagnostic>,
) -> Option<RenderedDistribution> {
    let subject = document.subject();
    let mut say = |level, text: String| said.push(Diagnostic::about(level, &subject, text));
    let mut written = document.value.clone();
    written["metadata"]["namespace"] = json!(document.namespace().unwrap_or(DEFAULT_NAMESPACE));
    let mut llsd: LlamaStackDistribution = match document.parse() {
        Ok(llsd) => llsd,
        Err(error) => {
            say(Level::Error, chain(&error));
            return None;
        }
    };
    llsd.metadata.namespace = Some(document.namespace().unwrap_or(DEFAULT_NAMESPACE).to_owned());
    let wrong = validate(&llsd);
    // Deletion must always end.
    if !wrong.is_empty() && !llsd.is_deleting() {
        for text in wrong {
            say(Level::Error, text);
        }
        return None;
    }
    let plan = plan::plan(&observed(llsd, state, now));
    for delete in &plan.delete {
        say(
            Level::Note,
            format!("deletes {} '{}'", delete.resource.kind, delete.name),
        );
    }
    let news = plan
        .apply
        .iter()
        .filter(|a| !a.unchanged)
        .filter_map(|a| a.note.as_ref());
    for note in news.chain(&plan.events) {
        say(Level::Note, event(note));
    }
    if let Some(status) = plan.status {
        written["status"] = status;
    }
    if plan.apply.is_empty() {
        let why = written.pointer("/status/message").and_then(Value::as_str);
        say(
            Level::Note,
            format!("nothing to apply: {}", why.unwrap_or("it is being deleted")),
        );
    }
    Some(RenderedDistribution {
        objects: plan.apply.into_iter().map(|a| a.object).collect(),
        document: serde_json::from_value(written).ok()?,
    })
}

fn observed(llsd: LlamaStackDistribution, state: &State, now: Timestamp) -> Observed {
    let (namespace, name) = (llsd.namespace().unwrap_or_default(), llsd.name_any());
    let object = |group: &str, kind: &str, name: &str| state.object(group, kind, &namespace, name);
    let model = |name: &str| -> Option<ModelDeployment> {
        state
            .deployments
            .iter()
            .filter_map(|document| parsed(document).ok())
            .find(|md| md.name_any() == name && md.namespace().as_deref() == Some(&namespace))
    };
    Observed {
        settings: Arc::new(settings()),
        children: kinds::children(&name)
            .into_iter()
            .filter_map(|(kind, name)| {
                let object = object(kind.group, kind.kind, &name)?;
                Some(Child { kind, object })
            })
            .collect(),
        pods: state.pods_of(&namespace, &name),
        config_maps: references::config_maps(&llsd)
            .into_iter()
            .filter_map(|name| {
                let found = serde_json::to_value(object("", "ConfigMap", &name)?.as_ref()).ok()?;
                Some((name, Arc::new(serde_json::from_value(found).ok()?)))
            })
            .collect(),
        model_deployments: references::model_deployments(&llsd)
            .into_iter()
            .filter_map(|name| Some((name.clone(), model(&name)?.status.and_then(|status| status.endpoint))))
            .collect(),
        // Offline: no cluster can be asked.
        server: None,
        now,
        llsd: Arc::new(llsd),
    }
}

/// Settings of an operator that this command has installed.
fn settings() -> Settings {
    let release = Release::default();
    Settings {
        operator_image: Some(format!("{}/{MANAGER}:{}", release.registry, release.tag)),
        operator_namespace: Some(NAMESPACE.to_owned()),
        ..Settings::default()
    }
}
