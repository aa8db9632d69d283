//! A simulated kubelet. For each pod with a sidecar it runs the real sidecar as the pod configures it, in this process,
//! and the real Python runtime with a handler that returns its payload. It reports pods as ready, and removes deleted
//! ones when their sidecar has ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Container, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use runway_api::labels;
use runway_asya_sidecar::config::Config;
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bed::NAMESPACE;

/// Name of the node.
pub(crate) const NODE: &str = "simulated";
const SIDECAR: &str = "asya-sidecar";
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Settings of the sidecar that are those of a pod, and not of a process beside others.
const OF_POD: [&str; 3] = ["SOCKET", "SOCKET_DIR", "METRICS_ADDR"];

/// A running kubelet. Dropping it kills all sidecars.
pub(crate) struct Kubelet {
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct State {
    pods: Api<Pod>,
    /// By uid of the pod. A pod that is not an actor's has no sidecar.
    running: Mutex<BTreeMap<String, Option<Sidecar>>>,
    /// Whether pods end by SIGKILL.
    kills: AtomicBool,
    killed: AtomicUsize,
}

impl Kubelet {
    /// Creates [`NODE`], and runs its pods.
    pub(crate) async fn start(client: Client) -> Result<Self> {
        let node: Node = serde_json::from_value(json!({"metadata": {"name": NODE}}))?;
        Api::all(client.clone()).create(&PostParams::default(), &node).await?;
        let state = Arc::new(State {
            pods: Api::namespaced(client, NAMESPACE),
            running: Mutex::default(),
            kills: AtomicBool::new(false),
            killed: AtomicUsize::new(0),
        });
        let own = Arc::clone(&state);
        let task = tokio::spawn(async move {
            loop {
                if let Err(error) = own.sync().await {
                    println!("kubelet: {error:#}");
                }
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        });
        Ok(Self { state, task })
    }

    /// Whether the sidecars of pods that are deleted are killed. Otherwise they finish their messages.
    pub(crate) fn kill(&self, kills: bool) {
        self.state.kills.store(kills, Ordering::Relaxed);
    }

    /// Number of sidecars that were killed.
    pub(crate) fn killed(&self) -> usize {
        self.state.killed.load(Ordering::Relaxed)
    }

    /// Whether a sidecar of this actor runs.
    pub(crate) async fn runs(&self, actor: &str) -> bool {
        let running = self.state.running.lock().await;
        running.values().flatten().any(|sidecar| sidecar.actor == actor)
    }
}

impl State {
    async fn sync(&self) -> Result<()> {
        let pods = self.pods.list(&ListParams::default()).await?.items;
        for pod in &pods {
            let uid = pod.uid().context("a pod without uid")?;
            if pod.metadata.deletion_timestamp.is_some() {
                self.end(&uid).await;
                let now = DeleteParams::default().grace_period(0);
                self.pods.delete(&pod.name_any(), &now).await?;
            } else if !self.running.lock().await.contains_key(&uid) {
                self.run(pod, uid).await?;
            }
        }
        let is_there = |uid: &String| pods.iter().any(|pod| pod.uid().as_ref() == Some(uid));
        let gone: Vec<String> = self
            .running
            .lock()
            .await
            .keys()
            .filter(|uid| !is_there(uid))
            .cloned()
            .collect();
        for uid in gone {
            self.end(&uid).await;
        }
        Ok(())
    }

    async fn run(&self, pod: &Pod, uid: String) -> Result<()> {
        let spec = pod.spec.as_ref().context("a pod without spec")?;
        let container = spec.containers.iter().find(|container| container.name == SIDECAR);
        let actor = pod.labels().get(labels::ASYA_ACTOR).cloned().unwrap_or_default();
        let sidecar = container
            .map(|container| Sidecar::start(actor, container))
            .transpose()?;
        self.running.lock().await.insert(uid, sidecar);
        let states = spec.containers.iter().map(|container| {
            json!({"name": container.name, "image": container.image, "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {}}})
        });
        let running = json!({"status": {"phase": "Running", "containerStatuses": states.collect::<Vec<_>>(),
            "conditions": [{"type": "Ready", "status": "True"}]}});
        let params = PatchParams::default();
        self.pods
            .patch_status(&pod.name_any(), &params, &Patch::Merge(running))
            .await?;
        Ok(())
    }

    async fn end(&self, uid: &str) {
        let Some(sidecar) = self.running.lock().await.remove(uid).flatten() else {
            return;
        };
        if self.kills.load(Ordering::Relaxed) {
            self.killed.fetch_add(1, Ordering::Relaxed);
        } else {
            sidecar.finish().await;
        }
    }
}

/// A sidecar and its runtime. Dropping it kills both: all tasks and connections of the sidecar end at once.
struct Sidecar {
    actor: String,
    threads: Option<tokio::runtime::Runtime>,
    task: Option<JoinHandle<Result<(), runway_asya_sidecar::Error>>>,
    stop: CancellationToken,
    handler: Child,
    _folder: TempDir,
}

impl Sidecar {
    fn start(actor: String, container: &Container) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("testbed-actor-").tempdir()?;
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python/asya-runtime/src");
        let handler = Command::new("python3")
            .args(["-m", "asya_runtime"])
            .env("PYTHONPATH", source)
            .env("ASYA_HANDLER", "copy.copy")
            .env("ASYA_SOCKET_DIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let stop = CancellationToken::new();
        let config = config(container, folder.path())?;
        Ok(Self {
            actor,
            task: Some(threads.spawn(runway_asya_sidecar::run(config, stop.clone()))),
            threads: Some(threads),
            stop,
            handler,
            _folder: folder,
        })
    }

    /// SIGTERM, and waits for the end.
    async fn finish(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take() {
            let _ = task.await;
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
        let _ = self.handler.kill();
        let _ = self.handler.wait();
    }
}

/// Settings of a sidecar as its container has them. Each variable is an option too.
fn config(container: &Container, folder: &Path) -> Result<Config> {
    let variables = container.env.iter().flatten();
    let set = variables.filter_map(|variable| Some((variable.name.strip_prefix("ASYA_")?, variable.value.as_ref()?)));
    let options = set
        .filter(|(name, _)| !OF_POD.contains(name))
        .map(|(name, value)| format!("--{}={value}", name.to_lowercase().replace('_', "-")));
    let own = [
        format!("--socket-dir={}", folder.display()),
        "--metrics-enabled=false".to_owned(),
    ];
    let line = std::iter::once(SIDECAR.to_owned()).chain(options).chain(own);
    Ok(Config::read(line.map(Into::into))?)
}
