//! Built programs as processes.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use runway_testbed::traffic::client::get;
use runway_testbed::{PATIENCE, eventually, memory};

/// A built program that runs. Dropping it kills it.
pub struct Program {
    name: &'static str,
    child: Child,
}

impl Program {
    /// Starts the program `name` of this folder, with these arguments and variables.
    pub fn start(folder: &Path, name: &'static str, args: &[String], variables: &[(&str, String)]) -> Result<Self> {
        let child = Command::new(folder.join(name))
            .args(args)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name, child })
    }

    /// `kill -9`, and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM.
    pub fn terminate(&self) -> Result<()> {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status()?;
        ensure!(sent.success(), "cannot send SIGTERM to {}", self.name);
        Ok(())
    }

    /// It lives, and never had more memory than this.
    pub fn had_at_most(&mut self, mib: usize, during: &str) -> Result<()> {
        let name = self.name;
        if let Some(status) = self.child.try_wait()? {
            bail!("{name} ended during {during}: {status}");
        }
        let peak = memory(self.child.id())?.peak.div_ceil(1024);
        println!("{name}: at most {peak} MiB after {during}");
        ensure!(peak <= mib, "{name} had {peak} MiB during {during}, and may have {mib}");
        Ok(())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// Waits until the program with this admin port is ready.
pub async fn ready(admin: u16) -> Result<()> {
    eventually(PATIENCE, async || {
        get((Ipv4Addr::LOCALHOST, admin).into(), "/readyz").await
    })
    .await?;
    Ok(())
}
