//! The user guide's table of changes, from what the test `changes` saw (`crates/testbed/tests/changes`).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;

use anyhow::{Context, Result};
use runway_dev_support::shell::root;
use serde::Deserialize;

/// Path of the page that has the table.
pub(crate) const PATH: &str = "docs/user-guide.md";

const BEGIN: &str = "<!-- Made by `cargo xtask gen` from crates/testbed/tests/changes. Do not edit. -->\n";
const END: &str = "<!-- End of the generated table. -->\n";

/// Providers in the order of the columns, with their titles.
const PROVIDERS: [(&str, &str); 4] = [
    ("kaito", "KAITO"),
    ("direct", "direct"),
    ("dynamo", "Dynamo"),
    ("kuberay", "KubeRay"),
];

/// Effect of a change, as the test writes it.
#[derive(Deserialize)]
struct Row {
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
        .context("docs/user-guide.md has no table of changes")?;
    let (_, after) = rest
        .split_once(END)
        .context("the table of changes in docs/user-guide.md has no end")?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", table()?))
}

fn table() -> Result<String> {
    let mut changes: Vec<String> = Vec::new();
    let mut cells: BTreeMap<(String, &str), String> = BTreeMap::new();
    for (provider, _) in PROVIDERS {
        let path = format!("crates/testbed/tests/changes/{provider}.yaml");
        let text = fs::read_to_string(root().join(&path)).with_context(|| format!("cannot read {path}"))?;
        let rows: Vec<Row> = serde_saphyr::from_str(&text).with_context(|| path.clone())?;
        for row in rows {
            if !changes.contains(&row.change) {
                changes.push(row.change.clone());
            }
            cells.insert((row.change.clone(), provider), words(&row));
        }
    }
    let titles: Vec<&str> = PROVIDERS.iter().map(|(_, title)| *title).collect();
    let mut table = format!(
        "| you change | {} |\n|---|{}\n",
        titles.join(" | "),
        "---|".repeat(titles.len())
    );
    for change in changes {
        write!(table, "| {change} |")?;
        for (provider, _) in PROVIDERS {
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
fn words(row: &Row) -> String {
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
