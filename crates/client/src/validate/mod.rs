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

mod rules;
mod schema;

use std::fmt;
use std::sync::LazyLock;

use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube::core::ObjectMeta;
use runway_api::{ModelDeployment, Name, Namespace, condition};
use runway_core::admission::{apply_defaults, syntax};
use runway_operator::telemetry::chain;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::diagnostic::{Diagnostic, Level};
use crate::documents::{Document, Documents, Origin};
use crate::state::State;
use crate::target::closest;
use crate::{manifests, render};

/// Who has something against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum By {
    /// The schema of the CRD, or the API server's own rules for every object.
    Schema,
    /// A rule in CEL of the CRD.
    Rule,
    /// The controller, at admission.
    Admission,
    /// The controllers' plan: it is let in, and would not run.
    Plan,
}

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Weight {
    /// It would be refused.
    Error,
    /// It would be let in, and its author should know this.
    Warning,
}

/// Something that there is to say of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How much it matters.
    pub level: Weight,
    /// Who says it.
    pub by: By,
    /// The path of the field, as `spec.env[0].name`; empty if it is about the whole.
    pub field: String,
    /// The line of the file, from 1, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// What is wrong, and what to do.
    pub message: String,
}

impl Finding {
    fn error(by: By, field: &str, message: impl Into<String>) -> Self {
        Self {
            level: Weight::Error,
            by,
            field: field.to_owned(),
            line: None,
            message: message.into(),
        }
    }

    fn warning(by: By, field: &str, message: impl Into<String>) -> Self {
        Self {
            level: Weight::Warning,
            ..Self::error(by, field, message)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.by, self.field.as_str()) {
            (_, "") => f.write_str(&self.message),
            (By::Schema, field) => write!(f, "{field} {}", self.message),
            // What controllers say mostly begins with the field, without `spec.`.
            (_, "spec") => f.write_str(&self.message),
            (_, field) if self.message.starts_with(field.trim_start_matches("spec.")) => f.write_str(&self.message),
            (_, field) => write!(f, "{field}: {}", self.message),
        }
    }
}

/// What there is to say of one document of ours.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The file; `stdin` for standard input.
    pub file: String,
    /// Which document of the file, from 1.
    pub document: usize,
    /// Which item, from 1, if the document is a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item: Option<usize>,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its namespace, if one is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Whether it would be let in.
    pub valid: bool,
    /// What there is to say of it, in the order of the stages it goes through.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    origin: Origin,
}

/// What there is to say of everything that was given.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Validated {
    /// The documents of ours, in the order given.
    pub documents: Vec<Verdict>,
    /// What is left out, being of other kinds.
    pub left_out: Vec<String>,
    /// What cannot be read.
    pub unreadable: Vec<String>,
}

impl Validated {
    /// Whether something would be refused, or cannot be read.
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

    /// How many of which, in one line.
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

/// A registration whose controller runs, unless its status says otherwise.
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

/// Our CRDs, generated once: that takes tens of milliseconds.
static CRDS: LazyLock<Vec<CustomResourceDefinition>> = LazyLock::new(manifests::all_crds);

/// Why the API server would refuse a document of ours, as far as the fields go that our types know.
pub(crate) fn refusals(document: &Document) -> Vec<String> {
    let mut crds = CRDS.iter().filter(|crd| crd.spec.group == document.group());
    let Some(crd) = crds.find(|crd| crd.spec.names.kind == document.kind()) else {
        return Vec::new();
    };
    let errors = against(crd, document)
        .into_iter()
        .filter(|finding| finding.level == Weight::Error && !finding.message.starts_with("is an unknown field"));
    errors
        .map(|finding| {
            // Rules of the schema name the field themselves.
            let short = finding.field.trim_start_matches("spec.");
            if finding.message.starts_with(short) {
                finding.message
            } else {
                format!("{} {}", finding.field, finding.message)
            }
        })
        .collect()
}

/// What the API server says of it: its version, metadata, schema, rules.
fn against(crd: &CustomResourceDefinition, document: &Document) -> Vec<Finding> {
    let given = document.value["apiVersion"].as_str().unwrap_or_default();
    let Some(version) = crd
        .spec
        .versions
        .iter()
        .find(|v| given == format!("{}/{}", crd.spec.group, v.name))
    else {
        let known: Vec<String> = crd
            .spec
            .versions
            .iter()
            .map(|version| format!("{}/{}", crd.spec.group, version.name))
            .collect();
        let message = format!("{given} does not exist: use {}", known.join(" or "));
        return vec![Finding::error(By::Schema, "apiVersion", message)];
    };
    let mut findings = metadata(&document.value["metadata"]);
    let schema = version
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api_v3_schema.as_ref());
    if let Some(schema) = schema {
        let schema = whole(schema);
        let mut object = document.value.clone();
        if let Some(fields) = object.as_object_mut() {
            // The server drops what is not its users' to write.
            fields.remove("status");
        }
        schema::fill_in(&schema, &mut object);
        findings.extend(schema::check(&schema, &object));
    }
    findings
}

/// The schema with what every object has, and a CRD does not say.
fn whole(schema: &JSONSchemaProps) -> JSONSchemaProps {
    let mut schema = schema.clone();
    let anything = JSONSchemaProps {
        x_kubernetes_preserve_unknown_fields: Some(true),
        ..JSONSchemaProps::default()
    };
    let fields = schema.properties.get_or_insert_default();
    for name in ["apiVersion", "kind", "metadata"] {
        fields.insert(name.to_owned(), anything.clone());
    }
    schema
}

/// What is the same for every object.
fn metadata(written: &Value) -> Vec<Finding> {
    let read: ObjectMeta = match serde_path_to_error::deserialize(written) {
        Ok(read) => read,
        Err(error) => {
            let field = format!("metadata.{}", error.path());
            return vec![Finding::error(
                By::Schema,
                &field,
                format!("cannot be read: {}", error.inner()),
            )];
        }
    };
    let unknown = render::unknown_fields(written, &json!(read), "metadata");
    let mut findings: Vec<Finding> = unknown
        .iter()
        .map(|field| Finding::error(By::Schema, field, "is an unknown field: remove it"))
        .collect();
    let mut say = |field: &str, message: String| findings.push(Finding::error(By::Schema, field, message));
    if let Some(Err(invalid)) = read.name.as_deref().map(str::parse::<Name>) {
        say("metadata.name", format!("is an {invalid}"));
    }
    if let Some(Err(invalid)) = read.namespace.as_deref().map(str::parse::<Namespace>) {
        say("metadata.namespace", format!("is an {invalid}"));
    }
    for (key, value) in read.labels.iter().flatten() {
        let at = schema::join("metadata.labels", key);
        if !syntax::is_key(key) {
            say(
                "metadata.labels",
                format!(
                    "has an invalid key '{key}': use letters, digits, '-', '_' and '.', optionally after a domain and '/'"
                ),
            );
        }
        if !syntax::is_label_value(value) {
            say(
                &at,
                format!("has an invalid value '{value}': use at most 63 letters, digits, '-', '_' and '.'"),
            );
        }
    }
    for key in read
        .annotations
        .iter()
        .flatten()
        .map(|(key, _)| key)
        .filter(|key| !syntax::is_key(key))
    {
        say(
            "metadata.annotations",
            format!(
                "has an invalid key '{key}': use letters, digits, '-', '_' and '.', optionally after a domain and '/'"
            ),
        );
    }
    findings
}

/// What the controller of its kind says. `fine`: nothing is wrong so far.
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
    // What cannot be read, the schema has told of.
    let Ok(mut md) = render::held(document) else {
        return Vec::new();
    };
    if md.is_deleting() {
        return Vec::new();
    }
    apply_defaults(&mut md.spec);
    let verdict = runway_core::admission::validate(&md, &state.providers);
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

/// Why nothing would run, if nothing would.
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

/// A rule that cannot be used is left out by the core; the others go on.
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

/// What an operator says of a spec.
fn own<T: DeserializeOwned>(document: &Document, violations: impl Fn(&T) -> Vec<String>) -> Vec<Finding> {
    match document.parse::<T>() {
        Ok(object) => violations(&object)
            .into_iter()
            .map(|text| Finding::error(By::Admission, "spec", text))
            .collect(),
        Err(error) => vec![Finding::error(By::Admission, "spec", chain(&error))],
    }
}
