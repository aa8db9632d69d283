//! A real RabbitMQ of one's own: Debian's package, as a process that ends with the test.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::{
    PATIENCE,
    control_plane::free_ports,
    eventually, last_lines, packages,
    pki::Authority,
    process::{self, Component, Process},
};

/// The starting script itself. The one in the path changes to another user first.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
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
    _port_mapper: Process,
    component: Component,
    port: u16,
    management_port: Option<u16>,
    tls_port: Option<u16>,
    address: IpAddr,
    folder: TempDir,
}

impl RabbitMq {
    /// Starts one and waits until it takes connections: about ten seconds. Installs the package if it is missing.
    pub async fn start(options: RabbitMqOptions) -> Result<Self> {
        tokio::task::spawn_blocking(|| packages::ensure(&packages::RABBITMQ)).await??;
        let folder = tempfile::Builder::new().prefix("testbed-rabbitmq-").tempdir()?;
        let [port, management, tls, distribution, mapper] = free_ports()?;
        let management_port = options.management.then_some(management);
        let tls_port = options.tls.then_some(tls);

        let port_mapper = Component {
            name: "epmd".to_owned(),
            program: "epmd".into(),
            args: ["-port", &mapper.to_string(), "-address", "127.0.0.1"]
                .map(str::to_owned)
                .into(),
            dir: folder.path().to_owned(),
            scratch: None,
        };
        let port_mapper = port_mapper.spawn()?;
        // Otherwise the broker starts its own mapper, which outlives it.
        eventually(PATIENCE, async || {
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, mapper)).await?)
        })
        .await?;
        let ports = Ports {
            amqp: port,
            management: management_port,
            tls: tls_port,
            distribution,
            mapper,
        };
        let component = server(folder.path(), &options, &ports)?;
        let mut rabbit = Self {
            server: Some(component.spawn()?),
            _port_mapper: port_mapper,
            component,
            port,
            management_port,
            tls_port,
            address: options.address,
            folder,
        };
        rabbit.wait().await?;
        Ok(rabbit)
    }

    /// `amqp://…`, with user and password.
    pub fn url(&self) -> String {
        format!("amqp://{USER}:{PASSWORD}@{}:{}/%2f", self.address, self.port)
    }

    /// `amqps://…`, with user and password, if TLS is enabled. [`RabbitMq::authority`] issued its certificate.
    pub fn tls_url(&self) -> Option<String> {
        let port = self.tls_port?;
        Some(format!("amqps://{USER}:{PASSWORD}@localhost:{port}/%2f"))
    }

    /// Port for TLS, if it is enabled.
    pub fn tls_port(&self) -> Option<u16> {
        self.tls_port
    }

    /// The certificate of the authority that is behind [`RabbitMq::tls_url`].
    pub fn authority(&self) -> PathBuf {
        Authority::open(self.folder.path()).path("ca.crt")
    }

    /// URL of the management API, if enabled.
    pub fn management_url(&self) -> Option<String> {
        let port = self.management_port?;
        Some(format!("http://{USER}:{PASSWORD}@{}:{port}/", self.address))
    }

    /// Port of the management API, if enabled.
    pub fn management_port(&self) -> Option<u16> {
        self.management_port
    }

    /// The address that it listens on.
    pub fn address(&self) -> (IpAddr, u16) {
        (self.address, self.port)
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
        self.server = None;
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
        while !answers((self.address, self.port)).await {
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

struct Ports {
    amqp: u16,
    management: Option<u16>,
    tls: Option<u16>,
    distribution: u16,
    mapper: u16,
}

fn server(folder: &Path, options: &RabbitMqOptions, ports: &Ports) -> Result<Component> {
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
    fs::write(folder.join("rabbitmq.conf"), config)?;
    fs::write(folder.join("enabled_plugins"), plugins)?;

    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let environment = [
        ("HOME", path("")),
        ("RABBITMQ_NODENAME", format!("rabbit{}@localhost", ports.amqp)),
        ("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf")),
        ("RABBITMQ_CONF_ENV_FILE", path("no-rabbitmq-env.conf")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", path("enabled_plugins")),
        ("RABBITMQ_MNESIA_BASE", path("data")),
        ("RABBITMQ_LOG_BASE", path("logs")),
        ("RABBITMQ_DIST_PORT", ports.distribution.to_string()),
        ("ERL_EPMD_PORT", ports.mapper.to_string()),
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
        ),
        // The script then becomes the server instead of staying as its parent.
        ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
    ];
    let variables = environment.iter().map(|(name, value)| (*name, &**value));
    Ok(process::with_environment(
        "rabbitmq",
        folder,
        variables,
        &[SERVER.to_owned()],
    ))
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
