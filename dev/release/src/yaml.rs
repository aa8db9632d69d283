//! YAML of generated files.

use anyhow::Result;
use runway_client::text;
use serde::Serialize;

/// First line of a generated file.
pub const HEADER: &str = "# Made by `cargo xtask gen` from the code. Do not edit.\n";

/// An object as YAML, without [`HEADER`].
pub fn document(object: &impl Serialize) -> Result<String> {
    Ok(text::documents(&[serde_json::to_value(object)?], text::Format::Yaml)?)
}

/// A file with these objects.
pub fn documents(objects: &[impl Serialize]) -> Result<String> {
    let values: Result<Vec<_>, _> = objects.iter().map(serde_json::to_value).collect();
    Ok(format!("{HEADER}{}", text::documents(&values?, text::Format::Yaml)?))
}
