//! Tables of contenders.

use std::fmt::Write as _;

use super::load::{Load, Streams};
use super::trace::Played;
use super::{CLIENTS, PARTS, Row};
use crate::measure::{as_number, quantile};

/// Limits of the p99, in milliseconds.
const LIMITS: [f64; 3] = [1.0, 5.0, 10.0];
/// Most characters of the reason why a contender has no figures.
const REASON: usize = 300;
/// Text of a missing figure.
const NONE: &str = "–";

/// All tables. Without rows, that of conversations is omitted.
pub(super) fn text(loads: &[Row<(Load, Streams)>], traces: &[Row<Played>]) -> String {
    let mut text = rates(loads) + "\n" + &costs(loads) + "\n" + &streams(loads);
    if !traces.is_empty() {
        text.push('\n');
        text += &conversations(traces);
    }
    let skipped = loads.iter().filter_map(|row| reason("rate and streams", row));
    let skipped = skipped.chain(traces.iter().filter_map(|row| reason("conversations", row)));
    for line in skipped {
        // Writing to a String does not fail.
        let _ = writeln!(text, "\n{line}");
    }
    text
}

fn rates(rows: &[Row<(Load, Streams)>]) -> String {
    let head = CLIENTS.map(|clients| match clients {
        1 => "1 client".to_owned(),
        _ => format!("{clients} clients"),
    });
    table("requests/s: p50, p99 in ms", &head, rows, |(load, _)| {
        let cell = |step: &super::load::Step| {
            let p50 = milliseconds(quantile(&step.times, 0.5));
            let p99 = milliseconds(quantile(&step.times, 0.99));
            format!("{:.0}: {p50}, {p99}", step.requests_per_second)
        };
        load.steps.iter().map(cell).collect()
    })
}

fn costs(rows: &[Row<(Load, Streams)>]) -> String {
    let within = LIMITS.map(|most| format!("requests/s with a p99 of at most {most} ms"));
    let rest = ["CPU per 1,000 requests, s", "peak memory, MiB", "failed requests"];
    let head: Vec<_> = within.into_iter().chain(rest.map(str::to_owned)).collect();
    table("all numbers of clients", &head, rows, |(load, _)| {
        let within = LIMITS.map(|most| shown(load.rate_within(most), 0));
        let rest = [shown(load.cpu, 2), shown(load.peak, 0), load.failed().to_string()];
        within.into_iter().chain(rest).collect()
    })
}

fn streams(rows: &[Row<(Load, Streams)>]) -> String {
    let asked = rows.iter().find_map(|row| Some(row.figures.as_ref().ok()?.1.asked));
    let title = format!("{} streams of {PARTS} parts", asked.unwrap_or_default());
    let head = ["ended whole", "delay of a part, p50, ms", "p99, ms"].map(str::to_owned);
    table(&title, &head, rows, |(_, streams)| {
        let delay = |part| milliseconds(quantile(&streams.delays, part));
        vec![streams.whole.to_string(), delay(0.5), delay(0.99)]
    })
}

fn conversations(rows: &[Row<Played>]) -> String {
    let head = [
        "prompt tokens from the cache, %",
        "time to the answer, mean, ms",
        "p99, ms",
        "failed requests",
    ];
    table(
        "conversations with 4 llama-servers",
        &head.map(str::to_owned),
        rows,
        |played| {
            let mean = played.times.iter().sum::<f64>() / as_number(played.times.len().max(1));
            vec![
                format!("{:.1}", played.hit_rate()),
                milliseconds(Some(mean)),
                milliseconds(quantile(&played.times, 0.99)),
                played.failed.to_string(),
            ]
        },
    )
}

fn table<T>(title: &str, head: &[String], rows: &[Row<T>], cells: impl Fn(&T) -> Vec<String>) -> String {
    let mut text = format!(
        "| {title} | {} |\n|---|{}\n",
        head.join(" | "),
        "--:|".repeat(head.len())
    );
    for row in rows {
        let cells = row.figures.as_ref().map_or_else(|_| skipped(head.len()), &cells);
        // Writing to a String does not fail.
        let _ = writeln!(text, "| {} | {} |", row.name, cells.join(" | "));
    }
    text
}

/// Cells of a contender without figures.
fn skipped(count: usize) -> Vec<String> {
    let rest = std::iter::repeat_n(NONE, count.saturating_sub(1));
    ["skipped"].into_iter().chain(rest).map(str::to_owned).collect()
}

/// A line about a contender that has no figures.
fn reason<T>(part: &str, row: &Row<T>) -> Option<String> {
    let error = format!("{:#}", row.figures.as_ref().err()?);
    let first: String = error.lines().next()?.chars().take(REASON).collect();
    Some(format!("{} was skipped, {part}: {first}", row.name))
}

fn milliseconds(time: Option<f64>) -> String {
    shown(time, 2)
}

fn shown(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or_else(|| NONE.to_owned(), |figure| format!("{figure:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::contenders::load::Step;

    #[test]
    fn contender_without_figures_has_a_row_and_a_reason() {
        let steps = CLIENTS.map(|clients| Step {
            clients,
            requests_per_second: 100.0,
            times: vec![2.0; 10],
            failed: 0,
        });
        let load = Load {
            steps: steps.into(),
            cpu: Some(0.5),
            peak: None,
        };
        let streams = Streams {
            asked: 64,
            whole: 63,
            delays: vec![0.25],
        };
        let rows = [
            Row {
                name: "one".to_owned(),
                figures: Ok((load, streams)),
            },
            Row {
                name: "two".to_owned(),
                figures: Err(anyhow!("is not ready\nand its log")),
            },
        ];
        let played = Row {
            name: "one".to_owned(),
            figures: Ok(Played {
                times: vec![1.0, 3.0],
                prompt: 10,
                cached: 5,
                failed: 0,
            }),
        };
        let text = text(&rows, &[played]);
        for line in [
            "| one | 100: 2.00, 2.00 | 100: 2.00, 2.00 | 100: 2.00, 2.00 | 100: 2.00, 2.00 | 100: 2.00, 2.00 |",
            "| one | – | 100 | 100 | 0.50 | – | 0 |",
            "| two | skipped | – | – | – | – | – |",
            "| 64 streams of 50 parts | ended whole | delay of a part, p50, ms | p99, ms |",
            "| one | 63 | 0.25 | 0.25 |",
            "| one | 50.0 | 2.00 | 3.00 | 0 |",
            "two was skipped, rate and streams: is not ready",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
        }
    }
}
