//! The page of workloads that AsyncActors are bound to, from the cases of their test (`crates/asya-operator/tests/shapes.yaml`).

use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use runway_dev_support::shell::root;
use serde::Deserialize;
use serde_json::Value;

/// Path of the page.
pub(crate) const PATH: &str = "docs/reference/binding.md";
/// The cases.
const CASES: &str = "crates/asya-operator/tests/shapes.yaml";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from crates/asya-operator/tests/shapes.yaml. Do not edit. -->
# Bound workloads

How an AsyncActor is bound to workloads as platforms create them: the strategy that `binding.strategy: Auto` takes, and the URL that the
handler calls if `runtime.targetURL` is not set; or the message of the refusal. Each row is a test. [AsyncActor](../how-to/asya.md)
explains the strategies.

| workload | kind | set | bound |
|---|---|---|---|
";

/// A case, as the test reads it.
#[derive(Deserialize)]
struct Shape {
    name: String,
    objects: Vec<Value>,
    strategy: Option<String>,
    url: Option<String>,
    bound: String,
}

/// The page.
pub(crate) fn page() -> Result<String> {
    let text = fs::read_to_string(root().join(CASES)).with_context(|| format!("cannot read {CASES}"))?;
    let shapes: Vec<Shape> = serde_saphyr::from_str(&text).context(CASES)?;
    let mut page = INTRODUCTION.to_owned();
    for shape in shapes {
        let strategy = shape.strategy.map(|strategy| format!("`binding.strategy: {strategy}`"));
        let url = shape.url.map(|url| format!("`runtime.targetURL: {url}`"));
        let set: Vec<String> = strategy.into_iter().chain(url).collect();
        let kind = shape.objects.first().and_then(|object| object["kind"].as_str());
        let bound = match shape.bound.split_once(" at ") {
            Some((strategy, url)) if !shape.bound.starts_with("refused: ") => format!("{strategy}, `{url}`"),
            _ => shape.bound,
        };
        let kind = kind.with_context(|| format!("{CASES}: {} has no object", shape.name))?;
        writeln!(page, "| {} | {kind} | {} | {bound} |", shape.name, set.join(", "))?;
    }
    Ok(page)
}
