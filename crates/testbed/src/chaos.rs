//! Asya's promise under fire: two hops, kill -9 of sidecars and runtimes, cut connections; and then every number must be there.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::{
    Proxy, RabbitMq,
    pipeline::{Actor, ActorPrograms, Broker},
};

const NAMESPACE: &str = "chaos";
const SIDECAR_LOG: &str = "info";

/// Size of the run.
#[derive(Clone, Copy, Debug)]
pub struct ChaosOptions {
    /// Envelopes sent in.
    pub envelopes: usize,
    /// Kills and cuts, spread over the run.
    pub kills: usize,
    /// Messages each sidecar takes ahead.
    pub prefetch: usize,
    /// Decides who is killed. The same seed kills the same in the same order.
    pub seed: u64,
}

/// Result of the run.
#[derive(Clone, Debug, Default)]
pub struct ChaosReport {
    /// Numbers that never came out.
    pub lost: Vec<u64>,
    /// Messages that came out once more than they should.
    pub duplicates: usize,
    /// At most so many duplicates are allowed: what can be in flight at each kill.
    pub duplicates_allowed: usize,
    /// Messages that ended at error-end or in a dead-letter queue.
    pub failed: usize,
    /// Kills by what was killed: sidecars, runtimes, connections.
    pub kills: [usize; 3],
    /// From the first message in to the last one out.
    pub took: Duration,
}

/// Runs it on a broker. Kills come while messages flow: one for each share of messages that came out. `tell` hears of every
/// number that came out: how many there are, and how many kills so far.
pub async fn run(
    rabbit: &RabbitMq,
    programs: &ActorPrograms,
    options: ChaosOptions,
    tell: impl Fn(usize, usize),
) -> Result<ChaosReport> {
    let broker = Broker::connect(&rabbit.url()).await?;
    let queue = |actor: &str| format!("asya-{NAMESPACE}_{actor}");
    for actor in ["first", "second", "happy-end", "error-end"] {
        broker.declare(&queue(actor)).await?;
    }

    let proxies = [
        Proxy::start(rabbit.address()).await?,
        Proxy::start(rabbit.address()).await?,
    ];
    let prefetch = options.prefetch.to_string();
    let start = |name: &str, proxy: &Proxy| {
        let url = format!("amqp://guest:guest@{}/%2f", proxy.address());
        let environment = [
            ("ASYA_NAMESPACE", NAMESPACE),
            ("ASYA_RABBITMQ_URL", &url),
            ("ASYA_RABBITMQ_PREFETCH", &prefetch),
            ("ASYA_LOG_LEVEL", SIDECAR_LOG),
        ];
        Actor::start(programs, name, &environment)
    };
    let mut actors = [start("first", &proxies[0])?, start("second", &proxies[1])?];

    let started = Instant::now();
    let envelope = |number| {
        let route = json!({"actors": ["first", "second"], "current": 0});
        json!({"id": format!("m{number}"), "route": route, "payload": number})
            .to_string()
            .into_bytes()
    };
    let numbers = 0..u64::try_from(options.envelopes)?;
    let entrance = queue("first");
    let sending = broker.publish_all(&entrance, numbers.clone().map(envelope));

    let mut seen: HashMap<u64, usize> = HashMap::new();
    let mut report = ChaosReport::default();
    let mut random = options.seed;
    let collecting = async {
        let mut out = broker.consume(&queue("happy-end")).await?;
        let share = (options.envelopes / (options.kills + 1)).max(1);
        let mut done = 0;
        while seen.len() < options.envelopes {
            // A message that takes this long is lost: every component restarts within seconds.
            let Ok((body, _)) = out.next(Duration::from_mins(1)).await else {
                break;
            };
            let message: Value = serde_json::from_slice(&body)?;
            let number = message["payload"].as_u64().context("a message without its number")?;
            let count = seen.entry(number).or_default();
            *count += 1;
            if *count == 1 {
                tell(seen.len(), done);
            }
            if done < options.kills && seen.len() >= (done + 1) * share {
                done += 1;
                random = next_random(random);
                let victim = usize::from(random & 1 == 1);
                let kind = usize::try_from((random >> 8) % 3)?;
                report.kills[kind] += 1;
                match kind {
                    0 => actors[victim].kill_sidecar()?,
                    1 => actors[victim].kill_runtime()?,
                    _ => proxies[victim].cut(),
                }
            }
        }
        // Late duplicates: everybody has acknowledged, or will deliver again at once.
        while let Ok((body, _)) = out.next(Duration::from_secs(3)).await {
            let message: Value = serde_json::from_slice(&body)?;
            *seen.entry(message["payload"].as_u64().unwrap_or(u64::MAX)).or_default() += 1;
        }
        anyhow::Ok(())
    };
    let (sent, collected) = tokio::join!(sending, collecting);
    sent?;
    collected?;

    report.took = started.elapsed();
    report.lost = numbers.filter(|number| !seen.contains_key(number)).collect();
    report.duplicates = seen.values().map(|count| count - 1).sum();
    // A message in flight, and one for each of those whose acknowledgement was on its way.
    report.duplicates_allowed = report.kills.iter().sum::<usize>() * options.prefetch;
    for failed in ["error-end", "first_dlq", "second_dlq"] {
        report.failed += usize::try_from(broker.ready(&queue(failed)).await?)?;
    }
    if !report.lost.is_empty() {
        for actor in &actors {
            crate::say(&actor.sidecar_log());
        }
    }
    Ok(report)
}

/// A xorshift: good enough to choose a victim, the same on every machine.
fn next_random(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}
