//! Admission as the webhooks do it on a new object: defaults and the finalizer, then validation.

use kube::core::DynamicObject;
use runway_api::{ModelDeployment, labels};
use runway_core::admission::{apply_defaults, capabilities, validate};
use serde_json::{Value, json};

use crate::diagnostic::{Diagnostic, Level};
use crate::offline::documents::Document;
use crate::offline::state::{DEFAULT_NAMESPACE, State};
use crate::offline::unknown::unknown_fields;
use crate::offline::validate::crd::refusals;
use runway_operator::telemetry::chain;

/// A ModelDeployment that was let in.
pub(crate) struct Admitted {
    /// The object as a Rust type.
    pub(crate) md: ModelDeployment,
    /// The document as written, with fields that admission adds.
    pub(crate) document: DynamicObject,
}

/// A ModelDeployment as a cluster holds it, or why it cannot be one.
pub(crate) fn parsed(document: &Document) -> Result<ModelDeployment, Diagnostic> {
    let mut md = parse(document).map_err(|text| Diagnostic::about(Level::Error, document.subject(), text))?;
    let namespace = document.namespace().unwrap_or(DEFAULT_NAMESPACE);
    md.metadata.namespace = Some(namespace.to_owned());
    Ok(md)
}

/// Runs admission of a ModelDeployment. Errors and warnings are added to `said`.
pub(crate) fn admit(document: &Document, state: &State, said: &mut Vec<Diagnostic>) -> Option<Admitted> {
    let md = parsed(document).map_err(|error| said.push(error)).ok()?;
    let mut written = document.value.clone();
    written["metadata"]["namespace"] = json!(md.metadata.namespace);
    let error = |e: serde_json::Error| Diagnostic::about(Level::Error, document.subject(), e.to_string());
    let written: DynamicObject = serde_json::from_value(written).map_err(|e| said.push(error(e))).ok()?;
    let mut admitted = Admitted { md, document: written };
    // Deletion must always end: the webhooks let everything through.
    if admitted.md.is_deleting() {
        return Some(admitted);
    }

    let subject = document.subject();
    let mut say = |level, text: String| said.push(Diagnostic::about(level, &subject, text));
    for field in unknown_fields(&admitted.document.data["spec"], &json!(admitted.md.spec), "spec") {
        say(
            Level::Warning,
            format!("unknown field {field}: it has no effect, and kubectl apply rejects it"),
        );
    }
    admitted.complete();
    let verdict = validate(&admitted.md, &state.providers);
    for warning in verdict.warnings {
        say(Level::Warning, warning);
    }
    // The provider reports the same in the status that is shown, with more words.
    for refusal in capabilities(&admitted.md, &state.providers).errors {
        say(
            Level::Warning,
            format!(
                "admission rejects it if the webhooks are installed: {}",
                refusal.message
            ),
        );
    }
    let mut errors: Vec<String> = verdict.errors.into_iter().map(|violation| violation.message).collect();
    if errors.is_empty() {
        // The webhooks are asked first; then the server looks at the schema.
        errors = refusals(document);
    }
    let is_rejected = !errors.is_empty();
    for error in errors {
        say(Level::Error, error);
    }
    if is_rejected { None } else { Some(admitted) }
}

impl Admitted {
    /// Sets defaults and the finalizer, like the mutating webhook.
    fn complete(&mut self) {
        apply_defaults(&mut self.md.spec);
        fill_in(&mut self.document.data["spec"], &json!(self.md.spec));
        // One that has a uid was created before, and only creation adds the finalizer.
        if self.md.metadata.uid.is_none() && !self.md.has_finalizer() {
            let finalizers = self.md.metadata.finalizers.get_or_insert_default();
            finalizers.push(labels::FINALIZER.to_owned());
        }
    }
}

fn parse(document: &Document) -> Result<ModelDeployment, String> {
    if !document.value.get("spec").is_some_and(Value::is_object) {
        return Err(format!(
            "spec is required: it sets the model to serve ({})",
            document.origin
        ));
    }
    document.parse().map_err(|error| chain(&error))
}

/// Adds missing fields, without changing existing or unknown ones.
fn fill_in(written: &mut Value, whole: &Value) {
    match (written, whole) {
        (Value::Object(written), Value::Object(whole)) => {
            for (key, value) in whole {
                fill_in(written.entry(key).or_insert(Value::Null), value);
            }
        }
        (written @ Value::Null, whole) => written.clone_from(whole),
        _ => {}
    }
}
