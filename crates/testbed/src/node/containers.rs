//! Containers of pods, by the ids that containerd gives them.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;

use super::Node;

impl Node {
    /// Kills a container with SIGKILL. The kubelet starts another one, unless the pod's restart policy forbids it.
    pub async fn kill(&self, container: &str) -> Result<()> {
        let kill = ["task", "kill", "--signal", "SIGKILL", container];
        let output = self.ctr().args(kill).output().await.context("cannot run ctr")?;
        ensure!(
            output.status.success(),
            "cannot kill the container {container}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }
}

/// ID of a pod's first container. An error if that is not ready, or if the pod terminates.
pub fn running(pod: &Pod) -> Result<String> {
    let status = first(pod).filter(|status| status.ready && pod.metadata.deletion_timestamp.is_none());
    let status = status.with_context(|| format!("{} is not ready", pod.name_any()))?;
    let id = status
        .container_id
        .as_deref()
        .and_then(|id| id.strip_prefix("containerd://"));
    Ok(id.context("the container has no id")?.to_owned())
}

/// Number of times that a pod's first container was restarted.
pub fn restarts(pod: &Pod) -> i32 {
    first(pod).map_or(0, |status| status.restart_count)
}

fn first(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}
