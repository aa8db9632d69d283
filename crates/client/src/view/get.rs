//! `kubeairunway get`: a table of ModelDeployments.

use comfy_table::Cell;
use jiff::Timestamp;
use kube::ResourceExt;
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, Phase};
use serde_json::Value;

use crate::text;

/// Columns of the table.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Add reason and message.
    pub wide: bool,
    /// Add the namespace.
    pub namespaces: bool,
}

/// The table.
pub fn table(all: &[ModelDeployment], now: Timestamp, options: Options) -> String {
    let mut header = vec!["NAME", "PHASE", "PROVIDER", "ENGINE", "READY", "AGE"];
    if options.namespaces {
        header.insert(0, "NAMESPACE");
    }
    if options.wide {
        header.extend(["REASON", "MESSAGE"]);
    }
    let mut table = text::table(&header);
    for md in all {
        table.add_row(row(md, now, options));
    }
    text::aligned(&table)
}

fn row(md: &ModelDeployment, now: Timestamp, options: Options) -> Vec<Cell> {
    let status = md.status.clone().unwrap_or_default();
    let phase = status.phase.map_or("-", Phase::as_str);
    let phase = if md.is_paused() {
        format!("{phase} (paused)")
    } else {
        phase.to_owned()
    };
    let mut row = vec![
        Cell::new(md.name_any()),
        Cell::new(phase),
        Cell::new(md.selected_provider().unwrap_or("-")),
        Cell::new(md.spec.engine_type().unwrap_or("-")),
        Cell::new(replicas(md)),
        Cell::new(
            md.creation_timestamp()
                .map_or_else(|| "-".to_owned(), |t| text::since(t.0, now)),
        ),
    ];
    if options.namespaces {
        row.insert(0, Cell::new(md.namespace().unwrap_or_default()));
    }
    if options.wide {
        let reason = md
            .conditions()
            .get_condition(condition::READY)
            .map_or("-", |c| c.reason.as_str());
        row.extend([
            Cell::new(reason),
            Cell::new(text::cell(status.message.as_deref().unwrap_or("-"))),
        ]);
    }
    row
}

/// A table that the server has made, on a screen; empty if it has no rows.
pub fn server_table(made: &Value, wide: bool, namespaces: bool) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let columns = list(&made["columnDefinitions"]);
    let shown: Vec<usize> = columns
        .iter()
        .enumerate()
        .filter(|(_, column)| wide || column["priority"].as_i64().unwrap_or(0) == 0)
        .map(|(index, _)| index)
        .collect();
    let rows = list(&made["rows"]);
    if rows.is_empty() {
        return String::new();
    }
    let mut header: Vec<String> = shown
        .iter()
        .map(|index| columns[*index]["name"].as_str().unwrap_or_default().to_uppercase())
        .collect();
    if namespaces {
        header.insert(0, "NAMESPACE".to_owned());
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = text::table(&header);
    for row in rows {
        let cell = |value: &Value| match value {
            Value::Null => "-".to_owned(),
            Value::String(said) if said.is_empty() => "-".to_owned(),
            Value::String(said) => text::cell(said),
            other => text::cell(&other.to_string()),
        };
        let mut cells: Vec<String> = shown.iter().map(|index| cell(&row["cells"][*index])).collect();
        if namespaces {
            cells.insert(0, cell(&row["object"]["metadata"]["namespace"]));
        }
        table.add_row(cells);
    }
    text::aligned(&table)
}

/// Ready and desired replicas, such as `1/2`.
pub fn replicas(md: &ModelDeployment) -> String {
    let replicas = md.status.as_ref().and_then(|s| s.replicas.as_ref());
    let shown = |number: Option<i32>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    replicas.map_or_else(
        || "-".to_owned(),
        |r| format!("{}/{}", shown(r.ready), shown(r.desired)),
    )
}
