//! The tests and lints of `python/asya-runtime`, with every supported Python that this machine has.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use runway_dev_support::shell;

/// Versions that `requires-python` of the package allows.
const VERSIONS: [&str; 4] = ["3.10", "3.11", "3.12", "3.13"];
const PACKAGE: &str = "python/asya-runtime";

/// Lints once, then runs the tests of each version in a virtual environment under `target/python`.
pub(crate) fn run() -> Result<()> {
    let mut tested = Vec::new();
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else {
            println!("SKIPPED: Python {version} is not installed (looked for python{version} and in pyenv)");
            continue;
        };
        let python = environment(version, &interpreter)?;
        if tested.is_empty() {
            shell::run(&python, &["-m", "ruff", "check", "--quiet", PACKAGE])?;
            shell::run(&python, &["-m", "ruff", "format", "--quiet", "--check", PACKAGE])?;
        }
        println!("Python {version}:");
        shell::run(
            &python,
            &["-m", "pytest", "-c", &format!("{PACKAGE}/pyproject.toml"), PACKAGE],
        )?;
        tested.push(version);
    }
    if tested.is_empty() {
        bail!(
            "no Python of {} is installed: asya-runtime is not tested",
            VERSIONS.join(", ")
        );
    }
    println!("asya-runtime is tested with Python {}", tested.join(", "));
    Ok(())
}

/// A Python of this version that can make virtual environments: from the path, or one of pyenv's.
fn interpreter(version: &str) -> Option<PathBuf> {
    let pyenv = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".pyenv")));
    let mut candidates = vec![PathBuf::from(format!("python{version}"))];
    if let Some(installed) = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok()) {
        let prefix = format!("{version}.");
        candidates.extend(
            installed
                .flatten()
                .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
                .map(|entry| entry.path().join("bin/python")),
        );
    }
    candidates.into_iter().find(|candidate| is_version(candidate, version))
}

/// Whether it runs, is what its name says, and has what `python -m venv` needs (Debian packages that apart).
fn is_version(candidate: &Path, version: &str) -> bool {
    let asked = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])";
    Command::new(candidate)
        .args(["-c", asked])
        .stderr(Stdio::null())
        .output()
        .is_ok_and(|output| output.status.success() && String::from_utf8_lossy(&output.stdout).trim() == version)
}

/// The virtual environment with the pinned tools and the package as it is now; the path of its Python.
fn environment(version: &str, interpreter: &Path) -> Result<String> {
    let folder = shell::root().join("target/python").join(version);
    let python = folder.join("bin/python").to_string_lossy().into_owned();
    let requirements = shell::root().join(PACKAGE).join("requirements-dev.txt");
    let wanted = fs::read_to_string(&requirements).context("cannot read requirements-dev.txt")?;
    let installed = folder.join("requirements-dev.txt");
    if fs::read_to_string(&installed).is_ok_and(|text| text == wanted) && is_version(Path::new(&python), version) {
        install(&python, &["--no-deps", "--no-build-isolation", PACKAGE])?;
        return Ok(python);
    }
    shell::run(
        &interpreter.to_string_lossy(),
        &["-m", "venv", "--clear", &folder.to_string_lossy()],
    )?;
    install(&python, &["--requirement", &requirements.to_string_lossy()])?;
    fs::write(&installed, wanted).context("cannot write into target/python")?;
    install(&python, &["--no-deps", "--no-build-isolation", PACKAGE])?;
    Ok(python)
}

fn install(python: &str, what: &[&str]) -> Result<()> {
    let mut args = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    args.extend(what);
    shell::run(python, &args)
}
