//! Webhooks over TLS without anybody's help: certificates, the CA bundle where the API server looks for it, the server.
//!
//! | module | what |
//! |---|---|
//! | [`certificates`] | authorities, leaves, and who signs when; pure |
//! | [`authority`] | keeps the authority in a Secret, and the leaf and the bundle current |
//! | [`bundle`] | keeps the bundle in webhook configurations, and in CRDs that are converted |
//! | [`conversion`] | serves the conversion of objects between versions |
//!
//! At rest nothing is sent: everything waits for a watch or a timer.

pub mod authority;
pub mod bundle;
pub mod certificates;
pub mod conversion;

use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsConfig, from_tcp_rustls};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use authority::{Authority, Settings};
pub use bundle::{Endpoint, Target, keep_bundle};
pub use certificates::Lifetimes;

/// Requests under way at shutdown may take this long: longer than an API server waits for a webhook by default.
const GRACE: Duration = Duration::from_secs(12);

/// Serves `router` until shutdown, then lets requests under way end.
pub async fn serve(
    listener: TcpListener,
    tls: RustlsConfig,
    router: Router,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let handle = Handle::new();
    let server = from_tcp_rustls(listener.into_std()?, tls)?
        .handle(handle.clone())
        .serve(router.into_make_service());
    tokio::pin!(server);
    tokio::select! {
        ended = &mut server => return ended,
        () = shutdown.cancelled() => handle.graceful_shutdown(Some(GRACE)),
    }
    server.await
}
