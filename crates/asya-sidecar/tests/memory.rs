//! Memory of the sidecar with large messages. Its default limit in pods is 256 MiB.

use std::fs;

use anyhow::{Context, Result};
use runway_asya_testbed::pipeline::{Actor, Broker};
use runway_testbed::{RabbitMq, RabbitMqOptions};
use serde_json::{Value, json};

mod support;
use support::PATIENCE;

const MIB: usize = 1024 * 1024;
const RESULTS: usize = 300;

/// Largest resident memory so far, in MiB.
fn peak(actor: &Actor) -> Result<usize> {
    let status = fs::read_to_string(format!("/proc/{}/status", actor.sidecar_pid()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let text = line
        .and_then(|line| line.split_whitespace().next())
        .context("no VmHWM")?;
    Ok(text.parse::<usize>()? / 1024)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_messages_stay_below_the_memory_limit() -> Result<()> {
    let rabbit = RabbitMq::start(RabbitMqOptions::default()).await?;
    let broker = Broker::connect(&rabbit.url()).await?;
    for end in ["happy-end", "error-end"] {
        broker.declare(&format!("asya-{end}")).await?;
    }
    let url = rabbit.url();
    let variables = [("ASYA_RABBITMQ_URL", &*url)];

    // Each of many results contains everything that the request has and the response does not.
    let fan = support::consuming("fan", support::runtime(&[]), &variables).await?;
    let mut request = message("fan", json!({"do": "fan", "times": RESULTS}));
    request["shared"] = "x".repeat(MIB).into();
    broker.publish("asya-fan", request.to_string().as_bytes()).await?;
    let mut out = broker.consume("asya-happy-end").await?;
    for _ in 0..RESULTS {
        let (body, _) = out.next(PATIENCE).await?;
        assert!(body.len() > MIB);
    }
    let used = peak(&fan)?;
    assert!(used < 40, "{used} MiB for a fan-out");

    // A message above the limit (64 MiB) is moved, up to the largest that RabbitMQ accepts (128 MiB).
    let refuse = support::consuming("refuse", support::runtime(&[]), &variables).await?;
    broker.publish("asya-refuse", &vec![b'x'; 120 * MIB]).await?;
    let (error, _) = broker.consume("asya-error-end").await?.next(PATIENCE).await?;
    let error: Value = serde_json::from_slice(&error)?;
    assert_eq!(error["payload"]["error"], "message_too_large");
    let (body, _) = broker.consume("asya-refuse_dlq").await?.next(PATIENCE).await?;
    assert_eq!(body.len(), 120 * MIB);
    let used = peak(&refuse)?;
    assert!(used < 120 + 40, "{used} MiB for a refused message");

    // A message close to the limit: it, the response, and the message that is sent.
    let large = support::consuming("large", support::runtime(&[]), &variables).await?;
    let request = message("large", json!("x".repeat(60 * MIB)));
    broker.publish("asya-large", request.to_string().as_bytes()).await?;
    let (body, _) = out.next(PATIENCE).await?;
    assert!(body.len() > 60 * MIB);
    let used = peak(&large)?;
    assert!(used < 3 * 60 + 40, "{used} MiB for a large message");
    rabbit.stop().await;
    Ok(())
}

#[allow(clippy::needless_pass_by_value, reason = "json!(…) at every call")]
fn message(actor: &str, payload: Value) -> Value {
    json!({"id": "1", "route": {"actors": [actor], "current": 0}, "payload": payload})
}
