//! Actors are deleted and created again, un-bound and bound again, under a stream of messages: with a real API server,
//! a real RabbitMQ, the real operator and real sidecars. The kubelet is simulated.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

mod bed;
mod kubelet;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bed::{Bed, PATIENCE, arguments, with_management};
use kube::api::{Patch, PatchParams, PostParams};
use kubelet::{Kubelet, NODE};
use runway_asya_testbed::chaos::{self, Fault, Ledger};
use runway_asya_testbed::pipeline::Broker;
use runway_testbed::eventually;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const SEED: u64 = 0x5eed;
/// Actors in the order of the route: one with a workload of its own, one that is bound to a target.
const ACTORS: [&str; 2] = ["own", "bound"];
const TARGETS: [&str; 2] = ["model-a", "model-b"];
const ROUNDS: [Round; 8] = {
    use Round::{Bind, Delete};
    let [own, bound] = ACTORS;
    [
        Delete(bound),
        Bind,
        Delete(own),
        Bind,
        Delete(bound),
        Bind,
        Delete(own),
        Bind,
    ]
};
/// Pause of the sender after a message.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause of the sender while there is no queue.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// Longest wait for a further message at the end.
const FURTHER: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_lost_when_actors_are_deleted_and_unbound() -> Result<()> {
    let (bed, rabbit, transports) = with_management(json!({})).await?;
    let _operator = bed.operator_with(arguments(&transports, "/nowhere".into())).await?;
    let mut stage = Stage {
        kubelet: Kubelet::start(bed.admin.clone()).await?,
        bed,
        target: 0,
        random: SEED,
        faults: Vec::new(),
    };
    stage.set().await?;
    let stream = Stream::start(rabbit.url());
    for round in ROUNDS {
        stage.play(round).await?;
    }
    let sent = stream.end().await?;

    let mut ledger = Ledger::new(sent, &[Fault::Deletion, Fault::Unbinding]);
    for fault in &stage.faults {
        ledger.allow(*fault, 0);
        // Messages for an actor without a queue are reported.
        ledger.allow_failures(*fault, sent);
    }
    let broker = Broker::connect(&rabbit.url()).await?;
    let started = Instant::now();
    while !ledger.is_complete() && started.elapsed() < PATIENCE {
        collect(&broker, &mut ledger).await?;
    }
    // A sidecar has one message.
    ledger.allow_duplicates(stage.kubelet.killed());
    let report = ledger.report(started.elapsed());
    println!(
        "{sent} messages, {} sidecars killed, {report:?}",
        stage.kubelet.killed()
    );
    ensure!(sent > 100, "the stream was interrupted: {sent} messages");
    report.check()
}

/// Deletion or un-binding under the stream.
#[derive(Clone, Copy)]
enum Round {
    /// An actor is deleted, and created again.
    Delete(&'static str),
    /// The other target is bound.
    Bind,
}

/// The actors, and what happens to them.
struct Stage {
    kubelet: Kubelet,
    bed: Bed,
    /// Index of the bound target.
    target: usize,
    random: u64,
    faults: Vec<Fault>,
}

impl Stage {
    async fn set(&self) -> Result<()> {
        for target in TARGETS {
            let deployment = serde_json::from_value(model(target))?;
            self.bed
                .deployments()
                .create(&PostParams::default(), &deployment)
                .await?;
        }
        for actor in ACTORS {
            self.create(actor).await?;
        }
        Ok(())
    }

    /// Creates an actor; done when its sidecar runs.
    async fn create(&self, actor: &str) -> Result<()> {
        let spec = if actor == "own" {
            own()
        } else {
            bound(TARGETS[self.target])
        };
        self.bed.create(actor, spec).await?;
        self.runs(actor).await
    }

    async fn runs(&self, actor: &str) -> Result<()> {
        eventually(PATIENCE, async || {
            ensure!(self.kubelet.runs(actor).await, "{actor} does not run");
            Ok(())
        })
        .await
    }

    /// Sidecars are killed, or finish, at random.
    async fn play(&mut self, round: Round) -> Result<()> {
        let kills = self.choose(2) == 0;
        self.kubelet.kill(kills);
        match round {
            Round::Delete(actor) => self.delete_and_create(actor).await?,
            Round::Bind => self.bind_again().await?,
        }
        let pause = Duration::from_millis(100 * self.choose(10));
        tokio::time::sleep(pause).await;
        Ok(())
    }

    async fn delete_and_create(&mut self, actor: &str) -> Result<()> {
        println!("deleting {actor}");
        self.faults.push(Fault::Deletion);
        self.bed.delete(actor).await?;
        self.create(actor).await
    }

    async fn bind_again(&mut self) -> Result<()> {
        self.target = (self.target + 1) % TARGETS.len();
        let target = TARGETS[self.target];
        println!("binding to {target}");
        self.faults.push(Fault::Unbinding);
        let spec = Patch::Merge(json!({"spec": bound(target)}));
        self.bed.actors().patch("bound", &PatchParams::default(), &spec).await?;
        let is_there = |s: &runway_api::AsyncActorStatus| {
            let holder = s.binding.as_ref().and_then(|binding| binding.holder.as_ref());
            holder.is_some_and(|holder| holder.name == target)
        };
        self.bed.status("bound", target, is_there).await?;
        self.runs("bound").await
    }

    /// A random number below `count`.
    fn choose(&mut self, count: u64) -> u64 {
        self.random = chaos::next_random(self.random);
        self.random % count
    }
}

fn own() -> Value {
    let template = json!({"spec": {"nodeName": NODE, "containers": [{"name": "asya-runtime", "image": "p:1"}]}});
    json!({"transport": "rabbitmq", "workload": {"template": template}})
}

fn bound(target: &str) -> Value {
    json!({
        "transport": "rabbitmq", "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
        "runtime": {"image": "asya-rest-adapter:1", "handler": "adapters.openai.forward"},
    })
}

/// A Deployment whose pods are on the simulated node.
fn model(name: &str) -> Value {
    let container = json!({"name": "model", "image": "vllm:1", "ports": [{"containerPort": 8000}]});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}}, "spec": {"nodeName": NODE, "containers": [container]}}},
    })
}

fn queue(actor: &str) -> String {
    format!("asya-default_{actor}")
}

/// A sender. A message that the broker does not accept, because there is no queue, is sent again.
struct Stream {
    stop: CancellationToken,
    task: JoinHandle<Result<usize>>,
}

impl Stream {
    fn start(url: String) -> Self {
        let stop = CancellationToken::new();
        let until = stop.clone();
        let task = tokio::spawn(async move {
            let broker = Broker::connect(&url).await?;
            let first = queue(ACTORS[0]);
            let mut sent = 0;
            while !until.is_cancelled() {
                let envelope = json!({"id": format!("m{sent}"), "route": {"actors": ACTORS}, "payload": sent});
                let published = broker.publish(&first, envelope.to_string().as_bytes()).await;
                sent += usize::from(published.is_ok());
                tokio::time::sleep(if published.is_ok() { PAUSE } else { TRY_AGAIN }).await;
            }
            Ok(sent)
        });
        Self { stop, task }
    }

    /// Stops, and returns the number of messages.
    async fn end(self) -> Result<usize> {
        self.stop.cancel();
        self.task.await?
    }
}

/// Counts what has come out.
async fn collect(broker: &Broker, ledger: &mut Ledger) -> Result<()> {
    for end in ["happy-end", "error-end", "own_dlq", "bound_dlq"] {
        let mut incoming = broker.consume(&queue(end)).await?;
        while let Ok((body, _)) = incoming.next(FURTHER).await {
            let message: Value = serde_json::from_slice(&body)?;
            let number = chaos::number(&message)?;
            match end {
                "happy-end" => ledger.arrived(number),
                _ => ledger.failed(number, message["payload"]["error"].as_str().context("a reason")?),
            }
        }
    }
    Ok(())
}
