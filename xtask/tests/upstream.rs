//! `cargo xtask upstream` against the upstream simulator: what needs GPUs is skipped, the rest passes.
//! The core's webhooks are installed.

use std::process::{Command, Output};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use runway_testbed::{ControlPlane, Options, Simulator, apply, crds, simulator};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_against_the_simulator() -> Result<()> {
    let cluster = ControlPlane::start(Options {
        crds: crds::upstream_crds(&[
            crds::DYNAMO_V1BETA1,
            crds::KUBERAY_SERVICES,
            crds::KAITO_WORKSPACES,
            crds::KAITO_INFERENCE_SETS,
        ])?,
        ..Options::default()
    })
    .await?;
    let upstream = cluster.client("upstream", &["system:masters"]).await?;
    let _simulator = Simulator::start(upstream, simulator::Config::default());
    let admin = cluster.admin_client().await?;
    let kubeconfig = cluster.admin()?.display().to_string();
    let report = cluster.dir.join("report.md");
    // The webhooks refuse what the registration of a provider excludes, where without them the provider's controller reports it.
    let webhooks = format!("127.0.0.1:{}", runway_testbed::free_port()?);
    let run = async |provider: &str| -> Result<(Output, String)> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.args(["upstream", "--no-answers", "--kubeconfig", &kubeconfig]);
        command.args(["--webhook-address", &webhooks]);
        command.args(["--provider", provider, "--namespace", provider, "--patience", "120"]);
        command.arg("--report").arg(&report);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok((output, std::fs::read_to_string(&report)?))
    };

    let passes = async |provider: &str, rows: &[&str]| -> Result<()> {
        let (output, report) = run(provider).await?;
        ensure!(
            output.status.success() && report.contains("0 failed"),
            "{report}\n{output:?}"
        );
        for row in rows {
            ensure!(report.contains(row), "no row '{row}' in {report}");
        }
        Ok(())
    };

    passes(
        "kuberay",
        &[
            "accepts vllm, disaggregated | passed",
            "accepts vllm, aggregated, with many fields | passed",
            "serves a model | SKIPPED: 1 nvidia.com/gpu are needed, and the nodes of the cluster have 0",
        ],
    )
    .await?;
    passes(
        "kaito",
        &[
            "accepts vllm, aggregated | passed",
            "accepts vllm, aggregated, with many fields | SKIPPED: spec.env cannot be passed to KAITO's preset pods",
            "serves a model | passed",
        ],
    )
    .await?;

    // The simulator needs no node; the suite looks for GPUs.
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "gpus" } });
    apply::apply(&admin, &serde_json::from_value(node)?, "test").await?;
    let gpus = json!({ "status": { "allocatable": { "nvidia.com/gpu": "2" }, "capacity": { "nvidia.com/gpu": "2" } } });
    let nodes: Api<Node> = Api::all(admin);
    nodes
        .patch_status("gpus", &PatchParams::default(), &Patch::Merge(&gpus))
        .await?;
    passes(
        "dynamo",
        &[
            "the provider registers and is ready | passed",
            "accepts vllm, aggregated | passed",
            "accepts sglang, disaggregated, with many fields | passed",
            "serves a model | passed",
            "reverts a change of its upstream object | passed",
            "rolls out a changed environment | passed",
            "scales to 2 replicas and back, at the same endpoint | passed",
            "deletes everything | passed",
        ],
    )
    .await?;

    let (output, _) = run("kubray").await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        said.contains("set --provider to one of kaito, dynamo, kuberay, direct"),
        "{said}"
    );
    cluster.stop().await
}
