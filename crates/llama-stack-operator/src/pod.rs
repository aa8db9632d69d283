//! Scripts that run inside pods beside this binary, and their input.

use std::fs;
use std::io;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;

/// Runs in a provider's image, with nothing but its Python and pip.
pub const INSTALL_PROVIDER: &str = include_str!("../pod/install_provider.py");

/// Runs in the distribution's image before `merge-config`: finds its configuration. `sh extract_config.sh`.
pub const EXTRACT_CONFIG: &str = include_str!("../pod/extract_config.sh");

/// Runs in the distribution's image before the server: `python3 preflight.py --run-yaml=FILE`, exit code 0, 1 or 2.
pub const PREFLIGHT: &str = include_str!("../pod/preflight.py");

/// The environment variable with the [`CrdConfig`] of a provider's init container.
pub const CRD_CONFIG_VARIABLE: &str = "LLS_CRD_CONFIG";

/// Linux takes an argument or variable of at most 128 KiB (`MAX_ARG_STRLEN`), its name included.
const VARIABLE_LIMIT: usize = (128 << 10) - 64;

/// A provider's part of the custom resource. The installation writes it to `crd-config.yaml`, and `merge-config` reads it
/// there.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CrdConfig {
    /// `providerId`.
    pub provider_id: String,
    /// API as run.yaml names it, such as `vector_io`; the field's name, `vectorIo`, will do as well.
    pub api: String,
    /// Image of the provider, for messages.
    pub image: String,
    /// Name of the init container, for messages.
    pub init_container_name: String,
    /// Position among all external providers of the resource: APIs in the order of its fields, then the list's.
    pub order: u64,
    /// `config`, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Value>,
}

/// A provider's config does not fit into the environment of a container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "config of provider '{provider_id}' has {bytes} bytes; at most {limit} reach the container. Put what is large into a \
     ConfigMap, mount it with podOverrides.volumes, and name its path in config"
)]
pub struct ConfigTooLarge {
    provider_id: String,
    bytes: usize,
    limit: usize,
}

impl CrdConfig {
    /// The value of [`CRD_CONFIG_VARIABLE`]: JSON in base64, so that Kubernetes finds no `$(NAME)` and `$$` to replace.
    ///
    /// # Errors
    /// If it is larger than a variable can be.
    pub fn encoded(&self) -> Result<String, ConfigTooLarge> {
        let json = serde_json::json!(self).to_string();
        let encoded = STANDARD.encode(&json);
        if encoded.len() <= VARIABLE_LIMIT {
            return Ok(encoded);
        }
        Err(ConfigTooLarge {
            provider_id: self.provider_id.clone(),
            bytes: json.len(),
            limit: VARIABLE_LIMIT / 4 * 3,
        })
    }
}

/// Bytes of a termination message that the kubelet keeps (Kubernetes, `MaxContainerTerminationMessageLength`).
const TERMINATION_MESSAGE: usize = 4096;

/// Writes the termination message of the container. Does nothing outside a pod.
pub(crate) fn tell_kubelet(file: &Path, message: &str) {
    if file.exists() {
        let _ = fs::write(file, shortened(message));
    }
}

/// Beginning and end of a message that is too long: the failure comes first, the remedy last.
fn shortened(message: &str) -> String {
    const GAP: &str = "\n[...]\n";
    if message.len() <= TERMINATION_MESSAGE {
        return message.to_owned();
    }
    let half = (TERMINATION_MESSAGE - GAP.len()) / 2;
    let head = message.floor_char_boundary(half);
    let tail = message.ceil_char_boundary(message.len() - half);
    let part = |range| message.get::<std::ops::Range<usize>>(range).unwrap_or_default();
    format!("{}{GAP}{}", part(0..head), part(tail..message.len()))
}

/// Remedy for a volume that a file cannot be written to.
pub(crate) fn way_out_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "The volume is full. Give it more room, or use providers with fewer dependencies."
        }
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "The volume must be writable for the user of this container: look at its volumeMounts, and at fsGroup and \
             runAsUser of the pod."
        }
        io::ErrorKind::NotFound => "The volume must be mounted here: look at the volumeMounts of this container.",
        _ => "Look at the volume of this container.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_message_keeps_its_beginning_and_its_end() {
        let long = format!("ERROR: begin\n{}\nResolution: end", "é".repeat(5000));
        let short = shortened(&long);
        assert!(short.len() <= 4096, "{}", short.len());
        assert!(short.starts_with("ERROR: begin") && short.ends_with("Resolution: end"));
        assert_eq!(shortened("short"), "short");
    }
}
