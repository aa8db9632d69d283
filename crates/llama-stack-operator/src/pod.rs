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

/// Shell script that finds the distribution's Python. [`START_SERVER`] follows it.
pub const FIND_PYTHON: &str = r#"for python in python3 python; do
  if command -v "$python" >/dev/null 2>&1; then break; fi
done
"#;

/// Puts the providers' packages before those of the image, and checks what was installed, before the server sees it. The image's
/// own PYTHONPATH is known only here.
pub(crate) const CHECK_PROVIDERS: &str = r#"export PYTHONPATH="/opt/llama-stack/external-providers/python-packages${PYTHONPATH:+:$PYTHONPATH}"
"$python" /opt/llama-stack/config/preflight.py --run-yaml=/opt/llama-stack/config/run.yaml || exit $?
"#;

/// Shell script that starts the server with the configuration in `LLAMA_STACK_CONFIG` at `LLS_PORT`. Supports llama-stack from
/// release 0.3 on and ogx, its later name. Without a certificate, ogx 1.5.0 serves only with `--insecure`. Several workers need
/// the application factory of the server's module (llama-stack 0.7.3 and ogx 1.5: core/server/server.py).
pub const START_SERVER: &str = r#"fail() {
  echo "$1" >&2
  if [ -w /dev/termination-log ]; then echo "$1" >/dev/termination-log; fi
  exit 1
}
export OGX_CONFIG="$LLAMA_STACK_CONFIG"
if [ -n "$LLS_WORKERS" ]; then
  for package in ogx llama_stack; do
    if "$python" -c "from importlib.util import find_spec as f; import sys; s = f('$package') and f('$package.core') and f('$package.core.server') and f('$package.core.server.server'); sys.exit(0 if s and 'def create_app' in open(s.origin).read() else 1)"; then
      exec "$python" -m uvicorn "$package.core.server.server:create_app" --host 0.0.0.0 --port "$LLS_PORT" --workers "$LLS_WORKERS" --factory
    fi
  done
  fail "ERROR: The distribution cannot run several workers

Reason: neither ogx.core.server.server nor llama_stack.core.server.server of this image has create_app().

Resolution: Leave out spec.server.workers, or use a distribution image with llama-stack 0.3 or newer."
fi
if command -v llama >/dev/null 2>&1; then exec llama stack run "$LLAMA_STACK_CONFIG" --port "$LLS_PORT"; fi
if command -v ogx >/dev/null 2>&1; then
  words=$("$python" - "$LLAMA_STACK_CONFIG" <<'PYTHON'
import importlib.util, os, sys

words = "stack run"
try:
    cli = os.path.join(os.path.dirname(importlib.util.find_spec("ogx").origin), "cli")
    if os.path.exists(os.path.join(cli, "run.py")):
        words = "run"
    import yaml

    with open(sys.argv[1]) as file:
        server = (yaml.safe_load(file) or {}).get("server") or {}
    with open(os.path.join(cli, "stack", "run.py")) as file:
        if "--insecure" in file.read() and not server.get("tls_certfile"):
            words += " --insecure"
except Exception:  # the server reports what is wrong with the file
    pass
print(words)
PYTHON
  )
  exec ogx $words "$LLAMA_STACK_CONFIG" --port "$LLS_PORT"
fi
fail "ERROR: The distribution image has no command to start a server

Reason: neither llama nor ogx is on the PATH ($PATH).

Resolution: Use a distribution image with llama-stack 0.3 or newer, or set spec.server.containerSpec.command."
"#;

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
pub(crate) fn inform_kubelet(file: &Path, message: &str) {
    if file.exists() {
        let _ = fs::write(file, shortened(message));
    }
}

/// Line of merge-config's log for a provider: the status finds the provider by its module where the server ends in its code.
pub(crate) fn module_line(id: &str, module: &str) -> String {
    format!("Provider {id}: module {module}\n")
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
