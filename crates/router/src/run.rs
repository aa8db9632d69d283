//! Starts the router, and stops it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use runway_api::labels;
use runway_callers::Callers;
use runway_callers::places::Places;
use runway_http::{Limits, Protocol};
use runway_operator::audit::{self, Audit, AuditArgs};
use runway_operator::events::Events;
use runway_operator::listen::{BadCertificate, ListenArgs};
use runway_operator::process::{Process, time};
use runway_operator::scope::ScopeArgs;
use runway_operator::services::ServicePort;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::addresses::Addresses;
use crate::canaries::Canaries;
use crate::daily::Daily;
use crate::engine::{Engines, Lookup};
use crate::limits::{self as router_limits, Routers, Shared};
use crate::metrics::{Metrics, Scrape};
use crate::models::Models;
use crate::names::Names;
use crate::picker;
use crate::rights::Rights;
use crate::scale::Scaler;
use crate::server::{self, Api};
use crate::serving::Serving;

const MIB: usize = 1024 * 1024;
/// Time before the end of the drain at which held requests are answered.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// Longest wait for the last write of the use by day.
const LAST_WRITE_WITHIN: Duration = Duration::from_secs(5);

/// Port of the router's own Service: HTTPS, and HTTP with `--plain-http`, lead to the same pods.
const PORT: u16 = 443;
/// Audience of tokens by default.
pub const AUDIENCE: &str = labels::ROUTER_MANAGER;

/// Arguments of the router.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Server for callers.
    #[command(flatten)]
    pub listen: ListenArgs,
    /// Audit log.
    #[command(flatten)]
    pub audit: AuditArgs,
    /// Namespaces of the models.
    #[command(flatten)]
    pub scope: ScopeArgs,
    /// Audience of accepted tokens; repeatable. If empty, tokens for the API server are accepted
    #[arg(long = "token-audience", value_name = "AUDIENCE", default_value = AUDIENCE)]
    pub token_audiences: Vec<String>,
    /// Folder with the keys of callers that have no token, one file for each caller
    #[arg(long, value_name = "DIR", default_value = "/etc/kubeairunway/gateway-keys")]
    pub keys_dir: PathBuf,
    /// File with the limits of requests and tokens. If it does not exist, there are none
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/etc/kubeairunway/router-limits/limits.yaml"
    )]
    pub limits: PathBuf,
    /// Number of routers, each of which has its share of the limits. If omitted, the ready pods of the Service kubeairunway-gateway
    #[arg(long, value_name = "N")]
    pub routers: Option<u64>,
    /// Valkey or Redis with counters of limits that all routers share: redis://:PASSWORD@HOST:PORT, or rediss:// for TLS. If omitted,
    /// each router has its share of the limits
    #[arg(
        long,
        value_name = "URL",
        env = "KUBEAIRUNWAY_ROUTER_COUNTERS",
        hide_env_values = true
    )]
    pub counters: Option<String>,
    /// Interval at which the right of a caller to a response in progress is checked again, such as 1m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub check_rights_every: Duration,
    /// Longest time for which a request waits until its model serves, such as 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub longest_hold: Duration,
    /// Requests that wait until their model serves at once
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub largest_held: usize,
    /// Requests in flight at once, with those that wait
    #[arg(long, value_name = "N", default_value_t = 12_000)]
    pub largest_requests: usize,
    /// Requests in flight of one tenant: the ServiceAccounts of a namespace, another user, or a key
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    pub largest_requests_of_caller: usize,
    /// Requests in flight to one model, with those that wait
    #[arg(long, value_name = "N", default_value_t = 6_000)]
    pub largest_requests_of_model: usize,
    /// Largest body of a request, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 16 * MIB)]
    pub largest_body: usize,
    /// Memory for bodies of requests until the engine has received them, in MiB; at least twice the largest body. One tenant has at most half of what others leave
    #[arg(long, value_name = "MIB", default_value_t = 64)]
    pub memory: usize,
    /// Address at which the router is the endpoint picker of InferencePools, such as 0.0.0.0:9002. If omitted, it is not
    #[arg(long, value_name = "ADDRESS")]
    pub endpoint_picker_address: Option<SocketAddr>,
    /// Time from SIGTERM until no more connections are accepted: until all nodes know that the pod ends
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    pub shutdown_delay: Duration,
    /// Time for requests in flight after that, such as 2m
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    pub drain: Duration,
}

/// Reason why the router cannot run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address cannot be used.
    #[error("cannot listen on {address}: choose another with --address")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// The address of the endpoint picker cannot be used.
    #[error("cannot listen on {address}: choose another with --endpoint-picker-address")]
    Picker {
        /// The address.
        address: SocketAddr,
        /// Cause.
        source: std::io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] BadCertificate),
    /// The URL of the counters is not one.
    #[error("invalid --counters: use redis://:PASSWORD@HOST:PORT, or rediss:// for TLS")]
    Counters(#[source] redis::RedisError),
    /// The audit log cannot be opened.
    #[error(transparent)]
    Audit(#[from] audit::Error),
}

/// Runs the router until the process shuts down.
///
/// # Errors
/// If it cannot start.
pub async fn run(process: Process, args: Args) -> Result<(), Error> {
    let addresses = Addresses::default();
    let listed = process.health.waits_for("the Services");
    let following = addresses
        .clone()
        .follow(process.client.clone(), args.scope.watch_namespaces.clone(), listed);
    // Requests in flight outlive the begin of the shutdown, and so does the watch.
    process
        .health
        .supervise("the watch of Services", process.shutdown.clone(), following);
    Box::pin(run_with(process, args, addresses.lookup())).await
}

/// Same as [`run`], with another way to find the addresses of Services.
///
/// # Errors
/// If it cannot start.
pub async fn run_with(process: Process, args: Args, lookup: Lookup) -> Result<(), Error> {
    let address = args.listen.address;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })?;
    run_on(process, args, listener, lookup).await
}

/// Same as [`run_with`], on a listener.
///
/// # Errors
/// If it cannot start.
pub async fn run_on(process: Process, args: Args, listener: TcpListener, lookup: Lookup) -> Result<(), Error> {
    let shutdown = process.shutdown.clone();
    let picker_listener = match args.endpoint_picker_address {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .map_err(|source| Error::Picker { address, source })?,
        ),
        None => None,
    };
    let tls = args.listen.tls(&process, labels::ROUTER_MANAGER).await?;
    let audit = Audit::open(&args.audit, "kubeairunway-gateway", server::describe, &process.metrics)?;
    let metrics = Arc::new(Metrics::new(args.largest_held));
    process.metrics.collect(Scrape(Arc::clone(&metrics)));
    // The cache and held requests outlive the begin of the shutdown.
    let (ended, closing) = (CancellationToken::new(), CancellationToken::new());
    let counters = args.counters.as_deref().map(Shared::new).transpose();
    let counters = counters.map_err(Error::Counters)?;
    let api = Arc::new(api(&process, &args, counters, metrics, lookup, closing.clone()));
    let listed = process.health.waits_for("the ModelDeployments");
    let following = {
        let (api, client) = (Arc::clone(&api), process.client.clone());
        let models = api.serving.models.clone();
        let namespaces = args.scope.watch_namespaces.clone();
        async move {
            models
                .follow(client, namespaces, listed, |change| {
                    api.serving.changed(change);
                    if change.gone {
                        api.metrics.forget(change.namespace, change.name);
                    } else {
                        api.metrics.know(change.kept);
                    }
                })
                .await;
        }
    };
    let supervise = |what, task: futures::future::BoxFuture<'static, ()>| {
        let ended = ended.clone();
        let task = async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = task => {}
            }
        };
        process.health.supervise(what, shutdown.clone(), task);
    };
    supervise("the watch of ModelDeployments", Box::pin(following));
    supervise("keys", Box::pin(Arc::clone(&api.rights).follow()));
    let daily = Arc::clone(&api.daily);
    supervise("the use by day", Box::pin(Arc::clone(&daily).follow()));
    supervise("limits", Box::pin(Arc::clone(&api.limits).follow()));
    let stop_accepting = CancellationToken::new();
    tokio::spawn({
        let (shutdown, stop_accepting) = (shutdown.clone(), stop_accepting.clone());
        let (delay, grace) = (args.shutdown_delay, args.drain.saturating_sub(SHUTDOWN_GRACE));
        async move {
            shutdown.cancelled().await;
            sleep(delay).await;
            stop_accepting.cancel();
            sleep(grace).await;
            closing.cancel();
        }
    });

    let limits = Limits {
        // Each request has a connection, and there are some between two requests.
        connections: args.largest_requests + args.largest_requests / 4 + 64,
        body: args.largest_body,
        drain: args.drain,
        ..Limits::ROUTER
    };
    let sizes = server::Sizes {
        body: args.largest_body,
        // Half of it for one tenant.
        bodies: (args.memory * MIB).max(2 * args.largest_body),
    };
    let picking = async {
        if let Some(listener) = picker_listener {
            let router = picker::server::router(Arc::clone(&api), sizes, args.largest_requests);
            let limits = picker_limits(args.drain);
            runway_http::serve(listener, tls.clone(), router, limits, stop_accepting.clone()).await;
        }
    };
    let router = Audit::layer(audit, server::router(Arc::clone(&api), sizes));
    let routing = runway_http::serve(listener, tls.clone(), router, limits, stop_accepting.clone());
    tokio::join!(routing, picking);
    ended.cancel();
    // Without an answer of the API server, the process ends all the same.
    let _ = timeout(LAST_WRITE_WITHIN, daily.write()).await;
    process.leadership.step_down().await;
    Ok(())
}

/// Limits of the endpoint picker. A few Gateways connect, with a stream for each request: its body is bounded, and the messages about
/// its response are not.
fn picker_limits(drain: Duration) -> Limits {
    Limits {
        connections: 256,
        protocol: Protocol::Http2,
        // Envoy opens another connection for more.
        streams: 1024,
        body: usize::MAX,
        drain,
        ..Limits::ROUTER
    }
}

/// Counts the routers of this installation. Outside of a cluster, and with Services that are not watched, there is one.
fn routers(args: &Args, lookup: Lookup) -> Routers {
    let own = args
        .listen
        .tls_namespace
        .parse()
        .ok()
        .zip(labels::ROUTER_MANAGER.parse().ok());
    let own = own.map(|(namespace, service)| ServicePort {
        namespace,
        service,
        port: PORT,
    });
    let given = args.routers;
    Box::new(move || {
        let counted = || u64::try_from(lookup(own.as_ref()?).ok()?.all.len()).ok();
        given.or_else(counted).unwrap_or(1)
    })
}

fn api(
    process: &Process,
    args: &Args,
    counters: Option<Shared>,
    metrics: Arc<Metrics>,
    lookup: Lookup,
    closing: CancellationToken,
) -> Api {
    let options = runway_callers::Options {
        people: true,
        ..runway_callers::Options::of_audiences(&args.token_audiences)
    };
    let callers = Callers::new(process.client.clone(), options);
    let models = Models::default();
    let routers = routers(args, Arc::clone(&lookup));
    let limits = router_limits::Limits::new(args.limits.clone(), routers, counters, Arc::clone(&metrics));
    Api {
        rights: Arc::new(Rights::new(callers, args.keys_dir.clone())),
        limits: Arc::new(limits),
        serving: Serving {
            scaler: Scaler::new(process.client.clone(), models.clone(), Arc::clone(&metrics)),
            models,
            engines: Engines::new(lookup),
            names: Names::default(),
            canaries: Canaries::default(),
            events: Events::start(process.client.clone(), labels::ROUTER_MANAGER),
            metrics: Arc::clone(&metrics),
            held: Arc::new(Semaphore::new(args.largest_held)),
            longest_hold: args.longest_hold,
            closing,
        },
        check_rights_every: args.check_rights_every,
        places: Places::new(args.largest_requests, args.largest_requests_of_caller),
        of_models: Places::new(args.largest_requests, args.largest_requests_of_model),
        metrics,
        daily: Arc::new(Daily::new(process.client.clone(), &args.listen.tls_namespace)),
        traces: process.traces.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::http::{Request, Response, StatusCode};
    use clap::Parser;
    use http_body_util::BodyExt as _;
    use kube::Client;
    use kube::client::Body;
    use tower::ServiceExt as _;

    use super::*;
    use crate::engine::loopback;
    use crate::model::Model;

    /// The parts of a router with these arguments, whose API server does not answer.
    fn hanging(args: &[&str]) -> Api {
        #[derive(Parser)]
        struct Command {
            #[command(flatten)]
            args: Args,
        }
        let args = Command::parse_from(["router"].iter().chain(args)).args;
        let server = tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, Infallible>>());
        let process = Process::alone(Client::new(server, "default"), CancellationToken::new());
        let metrics = Arc::new(Metrics::new(args.largest_held));
        api(&process, &args, None, metrics, loopback(), CancellationToken::new())
    }

    #[tokio::test(start_paused = true)]
    async fn stream_to_the_picker_without_a_request_ends_in_time() {
        let sizes = server::Sizes {
            body: MIB,
            bodies: 4 * MIB,
        };
        let router = picker::server::router(Arc::new(hanging(&[])), sizes, 10);
        let never = futures::stream::pending::<Result<Vec<u8>, Infallible>>();
        let request = Request::post(picker::messages::PROCESS).body(axum::body::Body::from_stream(never));
        let response = router.oneshot(request.unwrap()).await.unwrap();
        let begun = tokio::time::Instant::now();
        let collected = response.into_body().collect().await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_secs(30));
        assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
        let reply = collected.to_bytes();
        let reply = String::from_utf8_lossy(&reply);
        assert!(reply.contains("was not sent within 30 seconds"), "{reply}");
    }

    #[tokio::test]
    async fn one_model_does_not_get_all_places() {
        let api = hanging(&["--largest-requests=3", "--largest-requests-of-model=2"]);
        // The same name in another namespace is another model.
        let (hangs, other) = (
            Model::asleep("team-a/llama", "llama"),
            Model::asleep("team-b/llama", "llama"),
        );
        let mut held: Vec<_> = (0..5).filter_map(|_| api.place_at(&hangs).ok()).collect();
        assert_eq!(held.len(), 2);
        let refused = api.place_at(&hangs).unwrap_err();
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        let text = "model 'team-a/llama' has too many requests in flight; try again";
        assert_eq!(refused.to_string(), text);
        assert!(api.place_at(&other).is_ok());
        held.pop();
        assert!(api.place_at(&hangs).is_ok(), "a place that is free again");
    }
}
