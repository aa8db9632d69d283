//! A real Valkey, or Redis where Debian has no Valkey yet, as a process that ends with the test.

use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::control_plane::free_ports;
use crate::packages::{self, VALKEY, VALKEY_PROGRAMS};
use crate::process::{Component, Process};
use crate::{PATIENCE, last_lines};

const PASSWORD: &str = "of-the-test";

/// A running server. Dropping it kills it and removes its data.
pub struct Valkey {
    server: Option<Process>,
    component: Component,
    port: u16,
    _folder: TempDir,
}

impl Valkey {
    /// Starts one and waits until it takes connections. Installs the package if it is missing.
    pub async fn start() -> Result<Self> {
        tokio::task::spawn_blocking(|| packages::ensure(&VALKEY)).await??;
        let programs = VALKEY_PROGRAMS.iter();
        let program = programs.copied().find(|path| std::path::Path::new(path).exists());
        let folder = tempfile::Builder::new().prefix("testbed-valkey-").tempdir()?;
        let [port] = free_ports()?;
        let port_text = port.to_string();
        let args = [
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
        let component = Component {
            name: "valkey".to_owned(),
            program: program.context("neither Valkey nor Redis is installed")?.into(),
            args: args.map(str::to_owned).into(),
            dir: folder.path().to_owned(),
            scratch: None,
        };
        let mut valkey = Self {
            server: None,
            component,
            port,
            _folder: folder,
        };
        valkey.restart().await?;
        Ok(valkey)
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
        let start = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).await.is_err() {
            if server.ended().is_some() || start.elapsed() > PATIENCE {
                bail!(
                    "Valkey did not start; its last lines:\n{}",
                    last_lines(&self.component.log(), 30)
                );
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        self.server = Some(server);
        Ok(())
    }
}
