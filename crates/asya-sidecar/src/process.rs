//! The process around it: logs, signals, exit code. Not `runway-operator`'s, which would bring a Kubernetes client along.

use std::io::Write as _;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::Config;

/// Runs the sidecar; an error is told in one line, with its causes.
pub async fn main(config: Config) -> ExitCode {
    log(&config);
    // Twice is fine: the first stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match crate::run(config, on_signal()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let said = crate::with_cause(&error);
            tracing::error!("{said}");
            leave_word(&format!("asya-sidecar: {said}"));
            ExitCode::FAILURE
        }
    }
}

/// Where the kubelet looks for the last words of a container: so they are in the pod's status. Only it makes the file.
fn leave_word(text: &str) {
    let file = std::fs::OpenOptions::new().write(true).open("/dev/termination-log");
    // Outside of a pod there is nobody who reads it.
    let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
}

fn log(config: &Config) {
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(config.log_level.clone());
    let _ = if config.log_json {
        registry.with(lines.json()).try_init()
    } else {
        registry.with(lines).try_init()
    };
}

/// Cancelled at the first SIGTERM or SIGINT.
fn on_signal() -> CancellationToken {
    let token = CancellationToken::new();
    let cancel = token.clone();
    tokio::spawn(async move {
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = tokio::signal::ctrl_c() => {}
                }
            }
            Err(_) => {
                let _ = tokio::signal::ctrl_c().await;
            }
        }
        tracing::info!("shutting down");
        cancel.cancel();
    });
    token
}
