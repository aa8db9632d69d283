//! `/metrics`, `/healthz` and `/readyz`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use runway_http::Limits;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Serves until the process ends. `is_ready` returns whether messages can be received and sent.
pub async fn serve(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    is_ready: impl Fn() -> bool + Clone + Send + Sync + 'static,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
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
                    "cannot reach the runtime or the broker",
                )
                    .into_response()
            }
        }
    };
    let router = Router::new()
        .route("/metrics", get(text))
        .route("/healthz", get(async || "ok"))
        .route("/health", get(async || "ok"))
        .route("/readyz", get(ready));
    tokio::spawn(async move {
        runway_http::serve(listener, None, router, Limits::ADMIN, CancellationToken::new()).await;
    });
    Ok(())
}
