//! HTTP endpoints of a process: `/metrics`, `/healthz` and `/readyz`.
//!
//! Ready means that all initial lists are complete and all servers have started; the response names what is missing. Healthy
//! means that no permanent task has ended and no reconcile hangs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use runway_http::Limits;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Name of the pending part of a process that has not registered another one yet.
const START: &str = "the start";
/// Age of a reconcile that ignored its own limit ([`crate::controller::LIMIT`]) and therefore blocks its thread.
const HANGS: Duration = Duration::from_mins(3);
/// Content type of the OpenMetrics specification.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Arguments of the admin server.
#[derive(Clone, Debug, clap::Args)]
pub struct AdminArgs {
    /// Address to serve /metrics, /healthz and /readyz on
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
    pub admin_address: SocketAddr,
}

/// The admin server cannot be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics and health on {address}: choose another with --admin-address")]
pub struct Error {
    address: SocketAddr,
    source: std::io::Error,
}

/// Health of a process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Health(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Names of the parts that are not ready, with a count each.
    pending: Mutex<BTreeMap<String, usize>>,
    /// Permanent tasks that ended.
    ended: Mutex<BTreeSet<&'static str>>,
    /// Reconciles in progress.
    busy: Mutex<HashMap<u64, (Instant, String)>>,
    number: AtomicU64,
    checks: Mutex<Vec<Check>>,
}

/// Check that returns why something is not ready.
struct Check(Box<dyn Fn() -> Option<String> + Send + Sync>);

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Check")
    }
}

impl Health {
    /// Not ready until the first part of the start is registered with [`Self::waits_for`]: the admin server answers before that.
    pub fn starting() -> Self {
        let health = Self::default();
        lock(&health.0.pending).insert(START.to_owned(), 1);
        health
    }

    /// Makes the process unready until [`Pending::done`].
    #[must_use = "dropped without `done`, it is waited for until the end"]
    pub fn waits_for(&self, what: impl Into<String>) -> Pending {
        let what = what.into();
        let mut pending = lock(&self.0.pending);
        *pending.entry(what.clone()).or_default() += 1;
        pending.remove(START);
        drop(pending);
        Pending {
            health: self.clone(),
            what,
        }
    }

    /// Runs a permanent task until `shutdown`. If it ends earlier, the process is unhealthy.
    pub fn supervise(
        &self,
        what: &'static str,
        shutdown: CancellationToken,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let task = tokio::spawn(task);
        let health = self.clone();
        tokio::spawn(async move {
            let ended = task.await;
            if !shutdown.is_cancelled() {
                tracing::error!(?ended, "{what} ended");
                lock(&health.0.ended).insert(what);
            }
        })
    }

    /// Registers a reconcile of `what` until the result is dropped.
    pub(crate) fn busy_with(&self, what: String) -> Busy {
        let number = self.0.number.fetch_add(1, Ordering::Relaxed);
        lock(&self.0.busy).insert(number, (Instant::now(), what));
        Busy {
            health: self.clone(),
            number,
        }
    }

    /// Makes the process unready while `reason` returns a reason. Called at each probe.
    pub fn ready_unless(&self, reason: impl Fn() -> Option<String> + Send + Sync + 'static) {
        lock(&self.0.checks).push(Check(Box::new(reason)));
    }

    /// Reasons why the process is not ready; empty if it is.
    pub fn missing(&self) -> Vec<String> {
        let pending = lock(&self.0.pending);
        let waiting = pending.keys().map(|what| format!("waiting for {what}"));
        let checks = lock(&self.0.checks);
        waiting.chain(checks.iter().filter_map(|check| check.0())).collect()
    }

    /// Reasons why the process is not healthy; empty if it is.
    pub fn problems(&self) -> Vec<String> {
        self.problems_after(HANGS)
    }

    fn problems_after(&self, limit: Duration) -> Vec<String> {
        let ended = lock(&self.0.ended)
            .iter()
            .map(|what| format!("{what} ended"))
            .collect::<Vec<_>>();
        let hanging = lock(&self.0.busy)
            .values()
            .filter(|(since, _)| since.elapsed() > limit)
            .map(|(since, what)| format!("the reconcile of {what} hangs since {} s", since.elapsed().as_secs()))
            .collect();
        [ended, hanging].concat()
    }
}

/// A pending part of the start.
#[derive(Debug)]
pub struct Pending {
    health: Health,
    what: String,
}

impl Pending {
    /// Marks it as completed.
    pub fn done(self) {
        let mut pending = lock(&self.health.0.pending);
        if let Some(count) = pending.get_mut(&self.what) {
            *count -= 1;
            if *count == 0 {
                pending.remove(&self.what);
            }
        }
    }
}

/// A reconcile in progress.
#[derive(Debug)]
pub(crate) struct Busy {
    health: Health,
    number: u64,
}

impl Drop for Busy {
    fn drop(&mut self) {
        lock(&self.health.0.busy).remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves until the process ends, including shutdown; returns the address.
///
/// # Errors
///
/// The address cannot be used.
pub async fn serve(
    args: &AdminArgs,
    health: Health,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> Result<SocketAddr, Error> {
    let failed = |source| Error {
        address: args.admin_address,
        source,
    };
    let listener = TcpListener::bind(args.admin_address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    tracing::info!(%address, "serving metrics and health");
    let router = router(health.clone(), metrics, shutdown.clone());
    health.supervise("the admin server", shutdown, async move {
        runway_http::serve(listener, None, router, Limits::ADMIN, CancellationToken::new()).await;
    });
    Ok(address)
}

fn router(health: Health, metrics: Metrics, shutdown: CancellationToken) -> Router {
    let alive = health.clone();
    Router::new()
        .route(
            "/metrics",
            get(async move || ([(header::CONTENT_TYPE, OPEN_METRICS)], metrics.text())),
        )
        .route("/healthz", get(async move || verdict("healthy", &alive.problems())))
        .route(
            "/readyz",
            get(async move || {
                let mut missing = health.missing();
                if shutdown.is_cancelled() {
                    missing.push("shutting down".to_owned());
                }
                verdict("ready", &missing)
            }),
        )
}

/// One line per reason.
fn verdict(well: &str, reasons: &[String]) -> impl IntoResponse + use<> {
    if reasons.is_empty() {
        return (StatusCode::OK, format!("{well}\n"));
    }
    let mut text = format!("not {well}:\n");
    for reason in reasons {
        // Writing to a String does not fail.
        let _ = writeln!(text, "  {reason}");
    }
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Leadership;
    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use tower::ServiceExt;

    async fn ask(router: &Router, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let answer = router.clone().oneshot(request).await.unwrap();
        let code = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (code, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn what_is_waited_for_and_what_is_wrong_is_named() {
        let (health, shutdown) = (Health::default(), CancellationToken::new());
        let metrics = Metrics::new("toy", Leadership::always());
        let router = router(health.clone(), metrics, shutdown.clone());
        let (list, certificate) = (health.waits_for("the list of toys"), health.waits_for("a certificate"));
        assert_eq!(
            ask(&router, "/readyz").await,
            (
                503,
                "not ready:\n  waiting for a certificate\n  waiting for the list of toys\n".to_owned()
            )
        );
        list.done();
        certificate.done();
        assert_eq!(ask(&router, "/readyz").await, (200, "ready\n".to_owned()));

        assert_eq!(ask(&router, "/healthz").await, (200, "healthy\n".to_owned()));
        health
            .supervise("the toy's watch", shutdown.clone(), async { panic!("broken") })
            .await
            .unwrap();
        assert_eq!(
            ask(&router, "/healthz").await,
            (503, "not healthy:\n  the toy's watch ended\n".to_owned())
        );

        let broken = Arc::new(AtomicU64::default());
        let asked = Arc::clone(&broken);
        health.ready_unless(move || (asked.load(Ordering::Relaxed) > 0).then(|| "the bear is broken".to_owned()));
        assert_eq!(ask(&router, "/readyz").await.0, 200);
        broken.store(1, Ordering::Relaxed);
        assert_eq!(
            ask(&router, "/readyz").await,
            (503, "not ready:\n  the bear is broken\n".to_owned())
        );
        broken.store(0, Ordering::Relaxed);

        shutdown.cancel();
        assert_eq!(
            ask(&router, "/readyz").await,
            (503, "not ready:\n  shutting down\n".to_owned())
        );
        let (code, text) = ask(&router, "/metrics").await;
        assert!(code == 200 && text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn process_that_starts_is_not_ready_before_its_first_part_is_registered() {
        let health = Health::starting();
        health.ready_unless(|| None);
        assert_eq!(health.missing(), ["waiting for the start"]);
        let (list, certificate) = (health.waits_for("the list of toys"), health.waits_for("a certificate"));
        list.done();
        assert_eq!(health.missing(), ["waiting for a certificate"]);
        certificate.done();
        assert!(health.missing().is_empty());
    }

    #[tokio::test]
    async fn a_task_may_end_at_shutdown_and_a_reconcile_may_end_at_any_time() {
        let (health, shutdown) = (Health::default(), CancellationToken::new());
        drop(health.busy_with("bear".to_owned()));
        shutdown.cancel();
        health.supervise("a task", shutdown, async {}).await.unwrap();
        assert_eq!(health.problems(), Vec::<String>::new());

        let _busy = health.busy_with("bear".to_owned());
        assert_eq!(health.problems_after(HANGS).first().map(String::as_str), None);
        assert_eq!(
            health.problems_after(Duration::ZERO),
            ["the reconcile of bear hangs since 0 s"]
        );
    }
}
