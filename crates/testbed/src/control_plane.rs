//! A Kubernetes control plane of one's own: etcd, kube-apiserver and kube-controller-manager as child processes.
//!
//! No node, no scheduler: pods stay Pending unless a test writes their status. For real ones see [`crate::node`].

use std::{
    fs,
    hash::{BuildHasher as _, RandomState},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::{Deref, Range},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::{
    api::core::v1::ServiceAccount, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config,
    api::{ListParams, Request},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::{
    PATIENCE, SELF,
    audit::Audit,
    binaries::{self, Binaries},
    crds,
    node::network::Network,
    pki::Authority,
    process::{self, Component, Process},
    say,
};

const ADMIN_GROUP: &str = "system:masters";
const MEMORY: &str = "/dev/shm";
const RECORD: &str = "cluster.json";
/// Records reads, too, and omits only the second entry of each request.
const AUDIT_POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
/// All controllers but those that judge nodes by their heartbeats.
const CONTROLLERS_WITHOUT_KUBELETS: &str = "--controllers=*,-node-lifecycle-controller,-taint-eviction-controller";
/// Otherwise a new node is tainted until the controller above removes the taint.
const WITHOUT_TAINTS: &str = "--disable-admission-plugins=TaintNodesByCondition";
const STOP_PATIENCE: Duration = Duration::from_secs(20);

/// Options of a [`ControlPlane`].
#[derive(Default)]
pub struct Options {
    /// Leave everything running when the value drops or the process ends; see [`ControlPlane::stop_detached`].
    pub keep: bool,
    /// Folder of certificates, kubeconfigs and logs. Default: a temporary folder, removed at the end.
    pub dir: Option<PathBuf>,
    /// Installed before the controller manager starts. Its garbage collector notices later ones only within 30 s,
    /// so a test that waits for cascading deletion wants its CRDs here.
    pub crds: Vec<CustomResourceDefinition>,
    /// The addresses of a node that is to come; [`crate::Node::start`] sets it. Default: none, so that the API server
    /// listens on loopback only, knows no pods and needs no rights.
    pub network: Option<Network>,
    /// Further arguments of the API server, such as those of an issuer that it trusts.
    pub apiserver_args: Vec<String>,
    /// The nodes are only objects, without a kubelet: no controller judges them by their heartbeats, and they have the taints
    /// that a test gives them. See [`ControlPlane::start_scheduler`].
    pub nodes_are_objects: bool,
}

/// A running control plane. Dropping it kills its processes and removes its temporary folder.
///
/// What needs only a connection, such as [`Cluster::client`], is on [`Cluster`], to which this dereferences.
pub struct ControlPlane {
    // In the order in which they must end.
    others: Vec<(Component, Process)>,
    controller_manager: Option<Process>,
    controller_manager_component: Component,
    apiserver: Option<Process>,
    etcd: Option<Process>,
    etcd_component: Component,
    etcd_address: SocketAddr,
    apiserver_component: Component,
    cluster: Cluster,
    keep: bool,
    folder: Folder,
}

/// A control plane as its clients see it; also what remains of it after [`ControlPlane::detach`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cluster {
    /// Holds certificates, kubeconfigs, logs and process ids.
    pub dir: PathBuf,
    /// The address of the API server.
    pub server: String,
    kubectl: PathBuf,
}

impl ControlPlane {
    /// Starts a control plane and waits until it answers: a few seconds, after the first time (see [`Binaries::ensure`]).
    pub async fn start(mut options: Options) -> Result<Self> {
        crate::install_crypto_provider();
        let binaries = tokio::task::spawn_blocking(Binaries::ensure).await??;
        let folder = Folder::create(options.dir.take())?;
        let outcome = Self::start_in(folder, binaries, options).await;
        outcome.context("the test control plane did not start")
    }

    async fn start_in(mut folder: Folder, binaries: Binaries, options: Options) -> Result<Self> {
        let (keep, network) = (options.keep, options.network.as_ref());
        let [etcd_port, port] = free_ports()?;
        let address = network.map_or(Ipv4Addr::LOCALHOST, Network::host);
        let cluster = Cluster {
            dir: folder.path.clone(),
            server: format!("https://{address}:{port}"),
            kubectl: binaries.kubectl.clone(),
        };
        let mut server_addresses = vec![Ipv4Addr::LOCALHOST];
        server_addresses.extend(
            network
                .iter()
                .flat_map(|network| [network.host(), network.api_service()]),
        );
        let authority = Authority::create(&cluster.pki(), &server_addresses)?;
        fs::write(cluster.dir.join("audit-policy.yaml"), AUDIT_POLICY)?;
        // Until it has started, a failure must not take the logs away.
        folder.spare();

        let etcd_component = etcd(&cluster, &binaries, etcd_port, &folder.data);
        let mut etcd = etcd_component.spawn()?;
        let etcd_address = (Ipv4Addr::LOCALHOST, etcd_port).into();
        wait(&mut etcd, &etcd_component, async || {
            TcpStream::connect(etcd_address).is_ok()
        })
        .await?;

        let mut apiserver_component = apiserver(&cluster, &binaries, &authority, etcd_port, port);
        apiserver_component.args.extend(match network {
            None => on_loopback(),
            Some(network) => with_nodes(network, &authority)?,
        });
        if options.nodes_are_objects {
            apiserver_component.args.push(WITHOUT_TAINTS.to_owned());
        }
        apiserver_component.args.extend(options.apiserver_args);
        let mut apiserver = apiserver_component.spawn()?;
        let client = cluster.test_bed_client().await?;
        wait(&mut apiserver, &apiserver_component, async || is_ready(&client).await).await?;

        for crd in options.crds {
            crds::install_crd(&client, crd).await?;
        }

        let mut controller_manager_component = controller_manager(&cluster, &binaries, &authority)?;
        if options.nodes_are_objects {
            let args = &mut controller_manager_component.args;
            args.push(CONTROLLERS_WITHOUT_KUBELETS.to_owned());
        }
        let mut controller_manager = controller_manager_component.spawn()?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client, "default");
        wait(&mut controller_manager, &controller_manager_component, async || {
            accounts.get("default").await.is_ok()
        })
        .await?;

        cluster.admin()?;
        fs::write(cluster.dir.join(RECORD), serde_json::to_string(&cluster)?)?;
        folder.reclaim(keep);
        let mut control_plane = Self {
            others: Vec::new(),
            controller_manager: Some(controller_manager),
            controller_manager_component,
            apiserver: Some(apiserver),
            etcd: Some(etcd),
            etcd_component,
            etcd_address,
            apiserver_component,
            cluster,
            keep,
            folder,
        };
        if keep {
            control_plane.processes().for_each(Process::keep);
        }
        Ok(control_plane)
    }

    /// Runs another program beside the control plane, to the same end; its output goes to `NAME.log` in the folder.
    /// To be found by [`Self::stop_detached`] it must have a path in the folder, such as its kubeconfig, among its arguments.
    pub fn run(&mut self, name: &str, program: impl Into<PathBuf>, args: &[&str]) -> Result<()> {
        let component = Component {
            name: name.to_owned(),
            program: program.into(),
            args: args.iter().map(ToString::to_string).collect(),
            dir: self.dir.clone(),
            scratch: None,
        };
        self.run_component(component)
    }

    fn run_component(&mut self, component: Component) -> Result<()> {
        let process = component.spawn()?;
        self.add(component, process);
        Ok(())
    }

    /// Takes a process to its end with the control plane.
    fn add(&mut self, component: Component, mut process: Process) {
        if self.keep {
            process.keep();
        }
        self.others.push((component, process));
    }

    /// Kills a program that was started by [`Self::run`], and starts it again.
    pub(crate) fn rerun(&mut self, name: &str) -> Result<()> {
        let found = self.others.iter().position(|(component, _)| component.name == name);
        let (component, process) = self
            .others
            .remove(found.with_context(|| format!("{name} does not run"))?);
        drop(process);
        self.run_component(component)
    }

    /// Starts kube-scheduler, for tests with [`Options::nodes_are_objects`]. A [`crate::Node`] has one already.
    pub async fn start_scheduler(&mut self) -> Result<()> {
        let program = tokio::task::spawn_blocking(binaries::kube_scheduler).await??;
        let kubeconfig = self.kubeconfig("system:kube-scheduler", &[ADMIN_GROUP])?;
        let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
        let rest = [
            "--leader-elect=false",
            "--secure-port=0",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
        ];
        let args: Vec<&str> = std::iter::once(kubeconfig.as_str()).chain(rest).collect();
        self.run("kube-scheduler", program, &args)
    }

    /// An error that says which of the programs started by [`Self::run`] has ended, and the end of its log.
    pub(crate) fn check_others(&mut self) -> Result<()> {
        for (component, process) in &mut self.others {
            if let Some(status) = process.ended() {
                return Err(component.complain(&format!("ended ({status})")));
            }
        }
        Ok(())
    }

    /// The folder, if it is a temporary one.
    pub(crate) fn temporary_folder(&self) -> Option<&Path> {
        Some(self.folder.temporary.as_ref()?.path())
    }

    /// Keeps the folder when this drops, for debugging.
    pub(crate) fn spare_logs(&mut self) {
        self.folder.spare();
    }

    /// Ends the API server in order, as an upgrade would, and starts it again on the same port.
    pub async fn restart_apiserver(&mut self) -> Result<()> {
        self.stop_apiserver().await;
        self.start_apiserver().await
    }

    /// Ends the API server only: an outage.
    pub async fn stop_apiserver(&mut self) {
        if let Some(apiserver) = self.apiserver.take() {
            apiserver.stop(STOP_PATIENCE).await;
        }
    }

    /// Ends the outage.
    pub async fn start_apiserver(&mut self) -> Result<()> {
        self.apiserver = Some(self.start_again(&self.apiserver_component).await?);
        Ok(())
    }

    /// Kills etcd only. Its data stays. The API server runs, and can do hardly anything.
    pub async fn kill_etcd(&mut self) -> Result<()> {
        match self.etcd.take() {
            Some(etcd) => etcd.crash(&self.etcd_component).await,
            None => Ok(()),
        }
    }

    /// Starts etcd again after [`Self::kill_etcd`], and waits until the API server is ready.
    pub async fn start_etcd(&mut self) -> Result<()> {
        self.etcd = Some(self.start_again(&self.etcd_component).await?);
        Ok(())
    }

    /// Copies etcd's data, while it does not run, into `folder`, which must not exist.
    pub async fn back_up(&mut self, folder: &Path) -> Result<()> {
        self.kill_etcd().await?;
        copy(&self.folder.data, folder)?;
        self.start_etcd().await
    }

    /// Replaces etcd's data by a copy of [`Self::back_up`], and starts the control plane again. As after a restore of a snapshot
    /// without `--bump-revision`, new resource versions are below those that clients have seen.
    pub async fn restore(&mut self, folder: &Path) -> Result<()> {
        if let Some(controller_manager) = self.controller_manager.take() {
            controller_manager.stop(STOP_PATIENCE).await;
        }
        self.stop_apiserver().await;
        self.kill_etcd().await?;
        fs::remove_dir_all(&self.folder.data)?;
        copy(folder, &self.folder.data)?;
        self.etcd = Some(self.etcd_component.spawn()?);
        self.start_apiserver().await?;
        self.controller_manager = Some(self.start_again(&self.controller_manager_component).await?);
        if self.keep {
            self.processes().for_each(Process::keep);
        }
        Ok(())
    }

    /// Starts another API server on the same data, which reaches etcd at `etcd`. Returns the control plane as its clients see it.
    pub async fn start_second_apiserver(&mut self, etcd: SocketAddr) -> Result<Cluster> {
        let port = free_port()?;
        let own = [
            ("--etcd-servers=", format!("http://{etcd}")),
            ("--secure-port=", port.to_string()),
            ("--audit-log-path=", "/dev/null".to_owned()),
        ];
        let shared = self.apiserver_component.args.iter();
        let mut args: Vec<String> = shared
            .filter(|arg| !own.iter().any(|(flag, _)| arg.starts_with(flag)))
            .cloned()
            .collect();
        args.extend(own.iter().map(|(flag, value)| format!("{flag}{value}")));
        let component = Component {
            name: "second-kube-apiserver".to_owned(),
            program: self.apiserver_component.program.clone(),
            args,
            dir: self.dir.clone(),
            scratch: None,
        };
        let second = Cluster {
            server: format!("https://{}:{port}", Ipv4Addr::LOCALHOST),
            ..self.cluster.clone()
        };
        let mut process = component.spawn()?;
        let client = second.test_bed_client().await?;
        wait(&mut process, &component, async || is_ready(&client).await).await?;
        self.add(component, process);
        Ok(second)
    }

    /// Starts a component, and waits until the API server is ready.
    async fn start_again(&self, component: &Component) -> Result<Process> {
        let mut process = component.spawn()?;
        let client = self.cluster.test_bed_client().await?;
        wait(&mut process, component, async || is_ready(&client).await).await?;
        if self.keep {
            process.keep();
        }
        Ok(process)
    }

    /// The address at which etcd serves its clients.
    pub fn etcd(&self) -> SocketAddr {
        self.etcd_address
    }

    /// Ends everything in order, also what [`Options::keep`] would leave running.
    pub async fn stop(mut self) -> Result<()> {
        if self.keep {
            return Self::stop_detached(&self.detach().dir).await;
        }
        let others = std::mem::take(&mut self.others).into_iter();
        let processes = others
            .map(|(_, process)| process)
            .chain(self.controller_manager.take())
            .chain(self.apiserver.take())
            .chain(self.etcd.take());
        for process in processes {
            process.stop(STOP_PATIENCE).await;
        }
        Ok(())
    }

    /// Leaves everything running and gives up its ownership.
    pub fn detach(mut self) -> Cluster {
        self.keep = true;
        self.folder.spare();
        self.cluster.clone()
    }

    /// Stops a control plane that was left running in `dir`, and the programs started beside it.
    /// Its data goes, its logs stay. Stopping twice does no harm.
    pub async fn stop_detached(dir: &Path) -> Result<()> {
        let mut names = process::recorded(dir)?;
        // The store last; what writes to it first.
        names.sort_by_key(|name| {
            ["kube-controller-manager", "kube-apiserver", "etcd"]
                .iter()
                .position(|known| known == name)
        });
        for name in names {
            process::stop_recorded(dir, &name).await?;
        }
        if let Ok(data) = fs::read_link(dir.join("etcd")) {
            let _ = fs::remove_dir_all(data);
            let _ = fs::remove_file(dir.join("etcd"));
        }
        let _ = fs::remove_file(dir.join(RECORD));
        Ok(())
    }

    fn processes(&mut self) -> impl Iterator<Item = &mut Process> {
        self.others
            .iter_mut()
            .map(|(_, process)| process)
            .chain(&mut self.controller_manager)
            .chain(&mut self.apiserver)
            .chain(&mut self.etcd)
    }
}

impl Deref for ControlPlane {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if self.keep {
            let others = std::mem::take(&mut self.others).into_iter();
            others
                .map(|(_, process)| process)
                .chain(self.controller_manager.take())
                .chain(self.apiserver.take())
                .chain(self.etcd.take())
                .for_each(process::release);
        } else if std::thread::panicking() {
            self.folder.spare();
            say(&format!(
                "the logs of the test control plane are in {}",
                self.cluster.dir.display()
            ));
        }
    }
}

impl Cluster {
    /// The control plane that was left running in `dir`.
    pub fn open(dir: &Path) -> Result<Self> {
        crate::install_crypto_provider();
        let record = fs::read_to_string(dir.join(RECORD)).with_context(|| {
            format!(
                "no control plane is recorded in {}: start one there first",
                dir.display()
            )
        })?;
        Ok(serde_json::from_str(&record)?)
    }

    /// Writes a kubeconfig with a client certificate for `user` in `groups` (at most two) and returns its path;
    /// the same user again replaces the file.
    ///
    /// `system:serviceaccount:NS:NAME` in the groups `system:serviceaccounts` and `system:serviceaccounts:NS` has
    /// exactly the rights of that ServiceAccount: the way to try a controller under its own RBAC.
    pub fn kubeconfig(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let file: String = user
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let path = self.dir.join(format!("{file}.kubeconfig"));
        fs::write(&path, self.kubeconfig_text(user, groups)?)?;
        Ok(path)
    }

    /// The kubeconfig of a user who may do anything.
    pub fn admin(&self) -> Result<PathBuf> {
        self.kubeconfig("admin", &[ADMIN_GROUP])
    }

    /// A client of its own identity, so that [`Audit`] can tell its requests from others'.
    pub async fn client(&self, user: &str, groups: &[&str]) -> Result<Client> {
        let kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig_text(user, groups)?)?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Client::try_from(config)?)
    }

    /// The client of a user who may do anything.
    pub async fn admin_client(&self) -> Result<Client> {
        self.client("admin", &[ADMIN_GROUP]).await
    }

    /// The record of every request that reached the API server.
    pub async fn audit(&self) -> Result<Audit> {
        Ok(Audit::new(self.audit_log(), self.test_bed_client().await?))
    }

    /// Client of the test bed itself, whose requests are not counted.
    pub async fn test_bed_client(&self) -> Result<Client> {
        self.client(SELF, &[ADMIN_GROUP]).await
    }

    /// `kubectl` as admin.
    pub fn kubectl(&self) -> Result<tokio::process::Command> {
        let mut command = tokio::process::Command::new(&self.kubectl);
        // Ports come again with other clusters behind them: a shared discovery cache would lie.
        command
            .env("KUBECONFIG", self.admin()?)
            .env("KUBECACHEDIR", self.dir.join("kubectl-cache"));
        Ok(command)
    }

    fn kubeconfig_text(&self, user: &str, groups: &[&str]) -> Result<String> {
        Authority::open(&self.pki()).kubeconfig(&self.server, user, groups)
    }

    /// Folder of the certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }
}

/// The folder of a control plane, and the place of etcd's data.
struct Folder {
    path: PathBuf,
    data: PathBuf,
    temporary: Option<TempDir>,
    temporary_data: Option<TempDir>,
    spared: bool,
}

impl Folder {
    fn create(dir: Option<PathBuf>) -> Result<Self> {
        let temporary = if dir.is_none() {
            Some(tempfile::Builder::new().prefix("runway-testbed-").tempdir()?)
        } else {
            None
        };
        let path = dir
            .or_else(|| Some(temporary.as_ref()?.path().to_owned()))
            .context("no folder")?;
        if path.join(RECORD).exists() {
            bail!(
                "a control plane was left running in {}: stop it first, or choose another folder",
                path.display()
            );
        }
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let path = path.canonicalize()?;

        let temporary_data = memory_folder();
        let data = temporary_data
            .as_ref()
            .map_or_else(|| path.join("etcd-data"), |data| data.path().to_owned());
        let link = path.join("etcd");
        let _ = fs::remove_file(&link);
        symlink(&data, &link)?;
        Ok(Self {
            path,
            data,
            temporary,
            temporary_data,
            spared: false,
        })
    }

    /// From now on nothing is removed when this drops.
    fn spare(&mut self) {
        self.spared = true;
    }

    fn reclaim(&mut self, keep: bool) {
        self.spared = keep;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for mut folder in [self.temporary.take(), self.temporary_data.take()]
            .into_iter()
            .flatten()
        {
            folder.disable_cleanup(self.spared);
        }
    }
}

/// A folder in memory, if there is room: etcd waits for its disk at every write. Containers often have 64 MB there,
/// which its first log file fills.
fn memory_folder() -> Option<TempDir> {
    let output = Command::new("df").args(["-Pk", MEMORY]).output().ok()?;
    let table = String::from_utf8(output.stdout).ok()?;
    let free: u64 = table.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()?;
    if free < 512 * 1024 {
        return None;
    }
    tempfile::Builder::new()
        .prefix("runway-testbed-etcd-")
        .tempdir_in(MEMORY)
        .ok()
}

/// Copies a folder to a path that does not exist.
fn copy(folder: &Path, to: &Path) -> Result<()> {
    process::output(Command::new("cp").arg("-a").args([folder, to])).map(drop)
}

fn etcd(cluster: &Cluster, binaries: &Binaries, port: u16, data: &Path) -> Component {
    // A single member has no peers, so its peer port may be any.
    let (client, peer) = (format!("http://127.0.0.1:{port}"), "http://127.0.0.1:0");
    Component {
        name: "etcd".to_owned(),
        program: binaries.etcd.clone(),
        args: vec![
            // By its link in our folder: the command line shows whose it is, see `stop_detached`.
            format!("--data-dir={}", cluster.dir.join("etcd").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // Nothing here has to survive a power cut.
            "--unsafe-no-fsync".to_owned(),
        ],
        dir: cluster.dir.clone(),
        scratch: Some(data.to_owned()),
    }
}

fn apiserver(cluster: &Cluster, binaries: &Binaries, authority: &Authority, etcd_port: u16, port: u16) -> Component {
    let file = |name: &str| authority.path(name).display().to_string();
    Component {
        name: "kube-apiserver".to_owned(),
        program: binaries.kube_apiserver.clone(),
        args: vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--service-account-key-file={}", file("service-account.pub")),
            format!("--service-account-signing-key-file={}", file("service-account.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!(
                "--audit-policy-file={}",
                cluster.dir.join("audit-policy.yaml").display()
            ),
            format!("--audit-log-path={}", cluster.audit_log().display()),
            "--audit-log-mode=blocking".to_owned(),
            // In MB. One file, never rotated: counting reads it from end to end.
            "--audit-log-maxsize=100000".to_owned(),
            // Without it a stopping server waits up to a minute for open watches.
            "--shutdown-watch-termination-grace-period=1s".to_owned(),
            // Requests are counted here, not rationed.
            "--enable-priority-and-fairness=false".to_owned(),
            "--max-requests-inflight=4000".to_owned(),
            "--max-mutating-requests-inflight=2000".to_owned(),
        ],
        dir: cluster.dir.clone(),
        scratch: None,
    }
}

fn on_loopback() -> Vec<String> {
    [
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        // A loopback address is refused as an endpoint, and nothing here looks for one.
        "--endpoint-reconciler-type=none",
        "--service-cluster-ip-range=10.0.0.0/16",
    ]
    .map(str::to_owned)
    .into()
}

/// Reachable for pods, able to reach kubelets, and trusted by API servers in pods (aggregation).
fn with_nodes(network: &Network, authority: &Authority) -> Result<Vec<String>> {
    let (kubelet_certificate, kubelet_key) = authority.client_pair("kubelet-client", &[ADMIN_GROUP])?;
    // A separate authority: its certificates can impersonate any user.
    let front = Authority::create_for_clients(&authority.path("front-proxy"))?;
    let (proxy_certificate, proxy_key) = front.client_pair("front-proxy-client", &[])?;
    Ok(vec![
        format!("--bind-address={}", network.host()),
        format!("--advertise-address={}", network.host()),
        format!("--service-cluster-ip-range={}", network.services()),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        format!("--kubelet-client-certificate={}", kubelet_certificate.display()),
        format!("--kubelet-client-key={}", kubelet_key.display()),
        "--enable-aggregator-routing=true".to_owned(),
        format!("--requestheader-client-ca-file={}", front.path("ca.crt").display()),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!("--proxy-client-cert-file={}", proxy_certificate.display()),
        format!("--proxy-client-key-file={}", proxy_key.display()),
    ])
}

fn controller_manager(cluster: &Cluster, binaries: &Binaries, authority: &Authority) -> Result<Component> {
    let kubeconfig = cluster.kubeconfig("system:kube-controller-manager", &[ADMIN_GROUP])?;
    Ok(Component {
        name: "kube-controller-manager".to_owned(),
        program: binaries.kube_controller_manager.clone(),
        args: vec![
            format!("--kubeconfig={}", kubeconfig.display()),
            format!(
                "--service-account-private-key-file={}",
                authority.path("service-account.key").display()
            ),
            format!("--root-ca-file={}", authority.path("ca.crt").display()),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=2000".to_owned(),
        ],
        dir: cluster.dir.clone(),
        scratch: None,
    })
}

/// Waits until `ready`, and says what the component's log says when it ends or takes too long.
pub(crate) async fn wait(process: &mut Process, component: &Component, ready: impl AsyncFn() -> bool) -> Result<()> {
    wait_within(PATIENCE, process, component, ready).await
}

/// As [`wait`], for what takes longer than anything else to start.
pub(crate) async fn wait_within(
    patience: Duration,
    process: &mut Process,
    component: &Component,
    ready: impl AsyncFn() -> bool,
) -> Result<()> {
    let start = Instant::now();
    while !ready().await {
        let problem = match process.ended() {
            Some(status) => format!("ended ({status})"),
            None if start.elapsed() > patience => {
                format!("is not ready after {} s", patience.as_secs())
            }
            None => {
                tokio::time::sleep(Duration::from_millis(25)).await;
                continue;
            }
        };
        return Err(component.complain(&problem));
    }
    Ok(())
}

/// Ready includes the hooks that write the built-in roles, without which RBAC tests would flicker.
async fn is_ready(client: &Client) -> bool {
    // A list request is the plain GET that the client can build.
    match Request::new("/readyz").list(&ListParams::default()) {
        Ok(request) => client.request_text(request).await.is_ok(),
        Err(_) => false,
    }
}

/// Below the ports that the system gives to outgoing connections, and below those of node ports: otherwise
/// another connection may take a port before its server does.
const PORTS: Range<u16> = 10_000..30_000;

/// A port of this machine for a server that a test starts.
///
/// # Errors
///
/// No port is free.
pub fn free_port() -> Result<u16> {
    free_ports().map(|[port]| port)
}

/// Free ports on 127.0.0.1, held together until all are known, so that they differ.
///
/// # Errors
/// No port is free.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let (mut ports, mut held) = ([0; N], Vec::new());
    for port in &mut ports {
        let mut listeners = (0..100).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, any_port())));
        let listener = listeners.find_map(Result::ok).context("no port is free")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// An address of this machine that others reach: the API server does not proxy to a loopback.
///
/// # Errors
/// There is none.
pub fn own_address() -> Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Nothing is sent: the system chooses the route.
    socket.connect("192.0.2.1:9").context("this machine has no route")?;
    let address = socket.local_addr()?.ip();
    ensure!(
        !address.is_loopback() && !address.is_unspecified(),
        "this machine has no address of its own"
    );
    Ok(address)
}

/// The standard library's hasher is seeded by the system: randomness enough.
fn any_port() -> u16 {
    let any = RandomState::new().hash_one(0_u8) % u64::from(PORTS.end - PORTS.start);
    PORTS.start + u16::try_from(any).unwrap_or_default()
}
