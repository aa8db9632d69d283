//! The **upstream simulator**: plays the controllers of upstream operators on a real API server.
//!
//! The operators themselves cannot be had from package registries. Their CRDs are real, the API server is real, and what
//! the simulator writes is what the real controllers write; no model runs by itself. It is named *upstream simulator*
//! wherever it appears, so that its Ready is not mistaken for a model that answers.
//!
//! There are two ways to play. By default objects go through a **timeline**: no nodes, and the status moves by time; the
//! pods are objects that no kubelet runs. With [`Config::workloads`] KAITO's **workloads** are made as the operator makes
//! them, a cluster with a node runs them, and the status follows the pods; with [`Config::dynamo_workloads`] the same is true of
//! Dynamo's. KubeRay's pods run in neither way; with `workloads` its objects are those of its current release.
//!
//! Each module has the table of what it plays, with the upstream's file and version: [`kaito`], [`dynamo`], [`kuberay`],
//! [`conversion`].
//!
//! Like the real ones it is driven by watches and is silent when nothing changes.

pub mod conversion;
pub mod dynamo;
mod engine;
pub mod kaito;
pub mod kuberay;
mod pods;
mod timeline;

use std::{fmt, future::Future, str::FromStr, time::Duration};

use futures::future::join3;
use kube::Client;
use tokio::task::{AbortHandle, JoinHandle};

/// On an upstream object: what shall become of it. See [`Behavior`].
pub const LABEL: &str = "kubeairunway.ai/simulate";

/// Options of the simulator.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub struct Config {
    /// From first sight of an object to its Ready.
    pub ready_after: Duration,
    /// For objects without the label.
    pub behavior: Behavior,
    /// Puts the operator's finalizer on its objects, where the real one has one: while the simulator is dead, nothing that
    /// it has seen can be deleted.
    pub finalizer: bool,
    /// Makes Services without an address of their own. For each address given out or taken back, kube-apiserver counts all
    /// that are in use (`ipallocator.Used`, Kubernetes 1.36): half of its CPU, while ten thousand are deleted.
    pub headless: bool,
    /// Makes the real workloads of an object, where the operator would and an image can serve them, and derives its
    /// status from them instead of from time: for clusters with a node. See [`kaito`].
    pub workloads: bool,
    /// Creates the Deployments of Dynamo's components, and derives the status from them instead of from time: for clusters with a
    /// node, the CRD of DynamoWorkerMetadata, and images that run there. See [`dynamo`].
    pub dynamo_workloads: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            ready_after: Duration::from_secs(1),
            behavior: Behavior::Ready,
            finalizer: true,
            headless: false,
            workloads: false,
            dynamo_workloads: false,
        }
    }
}

/// Behavior for an object; the value of [`LABEL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behavior {
    /// `ready`: Ready after the configured time.
    Ready,
    /// `slow`: Ready after ten times that.
    Slow,
    /// `stall`: no status, ever, and no finalizer: an operator that does not see it.
    Stall,
    /// `fail`: a terminal failure with a message.
    Fail,
    /// `flap`: Ready, and then, for good, not ready with a message.
    Flap,
    /// `crash`: Ready for good, although its pods crash after a while.
    Crash,
    /// `lost-head`: Ready for good, although its first pod is gone and nothing serves after a while.
    LostHead,
    /// `secret-missing`: a pod that waits for a Secret that is not there.
    SecretMissing,
    /// `stuck-delete`: Ready, but its deletion never ends.
    StuckDelete,
}

const BEHAVIORS: [(&str, Behavior); 9] = [
    ("ready", Behavior::Ready),
    ("slow", Behavior::Slow),
    ("stall", Behavior::Stall),
    ("fail", Behavior::Fail),
    ("flap", Behavior::Flap),
    ("crash", Behavior::Crash),
    ("lost-head", Behavior::LostHead),
    ("secret-missing", Behavior::SecretMissing),
    ("stuck-delete", Behavior::StuckDelete),
];

impl FromStr for Behavior {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = BEHAVIORS.iter().find(|(name, _)| *name == text);
        found.map(|(_, behavior)| *behavior).ok_or_else(|| {
            let known: Vec<_> = BEHAVIORS.iter().map(|(name, _)| *name).collect();
            format!("unknown behavior `{text}`; known: {}", known.join(", "))
        })
    }
}

impl fmt::Display for Behavior {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = BEHAVIORS.iter().find(|(_, behavior)| behavior == self);
        f.write_str(found.map_or("", |(name, _)| name))
    }
}

/// Plays all operators until dropped, each controller while its CRD is there.
pub async fn run(client: Client, config: Config) {
    join3(
        kaito::run(client.clone(), config.clone()),
        dynamo::run(client.clone(), config.clone()),
        kuberay::run(client, config),
    )
    .await;
}

/// A running simulator. Dropping it is the death of the upstream operator: no orderly end, nothing cleaned up.
pub struct Simulator(#[expect(dead_code, reason = "held for its drop")] Task);

impl Simulator {
    /// Starts playing with this client's identity. CRDs may come and go while it runs.
    pub fn start(client: Client, config: Config) -> Self {
        Self(Task::spawn(run(client, config)))
    }
}

/// A task that ends when this drops.
struct Task(AbortHandle);

impl Task {
    fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        let handle: JoinHandle<()> = tokio::spawn(future);
        Self(handle.abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
