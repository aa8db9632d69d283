//! Tables and JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context, Result};
use runway_dev_cluster::Programs;
use serde_json::{Value, json};

use super::goals::{self, COMMAND};
use super::measure::{Figures, as_number};
use super::results::{Contender, Results};
use super::stage::ours;

/// The rows of the table: key, what it is, decimals. Without a key: a heading.
const ROWS: [(&str, &str, usize); 55] = [
    ("", "create all", 0),
    (
        "create_answered_seconds",
        "until the user's last create is answered, s",
        2,
    ),
    (
        "create_begun_seconds",
        "until all have an upstream object and are Deploying, s",
        2,
    ),
    ("create_seconds", "until all are Running, s", 2),
    ("create_requests_per_object", "requests per object, mean", 2),
    ("create_patches_per_object", "of these, server-side applies", 2),
    ("create_requests_max", "requests per object, most", 0),
    ("create_above_minimum", "objects with more than 4", 0),
    ("create_reads", "reads, in all", 0),
    ("create_watches", "watches begun, in all", 0),
    ("create_events", "Events, in all", 0),
    ("create_cluster_ms", "CPU of kube-apiserver and etcd per object, ms", 2),
    ("core_cpu_ms", "CPU of kubeairunway-controller per object, ms", 2),
    ("provider_cpu_ms", "CPU of the providers per object, ms", 2),
    ("", "memory", 0),
    ("core_idle_mib", "kubeairunway-controller without objects, MiB", 1),
    ("core_peak_mib", "at its peak, MiB", 1),
    ("core_kept_mib", "at rest with all objects, MiB", 1),
    ("core_slope_kib", "that is for each object, KiB", 1),
    ("core_restart_peak_mib", "peak of a restart with all objects, MiB", 1),
    ("provider_idle_mib", "the largest provider without objects, MiB", 1),
    ("provider_peak_mib", "at its peak, MiB", 1),
    ("provider_kept_mib", "at rest with all objects, MiB", 1),
    ("provider_slope_kib", "that is for each object, KiB", 1),
    (
        "provider_restart_peak_mib",
        "peak of a restart with all objects, MiB",
        1,
    ),
    ("", "20 quiet seconds", 0),
    (
        "rest_begun_seconds",
        "from the last Running until the burst's last Event is sent, s",
        0,
    ),
    ("rest_requests_per_object", "requests per object", 2),
    (
        "rest_requests_per_second",
        "requests about no object (heartbeat), a second and process",
        2,
    ),
    ("rest_cpu_percent", "CPU of a process, % of a core", 2),
    ("one_more_ms", "then one more model, from create to Running, ms", 0),
    ("", "touch all: an annotation of the user's", 0),
    ("touch_seconds", "until the user's last change is answered, s", 2),
    ("touch_writes", "writes to these objects, in all", 0),
    ("touch_cpu_ms", "CPU of all controllers per object, ms", 2),
    ("", "changes upstream, 20 a second", 0),
    ("change_told_p50_ms", "upstream change to status, p50, ms", 1),
    ("change_told_p99_ms", "upstream change to status, p99, ms", 1),
    ("", "200 more models, 20 a second", 0),
    ("flow_made_p50_ms", "create to upstream object, p50, ms", 1),
    ("flow_made_p99_ms", "create to upstream object, p99, ms", 1),
    ("flow_told_p50_ms", "upstream change to status, p50, ms", 1),
    ("flow_told_p99_ms", "upstream change to status, p99, ms", 1),
    ("", "restart of all controllers", 0),
    ("restart_seconds", "from start until a new model is Running, s", 2),
    ("restart_writes", "writes to unchanged objects, in all", 0),
    ("restart_reads", "reads, in all", 0),
    ("restart_watches", "watches begun, in all", 0),
    ("restart_cpu_ms", "CPU of all controllers, ms", 0),
    ("", "delete all", 0),
    ("delete_seconds", "until all are gone, s", 2),
    ("delete_requests_per_object", "requests per object, mean", 2),
    ("delete_deletes_per_object", "of these, deletes", 2),
    ("delete_patches_per_object", "of these, patches and applies", 2),
    ("delete_cluster_ms", "CPU of kube-apiserver and etcd per object, ms", 2),
];

/// Published figures of the Go implementation, by the row that they stand beside. They are not measured here.
fn quoted(key: &str, count: usize) -> &'static str {
    match key {
        "create_seconds" if count == 1000 => "213 s",
        "create_requests_per_object" => "16.4",
        "rest_requests_per_object" => "about 2.7 (8 a minute, for ever)",
        _ => "",
    }
}

/// Everything, as Markdown that reads well on a terminal.
pub(super) fn text(all: &[Results], sizes: &[(&str, f64)]) -> String {
    let mut text = goals::table(all, sizes);
    for results in all {
        let _ = write!(text, "\n{}", table(results));
    }
    text.push_str(
        "\nQuoted: published figures of the Go implementation on this kind of machine, not measured in this run.\n\nBinaries, MiB:",
    );
    for (name, mib) in sizes {
        let _ = write!(text, " {name} {mib:.1},");
    }
    text.trim_end_matches(',').to_owned() + "\n"
}

fn table(results: &Results) -> String {
    let count = results.count();
    let head = [
        format!("{count} ModelDeployments"),
        Contender::Bare.name().to_owned(),
        Contender::Ours.name().to_owned(),
        "ratio".to_owned(),
        "Go, quoted".to_owned(),
    ];
    let rows = ROWS.iter().map(|&(key, label, decimals)| {
        if key.is_empty() {
            return [
                format!("**{label}**"),
                String::new(),
                String::new(),
                String::new(),
                String::new(),
            ];
        }
        let (bare, ours) = (
            results.median(Contender::Bare, key),
            results.median(Contender::Ours, key),
        );
        let shown = |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.decimals$}"));
        let ratio = bare
            .zip(ours)
            .filter(|(bare, _)| *bare > 0.0)
            .map(|(bare, ours)| format!("{:.2}", ours / bare));
        [
            label.to_owned(),
            shown(bare),
            shown(ours),
            ratio.unwrap_or_default(),
            quoted(key, count).to_owned(),
        ]
    });
    let rows: Vec<[String; 5]> = std::iter::once(head).chain(rows).collect();

    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..5).map(width).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let [label, numbers @ .., remark] = row;
        let _ = write!(text, "| {label:<0$} |", widths[0]);
        for (number, width) in numbers.iter().zip(&widths[1..]) {
            let _ = write!(text, " {number:>width$} |");
        }
        let _ = writeln!(text, " {remark:<0$} |", widths[4]);
        if index == 0 {
            let _ = write!(text, "|{}|", "-".repeat(widths[0] + 2));
            for width in &widths[1..4] {
                let _ = write!(text, "{}:|", "-".repeat(width + 1));
            }
            let _ = writeln!(text, "{}|", "-".repeat(widths[4] + 2));
        }
    }
    text
}

/// Everything, each round and the medians.
pub(super) fn json(all: &[Results], sizes: &[(&str, f64)]) -> Result<String> {
    let runs: Vec<Value> = all.iter().map(run).collect();
    let document = json!({
        "binariesMiB": sizes.iter().map(|(name, mib)| ((*name).to_owned(), json!(mib))).collect::<serde_json::Map<_, _>>(),
        "runs": runs,
    });
    Ok(serde_json::to_string_pretty(&document)?)
}

fn run(results: &Results) -> Value {
    let of = |contender| {
        let rounds = results.rounds_of(contender);
        let keys = rounds.iter().flat_map(Figures::keys);
        let medians: BTreeMap<&str, Option<f64>> = keys.map(|key| (*key, results.median(contender, key))).collect();
        json!({ "median": medians, "rounds": rounds })
    };
    json!({ "objects": results.count(), "bareClient": of(Contender::Bare), "ours": of(Contender::Ours) })
}

/// The programs that people install, in MiB.
pub(super) fn binary_sizes(programs: &Programs) -> Result<Vec<(&'static str, f64)>> {
    ours()
        .into_iter()
        .chain([COMMAND])
        .map(|name| {
            let path = programs.path(name);
            let bytes = path
                .metadata()
                .with_context(|| format!("cannot find {}", path.display()))?
                .len();
            Ok((name, as_number(usize::try_from(bytes)?) / f64::from(1 << 20)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_rounds() {
        let mut results = Results::new(1);
        assert_eq!(results.median(Contender::Ours, "x"), None);
        for value in [3.0, 1.0, 2.0] {
            results.add(Contender::Ours, Figures::from([("x", value)]));
        }
        assert_eq!(results.median(Contender::Ours, "x"), Some(2.0));
        results.add(Contender::Ours, Figures::from([("x", 10.0)]));
        assert_eq!(results.median(Contender::Ours, "x"), Some(2.5));
    }
}
