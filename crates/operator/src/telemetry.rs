//! Logs to stderr, as text or JSON.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use kube::config::KubeconfigError;
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
        .with_ansi(std::io::stderr().is_terminal())
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
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = message(error);
    let mut current = error;
    while let Some(cause) = current.source().filter(|_| !is_complete(current)) {
        let cause_text = message(cause);
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        current = cause;
    }
    text
}

/// Message of one error, for people. kube's adds the whole response of the API server in Debug form, and the layers between a request
/// and the reason why it was not sent.
pub fn message(error: &(dyn std::error::Error + 'static)) -> String {
    if is_of_transport(error) {
        let mut last = error;
        while let Some(cause) = last.source() {
            last = cause;
        }
        return last.to_string();
    }
    match (of_kube(error), of_kubeconfig(error)) {
        (Some(kube::Error::Api(status)), _) if !status.message.is_empty() => status.message.clone(),
        (_, Some(KubeconfigError::ReadConfig(cause, _))) => cause.to_string(),
        (_, Some(KubeconfigError::Parse(cause))) => {
            let text = cause.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.trim_start_matches("error: ").trim_end().to_owned()
        }
        _ => error.to_string(),
    }
}

/// Whether the message of an error contains its causes.
fn is_complete(error: &(dyn std::error::Error + 'static)) -> bool {
    is_of_transport(error) || matches!(of_kube(error), Some(kube::Error::Api(_)))
}

/// Whether no response came.
fn is_of_transport(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        of_kube(error),
        Some(kube::Error::Service(_) | kube::Error::HyperError(_))
    )
}

fn of_kube<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a kube::Error> {
    let boxed = error.downcast_ref::<Box<kube::Error>>().map(AsRef::as_ref);
    error.downcast_ref().or(boxed)
}

fn of_kubeconfig<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a KubeconfigError> {
    let boxed = error.downcast_ref::<Box<KubeconfigError>>().map(AsRef::as_ref);
    error.downcast_ref().or(boxed)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read Pod 'a'")]
    struct Failed {
        source: Box<kube::Error>,
    }

    #[test]
    fn response_of_the_api_server_is_its_message() {
        let api = || {
            kube::Error::Api(
                Status::failure("pods \"a\" not found", "NotFound")
                    .with_code(404)
                    .boxed(),
            )
        };
        assert_eq!(chain(&api()), "pods \"a\" not found");
        let failed = Failed {
            source: Box::new(api()),
        };
        assert_eq!(chain(&failed), "cannot read Pod 'a': pods \"a\" not found");
    }

    #[test]
    fn request_without_a_response_names_the_last_cause() {
        let refused = Failed {
            source: Box::new(kube::Error::Service(Box::new(std::io::Error::other(
                "connection refused",
            )))),
        };
        assert_eq!(chain(&refused), "cannot read Pod 'a': connection refused");
    }
}
