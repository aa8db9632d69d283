//! Arguments with the transports, which several programs have.

use std::path::PathBuf;

use crate::settings::{Error, Transports};

/// The transports of an installation.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TransportArgs {
    /// Transports, as JSON or as the path of a JSON file. None by default
    #[arg(
        long,
        env = "ASYA_TRANSPORT_CONFIG",
        value_name = "JSON|FILE",
        default_value = "",
        hide_default_value = true,
        hide_env_values = true
    )]
    pub transport_config: String,
}

impl TransportArgs {
    /// Reads the transports.
    ///
    /// # Errors
    /// If the file cannot be read, or its content is invalid.
    pub fn load(&self) -> Result<Transports, Error> {
        Transports::load(&self.transport_config)
    }
}

/// The Secrets that transports refer to.
#[derive(Clone, Debug, clap::Args)]
pub struct SecretsArgs {
    /// Folder with the Secrets that transports refer to, mounted as NAME/KEY
    #[arg(
        long,
        env = "ASYA_SECRETS_DIR",
        value_name = "DIR",
        default_value = "/var/run/secrets/asya"
    )]
    pub secrets_dir: PathBuf,
}
