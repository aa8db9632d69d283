//! The reference of metrics, from the same constants under which they are served.

use std::fmt::Write;

use runway_operator::metrics::Metric;

/// Where the page is.
pub(crate) const PATH: &str = "docs/reference/metrics.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Metrics

Served as OpenMetrics at `/metrics`, by controllers on their `--admin-address` ([observability](../observability.md)). Only the metrics about single
ModelDeployments have the label `name`; what anybody may write into an object is never a label value as it stands.
";

pub(crate) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    section(
        &mut page,
        "Of every controller",
        "Each process tells them of itself, the replica that stands by as well.",
        runway_operator::metrics::METRICS.iter().map(Row::from),
    );
    section(
        &mut page,
        "About ModelDeployments",
        "Told by the core's leader alone, and read off its watch cache when somebody asks: a series goes with its object.",
        runway_core::metrics::METRICS.iter().map(Row::from),
    );
    section(
        &mut page,
        "Of asya-sidecar",
        "Each pod of an AsyncActor tells them of its own queue, on `ASYA_METRICS_ADDR` (the operator sets `:9464`). They begin with `ASYA_METRICS_NAMESPACE`, by default `asya_actor`.",
        of_the_sidecar().into_iter(),
    );
    page
}

/// A line of a table.
struct Row {
    name: String,
    kind: String,
    labels: Vec<String>,
    help: String,
}

impl From<&Metric> for Row {
    fn from(metric: &Metric) -> Self {
        Self {
            name: metric.name.to_owned(),
            kind: metric.kind.to_owned(),
            labels: metric.labels.iter().map(|&label| label.to_owned()).collect(),
            help: metric.help.to_owned(),
        }
    }
}

/// Read off what a sidecar serves that has done everything once.
fn of_the_sidecar() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for line in runway_asya_sidecar::metrics::Metrics::example().text().lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match *words.as_slice() {
            ["#", "HELP", name, help] => rows.push(Row {
                name: name.to_owned(),
                kind: String::new(),
                labels: Vec::new(),
                help: help.trim_end_matches('.').to_owned(),
            }),
            ["#", "TYPE", _, kind] => {
                if let Some(row) = rows.last_mut() {
                    kind.clone_into(&mut row.kind);
                }
            }
            _ => {
                if let Some(row) = rows.last_mut().filter(|row| line.starts_with(&row.name)) {
                    take_in(row, line);
                }
            }
        }
    }
    rows
}

/// A sample: a counter's name is longer by `_total`, and a histogram's `le` is no label of ours.
fn take_in(row: &mut Row, sample: &str) {
    let Some((name, labels)) = sample.split_once('{') else {
        return;
    };
    if row.kind == "counter" {
        name.clone_into(&mut row.name);
    }
    for label in labels.split(',').filter_map(|pair| pair.split('=').next()) {
        if label != "le" && !row.labels.iter().any(|known| known == label) {
            row.labels.push(label.to_owned());
        }
    }
}

fn section(page: &mut String, title: &str, remark: &str, rows: impl Iterator<Item = Row>) {
    // Writing to a String does not fail.
    let _ = write!(
        page,
        "\n## {title}\n\n{remark}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n"
    );
    for row in rows {
        let labels: Vec<String> = row.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            row.name,
            row.kind,
            labels.join(", "),
            row.help
        );
    }
}
