//! The reference of the API: every field of every kind, with its meaning, its default and its bounds, from the CRDs.

use std::fmt::Write;

use anyhow::{Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_manifests as manifests;
use serde_json::Value;

use super::split;

/// Folder of the pages.
pub(crate) const FOLDER: &str = "docs/reference/api";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# API reference

Fields of every kind, from the CRDs: meaning, default and accepted values, as `kubectl explain` shows them. `[]` is an item of a list,
`*` a value of a map. For fields of Kubernetes types (`env`, `resources`, `volumes`, …) see the Kubernetes documentation.
[Field mapping](../fields/README.md) shows how providers translate the fields of a ModelDeployment.
";

/// Fields whose schema is Kubernetes' own.
const OF_KUBERNETES: [&str; 8] = [
    "conditions",
    "env",
    "envFrom",
    "template",
    "tolerations",
    "topologySpreadConstraints",
    "volumeMounts",
    "volumes",
];

/// A page for each kind. Fails when a field has no description.
pub(crate) fn pages() -> Result<Vec<(String, String)>> {
    Ok(split::pages(FOLDER, &page()?, |kind| Some(split::file_name(kind))))
}

fn page() -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    for crd in manifests::components().iter().flat_map(|component| &component.crds) {
        kind(&mut page, crd)?;
    }
    Ok(page)
}

/// The table of the fields of a schema.
pub(crate) fn table(schema: &Value, path: &str) -> Result<String> {
    let (mut page, mut table) = (String::new(), Table::default());
    table.below(schema, path)?;
    table.write(&mut page)?;
    Ok(page)
}

fn kind(page: &mut String, crd: &CustomResourceDefinition) -> Result<()> {
    let names = &crd.spec.names;
    for version in &crd.spec.versions {
        let schema = serde_json::to_value(&version.schema)?["openAPIV3Schema"].take();
        write!(page, "\n## {}\n\n`{}/{}`", names.kind, crd.spec.group, version.name)?;
        let short: Vec<String> = names
            .short_names
            .iter()
            .flatten()
            .map(|name| format!("`{name}`"))
            .collect();
        if !short.is_empty() {
            write!(page, ", short name {}", short.join(", "))?;
        }
        writeln!(page, ". {}", description(&schema))?;
        for part in ["spec", "status"] {
            let mut table = Table::default();
            table.below(&schema["properties"][part], part)?;
            table.write(page)?;
        }
    }
    Ok(())
}

/// Fields in the order in which they are written, and what must hold among them.
#[derive(Default)]
struct Table {
    rows: Vec<String>,
    rules: Vec<String>,
    /// Schemas that are described already, with their paths. A repeated schema becomes a reference.
    known: Vec<(Value, String)>,
}

impl Table {
    fn below(&mut self, schema: &Value, path: &str) -> Result<()> {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let text = rule["message"]
                .as_str()
                .or_else(|| rule["rule"].as_str())
                .unwrap_or_default();
            let line = format!("- `{path}`: {}", cell(text));
            if !self.rules.contains(&line) {
                self.rules.push(line);
            }
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let required = schema["required"]
                .as_array()
                .is_some_and(|r| r.iter().any(|n| n == name));
            self.field(name, field, &path, required)?;
        }
        Ok(())
    }

    fn field(&mut self, name: &str, field: &Value, path: &str, required: bool) -> Result<()> {
        let (inner, inner_path) = innermost(field, path.to_owned());
        let has_fields = inner["properties"].is_object() && !is_of_kubernetes(name, inner);
        let known = self.known.iter().find(|(schema, _)| schema == inner && has_fields);
        let known = known.map(|(_, at)| at.clone());
        let mut meaning = description(field);
        ensure!(!meaning.is_empty(), "{path} has no description");
        if let Some(at) = &known {
            write!(meaning, " Fields as in `{at}`.")?;
        }
        self.rows
            .push(format!("| `{path}` | {} | {meaning} |", kept_to(field, required)));
        if has_fields && known.is_none() {
            self.known.push((inner.clone(), inner_path.clone()));
            self.below(inner, &inner_path)?;
        } else if !has_fields {
            self.below(&without_fields(inner), &inner_path)?;
        }
        Ok(())
    }

    fn write(&self, page: &mut String) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        writeln!(page, "\n| field | type and limits | meaning |\n|---|---|---|")?;
        for row in &self.rows {
            writeln!(page, "{row}")?;
        }
        if !self.rules.is_empty() {
            writeln!(
                page,
                "\nValidation rules, with their error messages:\n\n{}",
                self.rules.join("\n")
            )?;
        }
        Ok(())
    }
}

/// ModelDeployments have resources of their own; those of Kubernetes know claims.
fn is_of_kubernetes(name: &str, schema: &Value) -> bool {
    OF_KUBERNETES.contains(&name) || (name == "resources" && schema["properties"]["claims"].is_object())
}

/// The schema of an item or a value, and its path.
fn innermost(schema: &Value, path: String) -> (&Value, String) {
    if schema["items"].is_object() {
        return innermost(&schema["items"], format!("{path}[]"));
    }
    if schema["additionalProperties"].is_object() {
        return innermost(&schema["additionalProperties"], format!("{path}.*"));
    }
    (schema, path)
}

/// Only its rules.
fn without_fields(schema: &Value) -> Value {
    let mut bare = schema.clone();
    if let Some(fields) = bare.as_object_mut() {
        fields.remove("properties");
    }
    bare
}

/// Type and bounds.
fn kept_to(schema: &Value, required: bool) -> String {
    let mut parts = vec![kind_of(schema)];
    let options = schema["enum"].as_array();
    let options: Vec<String> = options
        .into_iter()
        .flatten()
        .filter_map(|o| Some(format!("`{}`", o.as_str()?)))
        .collect();
    if !options.is_empty() {
        parts = vec![options.join(", ")];
    }
    for (least, most, of) in [
        ("minimum", "maximum", ""),
        ("minLength", "maxLength", " characters"),
        ("minItems", "maxItems", " items"),
        ("minProperties", "maxProperties", " entries"),
    ] {
        let bound = |key: &str| schema[key].as_f64();
        match (bound(least), bound(most)) {
            (Some(least), Some(most)) => parts.push(format!("{least} to {most}{of}")),
            (Some(least), None) => parts.push(format!("at least {least}{of}")),
            (None, Some(most)) => parts.push(format!("at most {most}{of}")),
            (None, None) => {}
        }
    }
    if let Some(pattern) = schema["pattern"].as_str() {
        parts.push(format!("`{}`", cell(pattern)));
    }
    if !schema["default"].is_null() {
        parts.push(format!("default `{}`", schema["default"]));
    }
    if required {
        parts.push("**required**".to_owned());
    }
    parts.join(", ")
}

fn kind_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "number or text".to_owned();
    }
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", kind_of(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("map of {}", kind_of(&schema["additionalProperties"]))
        }
        Some("string") if schema["format"] == "date-time" => "time".to_owned(),
        Some("string") => "text".to_owned(),
        Some(other) => other.to_owned(),
        None => "anything".to_owned(),
    }
}

fn description(schema: &Value) -> String {
    cell(schema["description"].as_str().unwrap_or_default())
}

/// On one line of a table.
fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}
