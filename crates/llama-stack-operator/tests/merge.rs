//! `merge-config`, run as the container runs it: golden folders, bad files, and the figures it has to keep.
//!
//! A case is a folder in `tests/merge`: `base.yaml`, `providers/<id>/…`, perhaps `python-packages/…`; and what comes out:
//! `expected.yaml`, `expected.extra.yaml` and `expected.log`, or `expected.err`. `UPDATE_CASES=1` writes what came out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use runway_golden::Case;
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_llama-stack-operator");

/// The volumes of a pod.
struct Pod {
    root: TempDir,
}

impl Pod {
    fn new() -> Result<Self> {
        let root = tempfile::tempdir()?;
        for folder in ["external-providers/metadata", "base-config", "config"] {
            fs::create_dir_all(root.path().join(folder))?;
        }
        fs::write(root.path().join("termination-log"), "")?;
        Ok(Self { root })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn provider(&self, id: &str, metadata: &str, crd_config: &str) -> Result<()> {
        let folder = self.path("external-providers/metadata").join(id);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("lls-provider-spec.yaml"), metadata)?;
        fs::write(folder.join("crd-config.yaml"), crd_config)?;
        Ok(())
    }

    fn merge(&self) -> Result<Output> {
        Command::new(BINARY)
            .arg("merge-config")
            .args([
                "--external-providers".as_ref(),
                self.path("external-providers").as_os_str(),
            ])
            .args(["--base-config".as_ref(), self.path("base-config/run.yaml").as_os_str()])
            .args(["--out".as_ref(), self.path("config").as_os_str()])
            .args(["--termination-log".as_ref(), self.path("termination-log").as_os_str()])
            .output()
            .context("merge-config does not start")
    }

    /// A text with the paths of a real pod.
    fn reported(&self, text: &[u8]) -> String {
        String::from_utf8_lossy(text).replace(&self.root.path().display().to_string(), "/opt/llama-stack")
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if from.is_file() {
        fs::create_dir_all(to.parent().context("no parent")?)?;
        fs::copy(from, to)?;
    } else if from.is_dir() {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn run_case(case: &mut Case) -> Result<()> {
    let pod = Pod::new()?;
    copy(&case.folder().join("base.yaml"), &pod.path("base-config/run.yaml"))?;
    copy(
        &case.folder().join("providers"),
        &pod.path("external-providers/metadata"),
    )?;
    copy(
        &case.folder().join("python-packages"),
        &pod.path("external-providers/python-packages"),
    )?;
    let output = pod.merge()?;
    let (log, err) = (pod.reported(&output.stdout), pod.reported(&output.stderr));
    let succeeded = output.status.success();
    ensure!(
        succeeded || output.status.code() == Some(1),
        "{}: {}",
        output.status,
        err
    );
    let written = |name: &str| fs::read_to_string(pod.path("config").join(name)).ok();
    case.compare("expected.yaml", written("run.yaml"));
    case.compare("expected.extra.yaml", written("extra-providers.yaml"));
    case.compare("expected.log", succeeded.then(|| log.clone()));
    case.compare("expected.err", (!succeeded).then(|| err.clone()));
    let reported = fs::read(pod.path("termination-log"))?;
    ensure!(
        reported.len() <= 4096,
        "the kubelet cuts a message of {} bytes",
        reported.len()
    );
    ensure!(!reported.is_empty(), "nothing for the status");
    if succeeded {
        ensure!(
            written("preflight.py").is_some_and(|text| !text.is_empty()),
            "no preflight.py"
        );
        ensure!(
            written("merge-log.txt").map(|text| pod.reported(text.as_bytes())) == Some(log),
            "another log"
        );
        let mode = fs::metadata(pod.path("config/run.yaml"))?.permissions().mode();
        ensure!(mode & 0o777 == 0o644, "run.yaml has mode {mode:o}");
    } else {
        ensure!(err.contains("Resolution: "), "no way out in: {err}");
    }
    Ok(())
}

#[test]
fn golden_cases() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/merge");
    runway_golden::check(&folder, 40, |case| {
        if let Err(error) = run_case(case) {
            case.problem(&format!("{error:#}"));
        }
    });
}

const METADATA: &str = "apiVersion: llamastack.io/v1alpha1\nkind: ProviderPackage\nmetadata: {name: echo, version: 1.10, \
                        vendor: Example}\nspec:\n  packageName: lls_echo\n  providerType: inline::lls-echo\n  api: \
                        inference\n  wheelPath: /lls-provider/packages/lls_echo-1.0.0-py3-none-any.whl\n";

fn crd_config(id: &str) -> String {
    format!(r#"{{"providerId": "{id}", "api": "inference", "image": "registry.example.com/{id}:v1", "config": {{}}}}"#)
}

#[test]
fn a_metadata_file_of_a_megabyte_is_refused() {
    let pod = Pod::new().unwrap();
    let large = format!("{METADATA}# {}\n", "x".repeat(1 << 20));
    pod.provider("my-echo", &large, &crd_config("my-echo")).unwrap();
    fs::write(pod.path("base-config/run.yaml"), "image_name: demo\n").unwrap();
    let output = pod.merge().unwrap();
    let err = pod.reported(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(err.contains("Image: registry.example.com/my-echo:v1"), "{err}");
    assert!(err.contains("bytes; at most 65536 are read"), "{err}");
}

#[test]
fn a_config_map_is_a_folder_with_either_name() {
    let pod = Pod::new().unwrap();
    pod.provider("my-echo", METADATA, &crd_config("my-echo")).unwrap();
    fs::write(pod.path("base-config/other.yaml"), "image_name: demo\n").unwrap();
    let err = pod.reported(&pod.merge().unwrap().stderr);
    assert!(
        err.contains("neither run.yaml nor config.yaml; there is: other.yaml"),
        "{err}"
    );
    fs::write(pod.path("base-config/config.yaml"), "image_name: from-config\n").unwrap();
    assert!(pod.merge().unwrap().status.success());
    let merged = fs::read_to_string(pod.path("config/run.yaml")).unwrap();
    assert!(merged.starts_with("image_name: from-config\n"), "{merged}");
}

#[test]
fn volume_that_takes_no_file_is_reported() {
    let pod = Pod::new().unwrap();
    fs::write(pod.path("base-config/run.yaml"), "image_name: demo\n").unwrap();
    fs::remove_dir(pod.path("config")).unwrap();
    let err = pod.reported(&pod.merge().unwrap().stderr);
    assert!(
        err.contains("Cannot write the merged configuration") && err.contains("must be mounted here"),
        "{err}"
    );
    fs::remove_dir(pod.path("external-providers/metadata")).unwrap();
    let err = pod.reported(&pod.merge().unwrap().stderr);
    assert!(err.contains("Cannot list the installed providers"), "{err}");
}

#[test]
fn ten_providers_take_milliseconds() {
    let pod = Pod::new().unwrap();
    for number in 0..10 {
        let id = format!("provider-{number}");
        pod.provider(&id, METADATA, &crd_config(&id)).unwrap();
    }
    let base = format!(
        "image_name: demo\nproviders:\n  inference:\n{}",
        "  - {provider_id: a, provider_type: b}\n".repeat(50)
    );
    fs::write(pod.path("base-config/run.yaml"), base).unwrap();
    // The best of some: this machine may be busy. An unoptimised build gets more time.
    let limit = if cfg!(debug_assertions) { 200 } else { 20 };
    let best = (0..20)
        .map(|_| {
            let start = std::time::Instant::now();
            assert!(pod.merge().unwrap().status.success());
            start.elapsed().as_millis()
        })
        .min()
        .unwrap();
    eprintln!("10 providers, a base of 50: {best} ms");
    assert!(best < limit, "{best} ms");
}
