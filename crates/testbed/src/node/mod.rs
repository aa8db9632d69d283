//! A real node: containerd, runc, kubelet, kube-proxy and CoreDNS beside a control plane, so that pods really run.
//!
//! Needs Linux and root; [`unavailable`] says what is missing, and [`skip`] says it loudly for a test. Programs are
//! built and Debian packages installed at first use, which takes minutes and says so; later a node is Ready in
//! about ten seconds.
//!
//! Several nodes, each with its own control plane, run on one machine at the same time: each has its own mount,
//! network and process namespaces, addresses ([`Network`]) and cgroup. Pods reach the host (an API server, or a
//! broker that a test starts) at [`Network::host`], and nothing beyond it; the host reaches pods and services at their
//! cluster addresses, so webhooks and API services in pods work.
//!
//! Nothing is left behind: the namespaces end with the node's first process, which ends with the test, however that
//! ends. Cgroups and folders go when the value drops, or after a crash at the next start or [`sweep`].
//!
//! Limits: no image registry (see [`crate::images`] and [`Node::import_image`]), no NetworkPolicy, one node, no
//! ephemeral-storage accounting. As on any node, the kubelet sets a few kernel parameters of the machine (`vm.*`, `kernel.panic*`).
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use runway_testbed::{Node, Options, images, node};
//!
//! if node::skip("the example") {
//!     return Ok(());
//! }
//! let node = Node::start(Options::default()).await?;
//! let busybox = images::busybox()?;
//! node.import_image(&busybox.archive).await?;
//! // Pods with `busybox.name` as image run now. What a control plane offers, a node's offers as well.
//! let client = node.admin_client().await?;
//! let address_for_pods = format!("amqp://{}:5672", node.network().host());
//! # Ok(())
//! # }
//! ```

mod claim;
mod containers;
mod daemons;
pub(crate) mod network;

use std::{
    fs,
    net::{Ipv4Addr, TcpStream},
    ops::{Deref, DerefMut},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1 as core;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use self::{claim::Claim, daemons::Setup};
use crate::{
    PATIENCE,
    binaries::NodeBinaries,
    control_plane::{Cluster, ControlPlane, Options},
    images, packages, process, say,
};

pub use containers::{restarts, running};
pub use network::Network;

/// The name of the node in its cluster.
pub const NODE_NAME: &str = "node";

const INIT: &str = include_str!("init.sh");
/// The component whose child is the node's first process.
const HOLDER: &str = "node";

/// A control plane with one real node. Dropping it ends both and takes everything back.
///
/// It dereferences to [`ControlPlane`], and so to [`Cluster`].
pub struct Node {
    // The claim first: with it every process of the node ends at once.
    claim: Claim,
    control_plane: ControlPlane,
    binaries: NodeBinaries,
    first: u32,
}

/// Reason why this machine cannot run a real node, if there is one.
pub fn unavailable() -> Option<&'static str> {
    if !cfg!(target_os = "linux") {
        Some("a real node needs Linux")
    } else if !process::is_root() {
        Some("a real node needs root (namespaces, cgroups, iptables)")
    } else {
        None
    }
}

/// Whether a test of `what` must be left out here. Says so past the test harness.
pub fn skip(what: &str) -> bool {
    if let Some(reason) = unavailable() {
        say(&format!("SKIPPED: {what}, because {reason}"));
        return true;
    }
    false
}

/// Takes back what nodes of crashed owners left; every start does so as well. Returns how many those were.
pub fn sweep() -> Result<usize> {
    match unavailable() {
        Some(_) => Ok(0),
        None => claim::sweep(),
    }
}

/// Builds and installs what a node needs, so that later starts are quick. Blocking.
pub fn prepare() -> Result<()> {
    if let Some(reason) = unavailable() {
        bail!("{reason}");
    }
    packages::ensure(&packages::NODE)?;
    NodeBinaries::ensure()?;
    images::pause()?;
    Ok(())
}

impl Node {
    /// Starts a control plane and a node, and waits until the node is Ready and services work.
    pub async fn start(options: Options) -> Result<Self> {
        tokio::task::spawn_blocking(prepare)
            .await?
            .context("there can be no real node")?;
        let binaries = NodeBinaries::ensure()?;
        let claim = tokio::task::spawn_blocking(Claim::take).await??;
        let keep = options.keep;
        let control_plane = ControlPlane::start(Options {
            network: Some(claim.network().clone()),
            ..options
        })
        .await?;
        let mut node = Self {
            claim,
            control_plane,
            binaries,
            first: 0,
        };
        node.bring_up().await.with_context(|| {
            node.control_plane.spare_logs();
            format!(
                "the test node did not start; all logs are in {}",
                node.control_plane.dir.display()
            )
        })?;
        if keep {
            node.claim.keep()?;
        }
        Ok(node)
    }

    /// Makes the images of an archive (see [`images`]) available to pods with `imagePullPolicy: IfNotPresent` or `Never`.
    pub async fn import_image(&self, archive: &Path) -> Result<()> {
        let output = self
            .ctr()
            .args(["images", "import"])
            .arg(archive)
            .output()
            .await
            .context("cannot run ctr")?;
        ensure!(
            output.status.success(),
            "cannot import the images of {}: {}",
            archive.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Makes a program of this machine available to pods as the image `image` (with its tag): see [`images::of_program`].
    pub async fn import_program(&self, image: &str, binary: &Path, links: &[&str]) -> Result<()> {
        let (rootfs, config) = images::of_program(binary, links)?;
        let archive = tempfile::NamedTempFile::new_in(&self.control_plane.dir)?;
        let (path, name) = (archive.path().to_owned(), image.to_owned());
        tokio::task::spawn_blocking(move || config.write(&name, &rootfs, &path)).await??;
        self.import_image(archive.path()).await
    }

    /// The addresses: of the host for pods, of the node, pods and services for the host.
    pub fn network(&self) -> &Network {
        self.claim.network()
    }

    /// The process that all others of the node end with, by its id on the host.
    pub fn first_process(&self) -> u32 {
        self.first
    }

    /// Runs a program of the host inside the node: its network, mounts and processes.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> tokio::process::Command {
        let mut command = tokio::process::Command::new("nsenter");
        command.args(enter(self.first)).arg(program);
        command
    }

    /// Stops a program of the node, such as `kubelet`, without ending it.
    pub fn pause(&self, program: &str) -> Result<()> {
        let (_, pid) = self.entered(program)?;
        process::signal("-STOP", &[pid])
    }

    /// Lets a program continue after [`Node::pause`].
    pub fn resume(&self, program: &str) -> Result<()> {
        let (nsenter, pid) = self.entered(program)?;
        // nsenter stops itself when its child is stopped, and does not notice that the child continues.
        process::signal("-CONT", &[nsenter, pid])
    }

    /// Restarts the kubelet with a hundredth of the machine's memory for pods. It rejects pods that request more together. Ends with
    /// [`Node::give_memory`].
    pub fn take_memory(&mut self) -> Result<()> {
        self.keep_memory_free("99%")
    }

    /// Restarts the kubelet with the memory that it had before [`Node::take_memory`].
    pub fn give_memory(&mut self) -> Result<()> {
        self.keep_memory_free(daemons::FREE_MEMORY)
    }

    /// Restarts the kubelet, which subtracts this share or amount of memory from what pods can have.
    fn keep_memory_free(&mut self, memory: &str) -> Result<()> {
        let file = self.control_plane.dir.join("node").join(daemons::KUBELET_SETTINGS);
        let mut settings: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
        settings["evictionHard"]["memory.available"] = memory.into();
        fs::write(&file, settings.to_string())?;
        self.control_plane.rerun("kubelet")
    }

    /// The process ids of nsenter and of the program that it has started.
    fn entered(&self, program: &str) -> Result<(u32, u32)> {
        let nsenter = process::recorded_pid(&self.control_plane.dir, program);
        let pids = nsenter.and_then(|nsenter| Some((nsenter, process::child_of(nsenter)?)));
        pids.with_context(|| format!("{program} does not run"))
    }

    /// `ctr`, containerd's client, for the images and containers of pods.
    pub fn ctr(&self) -> tokio::process::Command {
        let mut command = self.command(&self.binaries.ctr);
        command.args(["--address", daemons::SOCKET, "--namespace", "k8s.io"]);
        command
    }

    /// Ends the node with its pods, then the control plane in order; also what [`Options::keep`] would leave running.
    pub async fn stop(self) -> Result<()> {
        let Self {
            claim, control_plane, ..
        } = self;
        // The API server needs its address, which goes with the claim, to end in order.
        let claim = tokio::task::spawn_blocking(|| claim.end_processes().map(|()| claim)).await??;
        control_plane.stop().await?;
        tokio::task::spawn_blocking(|| claim.end()).await?
    }

    /// Leaves everything running and gives up its ownership; [`stop_detached`] ends it.
    pub fn detach(mut self) -> Result<Cluster> {
        self.claim.keep()?;
        Ok(self.control_plane.detach())
    }

    async fn bring_up(&mut self) -> Result<()> {
        let folder = self.control_plane.dir.join("node");
        fs::create_dir_all(folder.join("kubelet"))?;
        self.claim.folders(&folder, self.control_plane.temporary_folder())?;
        self.hold_namespaces(&folder).await?;
        let pause = tokio::task::spawn_blocking(images::pause).await??;

        let cgroup = self.claim.cgroup();
        let cluster = self.control_plane.deref().clone();
        let (binaries, network) = (self.binaries.clone(), self.network().clone());
        let setup = Setup {
            cluster: &cluster,
            binaries: &binaries,
            network: &network,
            folder: &folder,
            cgroup: &cgroup,
            pause_image: &pause.name,
        };
        self.run_inside("containerd", setup.containerd()?)?;
        self.control_plane.run(
            "kube-scheduler",
            &binaries.kube_scheduler,
            &arguments(&setup.kube_scheduler()?),
        )?;
        self.run_inside("coredns", setup.coredns()?)?;
        self.run_inside("kube-proxy", setup.kube_proxy()?)?;
        self.wait("containerd answers", async |node| {
            let answer = node.ctr().arg("version").output().await?;
            ensure!(answer.status.success(), "it does not");
            Ok(())
        })
        .await?;
        self.import_image(&pause.archive).await?;
        self.run_inside("kubelet", setup.kubelet()?)?;
        let nodes: Api<core::Node> = Api::all(cluster.test_bed_client().await?);
        self.wait("the node is Ready", async |_| is_ready(&nodes.get(NODE_NAME).await?))
            .await?;
        self.wait("CoreDNS answers", async |_| answers(network.node(), 53))
            .await?;
        self.wait("services work", async |_| answers(network.api_service(), 443))
            .await
    }

    /// Starts the node's first process and connects its network.
    async fn hold_namespaces(&mut self, folder: &Path) -> Result<()> {
        let dir = folder.display().to_string();
        let resolver = format!("nameserver {}\n", self.network().node());
        fs::write(folder.join("resolv.conf.of-node"), resolver)?;
        let namespaces = ["--mount", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"];
        let mut args = namespaces.to_vec();
        args.extend(["sh", "-c", INIT, "node", &dir]);
        self.control_plane.run(HOLDER, "unshare", &args)?;
        let ready = folder.join("ready");
        self.wait("its namespaces are there", async |_| {
            ensure!(ready.exists(), "they are not");
            Ok(())
        })
        .await?;
        let holder = process::recorded_pid(&self.control_plane.dir, HOLDER).context("the node's holder has ended")?;
        self.first = process::child_of(holder).context("the node's first process has ended")?;
        self.claim.first_process(self.first)?;
        self.claim.network().plug_in(self.first)
    }

    /// Makes the node offer NVIDIA GPUs that it does not have, as a device plugin would report them.
    ///
    /// # Errors
    ///
    /// The API server does not answer.
    pub async fn offer_gpus(&self, count: u32) -> Result<()> {
        let gpus = json!({"nvidia.com/gpu": count.to_string()});
        let status = Patch::Merge(json!({"status": {"capacity": gpus, "allocatable": gpus}}));
        let nodes: Api<core::Node> = Api::all(self.test_bed_client().await?);
        nodes.patch_status(NODE_NAME, &PatchParams::default(), &status).await?;
        Ok(())
    }

    /// Runs a program of the host inside the node until the node ends. Its output goes to `NAME.log` in the folder.
    pub(crate) fn run_inside(&mut self, name: &str, command: Vec<String>) -> Result<()> {
        let mut args = enter(self.first).to_vec();
        args.extend(command);
        self.control_plane.run(name, "nsenter", &arguments(&args))
    }

    async fn wait(&mut self, what: &str, condition: impl AsyncFn(&Self) -> Result<()>) -> Result<()> {
        let start = Instant::now();
        loop {
            let Err(error) = condition(self).await else {
                return Ok(());
            };
            self.control_plane.check_others()?;
            if start.elapsed() > PATIENCE {
                bail!("waited {PATIENCE:?} until {what}: {error:#}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Stops a control plane that was left running in `dir`, and its node if it has one. Its data goes, its logs stay.
pub async fn stop_detached(dir: &Path) -> Result<()> {
    let claim = if unavailable().is_some() {
        None
    } else {
        let dir = dir.canonicalize()?;
        tokio::task::spawn_blocking(move || Claim::kept_in(&dir)).await??
    };
    // As in `Node::stop`.
    if let Some(claim) = &claim {
        claim.end_processes()?;
    }
    ControlPlane::stop_detached(dir).await?;
    match claim {
        Some(claim) => claim.end(),
        None => Ok(()),
    }
}

impl Deref for Node {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        &self.control_plane
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut ControlPlane {
        &mut self.control_plane
    }
}

fn is_ready(node: &core::Node) -> Result<()> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition.type_ == "Ready")
        .context("it has not said so")?;
    ensure!(
        ready.status == "True",
        "{}",
        ready.message.as_deref().unwrap_or_default()
    );
    Ok(())
}

fn answers(address: Ipv4Addr, port: u16) -> Result<()> {
    TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(1))
        .with_context(|| format!("nothing answers at {address}:{port}"))?;
    Ok(())
}

fn enter(first: u32) -> [String; 6] {
    let pid = first.to_string();
    ["--target", &pid, "--mount", "--net", "--pid", "--"].map(str::to_owned)
}

fn arguments(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}
