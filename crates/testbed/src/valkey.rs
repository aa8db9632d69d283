//! A real Valkey, as a process that ends with the test.

use std::net::Ipv4Addr;

use anyhow::Result;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::control_plane::{free_ports, wait};
use crate::process::{Component, Process, with_environment};
use crate::roots::{self, Outcome};

/// Debian's package.
const PACKAGE: &str = "valkey-server";
const PROGRAM: &str = "/usr/bin/valkey-server";
const PASSWORD: &str = "of-the-test";

/// A running server. Dropping it kills it and removes its data.
pub struct Valkey {
    server: Option<Process>,
    component: Component,
    port: u16,
    _folder: TempDir,
}

impl Valkey {
    /// Fetches the package, once for the machine. Blocking.
    pub(crate) fn prepare() -> Result<Outcome> {
        roots::with_packages(&[PACKAGE])
    }

    /// Starts one and waits until it takes connections. `None` where this machine cannot have it: `SKIPPED: what, because …` is
    /// printed past the test harness.
    pub async fn start(what: &str) -> Result<Option<Self>> {
        let Some(root) = tokio::task::spawn_blocking(Self::prepare).await??.or_skip(what) else {
            return Ok(None);
        };
        let folder = tempfile::Builder::new().prefix("testbed-valkey-").tempdir()?;
        let [port] = free_ports()?;
        let port_text = port.to_string();
        let flags = [
            "--port",
            &port_text,
            "--bind",
            "127.0.0.1",
            "--requirepass",
            PASSWORD,
            "--save",
            "",
            "--appendonly",
            "no",
        ];
        let mut command = root.command(PROGRAM, &[])?;
        command.extend(flags.map(str::to_owned));
        let mut valkey = Self {
            server: None,
            component: with_environment("valkey", folder.path(), [].into_iter(), &command),
            port,
            _folder: folder,
        };
        valkey.restart().await?;
        Ok(Some(valkey))
    }

    /// `redis://…`, with its password.
    pub fn url(&self) -> String {
        format!("redis://:{PASSWORD}@127.0.0.1:{}", self.port)
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.server = None;
    }

    /// Starts it again after a kill, at the same port and without data.
    pub async fn restart(&mut self) -> Result<()> {
        let mut server = self.component.spawn()?;
        let accepts = async || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_ok();
        wait(&mut server, &self.component, accepts).await?;
        self.server = Some(server);
        Ok(())
    }
}
