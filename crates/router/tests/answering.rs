//! The replica and the model that answer a request, with a real API server: the choice is explained, and another model answers for
//! one that does not serve.

mod support;

use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use axum::http::Method;
use runway_api::choice::Choice;
use runway_testbed::traffic::client::request;
use runway_testbed::traffic::{Begun, NAMESPACE};
use runway_testbed::{PATIENCE, eventually};
use serde_json::json;
use support::{Engine, KEY, Router, World};

const CHAT: &str = "/v1/chat/completions";

/// Asks which replica would get a chat.
async fn explained(router: &Router, token: &str, prompt: &str) -> Result<(u16, String)> {
    let body = json!({"model": "one", "messages": [{"role": "user", "content": prompt}]});
    let mut request = request(Method::POST, CHAT, token, body.to_string())?;
    request.headers_mut().insert("x-kubeairunway-explain", "only".parse()?);
    let answer = Begun::send(router.address, request).await?.whole().await?;
    Ok((answer.status.as_u16(), answer.text))
}

#[tokio::test(flavor = "multi_thread")]
async fn choice_is_explained_to_those_who_may_see_pods_and_nothing_is_sent() -> Result<()> {
    let world = World::start().await?;
    let engine = Engine::start("engine").await?;
    world.model(NAMESPACE, "one", "one", 1).await?;
    world.serves(NAMESPACE, "one", engine.port).await?;
    world.model(NAMESPACE, "asleep", "asleep", 0).await?;
    let token = world.token("shop", Some(&["one"])).await?;
    let router = world.router(&["--plain-http"]).await?.ready().await?;
    for token in [KEY, &token] {
        let (status, body) = explained(&router, token, "").await?;
        ensure!(status == 403, "{body}");
    }
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let subject = json!({"kind": "ServiceAccount", "name": "shop", "namespace": "default"});
    world.role("sees-pods", &rules, &subject).await?;
    let prompt = "x".repeat(1024);
    eventually(PATIENCE, async || {
        let (status, body) = explained(&router, &token, &prompt).await?;
        ensure!(status == 200, "{body}");
        let choice: Choice = serde_json::from_str(&body)?;
        let version = &choice.versions[0];
        ensure!(
            (version.weight, version.blocks, &*version.reason) == (100, 4, "only"),
            "{choice:?}"
        );
        ensure!(
            version.replicas[0].chosen && version.replicas[0].seen == 0,
            "{choice:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(engine.seen.asked.load(Ordering::SeqCst) == 0);
    let body = json!({"model": "one", "messages": [{"role": "user", "content": prompt}]});
    ensure!(router.post(&token, body).await?.status == 200);
    let (_, body) = explained(&router, &token, &prompt).await?;
    let choice: Choice = serde_json::from_str(&body)?;
    ensure!(choice.versions[0].replicas[0].seen == 4, "{choice:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fallback_answers_while_the_model_does_not_serve_if_the_caller_may_use_it() -> Result<()> {
    let world = World::start().await?;
    let (engine, other) = (Engine::start("engine").await?, Engine::start("other").await?);
    for (name, replicas) in [("one", 1), ("two", 1)] {
        world.model(NAMESPACE, name, name, replicas).await?;
    }
    world.serves(NAMESPACE, "two", other.port).await?;
    let token = world.token("shop", Some(&["one"])).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("limits.yaml");
    std::fs::write(&file, format!("limits: [{{name: a, fallback: {NAMESPACE}/two}}]"))?;
    let limits = format!("--limits={}", file.display());
    let router = world
        .router(&["--plain-http", "--longest-hold=1s", &limits])
        .await?
        .ready()
        .await?;
    let answer = router.chat(KEY, "one").await?;
    ensure!(answer.json()["model"] == "other", "{answer:?}");
    let refused = router.chat(&token, "one").await?;
    ensure!(refused.status == 503, "without a right to the other model: {refused:?}");
    // A model that has failed is not waited for either.
    world
        .status(NAMESPACE, "one", json!({"phase": "Failed", "message": "no node"}))
        .await?;
    ensure!(router.chat(KEY, "one").await?.json()["model"] == "other");
    let counted = format!(
        r#"kubeairunway_gateway_responses_total{{namespace="{NAMESPACE}",name="two",caller="key",code="2xx"}} 2"#
    );
    let text = router.metrics.text();
    ensure!(text.contains(&counted), "{text}");
    world.serves(NAMESPACE, "one", engine.port).await?;
    eventually(PATIENCE, async || {
        let answer = router.chat(KEY, "one").await?;
        ensure!(answer.json()["model"] == "engine", "{answer:?}");
        Ok(())
    })
    .await?;
    Ok(())
}
