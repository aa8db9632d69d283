//! The table of changes of `docs/reference/updates.md`, from what the test `changes` saw (`crates/testbed/tests/changes`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use runway_dev_support::shell::root;
use runway_manifests as manifests;
use serde::Deserialize;

/// Path of the page that has the table.
pub(crate) const PATH: &str = "docs/reference/updates.md";

const BEGIN: &str = "<!-- Made by `cargo xtask gen` from crates/testbed/tests/changes. Do not edit. -->\n";
const END: &str = "<!-- End of the generated table. -->\n";

/// Effect of a change, as the test writes it.
#[derive(Deserialize)]
struct Effect {
    change: String,
    object: String,
    pods: Option<String>,
    requests: Option<String>,
}

/// The page with the current table.
pub(crate) fn page() -> Result<String> {
    let page = fs::read_to_string(root().join(PATH))?;
    let (before, rest) = page
        .split_once(BEGIN)
        .context("docs/reference/updates.md has no table of changes")?;
    let (_, after) = rest
        .split_once(END)
        .context("the table of changes in docs/reference/updates.md has no end")?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table()?))
}

/// File with the effects of changes that the test has seen.
fn seen_of(provider: &str) -> PathBuf {
    root().join(format!("crates/testbed/tests/changes/{provider}.yaml"))
}

fn table() -> Result<String> {
    let mut changes: Vec<String> = Vec::new();
    let mut cells: BTreeMap<(String, &str), String> = BTreeMap::new();
    let mut providers = manifests::built_in_providers();
    // A provider has a column once the test has a table for it.
    providers.retain(|provider| seen_of(provider.name()).exists());
    for provider in providers.iter().map(|provider| provider.name()) {
        let path = seen_of(provider);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let rows: Vec<Effect> = serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
        for row in rows {
            if !changes.contains(&row.change) {
                changes.push(row.change.clone());
            }
            cells.insert((row.change.clone(), provider), words(&row));
        }
    }
    let titles: Vec<&str> = providers.iter().map(|provider| provider.title()).collect();
    let mut table = format!(
        "| you change | {} |\n|---|{}\n",
        titles.join(" | "),
        "---|".repeat(titles.len())
    );
    for change in changes {
        write!(table, "| {change} |")?;
        for provider in providers.iter().map(|provider| provider.name()) {
            let cell = cells
                .get(&(change.clone(), provider))
                .map_or("not tested", String::as_str);
            write!(table, " {cell} |")?;
        }
        table.push('\n');
    }
    Ok(table)
}

/// The effect in a few words.
fn words(row: &Effect) -> String {
    let interrupted = row.requests.as_deref() == Some("interrupted");
    let effect = match (row.object.as_str(), row.pods.as_deref()) {
        ("recreated", _) => "recreated",
        (_, Some("beside")) => "second cluster beside the first",
        (_, Some("replaced")) if !interrupted => "rolling",
        (_, Some("replaced")) => "pods replaced",
        (_, Some("added")) => "pods added",
        (_, Some("removed")) => "pods removed",
        (_, Some(_)) => "in place, no restart",
        (_, None) => "in place; pods as Dynamo rolls out",
    };
    if interrupted || row.object == "recreated" {
        format!("{effect}, interrupted")
    } else {
        effect.to_owned()
    }
}
