//! For authors of Llama Stack providers: a skeleton, and what pods do with a provider, without a cluster.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use runway_api::name::is_label;
use runway_llama_stack_operator::merge_config::{self, MergeArgs};
use runway_llama_stack_operator::pod::{CRD_CONFIG_VARIABLE, CrdConfig, INSTALL_PROVIDER};

/// Files of the example, whose names and texts contain that of the provider.
const EXAMPLE: [(&str, &str); 7] = [
    (
        "Containerfile",
        include_str!("../../../../deploy/examples/llama-stack-provider/Containerfile"),
    ),
    (
        "lls-provider-spec.yaml",
        include_str!("../../../../deploy/examples/llama-stack-provider/lls-provider-spec.yaml"),
    ),
    (
        "pyproject.toml",
        include_str!("../../../../deploy/examples/llama-stack-provider/pyproject.toml"),
    ),
    (
        "lls_echo/__init__.py",
        include_str!("../../../../deploy/examples/llama-stack-provider/lls_echo/__init__.py"),
    ),
    (
        "lls_echo/config.py",
        include_str!("../../../../deploy/examples/llama-stack-provider/lls_echo/config.py"),
    ),
    (
        "lls_echo/impl.py",
        include_str!("../../../../deploy/examples/llama-stack-provider/lls_echo/impl.py"),
    ),
    (
        "lls_echo/provider.py",
        include_str!("../../../../deploy/examples/llama-stack-provider/lls_echo/provider.py"),
    ),
];
/// Longest name of a provider, in bytes: a providerId has at most as many.
const MAX_NAME: usize = 45;

/// Failure of the kit.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name cannot be that of a Python package.
    #[error(
        "invalid provider name '{0}': use at most {MAX_NAME} lower case letters, digits and '-', beginning with a letter"
    )]
    Name(String),
    /// A file or folder cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A program cannot be started.
    #[error("cannot run {}: set another with --{option}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Option that sets it.
        option: &'static str,
        /// Cause.
        source: io::Error,
    },
    /// The input of an installation is too large.
    #[error(transparent)]
    Config(#[from] runway_llama_stack_operator::pod::ConfigTooLarge),
}

/// Paths and texts of a new inference provider: one that answers with what it was asked.
///
/// # Errors
/// The name is not usable.
pub fn skeleton(name: &str) -> Result<Vec<(String, String)>, Error> {
    if !is_label(name) || name.len() > MAX_NAME || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(Error::Name(name.to_owned()));
    }
    let package = name.replace('-', "_");
    let named = |text: &str| text.replace("lls_echo", &package).replace("lls-echo", name);
    Ok(EXAMPLE.map(|(path, text)| (named(path), named(text))).into())
}

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

fn run(command: &mut Command, program: &Path, option: &'static str) -> Result<Output, Error> {
    command.output().map_err(|source| Error::Program {
        program: program.to_owned(),
        option,
        source,
    })
}

/// Writes files of a new provider below `folder`, which must not contain any of them.
///
/// # Errors
/// A file exists already, or cannot be written.
pub fn write_new(folder: &Path, files: &[(String, String)]) -> Result<(), Error> {
    for (name, _) in files {
        let path = folder.join(name);
        if path.exists() {
            let source = io::ErrorKind::AlreadyExists.into();
            return Err(Error::File { path, source });
        }
    }
    for (name, text) in files {
        let path = folder.join(name);
        create(path.parent().unwrap_or(folder))?;
        write(&path, text)?;
    }
    Ok(())
}

fn create(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::File {
        path: folder.to_owned(),
        source,
    })
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}
