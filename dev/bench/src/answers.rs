//! `bench answers`: how long until a real engine answers: a new model, a changed one, and one that was scaled to zero.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, Namespace};
use runway_dev_cluster::Programs;
use runway_dev_cluster::answer;
use runway_dev_support::step;
use runway_operator::client::ClientArgs;
use runway_operator::services::{ServicePort, Services};
use runway_testbed::engine::{LlamaServer, MODEL};
use runway_testbed::{Node, Options, eventually};
use serde_json::{Value, json};

/// Number of rounds.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Number of measurements of each.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Measure a development build.
    #[arg(long)]
    unoptimised: bool,
}

const NAME: &str = "answers";
const PATIENCE: Duration = Duration::from_mins(3);
/// From apply to the first token, with the image on the node.
const GOAL: Duration = Duration::from_secs(10);

pub(super) async fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0, "--rounds must be at least 1");
    step("building the programs");
    let programs = Programs::build(!args.unoptimised).await?;
    let engine = tokio::task::spawn_blocking(|| LlamaServer::prepare("bench answers")).await??;
    let engine = engine.context("llama-server cannot be had on this machine")?;
    step("starting a control plane and a node");
    let mut node = Node::start(Options::default()).await?;
    node.import_image(&engine.image.archive).await?;
    let client = node.admin_client().await?;
    answer::install(&mut node, &programs, &client).await?;
    let kubeconfig = ClientArgs {
        kubeconfig: Some(node.admin()?),
        context: None,
    };
    let bench = Bench {
        models: Api::default_namespaced(client.clone()),
        services: Services::of(&kubeconfig.config().await?)?,
        image: engine.image.name.clone(),
        client,
    };
    let mut rows = [
        ("apply to first token", Vec::new()),
        ("rollout to first token", Vec::new()),
        ("zero to first token", Vec::new()),
    ];
    for round in 1..=args.rounds {
        step(&format!("round {round} of {}", args.rounds));
        let times = bench.round().await?;
        for ((_, all), time) in rows.iter_mut().zip(times) {
            all.push(time);
        }
    }
    println!("\n| seconds | best | median | worst |\n|---|--:|--:|--:|");
    for (name, times) in &mut rows {
        times.sort();
        let show = |time: Option<&Duration>| time.map_or(0.0, Duration::as_secs_f64);
        println!(
            "| {name} | {:.1} | {:.1} | {:.1} |",
            show(times.first()),
            show(times.get(times.len() / 2)),
            show(times.last())
        );
    }
    let worst = rows[0].1.last().copied().unwrap_or_default();
    println!(
        "\nGoal, apply to first token with the image on the node: {} s: {}",
        GOAL.as_secs(),
        if worst <= GOAL { "reached" } else { "missed" }
    );
    node.stop().await
}

struct Bench {
    client: Client,
    models: Api<ModelDeployment>,
    services: Services,
    image: String,
}

impl Bench {
    /// A model is applied, changed, scaled to zero and back, and deleted.
    async fn round(&self) -> Result<[Duration; 3]> {
        let start = Instant::now();
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": { "name": NAME, "namespace": "default" },
            "spec": {
                "model": { "source": "custom" },
                "engine": { "type": "llamacpp", "args": { "model": MODEL, "threads": "2", "alias": "one" } },
                "image": self.image,
                "resources": { "memory": "256Mi", "cpu": "100m" },
            },
        });
        runway_dev_cluster::apply(&self.client, &serde_json::from_value(md)?).await?;
        self.first_token("one").await?;
        let applied = start.elapsed();

        let start = Instant::now();
        self.change(json!({ "engine": { "args": { "alias": "two" } } })).await?;
        self.first_token("two").await?;
        let rolled_out = start.elapsed();

        self.change(json!({ "scaling": { "replicas": 0 } })).await?;
        self.asleep().await?;
        let start = Instant::now();
        self.change(json!({ "scaling": { "replicas": 1 } })).await?;
        self.first_token("two").await?;
        let woken = start.elapsed();

        self.models.delete(NAME, &DeleteParams::default()).await?;
        eventually(PATIENCE, async || {
            ensure!(self.models.get_opt(NAME).await?.is_none(), "{NAME} is still there");
            Ok(())
        })
        .await?;
        Ok([applied, rolled_out, woken])
    }

    async fn change(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.models.patch(NAME, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn asleep(&self) -> Result<()> {
        eventually(PATIENCE, async || {
            let status = self.models.get(NAME).await?.status.unwrap_or_default();
            let ready = status.conditions.get_condition(condition::READY).cloned();
            ensure!(
                ready.is_some_and(|c| c.reason == "ScaledToZero"),
                "{NAME} is not asleep"
            );
            Ok(())
        })
        .await
    }

    /// Ready for the latest generation, and a token by this name of the model.
    async fn first_token(&self, model: &str) -> Result<()> {
        let at = ServicePort {
            namespace: Namespace::default(),
            service: NAME.parse()?,
            port: 80,
        };
        let question = json!({ "model": model, "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 1 });
        eventually(PATIENCE, async || {
            let md = self.models.get(NAME).await?;
            let status = md.status.unwrap_or_default();
            let ready = status.conditions.when_true(condition::READY);
            ensure!(
                ready.is_some_and(|c| c.observed_generation == md.metadata.generation),
                "{}",
                status.message.unwrap_or_default()
            );
            let response = self.services.post(&at, "/v1/chat/completions", &question).await?;
            let answer: Value = serde_json::from_slice(&response.body)?;
            ensure!(answer["model"] == model && answer["choices"][0].is_object(), "{answer}");
            Ok(())
        })
        .await
    }
}
