//! The endpoint picker of the inference extension of the Gateway API, as a process beside [`Envoy`](crate::envoy::Envoy), for
//! benchmarks beside ours, and for the InferencePools of a [`Gateway`](crate::gateway::Gateway).
//!
//! In benchmarks, its InferencePool has one pod, whose ports are the engines. Without a pool, version 1.5.0 does not start: it requires the name of
//! one beside `--endpoint-selector`, and refuses it.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use anyhow::{Context as _, Result, ensure};
use runway_dev_support::versions::{Registry, pinned};
use serde_json::json;
use tempfile::TempDir;

use crate::control_plane::{Cluster, free_ports, wait};
use crate::envoy::{FULL_DUPLEX, Picker};
use crate::process::{self, Process, with_environment};
use crate::traffic::Bed;
use crate::traffic::client::get;
use crate::{binaries, crds};

/// Pinned version, such as v1.5.0.
pub fn version() -> &'static str {
    let (pins, module) = (
        include_str!("../endpoint-picker/go.mod"),
        "sigs.k8s.io/gateway-api-inference-extension",
    );
    pinned(pins, Registry::Go, module).unwrap_or_default()
}

/// Name of the process.
const NAME: &str = "epp";
/// User of the picker.
const USER: &str = "reference-picker";
/// Most ports of an InferencePool.
const MOST_PORTS: usize = 8;
/// Its own default configuration, with the metrics of llama-server in place of those of vLLM. Without scores of the KV cache, which
/// llama-server does not measure.
const CONFIG: &str = "
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
- type: core-metrics-extractor
  parameters:
    defaultEngine: llamacpp
    engineConfigs:
    - name: llamacpp
      queuedRequestsSpec: llamacpp:requests_deferred
      runningRequestsSpec: llamacpp:requests_processing
schedulingProfiles:
- name: default
  plugins:
  - { pluginRef: queue-scorer, weight: 2 }
  - { pluginRef: prefix-cache-scorer, weight: 3 }
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{ pluginRef: core-metrics-extractor }]
";

/// A running picker. Dropping it kills it.
pub struct ReferencePicker {
    /// Address for Envoy.
    pub address: SocketAddr,
    metrics: SocketAddr,
    /// Process id.
    pub pid: u32,
    _process: Process,
    _folder: TempDir,
}

impl ReferencePicker {
    /// Starts it for these engines of one address, which are the ports of one pod.
    ///
    /// # Errors
    /// It cannot be built, does not start, or the engines do not have one address.
    pub async fn start(bed: &Bed, namespace: &str, engines: &[SocketAddr]) -> Result<Self> {
        let first = engines.first().context("no engine")?;
        ensure!(
            engines.len() <= MOST_PORTS && engines.iter().all(|engine| engine.ip() == first.ip()),
            "the engines must be at most {MOST_PORTS} and have one address: {engines:?}"
        );
        // Each time another: ports of a pod do not change.
        let pod = format!("{NAME}-{}", first.port());
        bed.pod(namespace, &pod, (NAME, &pod), *first).await?;
        for crd in crds::gateway_api().await? {
            crds::install_crd(&bed.admin, crd).await?;
        }
        let ports: Vec<_> = engines
            .iter()
            .map(|engine| json!({ "number": engine.port() }))
            .collect();
        bed.apply(json!({
            "apiVersion": "inference.networking.k8s.io/v1", "kind": "InferencePool",
            "metadata": { "name": pod, "namespace": namespace },
            "spec": {
                "selector": { "matchLabels": { NAME: pod } }, "targetPorts": ports,
                "endpointPickerRef": { "name": NAME, "port": { "number": 9002 } },
            },
        }))
        .await?;
        let [port] = free_ports()?;
        Self::run(&bed.cluster, (namespace, &pod), port, false).await
    }

    /// Starts it for an InferencePool, at a port of all addresses of this machine, with TLS as by default.
    ///
    /// # Errors
    /// It cannot be built, or does not start.
    pub async fn for_pool(cluster: &Cluster, namespace: &str, pool: &str, port: u16) -> Result<Self> {
        Self::run(cluster, (namespace, pool), port, true).await
    }

    async fn run(cluster: &Cluster, (namespace, pool): (&str, &str), port: u16, tls: bool) -> Result<Self> {
        let program = tokio::task::spawn_blocking(binaries::endpoint_picker).await??;
        let folder = tempfile::Builder::new().prefix("runway-testbed-picker-").tempdir()?;
        let kubeconfig = cluster.kubeconfig(USER, &["system:masters"])?;
        let [health, metrics] = free_ports()?;
        let args = [
            program.display().to_string(),
            format!("--pool-name={pool}"),
            format!("--pool-namespace={namespace}"),
            format!("--grpc-port={port}"),
            format!("--grpc-health-port={health}"),
            format!("--metrics-port={metrics}"),
            format!("--config-text={CONFIG}"),
            format!("--secure-serving={tls}"),
            "--metrics-endpoint-auth=false".to_owned(),
            "--tracing=false".to_owned(),
            "--enable-pprof=false".to_owned(),
            "--v=1".to_owned(),
        ];
        let kubeconfig = kubeconfig.display().to_string();
        let variables = [("KUBECONFIG", &*kubeconfig)];
        let component = with_environment(NAME, folder.path(), variables.into_iter(), &args);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut process = component.spawn()?;
        wait(&mut process, &component, async || TcpStream::connect(address).is_ok()).await?;
        let pid = process::recorded_pid(folder.path(), NAME).context("the picker has ended")?;
        Ok(Self {
            address,
            metrics: SocketAddr::from((Ipv4Addr::LOCALHOST, metrics)),
            pid,
            _process: process,
            _folder: folder,
        })
    }

    /// Metrics in the format of Prometheus.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn metrics(&self) -> Result<String> {
        get(self.metrics, "/metrics").await
    }

    /// Its way for Envoy.
    pub fn picker(&self) -> Picker {
        Picker {
            address: self.address,
            tls: false,
            request_body_mode: FULL_DUPLEX,
            response_body_mode: FULL_DUPLEX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_pinned() {
        assert!(version().starts_with('v') && !version().contains(' '), "{}", version());
    }
}
