//! Use of a ModelDeployment over time: replicas, requests, tokens per second, time to the first token and KV cache of its
//! engines, read with the session's credential.

use std::sync::Arc;

use askama::Template;
use axum::response::Response;
use jiff::Timestamp;
use runway_client::top;
use runway_engines::Usage;
use runway_operator::clock;

use super::deployment::{Head, find};
use crate::gauges::{STEP, Values};
use crate::guard::{Asker, Of};
use crate::history::{Chart, History, Series, count};
use crate::page::Shell;
use crate::refusal;

/// Row of the table: the values of an engine.
struct Row {
    name: String,
    cells: [String; 5],
}

#[derive(Template)]
#[template(path = "usage.html")]
struct Page {
    shell: Shell,
    head: Head,
    charts: Vec<Chart>,
    rows: Vec<Row>,
    problems: Vec<String>,
    seconds: u64,
}

/// The page.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    let view = &session.view;
    let values = view.gauges.of(&Arc::new(view.cluster()), &md).await;
    let now = clock::now();
    let mut page = Page {
        shell: Shell::new(&session, "deployments", format!("{name}, usage")).live_of(
            "modeldeployments",
            &namespace,
            &name,
        ),
        head: Head::new(&md, "usage", now),
        charts: charts(&view.deployment_history(&namespace, &name), &values, now),
        rows: Vec::new(),
        problems: Vec::new(),
        seconds: STEP.as_secs(),
    };
    if let Some(model) = values.last {
        let row = |name: String, usage: Option<&Usage>| Row {
            name,
            cells: top::cells(usage),
        };
        if model.pods.len() > 1 {
            page.rows.push(row("All pods".to_owned(), model.usage.as_ref()));
        }
        let pods = model.pods.into_iter();
        page.rows.extend(pods.map(|pod| row(pod.pod, pod.usage.as_ref())));
        page.problems.extend(model.problems);
    }
    refusal::html(&page)
}

/// Charts of what was seen, without those of metrics that no engine exports.
fn charts(history: &History, values: &Values, now: Timestamp) -> Vec<Chart> {
    let series = |class, name, of: fn(&Usage) -> Option<f64>| {
        let value = |(at, usage): &(Timestamp, Option<Usage>)| (*at, usage.as_ref().and_then(of));
        Series {
            class,
            name,
            values: values.all.iter().map(value).collect(),
            is_step: false,
        }
    };
    let chart = |title, all: &[Series], write| Chart::new(title, all, &history.marks, write, now);
    let requests = vec![
        series("other", "waiting", |usage| usage.waiting),
        series("ready", "running", |usage| usage.running),
    ];
    let tokens = vec![series("ready", "tokens/s", |usage| usage.tokens_per_second)];
    let first = vec![series("ready", "mean", Usage::seconds_to_first_token)];
    let cache = vec![series("ready", "used", |usage| usage.kv_cache)];
    let all = [
        Chart::of_replicas(history, now),
        chart("Requests", &requests, count),
        chart("Tokens per second", &tokens, count),
        chart("Time to first token", &first, |seconds| format!("{seconds:.2} s")),
        chart("KV cache", &cache, |share| format!("{:.0}%", share * 100.0)),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_show_what_engines_export() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let usage = Usage {
            engine: "vLLM",
            running: Some(3.0),
            waiting: Some(1.0),
            tokens_per_second: Some(42.5),
            kv_cache: Some(0.25),
            first_token: [Some(1.0), Some(4.0)],
        };
        let values = |usage: Usage| Values {
            all: [(at(0), Some(usage)), (at(15), Some(usage))].into(),
            last: None,
        };
        let summaries = |usage| -> Vec<String> {
            let charts = charts(&History::default(), &values(usage), at(60));
            charts.iter().map(Chart::summary).collect()
        };
        assert_eq!(
            summaries(usage),
            [
                "Requests: 1 waiting, 3 running; at most 3 in 60s",
                "Tokens per second: 42.5 tokens/s; at most 42.5 in 60s",
                "Time to first token: 0.25 s mean; at most 0.25 s in 60s",
                "KV cache: 25% used; at most 25% in 60s",
            ]
        );
        let llamacpp = Usage {
            kv_cache: None,
            first_token: [None; 2],
            ..usage
        };
        assert_eq!(summaries(llamacpp).len(), 2);
    }
}
