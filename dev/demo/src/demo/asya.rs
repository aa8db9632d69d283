//! Binds a queue to a running model server, which answers through it, is scaled to zero, and starts again for the next message.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::{Api, Client};
use runway_api::{AsyncActor, labels};
use runway_asya_testbed::stage::{Installation, NAMESPACE, Stage, apply, real_model_server};
use runway_dev_support::step;
use runway_manifests::{self as manifests, Release};
use runway_testbed::engine::LlamaServer;
use runway_testbed::programs;
use runway_testbed::{Node, eventually};
use serde_json::{Value, json};

use runway_dev_cluster::kubectl;

const PATIENCE: Duration = Duration::from_mins(5);
const MODEL: &str = "hello";
const ACTOR: &str = "ask";
/// Seconds without a message after which the model goes to sleep.
const COOLDOWN: u32 = 20;
const QUESTIONS: [&str; 3] = [
    "Are you there?",
    "What is a queue good for?",
    "Who pays for an idle GPU?",
];

pub(super) async fn show(node: &Node) -> Result<()> {
    step("starting RabbitMQ, and on the node KEDA (built once with Go: about 8 minutes) and the AsyncActor operator");
    let stage = stage(node).await?;

    let engine = tokio::task::spawn_blocking(|| LlamaServer::prepare("the real engine behind the queue")).await??;
    let model_server = if let Some(engine) = engine {
        step(&format!(
            "a model server is running: Deployment '{MODEL}', a real llama-server"
        ));
        node.import_image(&engine.image.archive).await?;
        real_model_server(MODEL, &engine.image.name)
    } else {
        step(&format!(
            "a model server is running: Deployment '{MODEL}', which speaks OpenAI's API"
        ));
        stage.model_server(MODEL, 0.5)
    };
    apply(node, &model_server).await?;
    kubectl(
        node,
        &["rollout", "status", &format!("deployment/{MODEL}"), "--timeout=5m"],
    )
    .await?;

    step("it gets a queue: this is applied");
    let actor = actor(&stage.runtime);
    println!("\n{}", serde_saphyr::to_string(&actor)?.trim_end());
    apply(node, &[actor]).await?;
    let client = node.admin_client().await?;
    says(&client, "Running").await?;
    kubectl(node, &["get", "asyas"]).await?;
    println!("\nIn its pods two containers are new: they take messages from the queue and ask the model beside them.");
    kubectl(
        node,
        &[
            "get",
            "deployment",
            MODEL,
            "-o",
            "jsonpath={..containers[*].name}{\"\\n\"}",
        ],
    )
    .await?;

    step(&format!(
        "{} questions go into the queue {}",
        QUESTIONS.len(),
        Stage::queue(ACTOR)
    ));
    converse(&stage, &QUESTIONS).await?;

    step(&format!(
        "no more messages: after {COOLDOWN} seconds the model is scaled to zero"
    ));
    says(&client, "Napping").await?;
    kubectl(node, &["get", "asyas"]).await?;
    kubectl(node, &["get", "deployment", MODEL]).await?;

    step("one more question: KEDA sees it in the queue, and wakes the model");
    let asked = Instant::now();
    converse(&stage, &["Are you awake?"]).await?;
    println!(
        "\nAnswered {:.0} seconds after it was asked, from 0 pods.",
        asked.elapsed().as_secs_f64()
    );
    says(&client, "Running").await?;
    kubectl(node, &["get", "asyas"]).await?;
    step(&format!(
        "no more messages: after {COOLDOWN} seconds the model is scaled to zero again. End of the demo"
    ));
    says(&client, "Napping").await?;
    kubectl(node, &["get", "asyas"]).await?;
    println!(
        "\nThe same with a model server and a broker of your own: docs/how-to/asya.md. RabbitMQ ends with this command."
    );
    stage.rabbit.stop().await;
    Ok(())
}

async fn stage(node: &Node) -> Result<Stage<'_>> {
    let programs = programs::build(false).await?;
    let release = Release::default();
    let images: Vec<_> = [labels::ASYA_MANAGER, "asya-sidecar"]
        .map(|name| (release.image(name), programs.join(name)))
        .into();
    let objects: Vec<Value> = manifests::asya()
        .objects(&release)
        .into_iter()
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?;
    let installation = Installation {
        namespace: manifests::NAMESPACE,
        objects: &objects,
        images: &images,
        tls: false,
    };
    Stage::set(node, &installation).await
}

fn actor(runtime: &str) -> Value {
    json!({
        "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": {"name": ACTOR, "namespace": NAMESPACE},
        "spec": {
            "transport": "rabbitmq",
            "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": MODEL},
            "runtime": {"image": runtime, "handler": "asya_runtime.adapters.openai.forward"},
            "scaling": {"enabled": true, "minReplicas": 0, "maxReplicas": 3, "pollingInterval": 2, "cooldownPeriod": COOLDOWN},
        },
    })
}

/// Waits for a word in the column STATUS.
async fn says(client: &Client, word: &str) -> Result<()> {
    let actors: Api<AsyncActor> = Api::namespaced(client.clone(), NAMESPACE);
    eventually(PATIENCE, async || {
        let status = actors.get(ACTOR).await?.status.unwrap_or_default();
        ensure!(
            status.status.as_deref() == Some(word),
            "{}: {}",
            status.status.unwrap_or_default(),
            status.message.unwrap_or_default()
        );
        Ok(())
    })
    .await
}

async fn converse(stage: &Stage<'_>, questions: &[&str]) -> Result<()> {
    let mut answers = stage.answers().await?;
    for question in questions {
        let payload = json!({"messages": [{"role": "user", "content": question}]});
        stage.send(question, &[ACTOR], payload).await?;
    }
    println!();
    for _ in questions {
        let (body, _) = answers.next(PATIENCE).await.context("no answer came")?;
        let envelope: Value = serde_json::from_slice(&body)?;
        let answer = envelope["payload"]["choices"][0]["message"]["content"].as_str();
        println!(
            "  {}  →  {}",
            envelope["id"].as_str().unwrap_or_default(),
            answer.with_context(|| format!("no answer: {envelope}"))?
        );
    }
    Ok(())
}
