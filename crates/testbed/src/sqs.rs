//! A server that speaks SQS' protocol: moto's, from PyPI, as a process that ends with the test. It checks no
//! signatures.

mod proxy;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::PathBuf,
};

use anyhow::{Context, Result};
use runway_sqs::{Client, Credentials, Settings};
use tempfile::TempDir;

use crate::{
    PATIENCE,
    control_plane::free_ports,
    eventually,
    process::{Component, Process},
    python::{environment, has_venv},
};

pub use proxy::{Answers, Refusal, SqsProxy};

const REQUIREMENTS: &str = include_str!("../moto/requirements.txt");
const SERVER: &str = include_str!("../moto/server.py");
/// Access key id of [`Sqs::client`].
pub const KEY_ID: &str = "somebody";
/// Secret access key of [`Sqs::client`].
pub const KEY: &str = "secret";

/// A running server. Dropping it ends it, and what it holds.
pub struct Sqs {
    server: Option<Process>,
    component: Component,
    port: u16,
    _folder: TempDir,
}

/// Whether a test of `what` is skipped here. Says so past the test harness.
pub fn skip(what: &str) -> bool {
    !has_venv(what)
}

impl Sqs {
    /// Starts one, installing moto if it is missing.
    pub async fn start() -> Result<Self> {
        let program = tokio::task::spawn_blocking(moto).await??;
        let folder = tempfile::Builder::new().prefix("testbed-sqs-").tempdir()?;
        let script = folder.path().join("server.py");
        fs::write(&script, SERVER)?;
        let [port] = free_ports()?;
        let component = Component {
            name: "moto".to_owned(),
            program,
            args: [&*script.to_string_lossy(), "-H", "127.0.0.1", "-p", &port.to_string()]
                .map(str::to_owned)
                .into(),
            dir: folder.path().to_owned(),
            scratch: None,
        };
        let mut server = Self {
            server: Some(component.spawn()?),
            component,
            port,
            _folder: folder,
        };
        eventually(PATIENCE, async || {
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("moto does not listen")?;
            Ok(())
        })
        .await
        .map_err(|error| server.component.complain(&error.to_string()))?;
        if server.server.as_mut().is_some_and(|process| process.ended().is_some()) {
            return Err(server.component.complain("ended"));
        }
        Ok(server)
    }

    /// Endpoint. Any credentials are accepted.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Address that it listens on.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A client of it.
    pub fn client(&self) -> Result<Client> {
        Ok(Client::new(&Settings {
            region: "us-east-1".to_owned(),
            endpoint: Some(self.endpoint()),
            credentials: Credentials::Static {
                id: KEY_ID.to_owned(),
                key: KEY.to_owned(),
            },
        })?)
    }
}

/// Python with the server.
pub(crate) fn moto() -> Result<PathBuf> {
    environment("moto", REQUIREMENTS)
}
