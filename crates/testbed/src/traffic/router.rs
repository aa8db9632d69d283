//! The router as a process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::{Context as _, Result};

use super::client::get;
use super::{Bed, ROUTER};
use crate::control_plane::{free_ports, wait};
use crate::process::{self, Component, Memory, Process};

/// A router that runs. Dropping it kills it.
pub struct Router {
    /// Address of its API.
    pub address: SocketAddr,
    admin: SocketAddr,
    component: Component,
    process: Option<Process>,
}

impl Router {
    /// Starts it with these arguments, and waits until it is ready.
    pub async fn start(bed: &Bed, program: &Path, args: &[&str]) -> Result<Self> {
        let [port, admin] = free_ports()?;
        let kubeconfig = bed.cluster.kubeconfig(ROUTER, &[])?;
        let usual = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--address=127.0.0.1:{port}"),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--keys-dir={}", bed.keys.path().display()),
        ];
        let mut router = Self {
            address: (Ipv4Addr::LOCALHOST, port).into(),
            admin: (Ipv4Addr::LOCALHOST, admin).into(),
            component: Component {
                name: ROUTER.to_owned(),
                program: program.to_owned(),
                args: usual.into_iter().chain(args.iter().map(ToString::to_string)).collect(),
                dir: bed.cluster.dir.clone(),
                scratch: None,
            },
            process: None,
        };
        router.run().await?;
        Ok(router)
    }

    /// Starts it, at the same address, and waits until it is ready.
    pub async fn run(&mut self) -> Result<()> {
        let mut process = self.component.spawn()?;
        let ready = async || get(self.admin, "/readyz").await.is_ok();
        wait(&mut process, &self.component, ready).await?;
        self.process = Some(process);
        Ok(())
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Metrics in the OpenMetrics format.
    pub async fn metrics(&self) -> Result<String> {
        get(self.admin, "/metrics").await
    }

    /// Memory of the process, now and at its peak.
    pub fn memory(&self) -> Result<Memory> {
        process::memory(self.pid()?)
    }

    /// Process id.
    pub fn pid(&self) -> Result<u32> {
        process::recorded_pid(&self.component.dir, ROUTER).context("the router does not run")
    }
}
