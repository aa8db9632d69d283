//! `merge-config`, the init container: reads the files, merges, writes the files.

use std::fs::{self, File as FsFile, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::merge::{self, Errors, File, Merged, ProviderFiles, Unfit};
use crate::pod;

/// Largest base configuration, in bytes: the limit of a ConfigMap, far above any distribution's file.
const BASE_LIMIT: u64 = 1 << 20;
/// Largest metadata file of a provider, in bytes. A usual one has some lines.
const METADATA_LIMIT: u64 = 64 << 10;
/// Largest `crd-config.yaml`, in bytes: more than fits into an environment variable.
const CRD_CONFIG_LIMIT: u64 = 256 << 10;

/// Merge the configuration of external providers into run.yaml.
#[derive(Clone, Debug, clap::Args)]
pub struct MergeArgs {
    /// Directory of the providers' packages and metadata, written by their init containers.
    #[arg(long, value_name = "DIR", default_value = "/opt/llama-stack/external-providers")]
    pub external_providers: PathBuf,
    /// The configuration to start from. If the file is missing, or a folder: run.yaml or config.yaml there.
    #[arg(long, value_name = "FILE", default_value = "/opt/llama-stack/base-config/run.yaml")]
    pub base_config: PathBuf,
    /// Output directory for run.yaml, extra-providers.yaml, merge-log.txt and preflight.py.
    #[arg(long, value_name = "DIR", default_value = "/opt/llama-stack/config")]
    pub out: PathBuf,
    /// File for the termination message, which the kubelet reads.
    #[arg(long, value_name = "FILE", default_value = "/dev/termination-log", hide = true)]
    pub termination_log: PathBuf,
}

/// Runs the container: exit code 0 if run.yaml was written, 1 if not.
pub fn run(args: &MergeArgs) -> ExitCode {
    match merge(args) {
        Ok(log) => {
            let _ = write!(io::stdout(), "{log}");
            pod::inform_kubelet(&args.termination_log, &log);
            ExitCode::SUCCESS
        }
        Err(error) => {
            let text = error.to_string();
            let _ = writeln!(io::stderr(), "{text}");
            pod::inform_kubelet(&args.termination_log, &text);
            ExitCode::FAILURE
        }
    }
}

/// A failure to write run.yaml.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files cannot be merged.
    #[error(transparent)]
    Merge(#[from] Errors),
    /// The installed providers cannot be listed.
    #[error(
        "ERROR: Cannot list the installed providers\n\nInit Container: {}\nFolder: {}\nReason: {source}\n\nResolution: \
         Look at the logs of the provider containers before this one; they write this folder.",
        merge::INIT_CONTAINER, path.display()
    )]
    List {
        /// Folder of the installed providers.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The result cannot be written.
    #[error(
        "ERROR: Cannot write the merged configuration\n\nInit Container: {}\nFile: {}\nReason: {source}\n\nResolution: \
         {}",
        merge::INIT_CONTAINER, path.display(), pod::way_out_of(source)
    )]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
}

/// Reads, merges and writes. Returns the log.
///
/// # Errors
/// The files cannot be merged, or a file cannot be read or written.
pub fn merge(args: &MergeArgs) -> Result<String, Error> {
    let base = base(&args.base_config);
    let providers = providers(&args.external_providers.join("metadata"))?;
    let packages = args.external_providers.join("python-packages");
    let merged = merge::merge(&base, &providers, &|path| packages.join(path).is_file())?;
    let log = log(&base, &providers, &merged);
    for (name, text) in [
        ("extra-providers.yaml", merged.extra_providers.as_str()),
        ("merge-log.txt", &log),
        ("preflight.py", pod::PREFLIGHT),
        ("run.yaml", &merged.run_yaml),
    ] {
        let path = args.out.join(name);
        write_file(&path, text).map_err(|source| Error::Write { path, source })?;
    }
    Ok(log)
}

fn base(path: &Path) -> File {
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let names = ["run.yaml", "config.yaml"].map(|name| folder.unwrap_or(path).join(name));
    let candidates = path.is_file().then(|| path.to_owned()).into_iter().chain(names);
    if let Some(found) = candidates.into_iter().find(|candidate| candidate.is_file()) {
        return read(&found, BASE_LIMIT);
    }
    let mut found: Vec<String> = folder.and_then(|folder| names_in(folder).ok()).unwrap_or_default();
    // A ConfigMap's volume has its own bookkeeping there.
    found.retain(|name| !name.starts_with(".."));
    File {
        path: path.display().to_string(),
        text: Err(Unfit::NeitherName { found }),
    }
}

fn providers(metadata: &Path) -> Result<Vec<ProviderFiles>, Error> {
    let names = names_in(metadata).map_err(|source| Error::List {
        path: metadata.to_owned(),
        source,
    })?;
    let folders = names.into_iter().map(|name| (metadata.join(&name), name));
    let files = folders
        .filter(|(folder, _)| folder.is_dir())
        .map(|(folder, directory)| ProviderFiles {
            directory,
            spec: read(&folder.join("lls-provider-spec.yaml"), METADATA_LIMIT),
            crd_config: read(&folder.join("crd-config.yaml"), CRD_CONFIG_LIMIT),
        });
    Ok(files.collect())
}

fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    let mut names: Vec<String> = entries
        .iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    Ok(names)
}

fn read(path: &Path, limit: u64) -> File {
    File {
        path: path.display().to_string(),
        text: text(path, limit),
    }
}

fn text(path: &Path, limit: u64) -> Result<String, Unfit> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Unfit::Missing,
        _ => Unfit::Refused(error.to_string()),
    };
    let file = FsFile::open(path).map_err(refused)?;
    let bytes = file.metadata().map_err(refused)?.len();
    if bytes > limit {
        return Err(Unfit::TooLarge { bytes, limit });
    }
    let mut content = Vec::new();
    file.take(limit).read_to_end(&mut content).map_err(refused)?;
    String::from_utf8(content).map_err(|error| Unfit::NotText {
        offset: error.utf8_error().valid_up_to(),
    })
}

fn log(base: &File, providers: &[ProviderFiles], merged: &Merged) -> String {
    let mut log = format!("Merged {} external provider(s) into {}\n", providers.len(), base.path);
    for (id, module) in &merged.modules {
        log.push_str(&pod::module_line(id, module));
    }
    for warning in &merged.warnings {
        log.extend(["WARNING: ", warning, "\n"]);
    }
    log
}

/// Writes a file as a whole or not at all, readable by the user of the main container, which may differ.
fn write_file(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, text)?;
    fs::set_permissions(&part, Permissions::from_mode(0o644))?;
    fs::rename(&part, path)
}
