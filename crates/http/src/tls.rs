//! Certificates, which may be replaced while serving.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ResolvesServerCert, WantsServerCert};
use rustls::{ConfigBuilder, ServerConfig};
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::limits::Protocol;

/// Interval at which certificate files are read again.
const RENEWAL: Duration = Duration::from_mins(1);

/// TLS configuration of a server. Cheap to clone; clones share a replaced certificate.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ArcSwap<ServerConfig>>);

impl Tls {
    /// With the certificate that `resolver` has at each handshake.
    ///
    /// # Errors
    /// The cryptography lacks the versions of TLS: never with ours.
    pub fn resolved_by(resolver: Arc<dyn ResolvesServerCert>) -> Result<Self, rustls::Error> {
        let config = builder()?.with_cert_resolver(resolver);
        Ok(Self(Arc::new(ArcSwap::from_pointee(config))))
    }

    /// With a certificate (a chain, the server's first) and its key, both in PEM.
    ///
    /// # Errors
    /// A certificate and key that cannot be used.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> std::io::Result<Self> {
        Ok(Self(Arc::new(ArcSwap::from_pointee(config(certificate, key)?))))
    }

    /// As [`Self::from_pem`], with files.
    ///
    /// # Errors
    /// A file that cannot be read, or a certificate and key that cannot be used.
    pub async fn from_files(certificate: &Path, key: &Path) -> std::io::Result<Self> {
        Self::from_pem(&tokio::fs::read(certificate).await?, &tokio::fs::read(key).await?)
    }

    /// Reads the files again; connections that are open keep what they have.
    ///
    /// # Errors
    /// As [`Self::from_files`]; then the old certificate stays.
    pub async fn reload(&self, certificate: &Path, key: &Path) -> std::io::Result<()> {
        let config = config(&tokio::fs::read(certificate).await?, &tokio::fs::read(key).await?)?;
        self.0.store(Arc::new(config));
        Ok(())
    }

    /// As [`Self::from_files`]; the files are read again every minute until `shutdown`. If they cannot be used, the previous
    /// certificate stays.
    ///
    /// # Errors
    /// As [`Self::from_files`].
    pub async fn renewed(certificate: PathBuf, key: PathBuf, shutdown: CancellationToken) -> std::io::Result<Self> {
        let tls = Self::from_files(&certificate, &key).await?;
        let renewed = tls.clone();
        tokio::spawn(shutdown.run_until_cancelled_owned(async move {
            loop {
                sleep(RENEWAL).await;
                if let Err(error) = renewed.reload(&certificate, &key).await {
                    tracing::warn!(%error, "cannot read the certificate again; the previous one stays in use");
                }
            }
        }));
        Ok(tls)
    }

    /// Accepts a connection. The protocols are those of the server, because several servers may have the same certificate.
    pub(crate) fn acceptor(&self, protocol: Protocol) -> TlsAcceptor {
        let mut config = self.0.load_full();
        // A copy shares the sessions of the original.
        Arc::make_mut(&mut config).alpn_protocols = protocol.offered();
        TlsAcceptor::from(config)
    }
}

fn builder() -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_no_client_auth())
}

fn config(certificate: &[u8], key: &[u8]) -> std::io::Result<ServerConfig> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let key = PrivateKeyDer::from_pem_slice(key).map_err(std::io::Error::other)?;
    builder()
        .and_then(|builder| {
            builder.with_single_cert(chain.map_err(|error| rustls::Error::General(error.to_string()))?, key)
        })
        .map_err(std::io::Error::other)
}
