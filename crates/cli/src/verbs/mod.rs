//! What is done to, and asked of, what runs: each verb of the command that talks to the cluster for more than a look.
//!
//! | module | verbs |
//! |---|---|
//! | [`deploy`] | `deploy` |
//! | [`change`] | `pause`, `resume`, `delete` |
//! | [`wait`] | `--wait` |
//! | [`logs`] | `logs` |
//! | [`chat`] | `chat` |
//! | [`look`] | `get`, `status` and `events` of every kind |

pub mod change;
pub mod chat;
pub mod deploy;
pub mod logs;
pub mod look;
pub mod wait;

use kube::ResourceExt;
use runway_api::{LlamaStackDistribution, ModelDeployment, Phase};
use runway_client::cluster;
use runway_client::target::Target;

use crate::commands::{NOT_IN_TIME, WRONG_USAGE};

/// Why a verb did not do what was asked.
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
    /// The user did not say yes.
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
            Self::NotInTime { .. } => Some(NOT_IN_TIME),
            // As clap ends for what it finds itself.
            Self::Target(_) => Some(WRONG_USAGE),
            _ => None,
        }
    }
}
