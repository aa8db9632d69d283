//! Clients that send one request after the other, and streams.

use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::join_all;
use runway_testbed::traffic::client::{Answer, Connection, chat};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::running::{Running, Target};
use crate::measure::{as_number, quantile, seconds};
use crate::router::{Stream, milliseconds};
use crate::step;

/// Pause of a client after a failure.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest time of a request, and of all streams.
const PATIENCE: Duration = Duration::from_mins(1);

/// Figures of a contender.
pub(super) struct Load {
    pub(super) steps: Vec<Step>,
    /// Seconds of CPU for 1,000 requests.
    pub(super) cpu: Option<f64>,
    /// Peak memory, in MiB.
    pub(super) peak: Option<f64>,
}

/// Figures with a number of clients.
#[derive(Default)]
pub(super) struct Step {
    pub(super) clients: usize,
    pub(super) requests_per_second: f64,
    /// Times of the answered requests, in milliseconds.
    pub(super) times: Vec<f64>,
    pub(super) failed: usize,
}

impl Load {
    /// Largest rate with a p99 of at most this many milliseconds and without a failure.
    pub(super) fn rate_within(&self, most: f64) -> Option<f64> {
        let within = self.steps.iter().filter(|step| {
            let p99 = quantile(&step.times, 0.99);
            step.failed == 0 && p99.is_some_and(|p99| p99 <= most)
        });
        within.map(|step| step.requests_per_second).reduce(f64::max)
    }

    /// Requests without a whole answer.
    pub(super) fn failed(&self) -> usize {
        self.steps.iter().map(|step| step.failed).sum()
    }
}

/// Measures a contender with each of these numbers of clients in turn.
pub(super) async fn measure(running: &Running, clients: &[usize], seconds: u64) -> Result<Load> {
    let (mut steps, mut cpu, mut answered) = (Vec::new(), 0.0, 0);
    for &clients in clients {
        let connections = join_all((0..clients).map(|_| warm(&running.target))).await;
        let before = running.cpu()?;
        let step = one_step(&running.target, connections, Duration::from_secs(seconds)).await;
        cpu += running.cpu()?.zip(before).map_or(0.0, |(now, before)| now - before);
        answered += step.times.len();
        progress(&step);
        steps.push(step);
    }
    let peak = running.peak()?;
    Ok(Load {
        steps,
        cpu: peak.map(|_| 1000.0 * cpu / as_number(answered.max(1))),
        peak,
    })
}

fn progress(figures: &Step) {
    let [p50, p99] = [0.5, 0.99].map(|part| quantile(&figures.times, part).unwrap_or_default());
    step(&format!(
        "clients: {}, requests/s: {:.0}, p50 {p50:.2} ms, p99 {p99:.2} ms, {} failed",
        figures.clients, figures.requests_per_second, figures.failed
    ));
}

/// A connection that has answered once. `None` if it did not.
async fn warm(target: &Target) -> Option<Connection> {
    let mut connection = Connection::open(target.address).await.ok()?;
    timed(target, &mut connection, &target.short()).await.ok()?;
    Some(connection)
}

async fn one_step(target: &Target, connections: Vec<Option<Connection>>, length: Duration) -> Step {
    let (clients, begun) = (connections.len(), Instant::now());
    let clients_seen = connections.into_iter().map(|mut connection| async move {
        let (mut seen, body) = (Step::default(), target.short());
        while begun.elapsed() < length {
            if let Ok(time) = once(target, &mut connection, &body).await {
                seen.times.push(time);
            } else {
                seen.failed += 1;
                sleep(PAUSE).await;
            }
        }
        seen
    });
    let mut all = Step {
        clients,
        ..Step::default()
    };
    for seen in join_all(clients_seen).await {
        all.times.extend(seen.times);
        all.failed += seen.failed;
    }
    // Requests that began in time are counted, so their time is, too.
    all.requests_per_second = as_number(all.times.len()) / seconds(begun.elapsed());
    all
}

/// Time of a request on an open connection, or on a new one. The connection is closed after an error and if the server wants it.
async fn once(target: &Target, connection: &mut Option<Connection>, body: &Value) -> Result<f64> {
    let mut open = match connection.take() {
        Some(open) => open,
        None => Connection::open(target.address).await?,
    };
    let (time, answer) = timed(target, &mut open, body).await?;
    *connection = (!answer.closes()).then_some(open);
    Ok(time)
}

/// Time of a request, and its answer.
pub(super) async fn timed(target: &Target, connection: &mut Connection, body: &Value) -> Result<(f64, Answer)> {
    let begun = Instant::now();
    let answer = timeout(PATIENCE, target.ask(connection, body)).await??;
    Ok((milliseconds(begun.elapsed()), answer))
}

/// Figures of streams.
pub(super) struct Streams {
    pub(super) asked: usize,
    /// Streams with all parts and their end.
    pub(super) whole: usize,
    /// Time of each part from the engine to the client, by the clock of the machine, in milliseconds.
    pub(super) delays: Vec<f64>,
}

/// Receives so many streams of so many parts at once.
pub(super) async fn streams(target: &Target, count: usize, parts: usize) -> Streams {
    let received = join_all((0..count).map(|_| stream(target, parts))).await;
    let is_whole = |stream: &&Stream| stream.ended && stream.delays.len() == parts;
    Streams {
        asked: count,
        whole: received.iter().filter(is_whole).count(),
        delays: received.into_iter().flat_map(|stream| stream.delays).collect(),
    }
}

/// A stream, as far as it arrived in order.
async fn stream(target: &Target, parts: usize) -> Stream {
    let mut stream = Stream::default();
    let event = |event: &str| stream.take(event);
    let received = async {
        let mut body = target.short();
        body["stream"] = json!(true);
        body["max_tokens"] = json!(parts);
        let mut connection = Connection::open(target.address).await?;
        connection.events(chat(&target.token, &body)?, event).await
    };
    let is_whole = matches!(timeout(PATIENCE, received).await, Ok(Ok(())));
    stream.ended &= is_whole;
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_counts_if_its_p99_is_within_the_limit_and_no_request_failed() {
        let step = |requests_per_second, time, failed| Step {
            clients: 1,
            requests_per_second,
            times: vec![time; 100],
            failed,
        };
        let load = Load {
            steps: vec![
                step(100.0, 0.5, 0),
                step(300.0, 4.0, 0),
                step(200.0, 5.0, 0),
                step(900.0, 0.1, 1),
            ],
            cpu: None,
            peak: None,
        };
        assert_eq!(load.rate_within(0.4), None);
        assert_eq!(load.rate_within(1.0), Some(100.0));
        assert_eq!(load.rate_within(5.0), Some(300.0));
        assert_eq!(load.failed(), 1);
    }
}
