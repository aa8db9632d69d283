//! `kubeairunway validate`: what the API server and admission would say of manifests, without a cluster. Pure.
//!
//! | module | content |
//! |---|---|
//! | `schema` | the schema of the CRD: types, unknown fields, bounds |
//! | `rules` | the CRD's rules in CEL |
//!
//! Beyond that, each kind is asked what its controller says at admission, by the controller's own code, and what would come
//! of a ModelDeployment. InferenceProviderConfigs among the documents are the registered providers; without any, the
//! built-in ones are.

pub(crate) mod crd;
mod finding;
mod memo;
mod rules;
mod schema;

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_api::{ModelDeployment, condition};
use runway_core::admission::{self, Findings, apply_defaults};
use runway_operator::telemetry::chain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::diagnostic::{Diagnostic, Level};
use crate::offline::documents::{Document, Documents, Origin};
use crate::offline::render;
use crate::offline::state::State;
use crate::target::closest;

use crd::{CRDS, against};
pub use finding::{By, Finding, Weight};

/// Result for one document.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The file; `stdin` for standard input.
    pub file: String,
    /// Number of the document in the file, from 1.
    pub document: usize,
    /// Number of the item, from 1, if the document is a List.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<usize>,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace, if one is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Whether it would be accepted.
    pub valid: bool,
    /// Findings, in the order of the stages.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    origin: Origin,
}

/// Results for all documents.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Validated {
    /// The documents of ours, in the order given.
    pub documents: Vec<Verdict>,
    /// Skipped documents of other kinds.
    pub left_out: Vec<String>,
    /// Failure to read the input.
    pub unreadable: Vec<String>,
}

impl Validated {
    /// Whether any document would be rejected or cannot be read.
    pub fn failed(&self) -> bool {
        !self.unreadable.is_empty() || self.documents.iter().any(|verdict| !verdict.valid)
    }

    /// Everything, one line each.
    pub fn lines(&self) -> Vec<Diagnostic> {
        let plain = |level| {
            move |text: &String| Diagnostic {
                level,
                subject: None,
                text: text.clone(),
            }
        };
        let unreadable = self.unreadable.iter().map(plain(Level::Error));
        let left_out = self.left_out.iter().map(plain(Level::Note));
        let found = self.documents.iter().flat_map(|verdict| {
            verdict.findings.iter().map(|finding| {
                let line = finding.line.map_or_else(String::new, |line| format!(", line {line}"));
                let subject = format!("{}{line}: {}/{}", verdict.origin, verdict.kind, verdict.name);
                let level = match finding.level {
                    Weight::Error => Level::Error,
                    Weight::Warning => Level::Warning,
                };
                Diagnostic::about(level, subject, finding.to_string())
            })
        });
        unreadable.chain(found).chain(left_out).collect()
    }

    /// Summary in one line.
    pub fn summary(&self) -> String {
        let wrong = self.documents.iter().filter(|verdict| !verdict.valid).count();
        let counts = [
            (self.documents.len() - wrong, "valid"),
            (wrong, "invalid"),
            (self.left_out.len(), "skipped"),
            (self.unreadable.len(), "unreadable"),
        ];
        let counts: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}"))
            .collect();
        counts.join(", ") + "\n"
    }
}

/// Judges every document of ours.
pub fn validate(documents: Documents, now: Timestamp) -> Validated {
    let crds = &CRDS;
    let mut validated = Validated {
        unreadable: documents.errors.iter().map(|error| chain(error)).collect(),
        ..Validated::default()
    };
    let (mut judged, mut registrations) = (Vec::new(), Documents::default());
    for document in documents.found {
        let group: Vec<_> = crds.iter().filter(|crd| crd.spec.group == document.group()).collect();
        let crd = group.iter().find(|crd| crd.spec.names.kind == document.kind());
        let Some(findings) = crd.map_or_else(|| mistyped(&document, &group), |crd| Some(against(crd, &document)))
        else {
            let text = "skipped: not a KubeAIRunway resource";
            validated
                .left_out
                .push(format!("{}: {}: {text}", document.origin, document.subject()));
            continue;
        };
        if findings.is_empty() && document.kind() == "InferenceProviderConfig" {
            registrations.found.push(registered(document.clone()));
        }
        judged.push((document, findings));
    }
    let (state, _) = State::new(registrations);
    for (document, mut findings) in judged {
        let mut later = asked(&document, &state, findings.is_empty(), now);
        // What is said already is not said again, nor in other words what is wrong with a field.
        let same = |said: &Finding, new: &Finding| {
            said.message == new.message || new.level == Weight::Error && said.field == new.field
        };
        later.retain(|new| !findings.iter().any(|said| same(said, new)));
        findings.extend(later);
        validated.documents.push(verdict(&document, findings));
    }
    validated
}

/// A kind of one of our groups that is none, and looks like one.
fn mistyped(document: &Document, group: &[&CustomResourceDefinition]) -> Option<Vec<Finding>> {
    let meant = closest(document.kind(), group.iter().map(|crd| crd.spec.names.kind.as_str()))?;
    let message = format!("{} does not exist: did you mean '{meant}'?", document.kind());
    Some(vec![Finding::error(By::Schema, "kind", message)])
}

/// A registration that is ready, unless its status says otherwise.
fn registered(mut document: Document) -> Document {
    if document.value["status"].is_null() {
        document.value["status"] = json!({ "ready": true });
    }
    document
}

fn verdict(document: &Document, mut findings: Vec<Finding>) -> Verdict {
    for finding in &mut findings {
        finding.line = document.line_of(&finding.field);
    }
    Verdict {
        file: document.origin.file.to_string(),
        document: document.origin.number,
        item: document.origin.item,
        kind: document.kind().to_owned(),
        name: document.name().to_owned(),
        namespace: document.namespace().map(str::to_owned),
        valid: findings.iter().all(|finding| finding.level == Weight::Warning),
        findings,
        origin: document.origin.clone(),
    }
}

/// Findings of the controller of its kind. `fine`: there are no findings so far.
fn asked(document: &Document, state: &State, fine: bool, now: Timestamp) -> Vec<Finding> {
    match document.kind() {
        "ModelDeployment" => deployment(document, state, now),
        "InferenceProviderConfig" => registration(document, state),
        // Their checks are the CRD's once more, and a little that it cannot see.
        "AsyncActor" if fine => own(document, runway_asya_operator::request::violations),
        "LlamaStackDistribution" if fine => own(document, runway_llama_stack_operator::validate),
        _ => Vec::new(),
    }
}

/// Admission with the core's and the providers' rules; then what would come of it.
fn deployment(document: &Document, state: &State, now: Timestamp) -> Vec<Finding> {
    // The schema has reported documents that cannot be parsed.
    let Ok(mut md) = render::parsed(document) else {
        return Vec::new();
    };
    if md.is_deleting() {
        return Vec::new();
    }
    apply_defaults(&mut md.spec);
    let unsupported = Findings {
        // `outcome` reports the same in more words.
        warnings: Vec::new(),
        ..admission::capabilities(&md, &state.providers)
    };
    let verdict = admission::validate(&md, &state.providers).and(unsupported);
    if verdict.is_valid() {
        let warned = verdict.warnings.iter();
        let mut findings: Vec<Finding> = warned
            .map(|text| Finding::warning(By::Admission, "spec", text))
            .collect();
        findings.extend(outcome(md, state, now));
        return findings;
    }
    let refused = verdict
        .errors
        .iter()
        .map(|v| Finding::error(By::Admission, &v.field, &v.message));
    refused
        .chain(
            verdict
                .warnings
                .iter()
                .map(|text| Finding::warning(By::Admission, "spec", text)),
        )
        .collect()
}

/// Warning if no pod would run.
fn outcome(md: ModelDeployment, state: &State, now: Timestamp) -> Option<Finding> {
    let status = render::plans(md, state, now).ok()?.md.status?;
    let stops = [condition::PROVIDER_SELECTED, condition::PROVIDER_COMPATIBLE];
    let stopped = status
        .conditions
        .iter()
        .find(|c| c.status == "False" && stops.contains(&c.type_.as_str()))?;
    Some(Finding::warning(
        By::Plan,
        "spec",
        format!("it would not run: {}", stopped.message),
    ))
}

/// Warnings on selection rules that the core skips.
fn registration(document: &Document, state: &State) -> Vec<Finding> {
    let problems = state
        .providers
        .get(document.name())
        .map_or(&[][..], |registered| &registered.problems);
    problems
        .iter()
        .map(|text| Finding::warning(By::Admission, "spec", text))
        .collect()
}

/// Findings of an operator about a spec.
fn own<T: DeserializeOwned>(document: &Document, violations: impl Fn(&T) -> Vec<String>) -> Vec<Finding> {
    match document.parse::<T>() {
        Ok(object) => violations(&object)
            .into_iter()
            .map(|text| Finding::error(By::Admission, "spec", text))
            .collect(),
        Err(error) => vec![Finding::error(By::Admission, "spec", chain(&error))],
    }
}
