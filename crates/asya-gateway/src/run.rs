//! Starts the gateway: store, broker, servers; and stops them in the opposite order.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use runway_asya_transport::Transport;
use runway_asya_transport::args::{SecretsArgs, TransportArgs};
use runway_asya_transport::operate::Broker;
use runway_asya_transport::queues;
use runway_asya_transport::rabbitmq::{self, RabbitMq};
use runway_asya_transport::settings::{self, NoSecret, Tenants, Transports};
use runway_asya_transport::sqs::{self, Sqs};
use runway_callers::Callers;
use runway_http::Limits;
use runway_operator::audit::{self, Audit, AuditArgs};
use runway_operator::listen::{BadCertificate, ListenArgs};
use runway_operator::process::{Process, time};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::callback::{Caller, Hosts};
use crate::gateway::{Gateway, Settings};
use crate::metrics::{Metrics, Scrape};
use crate::server::{self, Api, Operators};
use crate::store::{self, Store};
use crate::submission::Times;
use crate::waits::Waits;

/// Audience of tokens for the gateway, if none is set: the API server does not accept them.
pub const AUDIENCE: &str = "asya-gateway";
/// Results that are received and not on disk yet.
const PREFETCH: u16 = 8;
/// Visibility timeout of results in SQS, renewed while they are stored.
const VISIBILITY: Duration = Duration::from_mins(1);
const MIB: usize = 1024 * 1024;

/// Arguments of the gateway.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Server for callers.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Address to which sidecars report progress (their ASYA_GATEWAY_URL)
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8001")]
    pub progress_address: SocketAddr,
    /// Transports.
    #[command(flatten)]
    pub transports: TransportArgs,
    /// Transport of the actors; may be omitted if there is one
    #[arg(long, value_name = "NAME")]
    pub transport: Option<String>,
    /// Secrets of the transports.
    #[command(flatten)]
    pub secrets: SecretsArgs,
    /// Name of the reply queue, asya_reply_NAME. Two gateways need two names
    #[arg(long, value_name = "NAME", default_value = "gateway", value_parser = reply_name)]
    pub reply_to: String,
    /// File with jobs and results, on a volume that outlives the pod
    #[arg(long, value_name = "FILE", default_value = "/var/lib/asya-gateway/jobs.redb")]
    pub store: PathBuf,
    /// Audit log.
    #[command(flatten)]
    pub audit: AuditArgs,
    /// Audience of accepted tokens; repeatable. Tokens for the API server are accepted from requests through its proxy, and from all
    /// if this is empty
    #[arg(long = "token-audience", value_name = "AUDIENCE", default_value = AUDIENCE)]
    pub token_audiences: Vec<String>,
    /// Host that may be called with results: a name, or *.DOMAIN; repeatable. If omitted, no URLs are accepted
    #[arg(long = "callback-host", value_name = "HOST")]
    pub callback_hosts: Vec<String>,
    /// Largest number of jobs. With more, the oldest finished jobs are removed, and submissions are refused if none is finished
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub largest_jobs: u64,
    /// Largest size of all results in MiB. With more, the oldest finished jobs are removed
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    pub largest_store: u64,
    /// Time for which a finished job is kept, such as 24h
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    pub retention: Duration,
    /// Largest body of a submission, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = MIB)]
    pub largest_body: usize,
    /// Largest result, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 4 * MIB)]
    pub largest_result: usize,
    /// Time for a job whose submission names none, such as 1h
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    pub default_timeout: Duration,
    /// Longest time for a job
    #[arg(long, value_name = "TIME", default_value = "168h", value_parser = time)]
    pub longest_timeout: Duration,
    /// Longest wait of a request for a result
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub longest_wait: Duration,
    /// Requests that wait for a result or stream its progress at once; one caller may have an eighth of them
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub largest_waits: usize,
    /// Memory for bodies that are received and, as much again, for results that are sent, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    pub memory: usize,
}

/// Reason why the gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The transports cannot be read.
    #[error(transparent)]
    Transports(#[from] settings::Error),
    /// No transport is selected.
    #[error("{0}")]
    NoTransport(String),
    /// A Secret is missing.
    #[error(transparent)]
    Secret(#[from] NoSecret),
    /// SQS cannot be used.
    #[error("invalid settings of SQS: {0}")]
    Sqs(#[from] runway_sqs::Error),
    /// The store cannot be used.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// An address cannot be used.
    #[error("cannot listen on {address}: choose another with --address or --progress-address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] BadCertificate),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] audit::Error),
    /// The client of callbacks cannot be created.
    #[error("cannot create a TLS client")]
    Client(#[from] rustls::Error),
}

/// Runs the gateway until the process shuts down.
///
/// # Errors
/// If it cannot start.
pub async fn run(process: Process, args: Args) -> Result<(), Error> {
    let transports = args.transports.load()?;
    let (name, transport) = selected(&transports, args.transport.as_deref())?;
    tracing::info!(transport = name, "starting");
    let operated = Broker::new(transport.clone(), args.secrets.secrets_dir.clone());
    match transport {
        settings::Transport::RabbitMq(broker) => {
            let secrets = &args.secrets.secrets_dir;
            // A Secret that is missing is reported at once; it is read again for each connection.
            broker.authority(secrets)?;
            let transport = RabbitMq::start(rabbitmq::Config {
                uri: broker.uri(secrets)?,
                password_file: broker.password_file(secrets),
                authorities: broker
                    .authority_file(secrets)
                    .map_or_else(String::new, |path| path.to_string_lossy().into_owned()),
                exchange: broker
                    .tenants
                    .as_ref()
                    .map_or_else(String::new, |_| queues::REPLIES.to_owned()),
                exchange_kind: rabbitmq::ExchangeKind::Direct,
                publish_exchange: None,
                tap_exchange: String::new(),
                queue: queues::reply(&args.reply_to),
                dead_letter: dead_letters(&args),
                extra_keys: Vec::new(),
                program: "asya-gateway",
                prefetch: PREFETCH,
                at_once: PREFETCH,
                create_queues: true,
                ends: Vec::new(),
                quorum: broker.queue_type == settings::QueueType::Quorum,
                // With the rest of its envelope, an error has the payload of the request, too.
                largest: Some(2 * args.largest_result as u64),
            });
            run_on(process, &args, transport, operated, broker.tenants.clone()).await
        }
        settings::Transport::Sqs(broker) => {
            let transport = Sqs::start(sqs::Config {
                settings: broker.place(&args.secrets.secrets_dir)?,
                queue: queues::reply(&args.reply_to),
                dead_letter: dead_letters(&args),
                prefetch: PREFETCH,
                at_once: PREFETCH,
                wait: Duration::from_secs(broker.wait_time_seconds.into()),
                visibility: VISIBILITY,
                create_queues: true,
                ends: Vec::new(),
            })?;
            run_on(process, &args, transport, operated, None).await
        }
    }
}

async fn run_on<T: Transport>(
    process: Process,
    args: &Args,
    transport: T,
    broker: Broker,
    tenants: Option<Tenants>,
) -> Result<(), Error> {
    let audit = Audit::open(&args.audit, "asya-gateway", server::describe, &process.metrics)?;
    let opened = process.health.waits_for("the store");
    let store = Store::open(
        &args.store,
        store::Capacity {
            jobs: args.largest_jobs,
            bytes: args.largest_store.saturating_mul(MIB as u64),
            retention: args.retention,
        },
    )?;
    let metrics = Arc::new(Metrics::default());
    process.metrics.collect(Scrape {
        metrics: Arc::clone(&metrics),
        counts: Arc::clone(&store.counts),
    });
    let transport = Arc::new(transport);
    let settings = Settings {
        reply_to: args.reply_to.clone(),
        dead_letters: dead_letters(args),
        tenants,
        largest_result: args.largest_result,
        memory: args.memory * MIB,
    };
    let gateway = Arc::new(Gateway::new(store, transport.clone(), metrics, settings));
    let of_health = Arc::clone(&gateway);
    process.health.ready_unless(move || of_health.obstacle());
    opened.done();

    let hosts = Hosts(args.callback_hosts.clone());
    let (health, shutdown) = (&process.health, &process.shutdown);
    let supervise = |what, task| health.supervise(what, shutdown.clone(), task);
    let receiving = tokio::spawn(Arc::clone(&gateway).receive(Arc::clone(&transport)));
    supervise(
        "the store",
        Box::pin(watch_store(Arc::clone(&gateway), shutdown.clone())) as futures::future::BoxFuture<'static, ()>,
    );
    supervise("sweeping", Box::pin(Arc::clone(&gateway).sweep(shutdown.clone())));
    let caller = Caller::new(hosts.clone())?;
    supervise(
        "callbacks",
        Box::pin(caller.run(Arc::clone(&gateway), shutdown.clone())),
    );

    let options = runway_callers::Options {
        people: true,
        ..runway_callers::Options::of_audiences(&args.token_audiences)
    };
    let api = Arc::new(Api {
        gateway: Arc::clone(&gateway),
        callers: Callers::new(process.client.clone(), options),
        hosts,
        limits: server::RequestLimits {
            body: args.largest_body,
            bodies: args.memory * MIB,
            wait: args.longest_wait,
            times: Times {
                usual: args.default_timeout,
                longest: args.longest_timeout,
            },
        },
        operators: Operators::new(broker, 2 * args.largest_result),
        waits: Waits::new(args.largest_waits),
        shutdown: shutdown.clone(),
    });
    let limits = Limits {
        body: args.largest_body,
        ..Limits::GATEWAY
    };
    let tls = args.listen.tls(&process, "asya-gateway").await?;
    let callers = listen(args.listen.address).await?;
    let sidecars = listen(args.progress_address).await?;
    let reports = runway_http::serve(
        sidecars,
        None,
        server::sidecars(Arc::clone(&gateway)),
        Limits::REPORTS,
        shutdown.clone(),
    );
    let router = Audit::layer(audit, server::callers(api));
    let answers = runway_http::serve(callers, tls, router, limits, shutdown.clone());
    tokio::join!(answers, reports);

    // Results that are not on disk return to the queue.
    transport.stop().await;
    let _ = receiving.await;
    transport.close().await;
    process.leadership.step_down().await;
    Ok(())
}

/// Ends when the store fails: the process is then restarted.
async fn watch_store(gateway: Arc<Gateway>, shutdown: CancellationToken) {
    tokio::select! {
        () = gateway.store.closed() => {}
        () = shutdown.cancelled() => {}
    }
}

fn selected<'a>(
    transports: &'a Transports,
    name: Option<&'a str>,
) -> Result<(&'a str, &'a settings::Transport), Error> {
    if let Some(name) = name {
        let found = transports.get(name).map_err(|_| {
            Error::NoTransport(format!(
                "--transport: '{name}' is not configured or disabled (ASYA_TRANSPORT_CONFIG)"
            ))
        })?;
        return Ok((name, found));
    }
    let mut all = transports.iter();
    match (all.next(), all.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(Error::NoTransport(
            "no transport is configured: create the ConfigMap asya-transports, or set ASYA_TRANSPORT_CONFIG".to_owned(),
        )),
        (Some(_), Some(_)) => Err(Error::NoTransport(
            "several transports are configured: select that of the actors with --transport".to_owned(),
        )),
    }
}

fn dead_letters(args: &Args) -> String {
    format!("{}_dlq", queues::reply(&args.reply_to))
}

async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })
}

fn reply_name(text: &str) -> Result<String, &'static str> {
    if queues::is_reply_name(text) {
        Ok(text.to_owned())
    } else {
        Err("use 1 to 40 lower-case letters, digits or `-`")
    }
}
