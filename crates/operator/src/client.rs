//! Client for the API server, with its command line arguments.

use std::path::PathBuf;

use http::HeaderValue;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use runway_api::{Namespace, name};
use secrecy::ExposeSecret;

use crate::kubeconfig::{self, Unreadable};

/// Arguments that select the cluster. Defaults to `KUBECONFIG`, `~/.kube/config`, or the pod's service account.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ClientArgs {
    /// Path of the kubeconfig file
    #[arg(long, value_name = "FILE", global = true)]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    pub context: Option<String>,
}

/// Reason why a client cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig file cannot be read.
    #[error(transparent)]
    File(#[from] Unreadable),
    /// The kubeconfig lacks the selected context, cluster or user.
    #[error("the kubeconfig cannot be used: {0}; list its contexts with: kubectl config get-contexts")]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    /// The namespace of the context or pod is not a valid name.
    #[error("the namespace of the kubeconfig's context cannot be used")]
    Namespace(#[source] name::Invalid),
    /// The user's token cannot be a part of a header.
    #[error(
        "the token of the kubeconfig's user cannot be sent: it contains a line break or another control character; remove it"
    )]
    Token,
    /// Neither a kubeconfig nor a pod's service account is available.
    #[error("no cluster to talk to: give --kubeconfig FILE or --context NAME, set KUBECONFIG, or run inside a cluster")]
    Nowhere(#[source] Box<kube::config::InClusterError>),
    /// The configuration is not supported.
    #[error("cannot make a client from the kubeconfig: {0}; correct its certificates")]
    Client(#[source] Box<kube::Error>),
}

/// Path of the service account token in a pod.
const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// Whether a configuration is that of a pod, so that the process is inside the cluster.
pub fn is_in_cluster(config: &Config) -> bool {
    config.auth_info.token_file.as_deref() == Some(SERVICE_ACCOUNT_TOKEN)
}

/// The namespace of a configuration.
///
/// # Errors
/// The namespace is not a valid name.
pub fn namespace(config: &Config) -> Result<Namespace, Error> {
    config.default_namespace.parse().map_err(Error::Namespace)
}

/// kube panics where a token does not fit into a header.
fn checked(config: Config) -> Result<Config, Error> {
    namespace(&config)?;
    let token = config.auth_info.token.as_ref().map(ExposeSecret::expose_secret);
    if token.is_some_and(|token| HeaderValue::from_str(token).is_err()) {
        return Err(Error::Token);
    }
    Ok(config)
}

impl ClientArgs {
    /// The configuration for these arguments. Its namespace is a valid name.
    ///
    /// # Errors
    /// No kubeconfig is usable, its namespace is not a valid name, or its token does not fit into a header.
    pub async fn config(&self) -> Result<Config, Error> {
        let file = self.kubeconfig()?;
        if self.kubeconfig.is_none() && self.context.is_none() && file.current_context.is_none() {
            let config = Config::incluster().map_err(|e| Error::Nowhere(Box::new(e)))?;
            return checked(config);
        }
        self.config_of(file).await
    }

    /// The kubeconfig for these arguments. It is empty if there is none.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn kubeconfig(&self) -> Result<Kubeconfig, Unreadable> {
        match &self.kubeconfig {
            Some(path) => kubeconfig::read(path),
            None => kubeconfig::read_all(kubeconfig::default_paths()),
        }
    }

    /// The configuration that these arguments select in a kubeconfig.
    ///
    /// # Errors
    /// The context does not exist or cannot be used, its namespace is not a name, or its token is not text for a header.
    pub async fn config_of(&self, kubeconfig: Kubeconfig) -> Result<Config, Error> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|e| Error::Kubeconfig(Box::new(e)))?;
        kubeconfig::prefer_token_file(&mut config.auth_info);
        checked(config)
    }

    /// Creates a client; sends no request.
    ///
    /// # Errors
    /// The kubeconfig cannot be read or used, or the client cannot be built from it.
    pub async fn client(&self) -> Result<Client, Error> {
        install_crypto();
        Client::try_from(self.config().await?).map_err(|e| Error::Client(Box::new(e)))
    }
}

/// Sets ring as the TLS provider of the process. Call it first in every main function.
pub fn install_crypto() {
    // It may be set already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
