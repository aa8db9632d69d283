//! Arguments of a server for callers, and its certificate.

use std::net::SocketAddr;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Api;
use runway_api::labels;
use runway_http::Tls;

use crate::access::{named, rule};
use crate::clock;
use crate::process::Process;
use crate::webhook::{self, Authority, Lifetimes, Settings, publish_bundle};

/// Arguments of a server for callers.
#[derive(Clone, Debug, clap::Args)]
pub struct ListenArgs {
    /// Address of the API for callers
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8000")]
    pub address: SocketAddr,
    /// Certificate of the API for callers, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Key of the certificate, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Without --tls-certificate, serve HTTPS with a certificate of an authority that the program keeps: its key in the Secret of this name, and its certificate for callers in the ConfigMap of this name
    #[arg(long, value_name = "NAME")]
    tls_authority: Option<String>,
    /// Namespace of the authority, and of the Service that callers use
    #[arg(long, value_name = "NAMESPACE", default_value = labels::SYSTEM_NAMESPACE, env = "POD_NAMESPACE")]
    pub tls_namespace: String,
    /// Serve HTTP, also with --tls-authority: for a proxy or a service mesh that encrypts the connections of callers
    #[arg(long)]
    plain_http: bool,
}

/// Reason why a server for callers has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum BadCertificate {
    /// The files cannot be used.
    #[error("cannot use the certificate in {} with its key", .certificate.display())]
    Files {
        /// File of the certificate.
        certificate: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// TLS cannot be configured.
    #[error("cannot serve HTTPS")]
    Tls(#[from] rustls::Error),
}

/// Permissions that `--tls-authority` requires, in the namespace of the authority.
pub fn access_in_namespace(authority: &str) -> Vec<PolicyRule> {
    let published = rule("", &["configmaps"], &["list", "watch", "patch"]);
    let mut rules = webhook::access_in_namespace(authority);
    rules.push(named(published, &[authority]));
    rules
}

impl ListenArgs {
    /// The certificate, which is kept current until shutdown; `None` for HTTP. `service` is the name of the Service that callers use,
    /// and the field manager of the authority.
    ///
    /// # Errors
    /// The certificate or its key cannot be read, or they do not match.
    pub async fn tls(&self, process: &Process, service: &str) -> Result<Option<Tls>, BadCertificate> {
        if self.plain_http {
            return Ok(None);
        }
        if let (Some(certificate), Some(key)) = (self.tls_certificate.clone(), self.tls_key.clone()) {
            let tls = Tls::renewed(certificate.clone(), key, process.shutdown.clone()).await;
            return tls
                .map(Some)
                .map_err(|source| BadCertificate::Files { certificate, source });
        }
        let authority = self.tls_authority.as_ref();
        let tls = authority.map(|name| self.of_authority(process, name, service));
        Ok(tls.transpose()?)
    }

    /// The certificate of an authority that this process keeps.
    fn of_authority(&self, process: &Process, name: &str, service: &str) -> Result<Tls, rustls::Error> {
        let (client, shutdown) = (&process.client, &process.shutdown);
        let namespace = &self.tls_namespace;
        let settings = Settings {
            namespace: namespace.clone(),
            secret: name.to_owned(),
            names: vec![
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
                format!("{service}.{namespace}"),
                service.to_owned(),
                // For `kubectl port-forward`.
                "localhost".to_owned(),
            ],
            field_manager: service.to_owned(),
            lifetimes: Lifetimes::default(),
            clock: clock::now,
        };
        let authority = Authority::new(client.clone(), settings);
        let (tls, bundle, refused) = (authority.tls()?, authority.bundle(), authority.refused());
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        let (name, field_manager, ended) = (name.to_owned(), service.to_owned(), shutdown.clone());
        let health = &process.health;
        health.ready_unless(move || refused().map(|why| format!("the certificate for callers: {why}")));
        health.supervise(
            "the certificate for callers",
            shutdown.clone(),
            authority.run(shutdown.clone()),
        );
        health.supervise("the CA bundle for callers", shutdown.clone(), async move {
            publish_bundle(config_maps, &name, &field_manager, bundle, ended).await;
        });
        Ok(tls)
    }
}
