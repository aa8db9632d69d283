//! Asya's promise under faults: numbered messages pass through two actors between queues of a real broker, and each
//! must arrive, or end where its sender finds it with a reason.
//!
//! | module | content |
//! |---|---|
//! | [`Fault`] | the faults |
//! | [`Ledger`] | the oracle: what came out, and what is allowed |
//! | `rabbitmq`, `sqs` | queues, and the faults of a broker |

mod fault;
mod ledger;
mod rabbitmq;
mod sqs;

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use runway_testbed::{PATIENCE, RabbitMq, RabbitMqCluster, Sqs, eventually};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;

pub use fault::Fault;
pub use ledger::{ChaosReport, Ledger, Reason};

use crate::pipeline::{Actor, ActorPrograms};

const NAMESPACE: &str = "chaos";
const SIDECAR_LOG: &str = "info";
const ACTORS: [&str; 2] = ["first", "second"];
/// Actor without a queue.
const UNIDENTIFIED: &str = "nobody";
/// Returns of a message before it is a dead letter: the operator's default.
const RETURNS: u32 = 3;
/// `ASYA_MAX_DELIVERIES` of the actors: as the operator sets it, and none, so that the broker moves the message.
const MOST_DELIVERIES: [&str; 2] = ["3", "0"];
/// Most messages that are sent together.
const CHUNK: u64 = 1000;
/// Time of a fault that ends by itself.
const OUTAGE: Duration = Duration::from_secs(3);
/// Time in which a sidecar receives messages, before it is killed with them.
const DELIVERY: Duration = Duration::from_millis(300);
/// Most kills until a message exceeds its limit of deliveries, for each message of the prefetch count: after the first kill, the sidecar has
/// one message at a time, and the broker puts a returned one behind the others.
const MOST_KILLS: usize = 2 * RETURNS as usize;
/// A message that takes this long is lost: every component restarts within seconds.
const LOST_AFTER: Duration = Duration::from_mins(1);
/// Time without messages after which processes that have ended are started again, as a kubelet would.
const RESTART: Duration = Duration::from_secs(1);
/// Time in which a duplicate comes, once its message can be delivered again.
const LATE: Duration = Duration::from_secs(3);

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

/// Queues of a broker, as the campaign uses them.
trait Queues {
    /// Faults, repeated through a run: those that take seconds are rare.
    const MIX: &'static [Fault];
    /// Longest time after which messages of a killed sidecar are delivered again.
    const REDELIVERY: Duration;
    /// Further messages are sent while fewer than this are under way.
    const UNDER_WAY: u64;

    /// Environment of the sidecar of an actor, which reaches the broker in a way of its own.
    fn environment(&self, actor: usize) -> Vec<(&'static str, String)>;
    /// Sends messages to an actor; done means stored.
    async fn send(&self, actor: &str, bodies: Vec<String>) -> Result<()>;
    /// The next message at the end of the route. `None` if none comes for [`RESTART`].
    async fn next(&self) -> Result<Option<Value>>;
    /// Messages that have failed since the last call, with the reasons.
    async fn failed(&self) -> Result<Vec<(Value, String)>>;
    /// Injects a fault of the broker, or of an actor's way to it. Returns the number of additional messages that it may
    /// duplicate.
    async fn inject(&self, fault: Fault, actor: usize) -> Result<usize>;
}

/// Runs the campaign on RabbitMQ, with quorum queues. Faults come while messages flow: one for each share of messages
/// that came out. `announce` is called for every message that came out, with their number and that of the faults so far.
pub async fn on_rabbitmq(
    rabbit: &mut RabbitMq,
    programs: &ActorPrograms,
    options: ChaosOptions,
    announce: impl Fn(usize, usize),
) -> Result<ChaosReport> {
    run(
        rabbitmq::Queues::create(rabbit, options).await?,
        programs,
        options,
        announce,
    )
    .await
}

/// Runs the campaign on a cluster of RabbitMQ 4, like [`on_rabbitmq`], with faults of its nodes.
pub async fn on_rabbitmq_cluster(
    cluster: &mut RabbitMqCluster,
    programs: &ActorPrograms,
    options: ChaosOptions,
    announce: impl Fn(usize, usize),
) -> Result<ChaosReport> {
    let queues = rabbitmq::Queues::create(rabbitmq::Cluster::new(cluster), options).await?;
    run(queues, programs, options, announce).await
}

/// Runs the campaign on SQS, like [`on_rabbitmq`].
pub async fn on_sqs(
    server: &Sqs,
    programs: &ActorPrograms,
    options: ChaosOptions,
    announce: impl Fn(usize, usize),
) -> Result<ChaosReport> {
    run(sqs::Queues::create(server, options).await?, programs, options, announce).await
}

async fn run<Q: Queues>(
    queues: Q,
    programs: &ActorPrograms,
    options: ChaosOptions,
    announce: impl Fn(usize, usize),
) -> Result<ChaosReport> {
    let mut bed = Bed::start(&queues, programs, options)?;
    let started = Instant::now();
    let envelopes = u64::try_from(options.envelopes)?;
    let (progress, mut out) = watch::channel(0);
    let collecting = bed.collect(move |out, faults| {
        progress.send_replace(out);
        announce(out, faults);
    });
    let sending = async {
        let chunk = CHUNK.min(Q::UNDER_WAY);
        for first in (0..envelopes).step_by(usize::try_from(chunk)?) {
            let may_send = |out: &usize| u64::try_from(*out).is_ok_and(|out| first < out.saturating_add(Q::UNDER_WAY));
            if out.wait_for(may_send).await.is_err() {
                // The collector has given up.
                break;
            }
            let numbers = first..envelopes.min(first + chunk);
            let bodies = numbers.map(|number| envelope(number, 0, &ACTORS)).collect();
            queues.send(ACTORS[0], bodies).await?;
        }
        anyhow::Ok(())
    };
    let (sent, collected) = tokio::join!(sending, collecting);
    sent?;
    collected?;
    let report = bed.ledger.report(started.elapsed());
    if !report.lost.is_empty() {
        for actor in &bed.actors {
            runway_testbed::say(&actor.sidecar_log());
        }
    }
    Ok(report)
}

fn queue(actor: &str) -> String {
    format!("asya-{NAMESPACE}_{actor}")
}

/// Name of the dead-letter queue of an actor, without the namespace.
fn dead_letters(actor: &str) -> String {
    format!("{actor}_dlq")
}

fn envelope(number: u64, current: usize, route: &[&str]) -> String {
    json!({"id": format!("m{number}"), "route": {"actors": route, "current": current}, "payload": number}).to_string()
}

/// Everything that a fault may concern.
struct Bed<'a, Q> {
    queues: &'a Q,
    actors: Vec<Actor>,
    /// The target of an actor's handler is down while its file exists.
    targets: TempDir,
    options: ChaosOptions,
    random: u64,
    ledger: Ledger,
}

impl<'a, Q: Queues> Bed<'a, Q> {
    fn start(queues: &'a Q, programs: &ActorPrograms, options: ChaosOptions) -> Result<Self> {
        let targets = tempfile::Builder::new().prefix("testbed-targets-").tempdir()?;
        let start = |(index, name): (usize, &&str)| {
            let down = down_file(&targets, name).to_string_lossy().into_owned();
            let mut environment = vec![
                ("ASYA_NAMESPACE", NAMESPACE),
                ("ASYA_QUEUE_AUTO_CREATE", "false"),
                ("ASYA_MAX_DELIVERIES", MOST_DELIVERIES[index]),
                ("ASYA_LOG_LEVEL", SIDECAR_LOG),
                ("ASYA_ECHO_DOWN", &down),
            ];
            let own = queues.environment(index);
            environment.extend(own.iter().map(|(name, value)| (*name, value.as_str())));
            Actor::start(programs, name, &environment)
        };
        let actors = ACTORS.iter().enumerate().map(start).collect::<Result<_>>()?;
        Ok(Self {
            queues,
            actors,
            targets,
            options,
            random: options.seed,
            ledger: Ledger::new(options.envelopes, Q::MIX),
        })
    }

    /// Collects what comes out, with faults on the way.
    async fn collect(&mut self, announce: impl Fn(usize, usize)) -> Result<()> {
        let share = (self.options.envelopes / (self.options.faults + 1)).max(1);
        let mut done = 0;
        let mut progress = Instant::now();
        while !self.ledger.is_complete() && progress.elapsed() < LOST_AFTER {
            let before = self.ledger.distinct();
            match self.queues.next().await? {
                Some(message) => self.ledger.arrived(number(&message)?),
                None => self.tend().await?,
            }
            if self.ledger.distinct() > before {
                progress = Instant::now();
                announce(self.ledger.distinct(), done);
            }
            if done < self.options.faults && self.ledger.distinct() >= (done + 1) * share {
                self.inject(Q::MIX[done % Q::MIX.len()]).await?;
                done += 1;
                progress = Instant::now();
            }
        }
        self.late_duplicates().await
    }

    /// Starts processes that have ended again, and counts failed messages.
    async fn tend(&mut self) -> Result<()> {
        for actor in &mut self.actors {
            if actor.sidecar_ended().is_some() {
                actor.start_sidecar()?;
            }
            actor.revive_runtime()?;
        }
        self.count_failed().await
    }

    /// Counts messages that have failed since the last call.
    async fn count_failed(&mut self) -> Result<()> {
        for (message, reason) in self.queues.failed().await? {
            self.ledger.failed(number(&message)?, &reason);
        }
        Ok(())
    }

    /// All consumers have acknowledged, or the broker delivers again within [`Queues::REDELIVERY`].
    async fn late_duplicates(&mut self) -> Result<()> {
        let mut quiet = Instant::now();
        while quiet.elapsed() < Q::REDELIVERY + LATE {
            if let Some(message) = self.queues.next().await? {
                self.ledger.arrived(number(&message)?);
                quiet = Instant::now();
            }
        }
        self.count_failed().await
    }

    async fn inject(&mut self, fault: Fault) -> Result<()> {
        self.random = next_random(self.random);
        let victim = usize::from(self.random & 1 == 1);
        // A message in flight, and one for each of those whose acknowledgement was on its way.
        let in_flight = self.options.prefetch;
        self.ledger.allow(fault, in_flight);
        let actor = &mut self.actors[victim];
        match fault {
            Fault::Sidecar => actor.kill_sidecar()?,
            Fault::Runtime => actor.kill_runtime()?,
            Fault::Hang => actor.hang_runtime(OUTAGE).await?,
            Fault::Outage => {
                actor.stop_runtime();
                tokio::time::sleep(OUTAGE).await;
                actor.kill_runtime()?;
            }
            Fault::Target => self.target_is_down(victim).await?,
            Fault::Limit => self.exceed_limit(victim).await?,
            Fault::Tap => {
                self.queues.inject(fault, victim).await?;
                self.send_further(victim, &[UNIDENTIFIED]).await?;
                self.ledger.allow_failures(fault, 1);
            }
            Fault::Broker
            | Fault::Partition
            | Fault::Alarm
            | Fault::Connection
            | Fault::Unreachable
            | Fault::Late
            | Fault::Twice
            | Fault::Refused
            | Fault::Deletion
            | Fault::Unbinding => {
                let more = self.queues.inject(fault, victim).await?;
                self.ledger.allow_duplicates(more);
            }
        }
        Ok(())
    }

    /// A message is held for [`OUTAGE`], with those behind it.
    async fn target_is_down(&mut self, victim: usize) -> Result<()> {
        let held = Line::of(&self.actors[victim], "holding the message");
        let down = down_file(&self.targets, ACTORS[victim]);
        fs::write(&down, "")?;
        // The queue may be empty.
        self.send_further(victim, &ACTORS[victim + 1..]).await?;
        held.again(&self.actors[victim]).await?;
        tokio::time::sleep(OUTAGE).await;
        Ok(fs::remove_file(down)?)
    }

    /// Kills a sidecar with every delivery, while its handler hangs, until a message has failed.
    async fn exceed_limit(&mut self, victim: usize) -> Result<()> {
        let before = self.ledger.failures(Fault::Limit);
        self.actors[victim].pause_runtime()?;
        // The queue may be empty.
        self.send_further(victim, &[]).await?;
        let most = MOST_KILLS * self.options.prefetch.max(4);
        for _ in 0..most {
            // Those that are returned, or were sent on and are not acknowledged.
            let in_flight = self.options.prefetch;
            self.ledger.allow_duplicates(in_flight);
            self.ledger.allow_failures(Fault::Limit, in_flight);
            self.kill_and_deliver(victim).await?;
            self.count_failed().await?;
            if self.ledger.failures(Fault::Limit) > before {
                return self.actors[victim].resume_runtime();
            }
        }
        anyhow::bail!("no message has exceeded the limit of deliveries after {most} kills")
    }

    /// Kills a sidecar, and starts it when its messages can be delivered again; done when it has received some.
    async fn kill_and_deliver(&mut self, victim: usize) -> Result<()> {
        let actor = &mut self.actors[victim];
        actor.crash_sidecar();
        tokio::time::sleep(Q::REDELIVERY).await;
        let started = Line::of(actor, "consuming");
        actor.start_sidecar()?;
        started.again(actor).await?;
        tokio::time::sleep(DELIVERY).await;
        Ok(())
    }

    /// Sends a further message to an actor. `then` are the actors after it.
    async fn send_further(&mut self, actor: usize, then: &[&str]) -> Result<()> {
        let route = [&ACTORS[..=actor], then].concat();
        let body = envelope(self.ledger.further(), actor, &route);
        self.queues.send(ACTORS[actor], vec![body]).await
    }
}

/// Line in the log of a sidecar.
struct Line {
    text: &'static str,
    /// Count of the line before.
    before: usize,
}

impl Line {
    fn of(actor: &Actor, text: &'static str) -> Self {
        let before = actor.sidecar_log().matches(text).count();
        Self { text, before }
    }

    /// Waits until it is logged again.
    async fn again(&self, actor: &Actor) -> Result<()> {
        eventually(PATIENCE, async || {
            let log = actor.sidecar_log();
            ensure!(log.matches(self.text).count() > self.before, "{log}");
            Ok(())
        })
        .await
    }
}

fn down_file(folder: &TempDir, actor: &str) -> PathBuf {
    folder.path().join(actor)
}

/// Number of a message. That of a failed one is in its original payload.
pub fn number(message: &Value) -> Result<u64> {
    let payload = &message["payload"];
    let number = payload.as_u64().or_else(|| payload["original_payload"].as_u64());
    number.with_context(|| format!("a message without its number: {message}"))
}

/// A xorshift: good enough to choose a victim, the same on every machine.
pub fn next_random(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}
