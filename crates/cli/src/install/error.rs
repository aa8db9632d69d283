//! Errors of installation and removal.

use runway_client::cluster;

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
        /// What asks for more.
        what: &'static str,
        /// The oldest minor version that will do.
        oldest: u32,
    },
    /// Rights are missing.
    #[error("you are not allowed to {}: ask a cluster administrator for these permissions. Nothing was changed", .0.join(", "))]
    Rights(Vec<String>),
    /// Objects of these names belong to somebody else.
    #[error("{}. Nothing was changed", .0.join("; "))]
    Refused(Vec<String>),
    /// The server would not take it.
    #[error("the API server rejects {what}: {message}. Nothing was changed")]
    DryRun {
        /// The object.
        what: String,
        /// What it said.
        message: String,
    },
    /// The server did not take it although it said that it would.
    #[error("cannot {doing}: run the command again to continue")]
    Write {
        /// What was tried.
        doing: String,
        /// What it said.
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
        /// The version asked for.
        wanted: String,
    },
    /// There is nothing to upgrade, or nothing to add a provider to.
    #[error("the control plane is not installed in this cluster: to install it, run: kubeairunway controller install")]
    NotInstalled,
    /// No provider of that name comes with the product.
    #[error("unknown built-in provider '{name}': use one of {}, or set a manifest with -f FILE", .known.join(", "))]
    UnknownProvider {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// The settings of a console are none.
    #[error("invalid arguments for `kubeairunway ui --login`: {0}")]
    Settings(String),
    /// A manifest cannot be read.
    #[error("{0}")]
    File(String),
    /// Pods do not become ready.
    #[error("timed out after {after} waiting for pods to become ready: {}", .reasons.join("; "))]
    NotReady {
        /// How long was waited.
        after: String,
        /// What keeps each Deployment.
        reasons: Vec<String>,
    },
    /// Something does not go away.
    #[error("timed out after {after} waiting for deletion: {}", .what.join(", "))]
    StillThere {
        /// How long was waited.
        after: String,
        /// What is there.
        what: Vec<String>,
    },
}
