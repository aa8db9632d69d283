//! Logs to stderr, as text or JSON.

use std::process::ExitCode;

use tracing_subscriber::EnvFilter;

/// Arguments for logs.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// Log filter, such as info or info,kube=debug
    #[arg(long, value_name = "FILTER", default_value = "info", env = "KUBEAIRUNWAY_LOG")]
    pub log: String,
    /// Write logs as JSON, one object per line
    #[arg(long)]
    pub log_json: bool,
}

/// kube adds its own span to every reconcile; ours has more fields.
const QUIET: &str = "kube_runtime::controller=warn";

/// Initializes logging. A second call has no effect.
pub fn init(args: &LogArgs) {
    let filter = EnvFilter::try_new(format!("{QUIET},{}", args.log)).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let _ = if args.log_json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
}

/// Runs the body of a main function. An error is logged in one line with its causes.
pub async fn exit<E: std::error::Error + 'static>(body: impl Future<Output = Result<(), E>>) -> ExitCode {
    match body.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes. kube's messages contain their causes already, so that repetitions are omitted.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
