//! Canaries at the router, with a real API server.

mod support;

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::ListParams;
use runway_api::EventReason;
use runway_api::labels::{CANARY_FOR, CANARY_WEIGHT};
use runway_testbed::{PATIENCE, eventually};
use serde_json::{Value, json};
use support::{Engine, KEY, Router, World, closing_engine};

/// Requests of a round: the router gives each of a hundred in a row another number.
const ROUND: usize = 100;

/// Requests for the stable version.
struct Round<'a>(&'a Router);

impl Round<'_> {
    /// All requests are answered.
    async fn run(&self) -> Result<()> {
        for number in 0..ROUND {
            let answer = self.0.chat(KEY, "llama").await?;
            ensure!(answer.status == 200, "request {number}: {answer:?}");
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn canary_gets_its_part_of_the_requests_and_none_fails_because_of_it() -> Result<()> {
    let world = World::start().await?;
    let (stable, canary) = (Engine::start("stable").await?, Engine::start("canary").await?);
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", stable.port).await?;
    let router = world.router(&[]).await?.ready().await?;
    let annotated = async |weight: &str| {
        world
            .apply(json!({
                "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
                "metadata": {
                    "name": "two", "namespace": "a",
                    "annotations": { CANARY_FOR: "one", CANARY_WEIGHT: weight },
                },
                "spec": { "model": { "id": "org/llama" }, "engine": { "type": "llamacpp" } },
            }))
            .await
    };
    annotated("20").await?;
    world.serves("a", "two", canary.port).await?;
    let asked = |engine: &Engine| engine.seen.asked.load(Ordering::SeqCst);
    eventually(PATIENCE, async || {
        router.chat(KEY, "llama").await?;
        ensure!(asked(&canary) > 0);
        Ok(())
    })
    .await?;
    let before = (asked(&stable), asked(&canary));
    let round = Round(&router);
    round.run().await?;
    let parts = (asked(&stable) - before.0, asked(&canary) - before.1);
    ensure!(parts == (80, 20), "{parts:?}");
    let listed = router.get(KEY, "/v1/models").await?.json();
    ensure!(
        listed["data"].as_array().is_some_and(|models| models.len() == 1),
        "{listed}"
    );
    ensure!(
        router.chat(KEY, "a/two").await?.json()["model"] == "canary",
        "by its full name"
    );

    // It closes connections: the stable version answers, and soon gets all requests.
    let (port, closed) = closing_engine().await?;
    let closed = || closed.load(Ordering::SeqCst);
    world.serves("a", "two", port).await?;
    eventually(PATIENCE, async || {
        round.run().await?;
        let seen = closed();
        ensure!(seen > 0);
        round.run().await?;
        ensure!(closed() == seen, "{seen} and more");
        Ok(())
    })
    .await?;
    let text = router.metrics.text();
    let stopped = r#"kubeairunway_gateway_canary_stopped{namespace="a",name="two"} 1"#;
    ensure!(text.contains(stopped), "{text}");

    is_reported(&world).await?;

    // Another weight is another attempt.
    world.serves("a", "two", canary.port).await?;
    annotated("100").await?;
    let before = asked(&stable);
    eventually(PATIENCE, async || {
        let answer: Value = router.chat(KEY, "llama").await?.json();
        ensure!(answer["model"] == "canary", "{answer}");
        Ok(())
    })
    .await?;
    let between = asked(&stable);
    round.run().await?;
    ensure!(asked(&stable) == between, "{before}, {between}, {}", asked(&stable));

    // Without a version that serves, a canary of any weight gets all requests.
    annotated("1").await?;
    world.status("a", "one", json!({ "replicas": { "ready": 0 } })).await?;
    eventually(PATIENCE, async || {
        for _ in 0..3 {
            let answer: Value = router.chat(KEY, "llama").await?.json();
            ensure!(answer["model"] == "canary", "{answer}");
        }
        Ok(())
    })
    .await?;
    let before = asked(&canary);
    round.run().await?;
    ensure!(
        asked(&canary) - before == ROUND,
        "{} of {ROUND}",
        asked(&canary) - before
    );
    Ok(())
}

/// An Event of the canary says why it is stopped, once.
async fn is_reported(world: &World) -> Result<()> {
    let events: Api<Event> = Api::namespaced(world.admin.clone(), "a");
    eventually(PATIENCE, async || {
        let all = events.list(&ListParams::default()).await?.items;
        let stopped = |event: &&Event| event.reason.as_deref() == Some(EventReason::CanaryStopped.as_str());
        let notes: Vec<&str> = all
            .iter()
            .filter(stopped)
            .filter_map(|event| event.note.as_deref())
            .collect();
        ensure!(
            matches!(notes[..], [note] if note.starts_with("Stopped at a weight of 20 %: ")),
            "{notes:?}"
        );
        Ok(())
    })
    .await
}
