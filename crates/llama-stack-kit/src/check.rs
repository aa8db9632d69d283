//! Installation, merge and validation of providers with the code that a pod runs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use runway_api::name::is_label;
use runway_llama_stack_operator::merge_config::{self, MergeArgs};
use runway_llama_stack_operator::pod::{CRD_CONFIG_VARIABLE, CrdConfig, INSTALL_PROVIDER};
use serde_json::{Value, json};

use super::archive::Base;
use super::error::{Error, MAX_NAME, create, read, run, write, write_bytes};
use super::packages;

/// Directory of a provider image.
const PROVIDER: &str = "lls-provider/";

/// Input of [`check`].
#[derive(Clone, Debug)]
pub struct Check {
    /// OCI archives of provider images, or folders with the contents of their `/lls-provider`, in the order of installation.
    pub providers: Vec<PathBuf>,
    /// `config` of providers, by id: YAML files.
    pub configs: BTreeMap<String, PathBuf>,
    /// Python of the provider images.
    pub python: PathBuf,
    /// The distribution, or a part of it.
    pub distribution: Distribution,
    /// Configuration of the distribution.
    pub base_config: Option<PathBuf>,
    /// An empty folder for the volumes of the pod.
    pub volumes: PathBuf,
}

/// Known parts of a distribution.
#[derive(Clone, Debug)]
pub enum Distribution {
    /// Nothing: providers are installed and merged.
    Unknown,
    /// File with the names, versions and requirements of its packages: providers are not loaded.
    Packages(PathBuf),
    /// Its Python, with llama-stack: providers are loaded.
    Python(PathBuf),
}

/// Result of [`check`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Completed steps, one line each, with their warnings. They contain text of providers and servers as it is.
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

/// The volumes of a pod, as folders.
pub(super) struct Volumes {
    root: PathBuf,
}

impl Volumes {
    pub(super) fn new(root: &Path) -> Result<Self, Error> {
        let volumes = Self { root: root.to_owned() };
        for folder in [volumes.external(), volumes.config()] {
            create(&folder)?;
        }
        Ok(volumes)
    }

    fn external(&self) -> PathBuf {
        self.root.join("external-providers")
    }

    fn config(&self) -> PathBuf {
        self.root.join("config")
    }

    /// Packages of the providers.
    pub(super) fn packages(&self) -> PathBuf {
        self.external().join("python-packages")
    }

    /// Configuration of the server.
    pub(super) fn run_yaml(&self) -> PathBuf {
        self.config().join("run.yaml")
    }
}

/// Installs, merges and validates providers with the scripts and programs that a pod runs, in folders.
///
/// # Errors
/// A file or program cannot be used. What a pod would report is in the result.
pub fn check(input: &Check) -> Result<Checked, Error> {
    let mut checked = Checked::default();
    let volumes = Volumes::new(&input.volumes)?;
    let ids = ids(&input.providers);
    if let Some(id) = input.configs.keys().find(|id| !ids.contains(id)) {
        return Err(Error::UnknownId {
            id: id.clone(),
            known: ids.join(", "),
        });
    }
    for (order, (provider, id)) in (0..).zip(input.providers.iter().zip(&ids)) {
        let output = install(input, provider, id, order, &volumes)?;
        if !checked.step(&format!("install {}", provider.display()), &output) {
            return Ok(checked);
        }
    }
    let merged = merge_config::merge(&MergeArgs {
        external_providers: volumes.external(),
        base_config: base_config(input)?,
        out: volumes.config(),
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
        Distribution::Python(python) => {
            let output = preflight(&volumes, python, "distribution-python", &volumes.run_yaml(), &[])?;
            checked.step("preflight", &output);
        }
        Distribution::Packages(file) => {
            let stand_in = packages::stand_in(file, &input.python, &input.volumes)?;
            // A Python without the packages of a distribution may have no YAML parser.
            let run_yaml = input.volumes.join("run.json");
            let merged: Value = serde_saphyr::from_slice(&read(&volumes.run_yaml())?).unwrap_or_default();
            write(&run_yaml, &merged.to_string())?;
            let only = ["--packages-of".as_ref(), stand_in.python.as_os_str()];
            let output = preflight(&volumes, &input.python, "python", &run_yaml, &only)?;
            if checked.step(&format!("packages of {}", file.display()), &output) {
                checked
                    .lines
                    .extend(stand_in.notes.iter().map(|note| format!("  NOTE: {note}")));
                checked
                    .lines
                    .push("  NOTE: providers are not loaded without --distribution-python".to_owned());
            }
        }
        Distribution::Unknown => checked
            .lines
            .push("preflight: skipped, since neither --distribution-python nor --distribution is set".to_owned()),
    }
    Ok(checked)
}

/// Runs the script that a pod runs before its server.
fn preflight(
    volumes: &Volumes,
    python: &Path,
    option: &'static str,
    run_yaml: &Path,
    more: &[&std::ffi::OsStr],
) -> Result<Output, Error> {
    run(
        Command::new(python)
            .arg(volumes.config().join("preflight.py"))
            .arg(format!("--run-yaml={}", run_yaml.display()))
            .arg(format!("--external-providers={}", volumes.external().display()))
            .args(more)
            .env("PYTHONPATH", volumes.packages()),
        python,
        option,
    )
}

/// The given configuration, or one of a server that has no providers, keeps its data in a folder and is not reachable from other
/// machines.
fn base_config(input: &Check) -> Result<PathBuf, Error> {
    if let Some(file) = &input.base_config {
        return Ok(file.clone());
    }
    let file = |name: &str| input.volumes.join(name).display().to_string();
    let config = json!({
        "version": 2,
        "image_name": "kubeairunway",
        "server": {"host": "127.0.0.1"},
        "storage": {
            "backends": {
                "kv_default": {"type": "kv_sqlite", "db_path": file("kv.db")},
                "sql_default": {"type": "sql_sqlite", "db_path": file("sql.db")},
            },
            "stores": {
                "metadata": {"backend": "kv_default", "namespace": "registry"},
                "inference": {"backend": "sql_default", "table_name": "inference"},
                "conversations": {"backend": "sql_default", "table_name": "conversations"},
                "prompts": {"backend": "kv_default", "namespace": "prompts"},
            },
        },
    });
    let path = input.volumes.join("base.yaml");
    // JSON is YAML.
    write(&path, &format!("{config:#}\n"))?;
    Ok(path)
}

/// The providerId of each path: the name of the folder or archive. The spec of a distribution sets others.
pub(super) fn ids(providers: &[PathBuf]) -> Vec<String> {
    let mut ids = Vec::new();
    for (order, path) in providers.iter().enumerate() {
        let name = if path.is_dir() {
            path.file_name()
        } else {
            path.file_stem()
        };
        let name = name.map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let usable = is_label(&name) && name.len() <= MAX_NAME && !ids.contains(&name);
        ids.push(if usable { name } else { format!("provider-{order}") });
    }
    ids
}

fn install(input: &Check, provider: &Path, id: &str, order: u64, volumes: &Volumes) -> Result<Output, Error> {
    let contents = contents(provider, &input.volumes.join("images").join(id))?;
    let config = match input.configs.get(id) {
        Some(file) => Some(config_of(file)?),
        None => None,
    };
    let crd_config = CrdConfig {
        provider_id: id.to_owned(),
        api: api_of(&contents),
        image: provider.display().to_string(),
        init_container_name: format!("external-provider-{id}"),
        order,
        config,
    };
    run(
        Command::new(&input.python)
            .args(["-c", INSTALL_PROVIDER])
            .env(CRD_CONFIG_VARIABLE, crd_config.encoded()?)
            .env("LLS_PROVIDER_DIR", contents)
            .env("LLS_EXTERNAL_PROVIDERS", volumes.external())
            .env("LLS_TERMINATION_LOG", input.volumes.join("none"))
            .env_remove("LLS_PROVIDER_CACHE"),
        &input.python,
        "python",
    )
}

/// The folder with the contents of `/lls-provider`; those of an archive are written to `target`.
fn contents(provider: &Path, target: &Path) -> Result<PathBuf, Error> {
    if !provider.is_file() {
        // pip runs in another directory.
        return std::path::absolute(provider).map_err(|source| Error::File {
            path: provider.to_owned(),
            source,
        });
    }
    create(target)?;
    for (path, content) in Base::open(provider)?.files(|path| path.starts_with(PROVIDER))? {
        let file = target.join(path.trim_start_matches(PROVIDER));
        create(file.parent().unwrap_or(target))?;
        write_bytes(&file, &content)?;
    }
    std::path::absolute(target).map_err(|source| Error::File {
        path: target.to_owned(),
        source,
    })
}

fn config_of(file: &Path) -> Result<Value, Error> {
    let config: Result<Value, _> = serde_saphyr::from_slice(&read(file)?);
    let config = config.map_err(|error| Error::ConfigFile {
        file: file.to_owned(),
        why: error.to_string(),
    })?;
    if config.is_object() {
        return Ok(config);
    }
    Err(Error::ConfigFile {
        file: file.to_owned(),
        why: "it is not a mapping".to_owned(),
    })
}

/// The API of the metadata, so that the provider stands in its section. Installation and merge report what is wrong with the file.
fn api_of(folder: &Path) -> String {
    let text = fs::read_to_string(folder.join("lls-provider-spec.yaml")).unwrap_or_default();
    let spec: Option<Value> = serde_saphyr::from_str(&text).ok();
    let api = spec.as_ref().and_then(|spec| spec["spec"]["api"].as_str());
    api.unwrap_or("inference").to_owned()
}
