//! A controller's process: its arguments, and what its parts share.

use std::process::ExitCode;

use kube::Client;
use kube::client::ClientBuilder;
use tokio_util::sync::CancellationToken;

use crate::admin::{self, AdminArgs, Health};
use crate::client::{self, ClientArgs, install_crypto};
use crate::lease::{Election, Leadership, LeaseArgs};
use crate::metrics::{Counting, Metrics};
use crate::services::Services;
use crate::shutdown;
use crate::telemetry::{self, LogArgs};
use crate::trace::{self, TraceArgs, Traces};

/// The arguments that every controller takes.
#[derive(Clone, Debug, clap::Args)]
pub struct ProcessArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    trace: TraceArgs,
}

/// What the parts of a controller's process share. Cheap to clone.
#[derive(Clone)]
pub struct Process {
    /// Talks to the API server.
    pub client: Client,
    /// Sends requests to Services.
    pub services: Services,
    /// Cancelled when the process is to end.
    pub shutdown: CancellationToken,
    /// Whether this replica works or stands by.
    pub leadership: Leadership,
    /// What `/healthz` and `/readyz` say.
    pub health: Health,
    /// What `/metrics` says.
    pub metrics: Metrics,
    /// Where spans go, if anywhere.
    pub traces: Traces,
}

/// Why a process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No client.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// No admin server.
    #[error(transparent)]
    Admin(#[from] admin::Error),
    /// No traces.
    #[error(transparent)]
    Trace(#[from] trace::Error),
}

impl Process {
    /// A process without leader election and admin server: for tests, and for programs that hold several controllers.
    pub fn alone(client: Client, shutdown: CancellationToken) -> Self {
        let leadership = Leadership::always();
        Self {
            services: Services::by_proxy(client.clone()),
            client,
            shutdown,
            health: Health::default(),
            metrics: Metrics::new("", leadership.clone()),
            leadership,
            traces: Traces::default(),
        }
    }

    /// `name` is the controller's name and that of its Lease; `provider` is what it is called in metrics.
    async fn start(name: &str, provider: &str, args: &ProcessArgs) -> Result<Self, Error> {
        install_crypto();
        let shutdown = shutdown::on_signal();
        let health = Health::default();
        let config = args.client.config().await?;
        let services = Services::of(&config)?;
        let failed = |error| client::Error::Client(Box::new(error));

        // The election has a client of its own: a renewal never waits behind other requests, and is not counted with them.
        let own = Client::try_from(config.clone()).map_err(failed)?;
        let leadership = if args.lease.leader_elect {
            let (election, leadership) = Election::new(own, &args.lease, name);
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
            .build();
        admin::serve(&args.admin, health.clone(), metrics.clone(), shutdown.clone()).await?;
        Ok(Self {
            client,
            services,
            shutdown,
            leadership,
            health,
            metrics,
            traces,
        })
    }
}

/// The whole of a controller's main: sets everything up, runs `body`, and tells an error in one line.
pub async fn main<E>(
    name: &str,
    provider: &str,
    args: &ProcessArgs,
    body: impl AsyncFnOnce(Process) -> Result<(), E>,
) -> ExitCode
where
    E: std::error::Error + 'static,
{
    telemetry::init(&args.log);
    match Process::start(name, provider, args).await {
        Ok(process) => {
            let traces = process.traces.clone();
            let code = telemetry::exit(body(process)).await;
            traces.end().await;
            code
        }
        Err(error) => telemetry::exit(std::future::ready(Err(error))).await,
    }
}
