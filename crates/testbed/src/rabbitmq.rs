//! A real RabbitMQ of one's own: Debian's package, as a process that ends with the test.
//!
//! | module | content |
//! |---|---|
//! | [`RabbitMq`] | a broker |
//! | [`RabbitMqCluster`] | three nodes of RabbitMQ 4 |
//! | `release` | the programs |

mod cluster;
mod release;

use std::{
    fs, iter,
    net::{IpAddr, Ipv4Addr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use self::release::Release;
use crate::{
    PATIENCE,
    control_plane::free_ports,
    eventually, free_port, last_lines,
    pki::Authority,
    process::{self, Component, Process},
};

pub use self::cluster::RabbitMqCluster;

const USER: &str = "guest";
const PASSWORD: &str = "guest";
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// First bytes of a client: AMQP 0-9-1. Only a running broker answers.
const GREETING: &[u8] = b"AMQP\x00\x00\x09\x01";

/// Options of a [`RabbitMq`].
#[derive(Clone, Copy, Debug)]
pub struct RabbitMqOptions {
    /// Listen address. Pods need one that they can reach.
    pub address: IpAddr,
    /// Serve the management API too, which KEDA reads queue lengths from. Starts a little slower.
    pub management: bool,
    /// Listen for TLS too, and serve the management API only over TLS.
    pub tls: bool,
    /// The largest message that it takes, in bytes; the default is its own.
    pub max_message_size: Option<u32>,
}

impl Default for RabbitMqOptions {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::LOCALHOST.into(),
            management: false,
            tls: false,
            max_message_size: None,
        }
    }
}

/// A running RabbitMQ. Dropping it kills it and removes its data.
///
/// Each has its own node name, ports, folders and port mapper (epmd), so that any number can run beside each other.
pub struct RabbitMq {
    // In the order in which they must end.
    server: Option<Process>,
    port_mapper: Arc<PortMapper>,
    component: Component,
    release: Release,
    ports: Ports,
    address: IpAddr,
    folder: TempDir,
}

/// Erlang's port mapper, in which nodes find each other's ports.
struct PortMapper {
    _process: Process,
    _folder: TempDir,
    port: u16,
}

/// Ports of a broker. Its name contains one.
struct Ports {
    amqp: u16,
    management: Option<u16>,
    tls: Option<u16>,
    distribution: u16,
}

impl RabbitMq {
    /// Starts one and waits until it takes connections: about ten seconds. Installs the package if it is missing. It is RabbitMQ 4 if
    /// the environment variable `TESTBED_RABBITMQ` is `4`.
    pub async fn start(options: RabbitMqOptions) -> Result<Self> {
        let release = tokio::task::spawn_blocking(Release::selected).await??;
        let mapper = Arc::new(PortMapper::start(&release).await?);
        Self::start_at(Ports::choose(&options)?, options, &release, &mapper, &[]).await
    }

    /// Starts one with these ports. With the names of `peers`, it forms a cluster with them.
    async fn start_at(
        ports: Ports,
        options: RabbitMqOptions,
        release: &Release,
        mapper: &Arc<PortMapper>,
        peers: &[String],
    ) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("testbed-rabbitmq-").tempdir()?;
        let mut config = configuration(folder.path(), &options, &ports)?;
        if !peers.is_empty() {
            config += &formation(peers);
            write_cookie(folder.path())?;
        }
        fs::write(folder.path().join("rabbitmq.conf"), config)?;
        let variables = ports.environment(folder.path(), mapper);
        let variables = variables.iter().map(|(name, value)| (*name, &**value));
        let component = process::with_environment("rabbitmq", folder.path(), variables, &release.server());
        let mut rabbit = Self {
            server: Some(component.spawn()?),
            port_mapper: Arc::clone(mapper),
            component,
            release: release.clone(),
            ports,
            address: options.address,
            folder,
        };
        rabbit.wait().await?;
        Ok(rabbit)
    }

    /// `amqp://…`, with user and password.
    pub fn url(&self) -> String {
        format!("amqp://{USER}:{PASSWORD}@{}:{}/%2f", self.address, self.ports.amqp)
    }

    /// `amqps://…`, with user and password, if TLS is enabled. [`RabbitMq::authority`] issued its certificate.
    pub fn tls_url(&self) -> Option<String> {
        let port = self.ports.tls?;
        Some(format!("amqps://{USER}:{PASSWORD}@localhost:{port}/%2f"))
    }

    /// Port for TLS, if it is enabled.
    pub fn tls_port(&self) -> Option<u16> {
        self.ports.tls
    }

    /// The certificate of the authority that is behind [`RabbitMq::tls_url`].
    pub fn authority(&self) -> PathBuf {
        Authority::open(self.folder.path()).path("ca.crt")
    }

    /// URL of the management API, if enabled.
    pub fn management_url(&self) -> Option<String> {
        let port = self.ports.management?;
        Some(format!("http://{USER}:{PASSWORD}@{}:{port}/", self.address))
    }

    /// Port of the management API, if enabled.
    pub fn management_port(&self) -> Option<u16> {
        self.ports.management
    }

    /// Whether it is RabbitMQ 4, in which queues have arguments that RabbitMQ 3.10 does not know.
    pub fn is_four(&self) -> bool {
        matches!(self.release, Release::Four(_))
    }

    /// The address that it listens on.
    pub fn address(&self) -> (IpAddr, u16) {
        (self.address, self.ports.amqp)
    }

    /// Stops it in order and starts it again on the same port, with the same data: durable queues are there again.
    pub async fn restart(&mut self) -> Result<()> {
        if let Some(server) = self.server.take() {
            server.stop(STOP_PATIENCE).await;
        }
        self.server = Some(self.component.spawn()?);
        self.wait().await
    }

    /// Kills it and starts it again on the same port, with what it had written.
    pub async fn crash(&mut self) -> Result<()> {
        self.kill();
        self.revive().await
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts it again after [`RabbitMq::kill`], and waits until it takes connections.
    pub async fn revive(&mut self) -> Result<()> {
        self.server = Some(self.component.spawn()?);
        self.wait().await
    }

    /// Stops it in order.
    pub async fn stop(mut self) {
        if let Some(server) = self.server.take() {
            server.stop(STOP_PATIENCE).await;
        }
    }

    async fn wait(&mut self) -> Result<()> {
        let start = Instant::now();
        while !answers((self.address, self.ports.amqp)).await {
            let ended = self.server.as_mut().and_then(Process::ended);
            if ended.is_some() || start.elapsed() > PATIENCE {
                bail!(
                    "RabbitMQ did not start; its last lines:\n{}",
                    last_lines(&self.component.log(), 30)
                );
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

impl PortMapper {
    async fn start(release: &Release) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("testbed-epmd-").tempdir()?;
        let port = free_port()?;
        let process = release.port_mapper(folder.path(), port).spawn()?;
        // Otherwise the broker starts its own mapper, which outlives it.
        eventually(PATIENCE, async || {
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?)
        })
        .await?;
        Ok(Self {
            _process: process,
            _folder: folder,
            port,
        })
    }
}

impl Ports {
    fn choose(options: &RabbitMqOptions) -> Result<Self> {
        let [amqp, management, tls, distribution] = free_ports()?;
        Ok(Self {
            amqp,
            management: options.management.then_some(management),
            tls: options.tls.then_some(tls),
            distribution,
        })
    }

    /// Name of the node in its cluster.
    fn node(&self) -> String {
        format!("rabbit{}@localhost", self.amqp)
    }

    /// Environment of the broker's programs.
    fn environment(&self, folder: &Path, mapper: &PortMapper) -> Vec<(&'static str, String)> {
        let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
        vec![
            ("HOME", path("")),
            ("RABBITMQ_NODENAME", self.node()),
            ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
            ("RABBITMQ_CONF_ENV_FILE", path("no-rabbitmq-env.conf")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins")),
            ("RABBITMQ_MNESIA_BASE", path("data")),
            ("RABBITMQ_LOG_BASE", path("logs")),
            ("RABBITMQ_DIST_PORT", self.distribution.to_string()),
            ("ERL_EPMD_PORT", mapper.port.to_string()),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
            ),
            // The script then becomes the server instead of staying as its parent.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
        ]
    }
}

/// Writes the plugins and certificates of a broker, and returns its settings.
fn configuration(folder: &Path, options: &RabbitMqOptions, ports: &Ports) -> Result<String> {
    let address = options.address;
    let listener = |port: u16| match address {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    };
    let authority = match ports.tls {
        Some(_) => {
            let own = match address {
                IpAddr::V4(own) => own,
                IpAddr::V6(_) => Ipv4Addr::LOCALHOST,
            };
            Some(Authority::create(folder, &[Ipv4Addr::LOCALHOST, own])?)
        }
        None => None,
    };
    let (management, plugins) = match (ports.management, &authority) {
        (Some(port), None) => (
            format!("management.tcp.ip = {address}\nmanagement.tcp.port = {port}\n"),
            "[rabbitmq_management].",
        ),
        (Some(port), Some(authority)) => (
            format!(
                "management.ssl.ip = {address}\nmanagement.ssl.port = {port}\n{}",
                certificates("management.ssl", authority)
            ),
            "[rabbitmq_management].",
        ),
        (None, _) => (String::new(), "[]."),
    };
    let tls = match (ports.tls, &authority) {
        (Some(port), Some(authority)) => format!(
            "listeners.ssl.1 = {}\n{}",
            listener(port),
            certificates("ssl_options", authority)
        ),
        _ => String::new(),
    };
    let largest = options
        .max_message_size
        .map(|bytes| format!("max_message_size = {bytes}\n"));
    let config = format!(
        "listeners.tcp.1 = {}\nloopback_users = none\ndefault_user = {USER}\ndefault_pass = {PASSWORD}\n\
         log.console = true\nlog.console.level = warning\nlog.file = false\ndisk_free_limit.absolute = 50MB\n\
         {management}{tls}{}",
        listener(ports.amqp),
        largest.unwrap_or_default()
    );
    fs::write(folder.join("enabled_plugins"), plugins)?;
    Ok(config)
}

/// Settings of a node that forms a cluster with these nodes.
fn formation(peers: &[String]) -> String {
    let discovery = "cluster_formation.peer_discovery_backend = classic_config\n".to_owned();
    let node = |(number, name): (u8, &String)| format!("cluster_formation.classic_config.nodes.{number} = {name}\n");
    let settings = iter::once(discovery).chain((1..).zip(peers).map(node));
    settings.collect::<Vec<_>>().concat()
}

/// Writes the secret that all nodes of a cluster share. Erlang refuses one that others may read.
fn write_cookie(home: &Path) -> Result<()> {
    let file = home.join(".erlang.cookie");
    fs::write(&file, "of-the-test")?;
    Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o400))?)
}

/// The settings of a listener for TLS, with a certificate for this machine.
fn certificates(listener: &str, authority: &Authority) -> String {
    [
        ("cacertfile", "ca.crt"),
        ("certfile", "apiserver.crt"),
        ("keyfile", "apiserver.key"),
    ]
    .map(|(setting, name)| format!("{listener}.{setting} = {}\n", authority.path(name).display()))
    .concat()
}

/// Whether a broker is there, and up: it answers a greeting.
async fn answers(address: (IpAddr, u16)) -> bool {
    let greet = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(GREETING).await?;
        stream.read_u8().await
    };
    let greeted = tokio::time::timeout(Duration::from_secs(2), greet).await;
    matches!(greeted, Ok(Ok(_)))
}
