//! `/metrics`, `/healthz`, `/readyz` and `/runtimez`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use runway_http::Limits;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Pause before the address is bound again.
const BIND_AGAIN: Duration = Duration::from_secs(5);

/// Serves until the process ends. `is_ready` returns whether messages can be received and sent.
pub fn serve(address: SocketAddr, metrics: Arc<Metrics>, is_ready: impl Fn() -> bool + Clone + Send + Sync + 'static) {
    let of_runtime = Arc::clone(&metrics);
    let runtime = move || {
        let is_hung = of_runtime.hung.get() > 0;
        async move {
            if is_hung {
                let text = "the runtime is still busy with a call that timed out";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            } else {
                (StatusCode::OK, "ok").into_response()
            }
        }
    };
    let text = move || {
        let metrics = Arc::clone(&metrics);
        async move {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], metrics.text())
        }
    };
    let ready = move || {
        let is_ready = is_ready();
        async move {
            if is_ready {
                (StatusCode::OK, "ready").into_response()
            } else {
                (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "cannot reach the runtime or the broker, or may not send messages",
                )
                    .into_response()
            }
        }
    };
    let router = Router::new()
        .route("/metrics", get(text))
        .route("/healthz", get(async || "ok"))
        .route("/health", get(async || "ok"))
        .route("/readyz", get(ready))
        .route("/runtimez", get(runtime));
    tokio::spawn(async move {
        let listener = bind(address).await;
        runway_http::serve(listener, None, router, Limits::ADMIN, CancellationToken::new()).await;
    });
}

/// Binds the address. A container of the workload that the sidecar is in can have the port: messages are processed anyway.
async fn bind(address: SocketAddr) -> TcpListener {
    let mut is_reported = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if !is_reported => {
                tracing::error!(%address, %error, "cannot serve metrics and probes (ASYA_METRICS_ADDR); retrying");
                is_reported = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_AGAIN).await;
    }
}
