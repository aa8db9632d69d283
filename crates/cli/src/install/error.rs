//! Errors of installation and removal.

use runway_client::cluster;
use runway_provider::InvalidSettings;

/// Failure of an installation, upgrade or removal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster cannot be read.
    #[error(transparent)]
    Cluster(#[from] cluster::Error),
    /// The cluster is too old.
    #[error(
        "the cluster runs Kubernetes {found}, but {what} 1.{oldest} or newer: upgrade the cluster. Nothing was changed"
    )]
    TooOld {
        /// The server's version.
        found: String,
        /// Requirement, as the subject of the sentence.
        what: &'static str,
        /// The oldest minor version that will do.
        oldest: u32,
    },
    /// Rights are missing.
    #[error("you are not allowed to {}: ask a cluster administrator for these permissions. Nothing was changed", .0.join(", "))]
    Rights(Vec<String>),
    /// Existing objects have other owners.
    #[error("{}. Nothing was changed", .0.join("; "))]
    Refused(Vec<String>),
    /// The server would not take it.
    #[error("the API server rejects {what}: {message}. Nothing was changed")]
    DryRun {
        /// The object.
        what: String,
        /// Message of the server.
        message: String,
    },
    /// The server rejected a write after a successful dry run.
    #[error("cannot {doing}: run the command again to continue")]
    Write {
        /// Action, as a phrase with a verb.
        doing: String,
        /// Message of the server.
        source: Box<kube::Error>,
    },
    /// The user did not say yes.
    #[error("not confirmed: nothing was changed (--yes skips the confirmation)")]
    NotConfirmed,
    /// Another version is there.
    #[error("version {installed} is installed, not {wanted}: to change it, run: kubeairunway controller upgrade")]
    OtherVersion {
        /// The version that is there.
        installed: String,
        /// Requested version.
        wanted: String,
    },
    /// The control plane is not installed.
    #[error("the control plane is not installed in this cluster: to install it, run: kubeairunway controller install")]
    NotInstalled,
    /// Only providers are there, whose controllers run outside of the cluster.
    #[error(
        "the control plane is not installed in this cluster, but controllers outside of it, such as those of cargo xtask up, report for {}: to see them, run: kubeairunway provider list",
        .0.join(", ")
    )]
    Outside(Vec<String>),
    /// Helm has installed the control plane into another namespace.
    #[error(
        "the control plane is installed in namespace '{0}', by Helm: change it there, such as with helm upgrade -n {0}. Nothing was changed"
    )]
    Elsewhere(String),
    /// The provider is not built in.
    #[error("unknown built-in provider '{name}': use one of {}, or set a manifest with -f FILE", .known.join(", "))]
    UnknownProvider {
        /// Requested name.
        name: String,
        /// Built-in providers.
        known: Vec<&'static str>,
    },
    /// The settings of a console are none.
    #[error("invalid arguments for `kubeairunway ui --login`: {0}")]
    Settings(String),
    /// Settings are given for several providers.
    #[error("--set and --settings apply to a single provider, but there are {0}: install them one by one")]
    SeveralProviders(usize),
    /// The provider does not accept its settings.
    #[error("invalid settings of provider '{name}': {invalid}. Nothing was changed")]
    ProviderSettings {
        /// Name of the provider.
        name: String,
        /// The setting, and the reason.
        invalid: InvalidSettings,
    },
    /// A manifest cannot be read.
    #[error("{0}")]
    File(String),
    /// Pods do not become ready.
    #[error("timed out after {after} waiting for pods to become ready: {}", .reasons.join("; "))]
    NotReady {
        /// Timeout.
        after: String,
        /// Reason for each Deployment.
        reasons: Vec<String>,
    },
    /// Something does not go away.
    #[error("timed out after {after} waiting for deletion: {}", .what.join(", "))]
    StillThere {
        /// Timeout.
        after: String,
        /// Remaining objects.
        what: Vec<String>,
    },
}
