//! Clients of OpenAI's and Anthropic's APIs use a real llama-server through the router: openai, anthropic and langchain-openai from
//! PyPI. The tokens that the router counts are those that the clients saw, and those that the engine counted.

mod support;

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use runway_testbed::engine::{Endpoint, LlamaServer, SENTENCE};
use runway_testbed::{PATIENCE, eventually, python};
use serde_json::Value;
use support::{KEY, World};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/use.py");
const WHAT: &str = "clients of the router";

#[tokio::test(flavor = "multi_thread")]
async fn clients_get_answers_and_their_tokens_are_counted() -> Result<()> {
    let prepared = tokio::task::spawn_blocking(|| anyhow::Ok((LlamaServer::prepare(WHAT)?, python::has_venv(WHAT))));
    let (Some(engine), true) = prepared.await?? else {
        return Ok(());
    };
    let python = tokio::task::spawn_blocking(python::clients).await??;
    let world = World::start().await?;
    let engine = engine
        .start("its-own-name", &["--metrics", "--parallel", "4", "--threads", "1"])
        .await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.address().port()).await?;
    let router = world.router(&["--plain-http"]).await?.ready().await?;
    let address = format!("http://{}", router.address);
    let output = tokio::task::spawn_blocking(move || {
        Command::new(python)
            .args([SCRIPT, &address, KEY, "llama", SENTENCE])
            .output()
    });
    let output = output.await??;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    let seen: Value = serde_json::from_slice(&output.stdout).context("the tokens that the clients saw")?;
    let counted = |direction: &str| -> Option<u64> {
        let series = format!(
            r#"kubeairunway_gateway_tokens_total{{namespace="a",name="one",caller="key",direction="{direction}",source="engine"}} "#
        );
        let text = router.metrics.text();
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    };
    eventually(PATIENCE, async || {
        let counted = [counted("input"), counted("output")];
        let expected = ["input", "output"].map(|direction| seen[direction].as_u64());
        ensure!(
            counted == expected,
            "counted {counted:?}, and the clients saw {expected:?}"
        );
        Ok(())
    })
    .await?;
    let metrics = Endpoint::machine(engine.client()?).metrics().await?;
    let predicted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("llamacpp:tokens_predicted_total "));
    let predicted: Option<u64> = predicted.and_then(|number| number.parse().ok());
    ensure!(predicted == counted("output"), "the engine counted {predicted:?}");
    Ok(())
}
