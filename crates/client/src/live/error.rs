//! Failures of requests to a cluster, with the remedy.

use runway_api::name::Invalid;
use runway_operator::client;
use runway_operator::telemetry::message;

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No kubeconfig is usable.
    #[error(transparent)]
    Client(#[from] client::Error),
    /// A field of an object holds a name that no object can have.
    #[error(transparent)]
    Name(#[from] Invalid),
    /// The cluster does not respond.
    #[error(
        "cannot reach the cluster at {url}: {}; check that it runs and that the context is correct",
        message(source.as_ref())
    )]
    Unreachable {
        /// URL of the API server.
        url: String,
        /// Cause.
        source: Box<kube::Error>,
    },
    /// The server rejects the credentials.
    #[error("the cluster at {url} rejects the credentials of the kubeconfig: log in again ({message})")]
    Unauthorized {
        /// URL of the API server.
        url: String,
        /// Message of the server.
        message: String,
    },
    /// The user does not have the permission.
    #[error("not allowed to {doing}: ask an administrator for this permission ({message})")]
    Forbidden {
        /// Action, as a phrase with a verb.
        doing: String,
        /// Message of the server.
        message: String,
    },
    /// The object does not exist.
    #[error(
        "{kind} '{name}' not found{}: {}", in_namespace(.namespace), way_out(.kind, .namespace, .closest.as_deref())
    )]
    NotFound {
        /// Kind.
        kind: &'static str,
        /// Name.
        name: String,
        /// Namespace that was searched; empty for cluster-scoped kinds.
        namespace: String,
        /// Most similar existing name.
        closest: Option<String>,
    },
    /// The server does not serve the kind.
    #[error("the cluster at {url} does not serve {kind} (is the control plane installed?)")]
    NotInstalled {
        /// URL of the API server.
        url: String,
        /// The kind.
        kind: &'static str,
    },
    /// This version does not understand how an operator was started.
    #[error("cannot read the arguments of {operator}: use the command of its version")]
    Arguments {
        /// Name of the operator.
        operator: String,
        /// Cause.
        source: Box<clap::Error>,
    },
    /// Any other error.
    #[error("cannot {doing}")]
    Other {
        /// Action, as a phrase with a verb.
        doing: String,
        /// Cause.
        source: Box<kube::Error>,
    },
}

fn in_namespace(namespace: &str) -> String {
    if namespace.is_empty() {
        String::new()
    } else {
        format!(" in namespace '{namespace}'")
    }
}

fn way_out(kind: &str, namespace: &str, closest: Option<&str>) -> String {
    let get = match kind {
        "ModelDeployment" => "get".to_owned(),
        other => format!("get {}", other.to_lowercase()),
    };
    match closest {
        Some(name) => format!("did you mean '{name}'? To list all, run: kubeairunway {get} -A"),
        None if namespace.is_empty() => format!("to list all, run: kubeairunway {get}"),
        None => format!("use -n for another namespace, or list all namespaces: kubeairunway {get} -A"),
    }
}
