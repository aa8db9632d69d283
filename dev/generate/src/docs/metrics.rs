//! The reference of metrics, from the same constants under which they are served.

use std::fmt::Write;

use runway_operator::metrics::Metric;

/// Path of the page.
pub(crate) const PATH: &str = "docs/reference/metrics.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Metrics

Served as OpenMetrics at `/metrics`; controllers serve them on `--admin-address` ([observability](../operate/observability.md)). Only metrics of single
ModelDeployments have the label `name`. Free text of users never becomes a label value.
";

pub(crate) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    section(
        &mut page,
        "All controllers",
        "Reported by each process, including the standby replica.",
        runway_operator::metrics::METRICS.iter().map(Series::from),
    );
    section(
        &mut page,
        "ModelDeployments",
        "Reported by the core's leader only, computed from its watch cache at each scrape. A series ends with its object.",
        runway_core::metrics::METRICS.iter().map(Series::from),
    );
    section(
        &mut page,
        "asya-gateway",
        "Reported by the gateway of Asya on `--admin-address`.",
        runway_asya_gateway::metrics::METRICS.iter().map(Series::from),
    );
    section(
        &mut page,
        "kubeairunway-gateway",
        "Reported by the model router on `--admin-address`. The series of a model end with its ModelDeployment.",
        runway_router::metrics::METRICS.iter().map(Series::from),
    );
    section(
        &mut page,
        "Audit log",
        "Reported by kubeairunway-gateway, asya-gateway and the console with `--audit-log` ([audit log](../operate/audit-log.md)).",
        runway_operator::audit::METRICS.iter().map(Series::from),
    );
    section(
        &mut page,
        "asya-sidecar",
        "Reported by each pod of an AsyncActor for its own queue, on `ASYA_METRICS_ADDR` (the operator sets `:9464`). Names start with `ASYA_METRICS_NAMESPACE`, `asya_actor` by default.",
        of_the_sidecar().into_iter(),
    );
    page
}

/// A line of a table.
struct Series {
    name: String,
    kind: String,
    labels: Vec<String>,
    help: String,
}

impl From<&Metric> for Series {
    fn from(metric: &Metric) -> Self {
        Self {
            name: metric.name.to_owned(),
            kind: metric.kind.to_owned(),
            labels: metric.labels.iter().map(|&label| label.to_owned()).collect(),
            help: metric.help.to_owned(),
        }
    }
}

/// Metrics of a sidecar that has recorded one value of each.
fn of_the_sidecar() -> Vec<Series> {
    let mut rows: Vec<Series> = Vec::new();
    for line in runway_asya_sidecar::metrics::Metrics::example().text().lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match *words.as_slice() {
            ["#", "HELP", name, help] => rows.push(Series {
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

/// Adds the labels of a sample. The name of a counter sample ends with `_total`; `le` belongs to histograms.
fn take_in(row: &mut Series, sample: &str) {
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

fn section(page: &mut String, title: &str, remark: &str, rows: impl Iterator<Item = Series>) {
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
