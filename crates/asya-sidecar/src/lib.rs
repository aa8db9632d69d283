//! The data plane of Asya: passes messages from a queue to the handler runtime, and the results to the next actor, without loss.
//!
//! The wire protocol is `docs/reference/asya-protocol.md`. Modules, in reading order:
//!
//! | module | content |
//! |---|---|
//! | [`worker`] | processing of a message |
//! | [`plan`] | decisions; pure |
//! | [`envelope`] | the message; keeps unknown fields |
//! | [`lenient`] | values of a runtime's error, whatever its JSON contains |
//! | [`runtime`] | frames to and from the handler runtime |
//! | [`gate`] | pauses receiving while the runtime is not ready |
//! | [`alias`] | moves messages that arrive under the name of the public Asya |
//! | [`progress`] | reports to a gateway |
//! | [`crashes`] | messages during whose call the runtime died |
//! | [`finished`] | results whose connection was lost |
//! | [`transport`] | brokers behind one trait, names of queues: the crate `asya-transport` |
//! | [`config`] | settings |
//! | [`metrics`], [`admin`], [`process`] | metrics, probes, logs and exit code |

pub mod admin;
pub mod alias;
pub mod config;
pub mod crashes;
pub mod envelope;
pub mod finished;
pub mod gate;
pub mod lenient;
pub mod metrics;
pub mod plan;
pub mod process;
pub mod progress;
pub mod runtime;
pub mod worker;

pub use runway_asya_transport as transport;

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use config::{BrokerKind, Config};
use crashes::Crashes;
use finished::Finished;
use gate::Gate;
use metrics::Metrics;
use runtime::Caller;
use transport::Transport;
use transport::rabbitmq::RabbitMq;
use transport::sqs::Sqs;
use worker::Shared;

/// Part of the largest message that is kept of results whose connection was lost: 8 MiB by default.
const FINISHED_SHARE: usize = 8;

/// Failure that ends the sidecar.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The runtime did not become ready in time.
    #[error("the runtime was not ready after {0:?} (ASYA_RUNTIME_READY_TIMEOUT); see its log for the cause")]
    RuntimeNotReady(std::time::Duration),
    /// The settings of SQS are invalid.
    #[error("invalid settings of SQS (ASYA_SQS_ENDPOINT, ASYA_AWS_REGION)")]
    Sqs(#[from] runway_sqs::Error),
}

/// Runs until `stop` is cancelled, then finishes messages in progress.
///
/// # Errors
/// If the runtime does not become ready, or the settings cannot be used.
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), Error> {
    match config.transport {
        BrokerKind::RabbitMq => {
            let start = || {
                let alias = config.rabbitmq_alias().map(RabbitMq::start);
                Ok((RabbitMq::start(config.rabbitmq()), alias))
            };
            run_on(&config, stop, "rabbitmq", start).await
        }
        BrokerKind::Sqs => {
            let start = || {
                let alias = config.sqs_alias().map(Sqs::start).transpose()?;
                Ok((Sqs::start(config.sqs())?, alias))
            };
            run_on(&config, stop, "sqs", start).await
        }
    }
}

/// `start` starts receiving from the actor's queue, and from its alias if there is one.
async fn run_on<T: Transport>(
    config: &Config,
    stop: CancellationToken,
    name: &'static str,
    start: impl FnOnce() -> Result<(T, Option<T>), Error>,
) -> Result<(), Error> {
    let queues = config.queues();
    let queue = queues.of(&config.actor_name);
    let metrics = Arc::new(Metrics::new(&config.metrics_namespace, &queue, name));
    let running = Arc::new(OnceLock::new());
    serve_admin(config, &metrics, Arc::clone(&running));

    let patience = config.runtime_ready_timeout;
    let address = config.runtime_address();
    tokio::select! {
        ready = runtime::wait_until_ready(&address, patience) => {
            if !ready {
                return Err(Error::RuntimeNotReady(patience));
            }
        }
        () = stop.cancelled() => return Ok(()),
    }

    let (transport, alias) = start()?;
    let alias = alias.map(Arc::new);
    let shared = Arc::new(Shared {
        transport,
        actor: config.actor(),
        policy: config.policy(),
        queues,
        has_alias: config.has_alias(),
        metrics,
        gate: Gate::new(config.runtime_concurrency.into()),
        crashes: Crashes::default(),
        finished: Finished::new(config.policy().max_bytes / FINISHED_SHARE),
        reporter: config.gateway_url.as_deref().and_then(progress::Reporter::start),
        stopping: CancellationToken::new(),
        give_up: CancellationToken::new(),
        settling: TaskTracker::new(),
    });
    let workers = TaskTracker::new();
    for _ in 0..config.runtime_concurrency {
        let caller = Caller::new(address.clone(), shared.policy.max_bytes);
        workers.spawn(worker::work(Arc::clone(&shared), caller));
    }
    if let Some(alias) = &alias {
        let (metrics, give_up) = (Arc::clone(&shared.metrics), shared.give_up.clone());
        workers.spawn(alias::forward(Arc::clone(alias), queue, metrics, give_up));
    }
    workers.close();
    let _ = running.set(Arc::clone(&shared));

    stop.cancelled().await;
    drain(&shared, alias.as_deref(), &workers, config.drain_timeout).await;
    Ok(())
}

/// Serves metrics, and whether the runtime is ready and the broker can be reached and accepts messages.
fn serve_admin<T: Transport>(config: &Config, metrics: &Arc<Metrics>, running: Arc<OnceLock<Arc<Shared<T>>>>) {
    if !config.metrics_enabled {
        return;
    }
    let is_ready = move || {
        let is_ready = |shared: &Arc<Shared<T>>| {
            let Metrics { not_ready, blocked, .. } = &*shared.metrics;
            shared.transport.is_connected() && not_ready.get() == 0 && blocked.get() == 0
        };
        running.get().is_some_and(is_ready)
    };
    admin::serve(config.metrics_addr, Arc::clone(metrics), is_ready);
}

/// Finishes messages in progress. Returns those to the queue that do not finish in time, or have not started.
async fn drain<T: Transport>(
    shared: &Shared<T>,
    alias: Option<&T>,
    workers: &TaskTracker,
    patience: std::time::Duration,
) {
    let transports = || alias.into_iter().chain([&shared.transport]);
    shared.stopping.cancel();
    for transport in transports() {
        transport.stop().await;
    }
    tracing::info!("receiving no more; finishing messages in progress");
    shared.settling.close();
    let finished = async {
        workers.wait().await;
        shared.settling.wait().await;
    };
    if tokio::time::timeout(patience, finished).await.is_err() {
        tracing::warn!(
            ?patience,
            "messages not finished in time (ASYA_DRAIN_TIMEOUT): returning them to the queue"
        );
        shared.give_up.cancel();
        workers.wait().await;
        shared.settling.wait().await;
    }
    for transport in transports() {
        transport.close().await;
    }
    tracing::info!("drained");
}
