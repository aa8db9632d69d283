//! Engines that misbehave, played by a script.

use std::{fs, net::Ipv4Addr};

use anyhow::Result;

use super::{PROGRAM, Running};
use crate::{
    control_plane::free_ports,
    images::{Config, Image, made_once, python_files},
    packages,
    process::Component,
};

const SCRIPT: &str = include_str!("hostile.py");
/// Interpreter of the script, as in its first line.
const INTERPRETER: &str = "/usr/bin/python3";

/// Misbehavior of an engine. All of them answer `/health` with 200, so that their pods become ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hostility {
    /// `/v1/models` lists `another-ALIAS`, everything else is a 404.
    OtherName,
    /// `/v1/models` lists the alias, everything else is a 500.
    Errors,
    /// Takes requests and never answers.
    Hangs,
    /// 302 to this address.
    Redirects(String),
    /// An answer of a gigabyte.
    Endless,
    /// 404 for everything.
    NotFound,
    /// Closes the connection without an answer.
    Closes,
}

impl Hostility {
    /// The arguments that ask for it, to stand beside those of llama-server.
    pub fn args(&self) -> Vec<String> {
        let mode = match self {
            Self::OtherName => "other-name",
            Self::Errors => "errors",
            Self::Hangs => "hangs",
            Self::Redirects(_) => "redirects",
            Self::Endless => "endless",
            Self::NotFound => "not-found",
            Self::Closes => "closes",
        };
        let mut args = vec!["--mode".to_owned(), mode.to_owned()];
        if let Self::Redirects(to) = self {
            args.extend(["--redirect-to".to_owned(), to.clone()]);
        }
        args
    }

    /// Starts such an engine on this machine, with a model of the name `alias`, and waits until it is healthy.
    ///
    /// # Errors
    ///
    /// Python is missing and cannot be installed here, or the engine does not start.
    pub async fn start(&self, alias: &str) -> Result<Running> {
        tokio::task::spawn_blocking(|| packages::ensure(&packages::PYTHON)).await??;
        let folder = tempfile::Builder::new().prefix("testbed-hostile-engine-").tempdir()?;
        let script = folder.path().join("hostile-engine");
        fs::write(&script, SCRIPT)?;
        let [port] = free_ports()?;
        let mut args = vec![script.display().to_string()];
        args.extend(self.args());
        let (address, port_text) = (Ipv4Addr::LOCALHOST.to_string(), port.to_string());
        let flags = ["--alias", alias, "--host", &address, "--port", &port_text];
        args.extend(flags.map(str::to_owned));
        let component = Component {
            name: "hostile-engine".to_owned(),
            // Not the script itself: a process that is forked meanwhile may hold it open for writing ("Text file busy").
            program: INTERPRETER.into(),
            args,
            dir: folder.path().to_owned(),
            scratch: None,
        };
        Running::start(component, folder, port).await
    }
}

/// `testbed.local/hostile-engine:1`: plays an engine that misbehaves as its arguments say, see [`Hostility::args`]. It stands
/// where llama-server does in its image, takes `--port` and `--alias`, and ignores other flags. Made once for the machine. Blocking.
///
/// # Errors
///
/// Python is missing and cannot be installed here, or the image cannot be written.
pub fn hostile() -> Result<Image> {
    packages::ensure(&packages::PYTHON)?;
    made_once("hostile-engine", SCRIPT.as_bytes(), |name, archive| {
        let mut files = python_files()?;
        files.script(PROGRAM, SCRIPT).add_libraries()?;
        let config = Config {
            entrypoint: vec![PROGRAM.to_owned()],
            env: ["PATH=/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/tmp"]
                .map(str::to_owned)
                .into(),
            ..Config::default()
        };
        config.write(name, &files, archive)
    })
}
