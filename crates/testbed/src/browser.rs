//! A real browser: Debian's Chromium, driven from Node.js by Playwright, with axe for what only people would notice.
//!
//! Playwright and not a client of the DevTools protocol in Rust: axe comes from npm in any case, Playwright waits for what
//! it clicks on as people do, and nothing is compiled for it. What the folder's `package-lock.json` pins is fetched on the
//! first use, and never a part of a release.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cache::hold, packages, say};

/// The oldest Node.js that Playwright takes.
const NODE_MAJOR: u32 = 20;

/// A folder of scripts, with all that they need.
pub struct Browser {
    folder: PathBuf,
}

/// A browser for the scripts of `folder`, whose `package.json` names Playwright. Blocking; `None`, said past the test
/// harness, where the tests of `what` must be left out because there is no way to one.
pub fn prepare(what: &str, folder: &Path) -> Result<Option<Browser>> {
    if let Some(reason) = unavailable() {
        say(&format!("SKIPPED: {what}, because {reason}"));
        return Ok(None);
    }
    install(folder)?;
    Ok(Some(Browser {
        folder: folder.to_owned(),
    }))
}

/// Reason why no browser can be used here.
fn unavailable() -> Option<String> {
    match node_major() {
        None => Some("there is no Node.js".to_owned()),
        Some(major) if major < NODE_MAJOR => Some(format!("Node.js {major} is too old, {NODE_MAJOR} is needed")),
        Some(_) => packages::ensure(&packages::CHROMIUM).err().map(|e| format!("{e:#}")),
    }
}

fn node_major() -> Option<u32> {
    let output = Command::new("node").arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Fetches what the lock file pins, unless that is there.
fn install(folder: &Path) -> Result<()> {
    let age = |path: &str| folder.join(path).metadata().and_then(|m| m.modified());
    let there = || {
        age("node_modules/.package-lock.json")
            .is_ok_and(|installed| age("package-lock.json").is_ok_and(|locked| locked <= installed))
    };
    if there() {
        return Ok(());
    }
    let _lock = hold("playwright")?;
    if there() {
        return Ok(());
    }
    say("Fetching Playwright and axe from the npm registry");
    let output = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(folder)
        .output()
        .context("cannot run npm, which comes with Node.js")?;
    if !output.status.success() {
        bail!(
            "`npm ci` failed in {}:\n{}",
            folder.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

impl Browser {
    /// Runs a script of tests, with these in its environment. What it says goes past the test harness.
    pub async fn run(&self, script: &str, environment: &[(&str, &str)]) -> Result<()> {
        let status = tokio::process::Command::new("node")
            .args(["--test", "--test-reporter=spec", script])
            .current_dir(&self.folder)
            .env("CHROMIUM", "/usr/bin/chromium")
            .envs(environment.iter().copied())
            .kill_on_drop(true)
            .status()
            .await
            .context("cannot run node")?;
        if !status.success() {
            bail!("{script} failed: what it says is above");
        }
        Ok(())
    }
}
