//! Logs: to stderr, structured where asked for.

use tracing_subscriber::EnvFilter;

/// How to log.
#[derive(Clone, Debug, clap::Args)]
pub struct LogArgs {
    /// What to log, as in `info` or `info,kube=debug`.
    #[arg(long, value_name = "FILTER", default_value = "info", env = "KUBEAIRUNWAY_LOG")]
    pub log: String,
    /// Log as JSON, one object a line.
    #[arg(long)]
    pub log_json: bool,
}

/// Starts logging. A second call does nothing.
pub fn init(args: &LogArgs) {
    let filter = EnvFilter::try_new(&args.log).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    let _ = if args.log_json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
}
