//! HTTP endpoints of a process: `/metrics`, `/healthz` and `/readyz`.

use std::fmt::Write as _;
use std::net::SocketAddr;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use runway_http::Limits;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::health::Health;
use crate::metrics::Metrics;

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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

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
    async fn missing_condition_and_error_are_named() {
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
}
