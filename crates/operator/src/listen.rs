//! Arguments of a server for callers.

use std::net::SocketAddr;
use std::path::PathBuf;

use runway_http::Tls;
use tokio_util::sync::CancellationToken;

/// Arguments of a server for callers.
#[derive(Clone, Debug, clap::Args)]
pub struct ListenArgs {
    /// Address of the API for callers
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8000")]
    pub address: SocketAddr,
    /// Certificate of the API for callers, in PEM format; plain HTTP if omitted
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Key of the certificate, in PEM format
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
}

/// The certificate cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the certificate in {} with its key", .certificate.display())]
pub struct BadCertificate {
    certificate: PathBuf,
    source: std::io::Error,
}

impl ListenArgs {
    /// The certificate, which is read again when its file changes; `None` for plain HTTP.
    ///
    /// # Errors
    /// The certificate or its key cannot be read, or they do not match.
    pub async fn tls(&self, shutdown: &CancellationToken) -> Result<Option<Tls>, BadCertificate> {
        let (Some(certificate), Some(key)) = (self.tls_certificate.clone(), self.tls_key.clone()) else {
            return Ok(None);
        };
        let tls = Tls::renewed(certificate.clone(), key, shutdown.clone()).await;
        tls.map(Some).map_err(|source| BadCertificate { certificate, source })
    }
}
