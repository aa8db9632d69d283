//! Helpers for tests of the scripts: Pythons, provider images as folders, and the volume of a pod.

#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use runway_llama_stack_operator::pod::CrdConfig;
use runway_testbed::llama_stack::{self, Release};
use runway_testbed::python;

/// Prints that a test was skipped, directly to stderr: the test harness shows captured output only if a test fails.
pub(crate) fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Provider images, written once for each test binary by `images.py`.
pub(crate) fn images() -> &'static Path {
    static IMAGES: OnceLock<TempDir> = OnceLock::new();
    let folder = IMAGES.get_or_init(|| {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (_, python) = pythons().first().unwrap().clone();
        let output = Command::new(python)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/images.py"))
            .arg(folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    });
    folder.path()
}

/// Pythons of this machine that have a pip: version and program, the oldest first. Prints those that are missing.
pub(crate) fn pythons() -> &'static [(&'static str, PathBuf)] {
    static PYTHONS: OnceLock<Vec<(&str, PathBuf)>> = OnceLock::new();
    PYTHONS.get_or_init(|| {
        let mut found = Vec::new();
        for version in ["3.10", "3.11", "3.12", "3.13"] {
            match python::find(version) {
                Some(program) => found.push((version, program)),
                None => skipped(&format!("there is no Python {version} with pip here")),
            }
        }
        found
    })
}

/// The volumes of one pod, outside of a pod.
pub(crate) struct Pod {
    pub(crate) root: TempDir,
    pub(crate) python: PathBuf,
    pub(crate) order: AtomicU64,
}

impl Pod {
    pub(crate) fn new() -> Result<Self> {
        let (_, python) = pythons().last().context("no Python with pip")?.clone();
        Self::with(&python)
    }

    pub(crate) fn with(python: &Path) -> Result<Self> {
        let root = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        for folder in ["external-providers", "base-config", "config", "home"] {
            fs::create_dir_all(root.path().join(folder))?;
        }
        Ok(Self {
            root,
            python: python.to_owned(),
            order: AtomicU64::new(0),
        })
    }

    /// A pod whose provider `a` is installed already, from image `a`; that is done once.
    pub(crate) fn after_a() -> Result<Self> {
        static A: OnceLock<Pod> = OnceLock::new();
        let a = A.get_or_init(|| {
            let pod = Self::new().unwrap();
            pod.installed("a", "a").unwrap();
            pod
        });
        let pod = Self::new()?;
        let status = Command::new("cp")
            .arg("-r")
            .arg(a.volume())
            .arg(pod.root.path())
            .status()?;
        ensure!(status.success(), "cp: {status}");
        pod.order.store(1, Ordering::Relaxed);
        Ok(pod)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn volume(&self) -> PathBuf {
        self.path("external-providers")
    }

    pub(crate) fn crd_config(&self, id: &str, image: &str, config: Option<Value>) -> CrdConfig {
        CrdConfig {
            provider_id: id.to_owned(),
            api: "inference".to_owned(),
            image: format!("registry.example.com/{image}:v1"),
            init_container_name: format!("install-provider-{id}"),
            order: self.order.fetch_add(1, Ordering::Relaxed),
            config,
        }
    }

    /// The init container of a provider, ready to run.
    pub(crate) fn installation(&self, id: &str, image: &str, config: Option<Value>) -> Result<Command> {
        let mut command = Command::new(&self.python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("pod/install_provider.py"));
        self.environment(&mut command, id, image, config)?;
        Ok(command)
    }

    pub(crate) fn environment(
        &self,
        command: &mut Command,
        id: &str,
        image: &str,
        config: Option<Value>,
    ) -> Result<()> {
        fs::write(self.path("termination-log"), "")?;
        command
            .env("LLS_CRD_CONFIG", self.crd_config(id, image, config).encoded()?)
            .env("LLS_PROVIDER_DIR", images().join(image).join("lls-provider"))
            .env("LLS_EXTERNAL_PROVIDERS", self.volume())
            .env("LLS_TERMINATION_LOG", self.path("termination-log"))
            // What an image may have set, and must not matter.
            .env("PIP_INDEX_URL", "http://192.0.2.1/simple")
            .env("PIP_REQUIRE_VIRTUALENV", "1")
            .env("PIP_TARGET", "/nowhere")
            .env("PIP_NO_INDEX", "false");
        Ok(())
    }

    pub(crate) fn install(&self, id: &str, image: &str) -> Result<Output> {
        Ok(self.installation(id, image, None)?.output()?)
    }

    pub(crate) fn installed(&self, id: &str, image: &str) -> Result<()> {
        let output = self.install(id, image)?;
        ensure!(output.status.success(), "{image}: {}", text(&output.stderr));
        Ok(())
    }

    /// Output of an installation that must fail, in the log and for the status.
    pub(crate) fn refused(&self, id: &str, image: &str) -> Result<String> {
        let before = contents(&self.volume())?;
        let output = self.install(id, image)?;
        ensure!(output.status.code() == Some(1), "{image}: {}", output.status);
        ensure!(contents(&self.volume())? == before, "{image}: the volume has changed");
        let said = text(&output.stderr);
        let reported = self.termination_message()?;
        ensure!(
            reported.len() <= 4096 && !reported.is_empty(),
            "{} bytes for the kubelet",
            reported.len()
        );
        if said.len() < 4096 {
            ensure!(said.trim_end() == reported, "log:\n{said}\nkubelet:\n{reported}");
        }
        for wanted in [
            &format!("Provider: {id}\n"),
            &format!("Image: registry.example.com/{image}:v1\n"),
            &format!("Init Container: install-provider-{id}\n"),
            "\nResolution: ",
        ] {
            ensure!(reported.contains(wanted), "no {wanted:?} in:\n{reported}");
        }
        Ok(said)
    }

    pub(crate) fn termination_message(&self) -> Result<String> {
        Ok(fs::read_to_string(self.path("termination-log"))?)
    }

    pub(crate) fn read(&self, name: &str) -> Result<String> {
        let path = self.path(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// The init container `merge-config`.
    pub(crate) fn merge(&self, external_providers: &Path) -> Result<Output> {
        let output = Command::new(env!("CARGO_BIN_EXE_llama-stack-operator"))
            .arg("merge-config")
            .args(["--external-providers".as_ref(), external_providers.as_os_str()])
            .args(["--base-config".as_ref(), self.path("base-config/run.yaml").as_os_str()])
            .args(["--out".as_ref(), self.path("config").as_os_str()])
            .output()?;
        ensure!(output.status.success(), "{}", text(&output.stderr));
        Ok(output)
    }

    /// Runs the preflight script, which the main container runs first.
    pub(crate) fn preflight(&self, python: &Path, external_providers: &Path) -> Result<Output> {
        self.preflight_of(python, external_providers, None)
    }

    /// The same, for a distribution that has more packages.
    pub(crate) fn preflight_of(
        &self,
        python: &Path,
        external_providers: &Path,
        distribution: Option<&Path>,
    ) -> Result<Output> {
        fs::write(self.path("termination-log"), "")?;
        let packages = external_providers.join("python-packages");
        let path = std::env::join_paths(std::iter::once(packages.as_path()).chain(distribution))?;
        Ok(Command::new(python)
            .arg(self.path("config/preflight.py"))
            .arg(format!("--run-yaml={}", self.path("config/run.yaml").display()))
            .args(["--external-providers".as_ref(), external_providers.as_os_str()])
            .args(["--termination-log".as_ref(), self.path("termination-log").as_os_str()])
            .env("PYTHONPATH", path)
            .env("HOME", self.path("home"))
            .env("CONFIG_URL", "http://model")
            .output()?)
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Every file below a folder, with its content.
pub(crate) fn contents(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(contents(&path)?);
        } else {
            found.push((path.strip_prefix(folder)?.to_owned(), fs::read(&path)?));
        }
    }
    found.sort();
    Ok(found)
}

/// A Python with a release of llama-stack, installed once on this machine. Prints the reason and returns `None` if the
/// installation fails.
pub(crate) fn llama_stack(release: Release) -> Option<PathBuf> {
    match llama_stack::environment(release) {
        Ok(python) => Some(python),
        Err(error) => {
            skipped(&format!(
                "{} {} cannot be installed here: {error:#}",
                release.package, release.version
            ));
            None
        }
    }
}
