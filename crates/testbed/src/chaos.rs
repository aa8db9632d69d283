//! Asya's promise under faults: two hops between a real broker's queues, and then every number must be there.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::sync::RwLock;

use crate::{
    Proxy, RabbitMq,
    pipeline::{Actor, ActorPrograms, Broker, Incoming, Kind},
};

const NAMESPACE: &str = "chaos";
const SIDECAR_LOG: &str = "info";
/// Returns of a message before it is a dead letter: the operator's default.
const RETURNS: i64 = 3;
/// Messages that are published together.
const CHUNK: u64 = 1000;
/// Time that a handler hangs.
const HANG: Duration = Duration::from_secs(3);
/// Time without a runtime.
const OUTAGE: Duration = Duration::from_secs(3);
/// A message that takes this long is lost: every component restarts within seconds.
const PATIENCE: Duration = Duration::from_mins(1);
/// Time after which sidecars that have ended are started again, as a kubelet would.
const RESTART: Duration = Duration::from_secs(1);

/// Fault of a component.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// kill -9 of a sidecar.
    Sidecar,
    /// kill -9 of a runtime.
    Runtime,
    /// The connection between a sidecar and the broker is cut.
    Connection,
    /// The handler of a runtime hangs for 3 seconds.
    Hang,
    /// kill -9 of a runtime, and no new one for 3 seconds.
    Outage,
    /// kill -9 of the broker.
    Broker,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Sidecar,
        Self::Runtime,
        Self::Connection,
        Self::Hang,
        Self::Outage,
        Self::Broker,
    ];
    /// Repeated through a run: the faults that take seconds are rare.
    const MIX: [Self; 20] = {
        use Fault::{Broker, Connection, Hang, Outage, Runtime, Sidecar};
        [
            Sidecar, Runtime, Connection, Sidecar, Runtime, Hang, Connection, Sidecar, Runtime, Broker, Sidecar,
            Runtime, Connection, Sidecar, Runtime, Hang, Connection, Sidecar, Runtime, Outage,
        ]
    };

    /// Column of a table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sidecar => "sidecar killed",
            Self::Runtime => "runtime killed",
            Self::Connection => "connection cut",
            Self::Hang => "handler hung",
            Self::Outage => "runtime away",
            Self::Broker => "broker killed",
        }
    }
}

/// Size of the run.
#[derive(Clone, Copy, Debug)]
pub struct ChaosOptions {
    /// Envelopes sent in.
    pub envelopes: usize,
    /// Faults, spread over the run.
    pub faults: usize,
    /// Messages each sidecar takes ahead.
    pub prefetch: usize,
    /// Decides which actor a fault concerns. The same seed chooses the same in the same order.
    pub seed: u64,
}

/// Result of the run.
#[derive(Clone, Debug, Default)]
pub struct ChaosReport {
    /// Numbers that never came out.
    pub lost: Vec<u64>,
    /// Messages that came out once more than they should.
    pub duplicates: usize,
    /// At most so many duplicates are allowed: what can be in flight at each fault.
    pub duplicates_allowed: usize,
    /// Messages that ended at error-end or in a dead-letter queue.
    pub failed: usize,
    /// Faults so far, in the order of [`Fault::ALL`].
    pub faults: [usize; Fault::ALL.len()],
    /// From the first message in to the last one out.
    pub took: Duration,
}

/// Runs it on a broker. Faults come while messages flow: one for each share of messages that came out. `tell` hears of every
/// number that came out: how many there are, and how many faults so far.
pub async fn run(
    rabbit: &mut RabbitMq,
    programs: &ActorPrograms,
    options: ChaosOptions,
    tell: impl Fn(usize, usize),
) -> Result<ChaosReport> {
    let broker = RwLock::new(Broker::connect(&rabbit.url()).await?);
    declare(&*broker.read().await).await?;
    let mut bed = Bed::start(rabbit, &broker, programs, options).await?;

    let started = Instant::now();
    let envelopes = u64::try_from(options.envelopes)?;
    let sending = async {
        for first in (0..envelopes).step_by(usize::try_from(CHUNK)?) {
            let numbers = first..envelopes.min(first + CHUNK);
            // Nothing is in flight while the broker is replaced.
            let broker = broker.read().await;
            broker.publish_all(&queue("first"), numbers.map(envelope)).await?;
        }
        anyhow::Ok(())
    };
    let (sent, collected) = tokio::join!(sending, bed.collect(tell));
    sent?;
    let seen = collected?;

    let mut report = bed.report;
    report.took = started.elapsed();
    report.lost = (0..envelopes).filter(|number| !seen.contains_key(number)).collect();
    report.duplicates = seen.values().map(|count| count - 1).sum();
    for failed in ["error-end", "first_dlq", "second_dlq"] {
        report.failed += usize::try_from(broker.read().await.ready(&queue(failed)).await?)?;
    }
    if !report.lost.is_empty() {
        for actor in &bed.actors {
            crate::say(&actor.sidecar_log());
        }
    }
    Ok(report)
}

fn queue(actor: &str) -> String {
    format!("asya-{NAMESPACE}_{actor}")
}

fn envelope(number: u64) -> Vec<u8> {
    let route = json!({"actors": ["first", "second"], "current": 0});
    json!({"id": format!("m{number}"), "route": route, "payload": number})
        .to_string()
        .into_bytes()
}

/// The queues that the operator would create.
async fn declare(broker: &Broker) -> Result<()> {
    for actor in ["first", "second"] {
        let dead = queue(&format!("{actor}_dlq"));
        broker.declare_as(&dead, Kind::Quorum).await?;
        broker.declare_limited(&queue(actor), RETURNS, Some(&dead)).await?;
    }
    for end in ["happy-end", "error-end"] {
        broker.declare_as(&queue(end), Kind::Quorum).await?;
    }
    Ok(())
}

/// Everything that a fault may concern.
struct Bed<'a> {
    rabbit: &'a mut RabbitMq,
    broker: &'a RwLock<Broker>,
    proxies: [Proxy; 2],
    actors: [Actor; 2],
    options: ChaosOptions,
    random: u64,
    report: ChaosReport,
}

impl<'a> Bed<'a> {
    async fn start(
        rabbit: &'a mut RabbitMq,
        broker: &'a RwLock<Broker>,
        programs: &ActorPrograms,
        options: ChaosOptions,
    ) -> Result<Self> {
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
        let actors = [start("first", &proxies[0])?, start("second", &proxies[1])?];
        Ok(Self {
            rabbit,
            broker,
            proxies,
            actors,
            options,
            random: options.seed,
            report: ChaosReport::default(),
        })
    }

    /// Collects what comes out, with faults on the way. Returns how often each number came.
    async fn collect(&mut self, tell: impl Fn(usize, usize)) -> Result<HashMap<u64, usize>> {
        let share = (self.options.envelopes / (self.options.faults + 1)).max(1);
        let mut seen: HashMap<u64, usize> = HashMap::new();
        let mut out = self.consume().await?;
        let mut done = 0;
        while seen.len() < self.options.envelopes {
            let Some(number) = self.next(&mut out).await? else {
                break;
            };
            let count = seen.entry(number).or_default();
            *count += 1;
            if *count == 1 {
                tell(seen.len(), done);
            }
            if done < self.options.faults && seen.len() >= (done + 1) * share {
                let fault = Fault::MIX[done % Fault::MIX.len()];
                out = self.inject(fault, out).await?;
                done += 1;
            }
        }
        // Late duplicates: all consumers have acknowledged, or will deliver again at once.
        while let Ok((body, _)) = out.next(Duration::from_secs(3)).await {
            *seen.entry(number(&body)?).or_default() += 1;
        }
        Ok(seen)
    }

    async fn consume(&self) -> Result<Incoming> {
        self.broker.read().await.consume(&queue("happy-end")).await
    }

    /// The next number, or none if nothing comes any more.
    async fn next(&mut self, out: &mut Incoming) -> Result<Option<u64>> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Ok((body, _)) = out.next(RESTART).await {
                return number(&body).map(Some);
            }
            for actor in &mut self.actors {
                if actor.sidecar_ended().is_some() {
                    actor.start_sidecar()?;
                }
                actor.revive_runtime()?;
            }
        }
        Ok(None)
    }

    async fn inject(&mut self, fault: Fault, out: Incoming) -> Result<Incoming> {
        self.random = next_random(self.random);
        let victim = usize::from(self.random & 1 == 1);
        let actor = &mut self.actors[victim];
        self.report.faults[fault as usize] += 1;
        // A message in flight, and one for each of those whose acknowledgement was on its way.
        self.report.duplicates_allowed += self.options.prefetch;
        match fault {
            Fault::Sidecar => actor.kill_sidecar()?,
            Fault::Runtime => actor.kill_runtime()?,
            Fault::Connection => self.proxies[victim].cut(),
            Fault::Hang => actor.hang_runtime(HANG).await?,
            Fault::Outage => {
                actor.stop_runtime();
                tokio::time::sleep(OUTAGE).await;
                actor.kill_runtime()?;
            }
            Fault::Broker => {
                // Acknowledgements of both sidecars and of the collector.
                self.report.duplicates_allowed += self.options.prefetch + usize::from(Incoming::AHEAD);
                let mut broker = self.broker.write().await;
                drop(out);
                self.rabbit.crash().await?;
                *broker = Broker::connect(&self.rabbit.url()).await?;
                drop(broker);
                return self.consume().await;
            }
        }
        Ok(out)
    }
}

fn number(body: &[u8]) -> Result<u64> {
    let message: Value = serde_json::from_slice(body)?;
    message["payload"].as_u64().context("a message without its number")
}

/// A xorshift: good enough to choose a victim, the same on every machine.
fn next_random(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}
