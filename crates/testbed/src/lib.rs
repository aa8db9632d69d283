//! Real Kubernetes from source, and simulators of upstream operators. For tests only.
//!
//! A test gets an API server, etcd and controller manager of its own in a few seconds, with no container engine and
//! no root. The first use builds them with Go, once for the machine, which takes minutes and says so.
//!
//! | module | what it does |
//! |---|---|
//! | [`binaries`] | finds or builds etcd, kube-apiserver, kube-controller-manager and kubectl |
//! | [`control_plane`] | starts, stops, keeps and restarts a control plane; kubeconfigs and clients for any user |
//! | [`audit`] | counts the requests of each client, exactly |
//! | [`crds`] | upstream CRDs, the real ones where they can be had |
//! | [`simulator`] | the **upstream simulator**: plays the controllers of operators that cannot be had |
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use runway_testbed::{ControlPlane, Options, Simulator, audit, crds, simulator};
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

pub mod audit;
pub mod binaries;
pub mod control_plane;
pub mod crds;
mod pki;
mod process;
pub mod simulator;

use std::{
    io::Write as _,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

pub use audit::Audit;
pub use control_plane::{Cluster, ControlPlane, Options};
pub use simulator::Simulator;

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
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// kube leaves the choice of TLS provider to the program. Installed twice is fine: the first stays.
pub fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Speaks to the person who waits. Past the test harness, which would keep it until the end.
fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "testbed: {message}");
}

/// The end of a log, for an error message.
fn last_lines(log: &Path, count: usize) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}
