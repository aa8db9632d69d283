//! Logs, signals and exit code. Does not use `runway-operator`, which depends on a Kubernetes client.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::Config;

/// Runs the sidecar. Prints an error in one line, with its causes.
pub async fn main(config: Config) -> ExitCode {
    log(&config);
    // If a provider is installed already, it stays.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match crate::run(config, on_signal()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let said = crate::transport::with_cause(&error);
            tracing::error!("{said}");
            leave_word(&format!("asya-sidecar: {said}"));
            ExitCode::FAILURE
        }
    }
}

/// Termination message of the container, which the kubelet copies to the pod status. Only the kubelet creates the file.
fn leave_word(text: &str) {
    let file = std::fs::OpenOptions::new().write(true).open("/dev/termination-log");
    // The file does not exist outside of pods.
    let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
}

fn log(config: &Config) {
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(config.log_level.clone());
    let _ = if config.log_json {
        registry.with(lines.json()).try_init()
    } else {
        registry.with(lines).try_init()
    };
}

/// Token that is cancelled at the first SIGTERM or SIGINT.
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
