//! Validation against a CRD, as the API server does it: version, metadata, schema, rules.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSONSchemaProps};
use kube::core::ObjectMeta;
use runway_api::syntax;
use runway_api::{Name, Namespace};
use runway_manifests as manifests;
use serde_json::{Value, json};

use super::finding::{By, Finding, Weight};
use super::schema;
use crate::offline::documents::Document;
use crate::offline::unknown::unknown_fields;

/// Our CRDs, generated once: that takes tens of milliseconds. Their schemas are complete.
pub(super) static CRDS: LazyLock<Vec<CustomResourceDefinition>> =
    LazyLock::new(|| manifests::all_crds().into_iter().map(complete).collect());

/// Reasons why the API server would reject a document, without unknown fields.
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

/// Validates a document against one of [`CRDS`]: version, metadata, schema, rules.
pub(super) fn against(crd: &CustomResourceDefinition, document: &Document) -> Vec<Finding> {
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
        let mut object = document.value.clone();
        if let Some(fields) = object.as_object_mut() {
            // The server drops what is not its users' to write.
            fields.remove("status");
        }
        schema::fill_in(schema, &mut object);
        findings.extend(schema::check(schema, &object));
    }
    findings
}

/// Adds the fields that every object has to the schemas of a CRD, which do not list them.
fn complete(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let anything = JSONSchemaProps {
        x_kubernetes_preserve_unknown_fields: Some(true),
        ..JSONSchemaProps::default()
    };
    let validations = crd
        .spec
        .versions
        .iter_mut()
        .filter_map(|version| version.schema.as_mut());
    for schema in validations.filter_map(|validation| validation.open_api_v3_schema.as_mut()) {
        let fields = schema.properties.get_or_insert_default();
        for name in ["apiVersion", "kind", "metadata"] {
            fields.insert(name.to_owned(), anything.clone());
        }
    }
    crd
}

/// Validates the metadata.
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
    let unknown = unknown_fields(written, &json!(read), "metadata");
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
