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
    /// The object has failed.
    #[error("{target} has failed: {message}")]
    Failed {
        /// Object.
        target: Target,
        /// Message of its status.
        message: String,
    },
    /// The timeout expired; the operation may still succeed.
    #[error(
        "timed out after {after} waiting for {target} to be {wanted} (last state: {last}); it may still succeed: check again, or increase --timeout"
    )]
    NotInTime {
        /// Object.
        target: Target,
        /// `ready` or `gone`.
        wanted: &'static str,
        /// Timeout.
        after: String,
        /// Last state.
        last: String,
    },
    /// The kind does not know the verb.
    #[error("cannot {verb} {target}: only ModelDeployments, AsyncActors and LlamaStackDistributions can be paused")]
    NotForKind {
        /// The verb.
        verb: &'static str,
        /// Object.
        target: Target,
    },
    /// The object has no number of replicas of its own.
    #[error(
        "cannot scale {0}: it has no replicas of its own; scale its target, or set spec.scaling of an AsyncActor with: kubeairunway edit asya/NAME"
    )]
    NotScaled(Target),
    /// The editor cannot be run, or its result cannot be used.
    #[error("cannot edit {target}: {reason}")]
    Edit {
        /// Object.
        target: Target,
        /// Reason, and the file with the changes.
        reason: String,
    },
    /// The address on this machine cannot be served.
    #[error("cannot serve on this machine: {0}")]
    Proxy(String),
    /// The object has no pods.
    #[error("{target} has no pods yet: to see why, run: kubeairunway {see}")]
    NoPods {
        /// Owner of the pods.
        target: Target,
        /// Command that shows the reason.
        see: String,
    },
    /// No pod is called so.
    #[error("{target} has no pod '{pod}'{hint} (pods: {known})")]
    NoSuchPod {
        /// Owner of the pods.
        target: Target,
        /// Text as given.
        pod: String,
        /// The one that looks most like it, as a question.
        hint: String,
        /// Existing pods.
        known: String,
    },
    /// A ModelDeployment has no endpoint.
    #[error(
        "ModelDeployment '{name}' has no endpoint yet ({status}): to wait for it, run: kubeairunway status {name} -n {namespace} --wait"
    )]
    NoEndpoint {
        /// The ModelDeployment.
        name: String,
        /// Namespace.
        namespace: String,
        /// Rollout state, as text.
        status: String,
    },
    /// A Llama Stack server answers nowhere.
    #[error(
        "LlamaStackDistribution '{name}' has no address yet: to see why, run: kubeairunway why llsd/{name} -n {namespace}"
    )]
    NoServer {
        /// The LlamaStackDistribution.
        name: String,
        /// Namespace.
        namespace: String,
    },
    /// The model or a proxy rejected the request.
    #[error(transparent)]
    Talk(#[from] runway_client::talk::Error),
    /// A program of ours cannot be asked.
    #[error(transparent)]
    Proxied(#[from] runway_client::proxied::Error),
    /// The use of models is not known.
    #[error(transparent)]
    DailyUsage(#[from] runway_client::daily_usage::Error),
    /// A rollout fails.
    #[error(transparent)]
    Rollout(#[from] super::rollout::RolloutError),
    /// A job has no result yet.
    #[error("job {id} has no result yet ({status}): to wait for it, run: kubeairunway asya result {id} --wait 5m")]
    NoResult {
        /// Id.
        id: String,
        /// State of the job.
        status: String,
    },
    /// A job has no result, and will have none.
    #[error("job {id} has failed: {message}")]
    JobFailed {
        /// Id.
        id: String,
        /// Failure.
        message: String,
    },
    /// Wrong arguments.
    #[error("{0}")]
    Usage(String),
    /// Unknown target.
    #[error(transparent)]
    Target(#[from] runway_client::target::Error),
    /// No ModelDeployment can be derived.
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
    /// The stand-in of a migration does not serve.
    #[error(
        "the stand-in '{stand_in}' does not serve on {provider}: {reason}. It was deleted, and '{name}' was not changed"
    )]
    NoStandIn {
        /// Name of the stand-in.
        stand_in: String,
        /// New provider.
        provider: String,
        /// Message of the status, or the timeout.
        reason: String,
        /// Name of the ModelDeployment.
        name: String,
    },
    /// Another ModelDeployment has the name of the stand-in.
    #[error(
        "ModelDeployment '{stand_in}' exists and does not stand in for '{name}' on {provider}: delete it, or migrate without --surge"
    )]
    OtherStandIn {
        /// Name of the stand-in.
        stand_in: String,
        /// Name of the ModelDeployment.
        name: String,
        /// New provider.
        provider: String,
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
            Self::NotInTime { .. } | Self::MigrationNotInTime { .. } | Self::NoResult { .. } => Some(NOT_IN_TIME),
            // As clap ends for what it finds itself.
            Self::Target(_) | Self::Usage(_) | Self::Deploy(runway_client::deploy::Error::ModelId { .. }) => {
                Some(WRONG_USAGE)
            }
            _ => None,
        }
    }
}
