//! Real Kubernetes from source, and real programs around it. For tests only.
//!
//! A test gets an API server, etcd and controller manager of its own in a few seconds, with no container engine and
//! no root. The first use builds them with Go, once for the machine, which takes minutes and says so. As root on Linux
//! it can have a real [`node`] as well.
//!
//! | module | what it does |
//! |---|---|
//! | [`binaries`] | finds or builds etcd, kube-apiserver, kube-controller-manager and kubectl |
//! | [`control_plane`] | starts, stops, keeps and restarts a control plane; kubeconfigs and clients for any user |
//! | [`node`] | adds a real node to a control plane: containerd, kubelet, kube-proxy, DNS; pods run |
//! | [`images`] | container images without a container engine, ours and small ones for tests |
//! | [`engine`] | a real llama-server with a model whose answer is known, and engines that misbehave |
//! | [`envoy`] | a real Envoy that asks an endpoint picker for the replica of each request |
//! | [`peers`] | other routers for models, from PyPI |
//! | [`llama_stack`] | real Llama Stack servers from PyPI, and what provider images stand on |
//! | [`collector`] | receives traces |
//! | [`audit`] | counts the requests of each client, exactly |
//! | [`apply`] | puts objects of any kind into a cluster |
//! | [`tokens`] | tokens of ServiceAccounts |
//! | [`crds`] | upstream CRDs, the real ones where they can be had |
//! | [`rabbitmq`] | a real RabbitMQ, any number of them beside each other; a cluster of RabbitMQ 4 |
//! | [`valkey`] | a real Valkey |
//! | [`keda`] | a real KEDA, as pods of a node |
//! | [`dynamo`] | Dynamo's real frontend and mocker, as an image for a node |
//! | [`vllm`] | the real vLLM on CPUs: judges arguments, serves a model whose answer is known |
//! | [`ray`] | the real KubeRay operator, and the real Ray Serve with a stand-in for the engine |
//! | [`sqs`] | a server that speaks SQS' protocol |
//! | [`clocks`] | processes whose clocks are wrong |
//! | [`npm`] | clients of the router from npm |
//! | [`gateway`] | a Gateway with a real Envoy as its data path, and a simulator of its controller |
//! | [`reference_picker`] | the endpoint picker of the inference extension of the Gateway API |
//! | [`browser`] | Chromium, driven by Playwright |
//! | [`prepare`] | gets what tests need of the machine, ahead of them |
//! | [`proxy`] | a TCP proxy whose connections can be cut |
//! | [`traffic`] | a model router between clients and engines that can be killed |
//! | [`fault`] | a proxy between a controller and the API server, with faults of single writes and events |
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use runway_testbed::{ControlPlane, Options, audit, crds};
//! use runway_upstream_simulator::{self as simulator, Simulator};
//!
//! let crds = crds::upstream_crds(&[crds::KAITO_WORKSPACES])?;
//! let cluster = ControlPlane::start(Options { crds, ..Options::default() }).await?;
//! let upstream = cluster.client("kaito", &["system:masters"]).await?;
//! let _simulator = Simulator::start(upstream, simulator::Config::default());
//! let mark = cluster.audit().await?.mark().await?;
//! // … run a controller as `cluster.client("my-controller", &[])`, make objects, wait with `eventually` …
//! for (user, count) in audit::by_user(&cluster.audit().await?.since(mark).await?) {
//!     println!("{user}: {count}");
//! }
//! # Ok(())
//! # }
//! ```
#![allow(
    clippy::missing_errors_doc,
    reason = "every step of a test can fail, and its error says what did"
)]

pub mod apply;
pub mod audit;
pub mod binaries;
pub mod browser;
mod cache;
pub mod clocks;
pub mod collector;
pub mod control_plane;
pub mod crds;
pub mod dex;
pub mod dynamo;
pub mod engine;
pub mod envoy;
pub mod fault;
pub mod fields;
pub mod gateway;
pub mod images;
pub mod keda;
pub mod llama_stack;
pub mod node;
pub mod npm;
pub mod packages;
pub mod peers;
mod pki;
pub mod prepare;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod python;
pub mod rabbitmq;
pub mod ray;
pub mod reference_picker;
mod roots;
pub mod sqs;
pub mod tokens;
pub mod traffic;
pub mod valkey;
pub mod vllm;

use std::{
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

pub use audit::Audit;
pub use collector::Collector;
pub use control_plane::{Cluster, ControlPlane, Options, free_port, free_ports, own_address};
pub use node::Node;
pub use process::{Memory, memory};
pub use proxy::Proxy;
pub use rabbitmq::{RabbitMq, RabbitMqCluster, RabbitMqOptions};
pub use sqs::Sqs;
pub use valkey::Valkey;

/// The models that `cargo xtask up` shows and the console is tried with: files of `deploy/examples`, without `.yaml`.
pub const EXAMPLES: [&str; 6] = [
    "gemma-cpu",
    "llama-8b",
    "phi-4-mini",
    "qwen-replicas",
    "llama-70b-pd",
    "qwen-kuberay",
];

/// The test bed's own identity; [`Audit::since`] skips its requests.
pub(crate) const SELF: &str = "runway-testbed";

/// Longest time to wait for a condition. Nothing is measured with it, because the machine may be busy.
pub const PATIENCE: Duration = Duration::from_mins(5);

/// Waits of [`eventually`] between two attempts.
const SOONEST: Duration = Duration::from_millis(50);
const LATEST: Duration = Duration::from_millis(250);

/// Waits for `condition` to be `Ok` and returns its value; after `timeout` its last error is the message.
///
/// ```no_run
/// # async fn example(pods: kube::Api<k8s_openapi::api::core::v1::Pod>) -> anyhow::Result<()> {
/// # use std::time::Duration;
/// let pod = runway_testbed::eventually(Duration::from_secs(5), async || Ok(pods.get("a").await?)).await?;
/// # Ok(())
/// # }
/// ```
pub async fn eventually<T>(timeout: Duration, condition: impl AsyncFn() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match condition().await {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > timeout => {
                bail!("still not so after {timeout:?}: {error:#}")
            }
            // What takes long is asked less often: many tests share one API server.
            Err(_) => tokio::time::sleep((start.elapsed() / 10).clamp(SOONEST, LATEST)).await,
        }
    }
}

/// kube leaves the choice of TLS provider to the program. Installed twice is fine: the first stays.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Speaks to the person who waits. Past the test harness, which would keep it until the end.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "testbed: {message}");
}

/// The end of a log, for an error message.
fn last_lines(log: &Path, count: usize) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
