//! `cargo xtask upstream` against the upstream simulator: what needs GPUs is skipped, the rest passes.
//! The core's webhooks are installed.

use std::path::PathBuf;
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use runway_manifests as manifests;
use runway_testbed::{ControlPlane, Options, apply, crds};
use runway_upstream_simulator::{self as simulator, Simulator};
use serde_json::json;

/// A control plane with the upstream simulator.
struct Bed {
    cluster: Box<ControlPlane>,
    _simulator: Simulator,
    webhooks: String,
    report: PathBuf,
}

impl Bed {
    async fn start() -> Result<Self> {
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
        Ok(Self {
            _simulator: Simulator::start(upstream, simulator::Config::default()),
            // The webhooks refuse what the registration of a provider excludes, where without them the provider's controller reports it.
            webhooks: format!("127.0.0.1:{}", runway_testbed::free_port()?),
            report: cluster.dir.join("report.md"),
            cluster: Box::new(cluster),
        })
    }

    /// Runs the suite of a provider. Returns its output and its report.
    async fn run(&self, provider: &str, more: &[&str]) -> Result<(Output, String)> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runway-dev-upstream"));
        command.args(["upstream", "--no-answers", "--webhook-address", &self.webhooks]);
        command.args(["--provider", provider, "--namespace", provider, "--patience", "120"]);
        command.arg("--kubeconfig").arg(self.cluster.admin()?);
        command.arg("--report").arg(&self.report).args(more);
        let output = tokio::task::spawn_blocking(move || command.output()).await??;
        Ok((output, std::fs::read_to_string(&self.report)?))
    }

    /// Runs the suite of a provider, whose report has these rows and no failure.
    async fn passes(&self, provider: &str, more: &[&str], rows: &[&str]) -> Result<()> {
        let (output, report) = self.run(provider, more).await?;
        ensure!(
            output.status.success() && report.contains("0 failed"),
            "{report}\n{output:?}"
        );
        for row in rows {
            ensure!(report.contains(row), "no row '{row}' in {report}");
        }
        Ok(())
    }
}

/// Rows of KAITO's report.
const KAITO: [&str; 3] = [
    "accepts vllm, aggregated | passed",
    "accepts vllm, aggregated, with many fields | SKIPPED: spec.env cannot be passed to KAITO's preset pods",
    "serves a model | passed",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_with_roles_in_one_namespace() -> Result<()> {
    let bed = Bed::start().await?;
    let log = bed.cluster.audit().await?;
    let mark = log.mark().await?;
    bed.passes("kaito", &["--namespaced"], &KAITO).await?;
    let requests = log.since(mark).await?;
    for user in ["kubeairunway-controller", "kaito-provider"] {
        let own = || requests.iter().filter(|request| request.impersonated == user);
        ensure!(
            own().any(|request| request.namespace == "kaito"),
            "{user} did not act in the namespace"
        );
        let places = ["", "kaito", manifests::NAMESPACE];
        let beyond: Vec<_> = own()
            .filter(|request| request.code == 403 || !places.contains(&request.namespace.as_str()))
            .collect();
        ensure!(beyond.is_empty(), "{beyond:?}");
    }
    bed.cluster.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_passes_against_the_simulator() -> Result<()> {
    let bed = Bed::start().await?;
    bed.passes(
        "kuberay",
        &[],
        &[
            "accepts vllm, disaggregated | passed",
            "accepts vllm, aggregated, with many fields | passed",
            "serves a model | SKIPPED: 1 nvidia.com/gpu are needed, and the nodes of the cluster have 0",
        ],
    )
    .await?;
    bed.passes("kaito", &[], &KAITO).await?;

    // The simulator needs no node; the suite looks for GPUs.
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "gpus" } });
    let admin = bed.cluster.admin_client().await?;
    apply::apply(&admin, &serde_json::from_value(node)?, "test").await?;
    let gpus = json!({ "status": { "allocatable": { "nvidia.com/gpu": "2" }, "capacity": { "nvidia.com/gpu": "2" } } });
    let nodes: Api<Node> = Api::all(admin);
    nodes
        .patch_status("gpus", &PatchParams::default(), &Patch::Merge(&gpus))
        .await?;
    bed.passes(
        "dynamo",
        &[],
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

    let (output, _) = bed.run("kubray", &[]).await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        said.contains("set --provider to one of kaito, dynamo, kuberay, direct"),
        "{said}"
    );
    bed.cluster.stop().await
}
