//! The packages of a distribution without the distribution: a Python environment with their metadata and nothing else.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::archive::Base;
use super::error::{Error, create, listed, read, run, write};

/// Offset and text by which a tar file is recognized.
const TAR: (usize, &[u8]) = (257, b"ustar");

/// An environment with the metadata of packages.
pub(super) struct StandIn {
    /// Its Python.
    pub(super) python: PathBuf,
    /// Limits of what it shows.
    pub(super) notes: Vec<String>,
}

/// A package: its name, its version and its metadata (`METADATA` of a `dist-info` folder).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    name: String,
    version: String,
    metadata: String,
}

/// Creates an environment of `python` below `folder` with the packages that `file` lists.
///
/// # Errors
/// The file is none of the known forms, or cannot be read; or `python` cannot create an environment.
pub(super) fn stand_in(file: &Path, python: &Path, folder: &Path) -> Result<StandIn, Error> {
    let (packages, notes) = packages(file)?;
    let environment = folder.join("distribution");
    let output = run(
        Command::new(python)
            .args(["-m", "venv", "--without-pip"])
            .arg(&environment),
        python,
        "python",
    )?;
    if !output.status.success() {
        return Err(Error::Environment {
            python: python.to_owned(),
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    let libraries = listed(&environment.join("lib"))?;
    let library = libraries
        .iter()
        .map(|path| path.join("site-packages"))
        .find(|path| path.is_dir());
    let library = library.unwrap_or_else(|| environment.join("lib/site-packages"));
    for package in packages {
        let Package {
            name,
            version,
            metadata,
        } = package;
        let info = library.join(format!("{}-{version}.dist-info", name.replace('-', "_")));
        create(&info)?;
        write(&info.join("METADATA"), &metadata)?;
    }
    Ok(StandIn {
        python: environment.join("bin/python"),
        notes,
    })
}

/// The packages of an image, of the output of `pip inspect`, or of that of `pip freeze`; with notes on what is not known.
fn packages(file: &Path) -> Result<(Vec<Package>, Vec<String>), Error> {
    if is_tar(file)? {
        let wanted = |path: &str| path.ends_with(".dist-info/METADATA") && path.contains("-packages/");
        let files = Base::open(file)?.files(wanted)?;
        let packages = files
            .into_values()
            .filter_map(|content| of_metadata(&content))
            .collect();
        return found(file, packages, Vec::new());
    }
    let content = read(file)?;
    if content.trim_ascii_start().starts_with(b"{") {
        let report: Value = serde_json::from_slice(&content).map_err(|error| unknown(file, &error.to_string()))?;
        let installed = report["installed"].as_array().into_iter().flatten();
        let packages = installed
            .filter_map(|package| of_report(&package["metadata"]))
            .collect();
        return found(file, packages, Vec::new());
    }
    let text = String::from_utf8(content).map_err(|error| unknown(file, &error.to_string()))?;
    let mut notes =
        vec!["the list has no requirements of the distribution's packages; that of `pip inspect` has them".to_owned()];
    let mut packages = Vec::new();
    for line in text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        match line
            .split_once("==")
            .and_then(|(name, version)| package(name, version, &[]))
        {
            Some(package) => packages.push(package),
            None if line.contains(" @ ") || line.starts_with("-e ") => {
                notes.push(format!("'{line}' is skipped, since it has no version"));
            }
            None => return Err(unknown(file, &format!("'{line}' is not NAME==VERSION"))),
        }
    }
    found(file, packages, notes)
}

fn found(file: &Path, packages: Vec<Package>, notes: Vec<String>) -> Result<(Vec<Package>, Vec<String>), Error> {
    if packages.is_empty() {
        return Err(unknown(file, "it lists no packages"));
    }
    Ok((packages, notes))
}

fn unknown(file: &Path, why: &str) -> Error {
    Error::Packages {
        file: file.to_owned(),
        why: why.to_owned(),
    }
}

fn is_tar(file: &Path) -> Result<bool, Error> {
    use std::io::Read as _;
    let failed = |source| Error::File {
        path: file.to_owned(),
        source,
    };
    let (offset, magic) = TAR;
    let mut head = Vec::new();
    let opened = std::fs::File::open(file).map_err(failed)?;
    opened
        .take((offset + magic.len()) as u64)
        .read_to_end(&mut head)
        .map_err(failed)?;
    Ok(head.get(offset..) == Some(magic))
}

/// A package of the fields of `pip inspect` (<https://pip.pypa.io/en/stable/reference/inspect-report/>).
fn of_report(metadata: &Value) -> Option<Package> {
    let text = |field: &str| metadata[field].as_str();
    let requires: Vec<&str> = metadata["requires_dist"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    package(text("name")?, text("version")?, &requires)
}

fn of_metadata(content: &[u8]) -> Option<Package> {
    let metadata = String::from_utf8_lossy(content).into_owned();
    let header = |name: &str| {
        metadata
            .lines()
            .take_while(|line| !line.is_empty())
            .find_map(|line| line.strip_prefix(name))
    };
    let (name, version) = (header("Name:")?.trim(), header("Version:")?.trim());
    let plain = package(name, version, &[])?;
    Some(Package { metadata, ..plain })
}

/// A package, if name and version can be parts of a path and of metadata.
fn package(name: &str, version: &str, requires: &[&str]) -> Option<Package> {
    let plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+!".contains(c))
    };
    let (name, version) = (name.trim(), version.trim());
    let lines = requires.iter().filter(|line| !line.contains('\n'));
    let requires: String = lines
        .flat_map(|required| ["Requires-Dist: ", *required, "\n"])
        .collect();
    (plain(name) && plain(version)).then(|| Package {
        name: name.to_owned(),
        version: version.to_owned(),
        metadata: format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}\n"),
    })
}
