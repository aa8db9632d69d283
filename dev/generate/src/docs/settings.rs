//! The reference of settings of an installation: a table for each built-in provider, from the schemas of their settings.

use std::fmt::Write;

use anyhow::Result;
use runway_manifests as manifests;
use serde_json::{Value, json};

use super::api;

/// Path of the page.
pub(crate) const PATH: &str = "docs/reference/settings.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Settings of an installation

Fields of `spec.settings` of each built-in provider's InferenceProviderConfig, and how to change them:
[Settings of an installation](../operate/install.md#settings-of-an-installation). `[]` is an item of a list, `*` a value of a map.
";

/// The page. Fails when a setting has no description.
pub(crate) fn page() -> Result<String> {
    let mut page = INTRODUCTION.to_owned();
    for provider in manifests::built_in_providers() {
        let name = provider.name();
        let Some(settings) = provider.settings() else {
            continue;
        };
        write!(page, "\n## {name}\n")?;
        page.push_str(&api::table(&plain(settings.schema().as_value()), "spec.settings")?);
    }
    Ok(page)
}

/// The schema as in a CRD: values of an enum in one list, without the default of every field, which its description gives.
fn plain(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let mut plain: serde_json::Map<_, _> = fields
                .iter()
                .filter(|(name, _)| *name != "default" && *name != "oneOf")
                .map(|(name, value)| (name.clone(), self::plain(value)))
                .collect();
            if let Some(values) = fields.get("oneOf").and_then(Value::as_array) {
                let values: Vec<&Value> = values
                    .iter()
                    .flat_map(|value| value["enum"].as_array().into_iter().flatten().chain(value.get("const")))
                    .collect();
                plain.insert("type".to_owned(), json!("string"));
                plain.insert("enum".to_owned(), json!(values));
            }
            Value::Object(plain)
        }
        Value::Array(values) => values.iter().map(plain).collect(),
        other => other.clone(),
    }
}
