//! A real KEDA on a real node: its own programs as pods, by its own manifests.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod};
use kube::{Api, api::ListParams};

use crate::{Node, PATIENCE, binaries, eventually};

const NAMESPACE: &str = "keda";

/// KEDA's manifests, but: images of our own, no admission pod (its webhook lets everything through while it is away; the operator
/// wants the configuration to be there), and probes that begin at once.
const OVERLAY: &str = "\
resources: [config/default]
images:
- {name: ghcr.io/kedacore/keda, newName: testbed.local/keda, newTag: '1'}
- {name: ghcr.io/kedacore/keda-metrics-apiserver, newName: testbed.local/keda-adapter, newTag: '1'}
replicas:
- {name: keda-admission, count: 0}
patches:
- target: {kind: Deployment, name: keda-(operator|metrics-apiserver)}
  patch: |
    - {op: replace, path: /spec/template/spec/containers/0/imagePullPolicy, value: Never}
    - {op: replace, path: /spec/template/spec/containers/0/readinessProbe/initialDelaySeconds, value: 1}
    - {op: add, path: /spec/template/spec/containers/0/readinessProbe/periodSeconds, value: 1}
    - {op: remove, path: /spec/template/spec/containers/0/resources}
";

/// Builds KEDA, so that later installations are quick. Blocking.
pub fn prepare() -> Result<()> {
    binaries::keda().map(drop)
}

/// Installs KEDA and waits until it scales: its operator is ready, and the API server has its metrics.
pub async fn install(node: &Node) -> Result<()> {
    let keda = tokio::task::spawn_blocking(binaries::keda).await??;
    node.import_program("testbed.local/keda:1", &keda.operator, &[]).await?;
    node.import_program("testbed.local/keda-adapter:1", &keda.adapter, &[])
        .await?;
    let folder = node.dir.join("keda");
    binaries::copy_folder(&keda.manifests, &folder.join("config"))?;
    fs::write(folder.join("kustomization.yaml"), OVERLAY)?;
    apply(node, &folder).await?;
    let deployments: Api<Deployment> = Api::namespaced(node.test_bed_client().await?, NAMESPACE);
    for name in ["keda-operator", "keda-metrics-apiserver"] {
        eventually(PATIENCE, async || {
            let status = deployments.get(name).await?.status.unwrap_or_default();
            ensure!(status.available_replicas == Some(1), "{}", pods(node).await?);
            Ok(())
        })
        .await
        .with_context(|| format!("{name} does not become available"))?;
    }
    eventually(PATIENCE, async || {
        let answer = node
            .kubectl()?
            .args(["get", "--raw", "/apis/external.metrics.k8s.io/v1beta1"])
            .output()
            .await?;
        ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr));
        Ok(())
    })
    .await
    .context("KEDA's metrics are not served")
}

async fn apply(node: &Node, folder: &Path) -> Result<()> {
    let output = node
        .kubectl()?
        .args(["apply", "--server-side", "--kustomize"])
        .arg(folder)
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "KEDA's manifests are refused: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// State of its pods, for an error message.
async fn pods(node: &Node) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(node.test_bed_client().await?, NAMESPACE);
    let all = pods.list(&ListParams::default()).await?.items;
    let states = all
        .into_iter()
        .map(|pod| pod.status.unwrap_or_default().container_statuses);
    Ok(serde_json::to_string(&states.collect::<Vec<_>>())?)
}
