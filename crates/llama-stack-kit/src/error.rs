//! Failures of the kit, and access to files and programs that reports them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::archive;

/// Longest name of a provider, in bytes: a providerId has at most as many.
pub(super) const MAX_NAME: usize = 45;

/// Failure of the kit.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name cannot be that of a Python package.
    #[error(
        "invalid provider name '{0}': use at most {MAX_NAME} lower case letters, digits and '-', beginning with a letter"
    )]
    Name(String),
    /// A file or folder cannot be read or written.
    #[error("cannot use {}: {source}; choose another path, or correct its permissions", path.display())]
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
    /// pip fails.
    #[error("cannot build wheels of {}: {output}", folder.display())]
    Wheels {
        /// Folder of the sources.
        folder: PathBuf,
        /// Errors of pip.
        output: String,
    },
    /// The wheels do not fit into memory.
    #[error(
        "the wheels of {} have more than 512 MiB: leave out what the distribution has, or build with the Containerfile",
        folder.display()
    )]
    TooLarge {
        /// Folder of the sources.
        folder: PathBuf,
    },
    /// The metadata names a wheel that pip did not build.
    #[error("{}: spec.wheelPath is {wanted}, but the image has {built}: correct it", file.display())]
    WheelPath {
        /// Path of the metadata.
        file: PathBuf,
        /// The path in the metadata.
        wanted: String,
        /// Paths of the wheels in the image.
        built: String,
    },
    /// A configuration is given for a provider that is not there.
    #[error("--config names the provider '{id}', but there is {known}: the id is the name of the archive or directory")]
    UnknownId {
        /// The id in the option.
        id: String,
        /// Ids of the providers.
        known: String,
    },
    /// The configuration of a provider cannot be read.
    #[error("{} is not the config of a provider: {why}", file.display())]
    ConfigFile {
        /// Path of the file.
        file: PathBuf,
        /// Cause.
        why: String,
    },
    /// The packages of a distribution cannot be read.
    #[error(
        "{} is not a list of packages: {why}; write one with `pip inspect` or `pip freeze` in the distribution image, or give \
         the image as an OCI archive",
        file.display()
    )]
    Packages {
        /// Path of the file.
        file: PathBuf,
        /// Cause.
        why: String,
    },
    /// A Python cannot create an environment.
    #[error("{} cannot create a virtual environment: set another with --python: {output}", python.display())]
    Environment {
        /// The Python.
        python: PathBuf,
        /// Output of the Python.
        output: String,
    },
    /// A server cannot be started without its Python.
    #[error("cannot start a server: set --distribution-python to a Python with llama-stack")]
    NoDistribution,
    /// The base cannot be used, or the image cannot be written.
    #[error(transparent)]
    Archive(#[from] archive::Error),
    /// The input of an installation is too large.
    #[error(transparent)]
    Config(#[from] runway_llama_stack_operator::pod::ConfigTooLarge),
}

/// Runs a program that `option` of the command sets.
pub(super) fn run(command: &mut Command, program: &Path, option: &'static str) -> Result<Output, Error> {
    command.output().map_err(|source| Error::Program {
        program: program.to_owned(),
        option,
        source,
    })
}

/// Creates a folder and those above it.
pub(super) fn create(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::File {
        path: folder.to_owned(),
        source,
    })
}

/// Writes a file.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Error> {
    write_bytes(path, text.as_bytes())
}

/// Writes a file.
pub(super) fn write_bytes(path: &Path, content: &[u8]) -> Result<(), Error> {
    fs::write(path, content).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

/// Content of a file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::File {
        path: path.to_owned(),
        source,
    })
}

/// Paths in a folder, sorted.
pub(super) fn listed(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut paths: Vec<PathBuf> = entries.map_err(|source| Error::File {
        path: folder.to_owned(),
        source,
    })?;
    paths.sort();
    Ok(paths)
}
