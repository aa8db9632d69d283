//! Newest releases of packages, by the tools of their registries and the configuration of this machine.

use std::process::Command;

use anyhow::{Context as _, Result, bail};
use runway_dev_support::versions::Registry;
use serde_json::Value;

/// The newest release of a package that is not a preview.
pub(crate) fn newest(registry: Registry, package: &str) -> Result<String> {
    match registry {
        Registry::Go => newest_of_go(package),
        Registry::Npm => output(Command::new("npm").args(["view", package, "version"])),
        Registry::PyPi => newest_of_pypi(package),
    }
}

fn newest_of_go(package: &str) -> Result<String> {
    // Outside a module: no pins of this repository decide.
    let folder = tempfile::tempdir().context("cannot create a folder")?;
    let mut go = Command::new("go");
    go.args(["list", "-m", "-json", &format!("{package}@latest")]);
    let answer = output(go.current_dir(folder.path()).env("GOWORK", "off"))?;
    let module: Value = serde_json::from_str(&answer).with_context(|| format!("go does not list {package}"))?;
    let version = module["Version"].as_str();
    version
        .map(str::to_owned)
        .with_context(|| format!("go lists no version of {package}"))
}

fn newest_of_pypi(package: &str) -> Result<String> {
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "index",
        "versions",
        "--disable-pip-version-check",
        "--ignore-requires-python",
        package,
    ]);
    let answer = output(&mut pip)?;
    // The first line is `NAME (VERSION)`.
    let version = answer.lines().next().and_then(|line| line.split(['(', ')']).nth(1));
    version
        .map(str::to_owned)
        .with_context(|| format!("pip lists no version of {package}"))
}

fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot run {name}: install it"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{name}: {}",
            errors
                .trim()
                .lines()
                .next_back()
                .unwrap_or("it failed without a message")
        );
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
