//! The router's promise for tokens: each stream is counted once, by the engine's report if that was passed on, and else by the parts
//! that were.
//!
//! Clients leave some streams early, and the engine is killed now and then. The lines of the audit log are compared with what each
//! client has received, and the metrics with the lines. The engine reports two tokens a part, so that a report differs from an
//! estimate.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use axum::http::{HeaderValue, StatusCode};
use futures::future::try_join_all;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::client::{Begun, chat};
use super::{Bed, KEY, Model, Programs, Random, Router};
use crate::{PATIENCE, eventually};

/// Name of the model.
const NAME: &str = "tokens";
/// Clients, each with one stream at a time.
const CLIENTS: usize = 16;
/// Most parts of a stream.
const MOST_PARTS: u64 = 20;
/// Time between two parts.
const ENGINE: [&str; 1] = ["--pause=2ms"];
/// Longest time until the next kill of the engine, and until it is started again, in milliseconds.
const KILLED_WITHIN: u64 = 600;
const AWAY_AT_MOST: u64 = 50;
/// Pause of a client after a refusal.
const PAUSE: Duration = Duration::from_millis(20);
/// Event at the end of a stream.
const DONE: &str = "data: [DONE]";
/// Beginning of an event.
const EVENT: &str = "data: ";
/// Counter of tokens.
const COUNTER: &str = "kubeairunway_gateway_tokens_total{";

/// Size of the run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Streams, of all clients together.
    pub streams: usize,
    /// Decides which streams are left early, and when the engine is killed.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: 500,
            seed: 0x5eed,
        }
    }
}

/// Result of the run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Streams that clients received whole.
    pub whole: usize,
    /// Streams that clients left.
    pub left: usize,
    /// Streams that broke off at a kill.
    pub broken: usize,
    /// Requests that were refused after a kill.
    pub refused: usize,
    /// kill -9 of the engine.
    pub kills: usize,
    /// Output tokens that were counted by reports of the engine.
    pub reported: u64,
    /// Output tokens that were counted by parts.
    pub estimated: u64,
    /// Output tokens that the metrics have more or less than the lines.
    pub difference: u64,
    /// Streams whose count does not fit what the engine sent and the client received.
    pub wrong: Vec<String>,
    /// Time of the run.
    pub took: Duration,
}

impl Report {
    /// Checks that each stream was counted once, as the engine reported it or by its parts.
    pub fn check(&self) -> Result<()> {
        ensure!(
            self.wrong.is_empty() && self.difference == 0,
            "wrong: {:#?}, difference of the metrics: {}",
            self.wrong,
            self.difference
        );
        Ok(())
    }
}

/// A request, as its client saw it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Parts that the engine would send.
    parts: u64,
    /// Parts that the client received.
    received: u64,
    end: End,
}

/// End of a request, for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    Left,
    Broken,
    Refused,
}

/// A line of the audit log.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    trace_id: String,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    #[serde(default)]
    estimated: bool,
}

/// Runs it. `announce` is called after each stream.
pub async fn run(bed: &Bed, programs: &Programs, options: Options, announce: impl Fn()) -> Result<Report> {
    let log = bed.cluster.dir.join("tokens.audit");
    let audit = format!("--audit-log={}", log.display());
    let router = Router::start(bed, &programs.router, &[&audit]).await?;
    let model = Model::create(bed, &programs.engine, NAME, 1, &ENGINE).await?;
    model.awake().await?;
    let seen = Mutex::new(Vec::new());
    let started = Instant::now();
    let clients = (0..CLIENTS).map(|client| {
        let (router, seen, announce) = (&router, &seen, &announce);
        async move {
            for number in (client..options.streams).step_by(CLIENTS) {
                let stream = stream(router, number, Random::of(options.seed, number)).await;
                let stream = stream.with_context(|| format!("stream {number}"))?;
                seen.lock().push((number, stream));
                announce();
            }
            anyhow::Ok(())
        }
    });
    let ended = CancellationToken::new();
    let all = async {
        let all = try_join_all(clients).await;
        ended.cancel();
        all
    };
    let (clients, kills) = tokio::join!(all, kill(&model, Random::of(options.seed, options.streams), &ended));
    clients?;
    let took = started.elapsed();
    let seen = seen.into_inner();
    let lines = eventually(PATIENCE, async || {
        let lines = lines(&log)?;
        ensure!(
            lines.len() >= seen.len(),
            "{} lines for {} requests",
            lines.len(),
            seen.len()
        );
        Ok(lines)
    })
    .await?;
    let metrics = router.metrics().await?;
    Ok(Report {
        kills: kills?,
        took,
        ..compared(&seen, &lines, &metrics)
    })
}

/// Kills the engine now and then.
async fn kill(model: &Model, mut random: Random, ended: &CancellationToken) -> Result<usize> {
    let mut kills = 0;
    loop {
        tokio::select! {
            () = ended.cancelled() => return Ok(kills),
            () = sleep(random.milliseconds(KILLED_WITHIN)) => {}
        }
        kills += usize::from(model.kill_engine(random.milliseconds(AWAY_AT_MOST)).await?);
    }
}

/// Requests a stream, and leaves one of three early.
async fn stream(router: &Router, number: usize, mut random: Random) -> Result<Seen> {
    let parts = 1 + random.below(MOST_PARTS);
    let leaves_after = (random.below(3) == 0).then(|| random.below(parts));
    // Without the client's wish, the router adds it, and removes the report from the stream.
    let reports = random.below(2) == 0;
    let messages = json!([{ "role": "user", "content": "Hello" }]);
    let body = json!({
        "model": NAME, "messages": messages, "stream": true, "max_tokens": parts,
        "stream_options": { "include_usage": reports },
    });
    let mut request = chat(KEY, &body)?;
    let trace = HeaderValue::from_str(&format!("00-{}-00f067aa0ba902b7-01", trace_id(number)))?;
    request.headers_mut().insert("traceparent", trace);
    let seen = |received, end| Seen { parts, received, end };
    let Ok(begun) = Begun::send(router.address, request).await else {
        return Ok(seen(0, End::Broken));
    };
    if begun.response.status() != StatusCode::OK {
        sleep(PAUSE).await;
        return Ok(seen(0, End::Refused));
    }
    let (mut begun, mut text) = (begun, String::new());
    loop {
        let received = text
            .lines()
            .filter(|line| line.starts_with(EVENT) && line.contains("content"));
        let received = u64::try_from(received.count())?;
        if leaves_after.is_some_and(|after| received >= after) {
            return Ok(seen(received, End::Left));
        }
        match begun.response.frame().await {
            Some(Ok(frame)) => text.push_str(std::str::from_utf8(frame.data_ref().context("trailers")?)?),
            Some(Err(_)) => return Ok(seen(received, End::Broken)),
            None => {
                ensure!(text.lines().any(|line| line == DONE), "the stream has no end: {text}");
                ensure!(text.contains("\"usage\"") == reports, "the report of tokens: {text}");
                return Ok(seen(received, End::Whole));
            }
        }
    }
}

/// Trace of a request, by which its line is found.
fn trace_id(number: usize) -> String {
    format!("{:032x}", number + 1)
}

fn lines(log: &Path) -> Result<Vec<Line>> {
    let text = fs::read_to_string(log)?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Compares what clients have seen with the lines of the audit log, and those with the metrics.
fn compared(seen: &[(usize, Seen)], lines: &[Line], metrics: &str) -> Report {
    let mut report = Report::default();
    let mut by_trace: HashMap<&str, Vec<&Line>> = HashMap::new();
    for line in lines {
        by_trace.entry(&line.trace_id).or_default().push(line);
        let output = line.output_tokens.unwrap_or_default();
        if line.estimated {
            report.estimated += output;
        } else {
            report.reported += output;
        }
    }
    for (number, seen) in seen {
        *match seen.end {
            End::Whole => &mut report.whole,
            End::Left => &mut report.left,
            End::Broken => &mut report.broken,
            End::Refused => &mut report.refused,
        } += 1;
        let of_stream = by_trace.get(&*trace_id(*number)).map_or(&[][..], Vec::as_slice);
        if !matches!(of_stream, [line] if fits(seen, line)) {
            report.wrong.push(format!("{number}: {seen:?}, {of_stream:?}"));
        }
    }
    let counted = [("engine", report.reported), ("estimate", report.estimated)];
    let differences = counted.map(|(source, of_lines)| output_of(metrics, source).abs_diff(of_lines));
    report.difference = differences.iter().sum();
    report
}

/// Whether the count of a stream is that of the engine, or else between what the client received and what the engine could send.
fn fits(seen: &Seen, line: &Line) -> bool {
    let Some((input, output)) = line.input_tokens.zip(line.output_tokens) else {
        return seen.end == End::Refused || (seen.received == 0 && seen.end == End::Broken);
    };
    match (seen.end, line.estimated) {
        (End::Refused, _) => input == 0 && output == 0,
        (End::Whole, true) => false,
        (_, false) => input == 1 && output == 2 * seen.parts,
        (End::Left | End::Broken, true) => (seen.received..=seen.parts).contains(&output),
    }
}

/// Output tokens of this source in the metrics.
fn output_of(metrics: &str, source: &str) -> u64 {
    let labels = ["direction=\"output\"".to_owned(), format!("source=\"{source}\"")];
    let series = metrics.lines().filter(|line| line.starts_with(COUNTER));
    let series = series.filter(|line| labels.iter().all(|label| line.contains(label.as_str())));
    series
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_that_does_not_fit_is_reported() {
        let line = |number, output_tokens, estimated| Line {
            trace_id: trace_id(number),
            input_tokens: Some(1),
            output_tokens: Some(output_tokens),
            estimated,
        };
        let whole = Seen {
            parts: 4,
            received: 4,
            end: End::Whole,
        };
        let left = Seen {
            received: 2,
            end: End::Left,
            ..whole
        };
        let metrics = [
            r#"kubeairunway_gateway_tokens_total{direction="output",source="engine"} 8"#,
            r#"kubeairunway_gateway_tokens_total{direction="output",source="estimate"} 3"#,
        ];
        let report = |lines: &[Line]| compared(&[(0, whole), (1, left)], lines, &metrics.join("\n"));
        report(&[line(0, 8, false), line(1, 3, true)]).check().unwrap();
        for (first, second) in [
            (line(0, 4, false), line(1, 3, true)),
            (line(0, 8, true), line(1, 3, true)),
            (line(0, 8, false), line(1, 1, true)),
            (line(0, 8, false), line(1, 5, true)),
            (line(0, 8, false), line(0, 8, false)),
        ] {
            let report = report(&[first, second]);
            assert!(!report.wrong.is_empty() && report.check().is_err(), "{report:?}");
        }
    }
}
