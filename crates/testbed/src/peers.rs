//! Other routers for models, from PyPI, for benchmarks beside ours. Each is a process on this machine.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use runway_dev_support::versions::{Registry, pinned};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::timeout;

use crate::control_plane::{free_ports, wait_within};
use crate::process::{self, Process, with_environment};
use crate::python;
use crate::traffic::client::get;

/// Key of the LiteLLM proxy, which does not start without one.
pub const LITELLM_KEY: &str = "sk-0f2c9a1b7d5e4863a9b0c1d2e3f40516";

/// Longest time to start. Python needs 20 seconds for LiteLLM on two busy cores.
const STARTS_WITHIN: Duration = Duration::from_mins(2);
/// Longest wait for the answer of a router that may not listen yet.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Kind of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `vllm-router`, which chooses by prefixes.
    VllmRouter,
    /// `sglang-router`, which chooses by prefixes.
    SglangRouter,
    /// The proxy of LiteLLM with one worker, which chooses at random and verifies its key.
    LiteLlm,
}

impl Kind {
    /// Name of the package.
    pub fn package(self) -> &'static str {
        match self {
            Self::VllmRouter => "vllm-router",
            Self::SglangRouter => "sglang-router",
            Self::LiteLlm => "litellm",
        }
    }

    /// Pinned version of the package.
    pub fn version(self) -> &'static str {
        pinned(self.requirements(), Registry::PyPi, self.package()).unwrap_or_default()
    }

    fn requirements(self) -> &'static str {
        match self {
            Self::VllmRouter => include_str!("../peers/vllm-router.txt"),
            Self::SglangRouter => include_str!("../peers/sglang-router.txt"),
            Self::LiteLlm => include_str!("../peers/litellm.txt"),
        }
    }

    /// Path that answers once the router has found its engines.
    fn ready(self) -> &'static str {
        match self {
            Self::VllmRouter | Self::SglangRouter => "/health",
            Self::LiteLlm => "/health/readiness",
        }
    }

    /// Command for these engines, which serve one model. `folder` is for its configuration.
    fn command(self, program: &Path, [port, metrics]: [u16; 2], to: &To<'_>, folder: &Path) -> Result<Vec<String>> {
        let program = program.display().to_string();
        let urls = to.engines.iter().map(|engine| format!("http://{engine}"));
        let (port, metrics) = (port.to_string(), metrics.to_string());
        let listen = ["--host", "127.0.0.1", "--port", &port].map(str::to_owned);
        let mut command: Vec<String> = match self {
            Self::VllmRouter | Self::SglangRouter => {
                let level = if self == Self::VllmRouter { "warning" } else { "warn" };
                let module = format!("{}.launch_router", self.package().replace('-', "_"));
                let flags = [
                    "--policy",
                    "cache_aware",
                    "--log-level",
                    level,
                    "--prometheus-port",
                    &metrics,
                ];
                let flags = ["-m", &module].into_iter().chain(flags).chain(["--worker-urls"]);
                [program]
                    .into_iter()
                    .chain(flags.map(str::to_owned))
                    .chain(urls)
                    .collect()
            }
            Self::LiteLlm => {
                let models: Vec<Value> = urls
                    .map(|url| {
                        let params = json!({
                            "model": format!("openai/{}", to.model), "api_base": format!("{url}/v1"), "api_key": "none",
                        });
                        json!({ "model_name": to.model, "litellm_params": params })
                    })
                    .collect();
                let config = folder.join("config.yaml");
                fs::write(&config, json!({ "model_list": models }).to_string())?;
                let script = Path::new(&program).with_file_name("litellm").display().to_string();
                let config = config.display().to_string();
                [&program, &script, "--num_workers", "1", "--config", &config]
                    .map(str::to_owned)
                    .into()
            }
        };
        command.extend(listen);
        Ok(command)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.package(), self.version())
    }
}

/// Engines behind a router.
#[derive(Clone, Copy, Debug)]
pub struct To<'a> {
    /// Addresses of their APIs.
    pub engines: &'a [SocketAddr],
    /// Name of the model that all of them serve.
    pub model: &'a str,
}

/// A running router. Dropping it kills it.
pub struct Peer {
    /// Address of its API.
    pub address: SocketAddr,
    /// Process id.
    pub pid: u32,
    _process: Process,
    _folder: TempDir,
}

impl Peer {
    /// Starts it in front of these engines, and waits until it is ready.
    ///
    /// # Errors
    /// It cannot be installed, or does not start.
    pub async fn start(kind: Kind, to: To<'_>) -> Result<Self> {
        let install = move || python::environment(kind.package(), kind.requirements());
        let program = tokio::task::spawn_blocking(install).await??;
        let folder = tempfile::Builder::new().prefix("runway-testbed-peer-").tempdir()?;
        let ports = free_ports()?;
        let command = kind.command(&program, ports, &to, folder.path())?;
        let home = folder.path().display().to_string();
        let variables = [
            ("HOME", home.as_str()),
            ("NO_PROXY", "*"),
            ("LITELLM_LOG", "ERROR"),
            ("LITELLM_MASTER_KEY", LITELLM_KEY),
            ("LITELLM_LOCAL_MODEL_COST_MAP", "True"),
        ];
        let component = with_environment(kind.package(), folder.path(), variables.into_iter(), &command);
        let mut process = component.spawn()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[0]));
        let ready = async || matches!(timeout(ANSWERS_WITHIN, get(address, kind.ready())).await, Ok(Ok(_)));
        wait_within(STARTS_WITHIN, &mut process, &component, ready).await?;
        let pid = process::recorded_pid(folder.path(), kind.package());
        Ok(Self {
            address,
            pid: pid.with_context(|| format!("{kind} has ended"))?,
            _process: process,
            _folder: folder,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_pinned() {
        for kind in [Kind::VllmRouter, Kind::SglangRouter, Kind::LiteLlm] {
            assert!(kind.version().contains('.'), "{kind}");
        }
    }
}
