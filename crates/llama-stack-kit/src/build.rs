//! The image of a provider, without a container engine: a base image with Python, and a layer with `/lls-provider`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::{self, Base};
use super::error::{Error, create, listed, read, run};

/// Metadata of a provider, below its sources and in its image.
const METADATA: &str = "lls-provider-spec.yaml";
/// Earliest time that a zip file can have, 1980-01-01, in seconds: wheels of the same sources are equal.
const SOURCE_DATE_EPOCH: &str = "315532800";
/// Largest size of all wheels together, in bytes.
const LARGEST: u64 = 512 << 20;
/// Folders that are not copied: stale files of earlier builds would get into the wheel.
const NOT_SOURCES: [&str; 5] = ["build", "dist", "packages", "venv", "__pycache__"];

/// Input of [`build`].
#[derive(Clone, Debug)]
pub struct Build {
    /// Folder with the sources: pyproject.toml and lls-provider-spec.yaml.
    pub sources: PathBuf,
    /// Python with pip that builds the wheels, of the distribution's version.
    pub python: PathBuf,
    /// OCI archive of an image with Python and pip.
    pub base: PathBuf,
    /// Name of the image, with its tag.
    pub image: String,
    /// File to write.
    pub archive: PathBuf,
    /// An empty folder for the build.
    pub work: PathBuf,
}

/// Result of [`build`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Built {
    /// Digest of the image's manifest.
    pub digest: String,
    /// Names of the wheels.
    pub wheels: Vec<String>,
}

/// Builds the wheels of a provider and of all that it requires, and writes an OCI archive of its image. The same sources, wheels
/// and base give the same digest.
///
/// # Errors
/// pip fails, the metadata does not fit the wheel, the base is not an image, or a file cannot be read or written.
pub fn build(input: &Build) -> Result<Built, Error> {
    let mut base = Base::open(&input.base)?;
    let metadata = read(&input.sources.join(METADATA))?;
    let wheels = wheels(input)?;
    let wanted = wheel_path(&metadata);
    let built: Vec<String> = wheels
        .keys()
        .map(|name| format!("/lls-provider/packages/{name}"))
        .collect();
    if let Some(wanted) = wanted.filter(|wanted| !built.contains(wanted)) {
        return Err(Error::WheelPath {
            file: input.sources.join(METADATA),
            wanted,
            built: built.join(", "),
        });
    }
    let names = wheels.keys().cloned().collect();
    let mut files: BTreeMap<String, Vec<u8>> = wheels
        .into_iter()
        .map(|(name, wheel)| (format!("lls-provider/packages/{name}"), wheel))
        .collect();
    files.insert(format!("lls-provider/{METADATA}"), metadata);
    let layer = archive::layer(&files).map_err(|source| Error::File {
        path: input.archive.clone(),
        source,
    })?;
    let digest = base.extended(&layer, &input.image, &input.archive)?;
    Ok(Built { digest, wheels: names })
}

/// The wheels that pip builds from a copy of the sources.
fn wheels(input: &Build) -> Result<BTreeMap<String, Vec<u8>>, Error> {
    let sources = input.work.join("sources");
    copy(&input.sources, &sources)?;
    let packages = input.work.join("packages");
    let output = run(
        Command::new(&input.python)
            .args(["-m", "pip", "wheel", "--no-cache-dir", "--no-input", "--quiet"])
            .args(["--disable-pip-version-check", "--wheel-dir"])
            .arg(&packages)
            .arg(&sources)
            .env("SOURCE_DATE_EPOCH", SOURCE_DATE_EPOCH)
            .env("PYTHONHASHSEED", "0"),
        &input.python,
        "python",
    )?;
    if !output.status.success() {
        return Err(Error::Wheels {
            folder: input.sources.clone(),
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    let mut wheels = BTreeMap::new();
    let mut size = 0;
    for path in listed(&packages)? {
        let wheel = read(&path)?;
        size += wheel.len() as u64;
        if size > LARGEST {
            return Err(Error::TooLarge {
                folder: input.sources.clone(),
            });
        }
        wheels.insert(file_name(&path), wheel);
    }
    Ok(wheels)
}

/// Copies sources, without hidden files and the results of earlier builds.
fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    create(to)?;
    for path in listed(from)? {
        let name = file_name(&path);
        if name.starts_with('.') || name.ends_with(".egg-info") || NOT_SOURCES.contains(&name.as_str()) {
            continue;
        }
        let target = to.join(&name);
        if path.is_dir() && !path.is_symlink() {
            copy(&path, &target)?;
        } else {
            fs::copy(&path, &target).map_err(|source| Error::File { path, source })?;
        }
    }
    Ok(())
}

/// `spec.wheelPath` of metadata; what else is wrong with the file, installation and merge report.
fn wheel_path(metadata: &[u8]) -> Option<String> {
    let spec: serde_json::Value = serde_saphyr::from_slice(metadata).ok()?;
    Some(spec["spec"]["wheelPath"].as_str()?.to_owned())
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
