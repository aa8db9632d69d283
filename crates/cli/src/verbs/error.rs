//! Errors of the verbs.

use kube::ResourceExt;
use runway_api::{LlamaStackDistribution, ModelDeployment, Phase};
use runway_client::cluster;
use runway_client::target::Target;

use crate::exit::{NOT_IN_TIME, WRONG_USAGE};

/// Failure of a verb.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster cannot be read or written.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// It cannot become ready as it is.
    #[error("{target} has failed: {message}")]
    Failed {
        /// What was waited for.
        target: Target,
        /// What its status says.
        message: String,
    },
    /// It goes on, but not in time.
    #[error(
        "timed out after {after} waiting for {target} to be {wanted} (last state: {last}); it may still succeed: check again, or increase --timeout"
    )]
    NotInTime {
        /// What was waited for.
        target: Target,
        /// `ready` or `gone`.
        wanted: &'static str,
        /// How long was waited.
        after: String,
        /// What was seen last.
        last: String,
    },
    /// The kind does not know the verb.
    #[error("cannot {verb} {target}: only ModelDeployments, AsyncActors and LlamaStackDistributions can be paused")]
    NotForKind {
        /// The verb.
        verb: &'static str,
        /// What it was asked of.
        target: Target,
    },
    /// Nothing writes a log yet.
    #[error("{target} has no pods yet: to see why, run: kubeairunway {see}")]
    NoPods {
        /// Whose pods.
        target: Target,
        /// A command that tells more.
        see: String,
    },
    /// No pod is called so.
    #[error("{target} has no pod '{pod}'{hint} (pods: {known})")]
    NoSuchPod {
        /// Whose pods.
        target: Target,
        /// As given.
        pod: String,
        /// The one that looks most like it, as a question.
        hint: String,
        /// Those there are.
        known: String,
    },
    /// It answers nowhere.
    #[error(
        "ModelDeployment '{name}' has no endpoint yet ({status}): to wait for it, run: kubeairunway status {name} -n {namespace} --wait"
    )]
    NoEndpoint {
        /// The ModelDeployment.
        name: String,
        /// Its namespace.
        namespace: String,
        /// Where it stands.
        status: String,
    },
    /// A Llama Stack server answers nowhere.
    #[error(
        "LlamaStackDistribution '{name}' has no address yet: to see why, run: kubeairunway why llsd/{name} -n {namespace}"
    )]
    NoServer {
        /// The LlamaStackDistribution.
        name: String,
        /// Its namespace.
        namespace: String,
    },
    /// The model, or what is on the way to it, said no.
    #[error(transparent)]
    Talk(#[from] runway_client::talk::Error),
    /// What was given makes no sense.
    #[error("{0}")]
    Usage(String),
    /// Nothing is called so.
    #[error(transparent)]
    Target(#[from] runway_client::target::Error),
    /// There is nothing to deploy.
    #[error(transparent)]
    Deploy(#[from] runway_client::deploy::Error),
    /// The provider is not registered.
    #[error(
        "provider '{name}' is not registered (registered: {known}): use one of these with --to, or install it first: kubeairunway provider install {name}"
    )]
    UnknownProvider {
        /// Name as given.
        name: String,
        /// Registered providers.
        known: String,
    },
    /// The provider does not support the ModelDeployment.
    #[error("provider {provider} would reject the ModelDeployment: {reason}. Nothing was changed")]
    Refused {
        /// Name of the provider.
        provider: String,
        /// Reason reported by the provider.
        reason: String,
    },
    /// The new provider failed.
    #[error(
        "migration to {provider} failed: {message}. To go back, run: kubeairunway migrate {name} -n {namespace} --to {from}"
    )]
    MigrationFailed {
        /// Name of the ModelDeployment.
        name: String,
        /// Namespace of the ModelDeployment.
        namespace: String,
        /// New provider.
        provider: String,
        /// Message of the status.
        message: String,
        /// Previous provider.
        from: String,
    },
    /// The migration did not finish in time; it may still succeed.
    #[error(
        "timed out after {after} waiting for '{name}' to be Running on {provider}; it may still succeed. To see its state, run: kubeairunway status {name} -n {namespace}"
    )]
    MigrationNotInTime {
        /// Name of the ModelDeployment.
        name: String,
        /// Namespace of the ModelDeployment.
        namespace: String,
        /// New provider.
        provider: String,
        /// Timeout.
        after: String,
    },
    /// The user did not confirm.
    #[error("not confirmed: nothing was changed (--yes skips the confirmation)")]
    NotConfirmed,
}

impl Error {
    /// A ModelDeployment that answers nowhere.
    pub fn no_endpoint(md: &ModelDeployment) -> Self {
        let status = md.status.clone().unwrap_or_default();
        let message = status
            .message
            .map_or_else(String::new, |message| format!(", {message}"));
        Self::NoEndpoint {
            name: md.name_any(),
            namespace: md.namespace().unwrap_or_default(),
            status: format!("{}{message}", status.phase.map_or("no status", Phase::as_str)),
        }
    }

    /// A LlamaStackDistribution that answers nowhere.
    pub fn no_server(llsd: &LlamaStackDistribution) -> Self {
        Self::NoServer {
            name: llsd.name_any(),
            namespace: llsd.namespace().unwrap_or_default(),
        }
    }

    /// The exit code, where it is not 1.
    pub fn code(&self) -> Option<u8> {
        match self {
            Self::NotInTime { .. } | Self::MigrationNotInTime { .. } => Some(NOT_IN_TIME),
            // As clap ends for what it finds itself.
            Self::Target(_) => Some(WRONG_USAGE),
            _ => None,
        }
    }
}
