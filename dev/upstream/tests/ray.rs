//! `cargo xtask upstream` against the real KubeRay operator and real Ray clusters, with a stand-in for the engine
//! (`runway_testbed::ray`). Only `cargo xtask test --lane ray` runs this test.

use std::process::Command;

use anyhow::{Result, ensure};
use runway_testbed::{Node, Options, ray};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by cargo xtask test --lane ray"]
async fn the_suite_passes_against_the_real_kuberay() -> Result<()> {
    const WHAT: &str = "the suite of the KubeRay provider against the real operator";
    let Some(image) = tokio::task::spawn_blocking(|| ray::image(WHAT)).await?? else {
        return Ok(());
    };
    let mut node = Node::start(Options::default()).await?;
    ray::install(&mut node, &image).await?;
    let model = node.dir.join("model.yaml");
    let report = node.dir.join("report.md");
    std::fs::write(
        &model,
        json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": "tiny" },
            "spec": ray::spec(&image.name, 1000),
        })
        .to_string(),
    )?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_runway-dev-upstream"));
    command.args([
        "upstream",
        "--provider",
        "kuberay",
        "--namespace",
        "kuberay",
        "--patience",
        "300",
    ]);
    command.arg("--kubeconfig").arg(node.admin()?);
    command.arg("--model").arg(model).arg("--report").arg(&report);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    let report = std::fs::read_to_string(report)?;
    ensure!(
        output.status.success() && report.contains("0 failed"),
        "{report}\n{output:?}"
    );
    for row in [
        "accepts vllm, disaggregated, with many fields | passed",
        "serves a model | passed",
        "reverts a change of its upstream object | passed",
        "rolls out a changed environment | passed",
        "scales to 2 replicas and back, at the same endpoint | passed",
        "deletes everything | passed",
    ] {
        ensure!(report.contains(row), "no row '{row}' in {report}");
    }
    node.stop().await
}
