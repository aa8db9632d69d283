//! Installation, merge and validation of providers with the code that a pod runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use runway_api::name::is_label;
use runway_llama_stack_operator::merge_config::{self, MergeArgs};
use runway_llama_stack_operator::pod::{CRD_CONFIG_VARIABLE, CrdConfig, INSTALL_PROVIDER};

use super::error::{Error, MAX_NAME, create, run, write};

/// Input of [`check`].
#[derive(Clone, Debug)]
pub struct Check {
    /// Contents of `/lls-provider` of each provider image, in the order of installation.
    pub providers: Vec<PathBuf>,
    /// Python of the provider images.
    pub python: PathBuf,
    /// Python of the distribution, with llama-stack. Without it, nothing is loaded.
    pub distribution: Option<PathBuf>,
    /// Configuration of the distribution.
    pub base_config: Option<PathBuf>,
    /// An empty folder for the volumes of the pod.
    pub volumes: PathBuf,
}

/// Result of [`check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Completed steps, one line each, with their warnings.
    pub lines: Vec<String>,
    /// Message of the step that failed, as a pod would report it.
    pub failure: Option<String>,
}

impl Checked {
    /// Takes in a step; returns whether it succeeded.
    fn step(&mut self, title: &str, output: &Output) -> bool {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !output.status.success() {
            self.failure = Some(text(&output.stderr));
            return false;
        }
        self.lines.push(format!("{title}: ok"));
        let said = text(&output.stdout);
        let remarks = said
            .lines()
            .filter(|l| l.starts_with("WARNING") || l.starts_with("NOTE"));
        self.lines.extend(remarks.map(|line| format!("  {line}")));
        true
    }
}

/// Installs, merges and validates providers with the scripts and programs that a pod runs, in folders.
///
/// # Errors
/// A folder or program cannot be used. What a pod would report is in the result.
pub fn check(input: &Check) -> Result<Checked, Error> {
    let mut checked = Checked::default();
    let external = input.volumes.join("external-providers");
    let out = input.volumes.join("config");
    for folder in [&external, &out] {
        create(folder)?;
    }
    let mut ids = Vec::new();
    for (order, folder) in (0..).zip(&input.providers) {
        let id = id_of(folder, order, &ids);
        let output = install(input, folder, &id, order, &external)?;
        ids.push(id);
        if !checked.step(&format!("install {}", folder.display()), &output) {
            return Ok(checked);
        }
    }
    let base_config = if let Some(file) = &input.base_config {
        file.clone()
    } else {
        let file = input.volumes.join("base.yaml");
        write(&file, "version: 2\nimage_name: check\n")?;
        file
    };
    let merged = merge_config::merge(&MergeArgs {
        external_providers: external.clone(),
        base_config,
        out: out.clone(),
        termination_log: input.volumes.join("none"),
    });
    match merged {
        Ok(log) => checked.lines.extend(log.lines().map(str::to_owned)),
        Err(error) => {
            checked.failure = Some(error.to_string());
            return Ok(checked);
        }
    }
    match &input.distribution {
        Some(python) => {
            let output = run(
                Command::new(python)
                    .arg(out.join("preflight.py"))
                    .arg(format!("--run-yaml={}", out.join("run.yaml").display()))
                    .arg(format!("--external-providers={}", external.display()))
                    .env("PYTHONPATH", external.join("python-packages")),
                python,
                "distribution-python",
            )?;
            checked.step("preflight", &output);
        }
        None => checked
            .lines
            .push("preflight: skipped, since --distribution-python is not set".to_owned()),
    }
    Ok(checked)
}

/// A providerId for a folder, unlike those before. The spec of a distribution sets another.
fn id_of(folder: &Path, order: u64, taken: &[String]) -> String {
    let name = folder
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    if is_label(&name) && name.len() <= MAX_NAME && !taken.contains(&name) {
        name
    } else {
        format!("provider-{order}")
    }
}

fn install(input: &Check, folder: &Path, id: &str, order: u64, external: &Path) -> Result<Output, Error> {
    // pip runs in another directory.
    let source = std::path::absolute(folder).map_err(|source| Error::File {
        path: folder.to_owned(),
        source,
    })?;
    let crd_config = CrdConfig {
        provider_id: id.to_owned(),
        api: api_of(folder),
        image: folder.display().to_string(),
        init_container_name: format!("external-provider-{id}"),
        order,
        config: None,
    };
    run(
        Command::new(&input.python)
            .args(["-c", INSTALL_PROVIDER])
            .env(CRD_CONFIG_VARIABLE, crd_config.encoded()?)
            .env("LLS_PROVIDER_DIR", source)
            .env("LLS_EXTERNAL_PROVIDERS", external)
            .env("LLS_TERMINATION_LOG", input.volumes.join("none")),
        &input.python,
        "python",
    )
}

/// The API of the metadata, so that the provider stands in its section. Installation and merge report what is wrong with the file.
fn api_of(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("lls-provider-spec.yaml")).unwrap_or_default();
    let spec: Option<serde_json::Value> = serde_saphyr::from_str(&text).ok();
    let api = spec.as_ref().and_then(|spec| spec["spec"]["api"].as_str());
    api.unwrap_or("inference").to_owned()
}
