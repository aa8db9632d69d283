//! The operator's own steps in a pod, as processes: installation of a provider, and `merge-config`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runway_dev_support::shell;
use runway_llama_stack_operator::pod::{CRD_CONFIG_VARIABLE, CrdConfig, INSTALL_PROVIDER};
use runway_testbed::python;
use tempfile::TempDir;

use crate::measure::{quantile, seconds};

/// Runs of each step, of which the median is shown.
const RUNS: usize = 10;
/// External providers of the merge.
const PROVIDERS: usize = 10;
/// Providers of the base configuration.
const BASE: usize = 50;
/// Writes the images of the tests.
const IMAGES: &str = "crates/llama-stack-operator/tests/images.py";
/// Name of the script.
const SCRIPT: &str = "install_provider.py";
/// An image with 10 dependencies and 1,000 modules.
const IMAGE: &str = "ten-dependencies";

/// Prints the figures of both steps.
pub(super) fn print(operator: &Path) -> Result<()> {
    println!("\n| steps of a pod | measured | aimed at |\n|---|--:|--:|");
    let merge = Merge::prepare()?;
    let merged = median(|| merge.time(operator))?;
    println!(
        "| merge-config, {PROVIDERS} providers and a base of {BASE}, ms | {:.1} | 20 at most |",
        merged * 1000.0
    );
    println!(
        "| the same, most memory, MiB | {:.1} | 10 at most |",
        merge.peak(operator)?
    );
    let installation = Installation::prepare()?;
    let plain = median(|| installation.time(None))?;
    println!("| installation of 10 dependencies with 1,000 modules, s | {plain:.2} | 5 at most |");
    let cache = tempfile::tempdir()?;
    installation.time(Some(cache.path()))?;
    let cached = median(|| installation.time(Some(cache.path())))?;
    println!("| the same from the cache, s | {cached:.2} | 1 at most |");
    Ok(())
}

/// The median of some runs, in seconds.
fn median(run: impl Fn() -> Result<Duration>) -> Result<f64> {
    let times: Vec<f64> = (0..RUNS).map(|_| run().map(seconds)).collect::<Result<_>>()?;
    quantile(&times, 0.5).context("nothing was measured")
}

/// Volumes of an init container `merge-config`.
struct Merge(TempDir);

impl Merge {
    fn prepare() -> Result<Self> {
        let merge = Self(tempfile::tempdir()?);
        let root = merge.0.path();
        for number in 0..PROVIDERS {
            let id = format!("provider-{number}");
            let folder = root.join("providers/metadata").join(&id);
            fs::create_dir_all(&folder)?;
            fs::write(
                folder.join("lls-provider-spec.yaml"),
                "apiVersion: llamastack.io/v1alpha1\nkind: ProviderPackage\n\
                 metadata: {name: echo, version: 1.10, vendor: Example}\n\
                 spec:\n  packageName: lls_echo\n  providerType: inline::lls-echo\n  api: inference\n  \
                 wheelPath: /lls-provider/packages/lls_echo-1.0.0-py3-none-any.whl\n",
            )?;
            fs::write(folder.join("crd-config.yaml"), serde_json::to_string(&crd_config(&id))?)?;
        }
        let base = "  - {provider_id: a, provider_type: b}\n".repeat(BASE);
        fs::write(
            root.join("run.yaml"),
            format!("image_name: demo\nproviders:\n  inference:\n{base}"),
        )?;
        fs::create_dir(root.join("out"))?;
        Ok(merge)
    }

    fn command(&self, operator: &Path, log: &Path) -> Command {
        let root = self.0.path();
        let mut command = Command::new(operator);
        command
            .arg("merge-config")
            .args(["--external-providers".as_ref(), root.join("providers").as_os_str()])
            .args(["--base-config".as_ref(), root.join("run.yaml").as_os_str()])
            .args(["--out".as_ref(), root.join("out").as_os_str()])
            .args(["--termination-log".as_ref(), log.as_os_str()])
            .stdout(Stdio::null());
        command
    }

    fn time(&self, operator: &Path) -> Result<Duration> {
        let start = Instant::now();
        let status = self.command(operator, &self.0.path().join("absent")).status()?;
        ensure!(status.success(), "merge-config: {status}");
        Ok(start.elapsed())
    }

    /// Most memory, in MiB. The termination message is the last thing that is written: to a pipe, where the process waits
    /// for a reader.
    fn peak(&self, operator: &Path) -> Result<f64> {
        let (pipe, written) = (self.0.path().join("pipe"), self.0.path().join("out/run.yaml"));
        shell::output("mkfifo", &[&pipe.display().to_string()])?;
        fs::remove_file(&written)?;
        let mut process = self.command(operator, &pipe).spawn()?;
        while !written.exists() {
            ensure!(process.try_wait()?.is_none(), "merge-config has ended");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        let status = fs::read_to_string(format!("/proc/{}/status", process.id()))?;
        fs::read(&pipe)?;
        process.wait()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line
            .and_then(|line| line.split_whitespace().next())
            .context("no VmHWM")?;
        Ok(kib.parse::<f64>()? / 1024.0)
    }
}

fn crd_config(id: &str) -> CrdConfig {
    CrdConfig {
        provider_id: id.to_owned(),
        api: "inference".to_owned(),
        image: format!("registry.example/{id}:1"),
        init_container_name: format!("external-provider-{id}"),
        order: 0,
        config: None,
    }
}

/// A provider image as a folder.
struct Installation {
    images: TempDir,
    python: std::path::PathBuf,
}

impl Installation {
    fn prepare() -> Result<Self> {
        let python = python::interpreter()?;
        let images = tempfile::tempdir()?;
        let folder = images.path().display().to_string();
        shell::output(&python.display().to_string(), &[IMAGES, &folder])?;
        fs::write(images.path().join(SCRIPT), INSTALL_PROVIDER)?;
        Ok(Self { images, python })
    }

    /// Into an empty volume.
    fn time(&self, cache: Option<&Path>) -> Result<Duration> {
        let volume = tempfile::tempdir()?;
        let mut command = Command::new(&self.python);
        command
            .arg(self.images.path().join(SCRIPT))
            .env(CRD_CONFIG_VARIABLE, crd_config("ten").encoded()?)
            .env("LLS_PROVIDER_DIR", self.images.path().join(IMAGE).join("lls-provider"))
            .env("LLS_EXTERNAL_PROVIDERS", volume.path())
            .envs(cache.map(|folder| ("LLS_PROVIDER_CACHE", folder)));
        let start = Instant::now();
        let output = command.output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(start.elapsed())
    }
}
