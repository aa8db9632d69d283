//! A ModelDeployment without a provider: its status is written here, and its engine is a process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::StreamExt as _;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt as _, watcher};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio_util::task::AbortOnDropHandle;

use super::{Bed, NAMESPACE};
use crate::control_plane::free_ports;
use crate::process::{Component, Process};
use crate::{PATIENCE, say};

/// From the status without a ready replica until the engine gets SIGTERM: before that, a pod that ends has left the EndpointSlices.
const UNROUTED: Duration = Duration::from_millis(50);
/// Pause until the next attempt to connect to an engine that starts.
const ACCEPTS_SOON: Duration = Duration::from_millis(2);
/// Longest time for an engine to end in order.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// A model, which follows `spec.scaling.replicas`: an engine runs while it is not zero, and the status says so.
pub struct Model {
    played: Arc<Played>,
    state: watch::Receiver<State>,
    _task: AbortOnDropHandle<()>,
}

struct Played {
    name: String,
    objects: Api<DynamicObject>,
    component: Component,
    port: u16,
    engine: AsyncMutex<Option<Process>>,
    ends: Interruptions,
    starts: AtomicUsize,
    /// From the moment that the replicas were seen until the status of a ready replica was sent, of the last start.
    started_in: Mutex<Duration>,
}

/// State of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asleep,
    Awake,
}

/// Counts interruptions of a process. Odd while there is one.
#[derive(Debug, Default)]
pub struct Interruptions(AtomicU64);

impl Interruptions {
    /// The process is about to be interrupted, or the interruption is over.
    pub fn turn(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// A moment, for [`Self::since`].
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether there was an interruption at this moment or after it.
    pub fn since(&self, moment: u64) -> bool {
        moment % 2 == 1 || self.now() != moment
    }
}

impl Model {
    /// Creates a model of [`NAMESPACE`] with this number of replicas. Its engine is `program` with these arguments.
    pub async fn create(bed: &Bed, program: &Path, name: &str, replicas: i32, args: &[&str]) -> Result<Self> {
        bed.model(NAMESPACE, name, name, replicas).await?;
        let [port] = free_ports()?;
        let component = Component {
            name: format!("engine-{name}"),
            program: program.to_owned(),
            args: Vec::new(),
            dir: bed.cluster.dir.clone(),
            scratch: None,
        };
        let mut played = Played {
            name: name.to_owned(),
            objects: bed.objects(NAMESPACE),
            component,
            port,
            engine: AsyncMutex::default(),
            ends: Interruptions::default(),
            starts: AtomicUsize::default(),
            started_in: Mutex::default(),
        };
        let usual = [
            format!("--address=127.0.0.1:{port}"),
            format!("--received={}", played.received().display()),
        ];
        played.component.args = usual.into_iter().chain(args.iter().map(ToString::to_string)).collect();
        let played = Arc::new(played);
        let (announce, state) = watch::channel(State::Asleep);
        let task = tokio::spawn({
            let played = Arc::clone(&played);
            async move {
                if let Err(error) = played.follow(&announce).await {
                    say(&format!(
                        "the model '{}' is not played any longer: {error:#}",
                        played.name
                    ));
                }
            }
        });
        Ok(Self {
            played,
            state,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Name of the ModelDeployment and of the model in requests.
    pub fn name(&self) -> &str {
        &self.played.name
    }

    /// Address of its engine.
    pub fn engine(&self) -> SocketAddr {
        self.played.address()
    }

    /// Sets `spec.scaling.replicas` to zero.
    pub async fn sleep(&self) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": { "scaling": { "replicas": 0 } } }));
        let params = PatchParams::default();
        self.played.objects.patch(&self.played.name, &params, &patch).await?;
        Ok(())
    }

    /// Waits until the engine has ended, and the status has no ready replica.
    pub async fn asleep(&self) -> Result<()> {
        self.wait_for(State::Asleep).await
    }

    /// Waits until the engine accepts connections, and the status has a ready replica.
    pub async fn awake(&self) -> Result<()> {
        self.wait_for(State::Awake).await
    }

    async fn wait_for(&self, wanted: State) -> Result<()> {
        let mut state = self.state.clone();
        let reached = tokio::time::timeout(PATIENCE, state.wait_for(|state| *state == wanted));
        let reached = reached
            .await
            .with_context(|| format!("'{}' is not {wanted:?}", self.name()))?;
        reached.with_context(|| format!("'{}' is not played any longer", self.name()))?;
        Ok(())
    }

    /// kill -9 of the engine, and a new one after this time, as a kubelet would start it. Returns whether there was one.
    pub async fn kill_engine(&self, away: Duration) -> Result<bool> {
        let mut engine = self.played.engine.lock().await;
        let Some(running) = engine.take() else {
            return Ok(false);
        };
        self.played.ends.turn();
        drop(running);
        self.played.ends.turn();
        tokio::time::sleep(away).await;
        *engine = Some(self.played.start().await?);
        Ok(true)
    }

    /// Ends of the engine, in order and by kill.
    pub fn engine_ends(&self) -> &Interruptions {
        &self.played.ends
    }

    /// Starts from zero.
    pub fn starts(&self) -> usize {
        self.played.starts.load(Ordering::SeqCst)
    }

    /// Time that the last start took by itself: from the moment that the replicas were seen until the status of a ready replica
    /// was sent.
    pub fn started_in(&self) -> Duration {
        *self.played.started_in.lock()
    }

    /// Values of `x-request-id` that its engines have received, of all their lives.
    pub fn received(&self) -> Vec<String> {
        let text = fs::read_to_string(self.played.received()).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

impl Played {
    fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    fn received(&self) -> PathBuf {
        self.component.dir.join(format!("{}.received", self.component.name))
    }

    async fn follow(&self, announce: &watch::Sender<State>) -> Result<()> {
        let one = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut objects = std::pin::pin!(watcher(self.objects.clone(), one).default_backoff().applied_objects());
        while let Some(object) = objects.next().await {
            let seen = Instant::now();
            // A watch that ends begins again.
            let Ok(object) = object else { continue };
            let replicas = object.data["spec"]["scaling"]["replicas"].as_i64();
            let mut engine = self.engine.lock().await;
            match (replicas != Some(0), engine.is_some()) {
                (true, false) => {
                    *engine = Some(self.start().await?);
                    *self.started_in.lock() = seen.elapsed();
                    self.starts.fetch_add(1, Ordering::SeqCst);
                    let endpoint = json!({ "service": self.name, "port": self.port });
                    self.report(json!({ "endpoint": endpoint, "replicas": { "ready": 1 } }))
                        .await?;
                    announce.send_replace(State::Awake);
                }
                (false, true) => {
                    self.report(json!({ "replicas": { "ready": 0 } })).await?;
                    tokio::time::sleep(UNROUTED).await;
                    self.ends.turn();
                    if let Some(engine) = engine.take() {
                        engine.stop(ENDS_WITHIN).await;
                    }
                    self.ends.turn();
                    announce.send_replace(State::Asleep);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn start(&self) -> Result<Process> {
        let mut process = self.component.spawn()?;
        while TcpStream::connect(self.address()).await.is_err() {
            if let Some(status) = process.ended() {
                return Err(self.component.complain(&format!("ended ({status})")));
            }
            tokio::time::sleep(ACCEPTS_SOON).await;
        }
        Ok(process)
    }

    async fn report(&self, status: serde_json::Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        let params = PatchParams::default();
        let written = self.objects.patch_status(&self.name, &params, &patch).await?;
        ensure!(written.data["status"].is_object(), "the status is not stored");
        Ok(())
    }
}
