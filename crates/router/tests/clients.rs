//! Clients of OpenAI's and Anthropic's APIs use a real llama-server through the router: openai, anthropic and langchain-openai from
//! PyPI, openai and @anthropic-ai/sdk from npm. The tokens that the router counts are those that the clients saw, and those that the engine counted.

mod support;

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use runway_testbed::engine::{Endpoint, LlamaServer, SENTENCE};
use runway_testbed::{PATIENCE, eventually, npm, python};
use serde_json::Value;
use support::{KEY, World};

const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/use.py");
const JAVASCRIPT: &str = include_str!("clients/use.mjs");
const WHAT: &str = "clients of the router";

#[tokio::test(flavor = "multi_thread")]
async fn clients_get_answers_and_their_tokens_are_counted() -> Result<()> {
    let prepared = tokio::task::spawn_blocking(|| {
        let has_programs = python::has_venv(WHAT) && npm::has_node(WHAT);
        anyhow::Ok((LlamaServer::prepare(WHAT)?, has_programs))
    });
    let (Some(engine), true) = prepared.await?? else {
        return Ok(());
    };
    let (python, modules) = tokio::task::spawn_blocking(|| anyhow::Ok((python::clients()?, npm::clients()?))).await??;
    // Node.js looks for packages in the folders above a script.
    let folder = tempfile::tempdir_in(modules)?;
    let javascript = folder.path().join("use.mjs");
    std::fs::write(&javascript, JAVASCRIPT)?;
    let world = World::start().await?;
    let engine = engine
        .start("its-own-name", &["--metrics", "--parallel", "4", "--threads", "1"])
        .await?;
    world.model("a", "one", "llama", 1).await?;
    world.serves("a", "one", engine.address().port()).await?;
    let router = world.router(&["--plain-http"]).await?.ready().await?;
    let address = format!("http://{}", router.address);
    let seen = tokio::task::spawn_blocking(move || {
        let of_python = used(Command::new(python).arg(PYTHON), &address)?;
        let of_javascript = used(Command::new("node").arg(javascript), &address)?;
        anyhow::Ok([of_python, of_javascript])
    });
    let seen = seen.await??;
    let counted = |direction: &str| -> Option<u64> {
        let series = format!(
            r#"kubeairunway_gateway_tokens_total{{namespace="a",name="one",caller="key",direction="{direction}",source="engine"}} "#
        );
        let text = router.metrics.text();
        text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
    };
    eventually(PATIENCE, async || {
        let counted = [counted("input"), counted("output")];
        let expected = ["input", "output"].map(|direction| seen.iter().map(|seen| seen[direction].as_u64()).sum());
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

/// Tokens that a program of clients saw.
fn used(program: &mut Command, address: &str) -> Result<Value> {
    let output = program.args([address, KEY, "llama", SENTENCE]).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).context("the tokens that the clients saw")
}
