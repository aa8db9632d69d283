//! Process of a controller or a server: arguments and shared parts.

use std::process::ExitCode;
use std::time::Duration;

use kube::Client;
use kube::client::ClientBuilder;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminArgs};
use crate::breaker::Breaker;
use crate::client::{self, ClientArgs, install_crypto};
use crate::health::Health;
use crate::lease::{Election, Leadership, LeaseArgs};
use crate::metrics::{Counting, Metrics};
use crate::scope::{Namespaces, ScopeArgs};
use crate::services::Services;
use crate::shutdown;
use crate::telemetry::{self, LogArgs};
use crate::trace::{self, TraceArgs, Traces};

/// Arguments of every process.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

/// Arguments of every controller.
#[derive(Clone, Debug, clap::Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    process: ProcessArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    scope: ScopeArgs,
}

/// Shared parts of a process. Cheap to clone.
#[derive(Clone)]
pub struct Process {
    /// Client for the API server.
    pub client: Client,
    /// Breaker of its requests, and those of the election.
    pub breaker: Breaker,
    /// Client for Services.
    pub services: Services,
    /// Namespaces that are watched.
    pub namespaces: Namespaces,
    /// Cancelled when the process shuts down.
    pub shutdown: CancellationToken,
    /// Whether this replica is the leader.
    pub leadership: Leadership,
    /// Source of `/healthz` and `/readyz`.
    pub health: Health,
    /// Source of `/metrics`.
    pub metrics: Metrics,
    /// Recorder of spans.
    pub traces: Traces,
}

/// Reason why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client cannot be created.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// The admin server cannot be started.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// Traces cannot be sent.
    #[error(transparent)]
    Trace(#[from] trace::Error),
}

impl Process {
    /// A process without leader election and admin server, for tests and for programs with several controllers.
    pub fn alone(client: Client, shutdown: CancellationToken) -> Self {
        let leadership = Leadership::always();
        Self {
            services: Services::by_proxy(client.clone()),
            client,
            breaker: Breaker::default(),
            namespaces: Namespaces::default(),
            shutdown,
            health: Health::default(),
            metrics: Metrics::new("", leadership.clone()),
            leadership,
            traces: Traces::default(),
        }
    }

    /// `name` is the name of the process and its Lease; `provider` is its label in metrics. Without `lease` it is always active.
    async fn start(name: &str, provider: &str, args: &ProcessArgs, lease: Option<&LeaseArgs>) -> Result<Self, Error> {
        install_crypto();
        let shutdown = shutdown::on_signal();
        let health = Health::starting();
        let config = args.client.config().await?;
        let services = Services::of(&config)?;
        let failed = |error| client::Error::Client(Box::new(error));

        let breaker = Breaker::default();
        // The election has its own client: a renewal never waits behind other requests, and is not counted with them.
        let own = ClientBuilder::try_from(config.clone()).map_err(failed)?;
        let own = own.with_layer(&breaker).build();
        let leadership = if let Some(lease) = lease.filter(|lease| lease.leader_elect) {
            let (election, leadership) = Election::new(own, lease, name);
            health.supervise("leader election", shutdown.clone(), election.run(shutdown.clone()));
            leadership
        } else {
            Leadership::always()
        };
        let traces = Traces::start(name, &args.trace)?;
        let metrics = Metrics::new(provider, leadership.clone());
        let client = ClientBuilder::try_from(config)
            .map_err(failed)?
            .with_layer(&Counting(metrics.clone()))
            .with_layer(&breaker)
            .build();
        admin::serve(&args.admin, health.clone(), metrics.clone(), shutdown.clone()).await?;
        Ok(Self {
            client,
            breaker,
            services,
            namespaces: Namespaces::default(),
            shutdown,
            leadership,
            health,
            metrics,
            traces,
        })
    }
}

/// Value parser of an argument: a time above 0.
///
/// # Errors
/// The text is not a time.
pub fn time(text: &str) -> Result<Duration, &'static str> {
    let parsed: Option<jiff::SignedDuration> = text.parse().ok();
    parsed
        .and_then(|time| Duration::try_from(time).ok())
        .filter(|time| !time.is_zero())
        .ok_or("use a time above 0, such as 90s, 5m or 24h")
}

/// Main function of a controller: starts the shared parts, runs `body`, and logs an error in one line.
pub async fn controller<E>(
    name: &str,
    provider: &str,
    args: &ControllerArgs,
    body: impl AsyncFnOnce(Process) -> Result<(), E>,
) -> ExitCode
where
    E: std::error::Error + 'static,
{
    let namespaces = args.scope.watch_namespaces.clone();
    let within = async |process: Process| {
        if !namespaces.are_all() {
            tracing::info!(%namespaces, "only these namespaces are watched");
        }
        body(Process { namespaces, ..process }).await
    };
    main(name, provider, &args.process, Some(&args.lease), within).await
}

/// Main function of a server, as [`controller`]. It has no right on Leases, and every replica is active.
pub async fn server<E>(
    name: &str,
    provider: &str,
    args: &ProcessArgs,
    body: impl AsyncFnOnce(Process) -> Result<(), E>,
) -> ExitCode
where
    E: std::error::Error + 'static,
{
    main(name, provider, args, None, body).await
}

/// Main function of a task: it acts once, with the client alone, and ends.
pub async fn task<E>(args: &ControllerArgs, body: impl AsyncFnOnce(Client, Namespaces) -> Result<(), E>) -> ExitCode
where
    E: std::error::Error + 'static,
{
    telemetry::init(&args.process.log);
    install_crypto();
    let client = async {
        let config = args.process.client.config().await?;
        Client::try_from(config).map_err(|error| client::Error::Client(Box::new(error)))
    };
    match client.await {
        Ok(client) => telemetry::exit(body(client, args.scope.watch_namespaces.clone())).await,
        Err(error) => telemetry::exit(std::future::ready(Err(error))).await,
    }
}

async fn main<E>(
    name: &str,
    provider: &str,
    args: &ProcessArgs,
    lease: Option<&LeaseArgs>,
    body: impl AsyncFnOnce(Process) -> Result<(), E>,
) -> ExitCode
where
    E: std::error::Error + 'static,
{
    telemetry::init(&args.log);
    match Process::start(name, provider, args, lease).await {
        Ok(process) => {
            let traces = process.traces.clone();
            let code = telemetry::exit(body(process)).await;
            traces.end().await;
            code
        }
        Err(error) => telemetry::exit(std::future::ready(Err(error))).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        process: ProcessArgs,
    }

    /// A process answers `/readyz` before its own part runs.
    #[tokio::test]
    async fn process_is_not_ready_before_it_has_begun_to_list() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } }],
            "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
            "users": [{ "name": "u", "user": {} }],
        });
        std::fs::write(file.path(), kubeconfig.to_string()).unwrap();
        let kubeconfig = format!("--kubeconfig={}", file.path().display());
        let args = Command::parse_from(["test", &kubeconfig, "--admin-address=127.0.0.1:0"]).process;
        let process = Process::start("test", "test", &args, None).await.unwrap();
        assert_eq!(process.health.missing(), ["waiting for the start"]);
        let listed = process.health.waits_for("the list");
        assert_eq!(process.health.missing(), ["waiting for the list"]);
        listed.done();
        assert!(process.health.missing().is_empty());
    }
}
