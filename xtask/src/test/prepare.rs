//! Prerequisites of tests: the program `testbed-prepare` gets them, with what the test bed knows of them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum as _;
use runway_dev_support::{OlderKubernetes, shell};

use crate::lane::Lane;

/// Name of the program.
pub(super) const PROGRAM: &str = "testbed-prepare";

/// Folder with the programs of an older control plane, as `KUBEBUILDER_ASSETS` names it. Builds the missing ones.
pub(super) fn older_kubernetes(folder: &Path, release: OlderKubernetes) -> Result<PathBuf> {
    let release = release.to_possible_value().context("the release has no name")?;
    let output = program(folder)
        .args(["kubernetes", release.get_name()])
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {PROGRAM}"))?;
    ensure!(
        output.status.success(),
        "the programs of Kubernetes {} cannot be built",
        release.get_name()
    );
    let output = String::from_utf8(output.stdout)?;
    Ok(output.lines().last().unwrap_or_default().into())
}

/// Gets what a lane needs, so that it is not counted as its tests. Where the machine cannot have it, they say so.
pub(super) fn lane(folder: &Path, lane: Lane) -> Result<()> {
    let lane = lane.to_possible_value().context("the lane has no name")?;
    let name = lane.get_name();
    let status = program(folder).arg(name).status();
    let status = status.with_context(|| format!("cannot run {PROGRAM}"))?;
    ensure!(status.success(), "the lane {name} cannot be prepared");
    Ok(())
}

/// Preparation beside the checks. Dropping it ends it.
pub(super) struct Background {
    child: Child,
    folder: PathBuf,
}

/// Starts to get the prerequisites of most tests, and then those of some tests.
pub(super) fn in_background(folder: &Path) -> Result<Background> {
    let child = program(folder).arg("all").spawn();
    Ok(Background {
        child: child.with_context(|| format!("cannot run {PROGRAM}"))?,
        folder: folder.to_owned(),
    })
}

impl Background {
    /// Waits for the programs of a control plane and a node: at the lock of the one that gets them, if they are not there.
    pub(super) fn cluster(&self) -> Result<()> {
        shell::run(&self.folder.join(PROGRAM).display().to_string(), &["cluster"])
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(folder: &Path) -> Command {
    Command::new(folder.join(PROGRAM))
}
