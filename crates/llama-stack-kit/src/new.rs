//! The sources of a new provider.

use std::io;
use std::path::Path;

use runway_api::name::is_label;

use super::error::{Error, MAX_NAME, create, write};

/// Files of the example, whose names and texts contain that of the provider.
const EXAMPLE: [(&str, &str); 7] = [
    (
        "Containerfile",
        include_str!("../../../deploy/examples/llama-stack-provider/Containerfile"),
    ),
    (
        "lls-provider-spec.yaml",
        include_str!("../../../deploy/examples/llama-stack-provider/lls-provider-spec.yaml"),
    ),
    (
        "pyproject.toml",
        include_str!("../../../deploy/examples/llama-stack-provider/pyproject.toml"),
    ),
    (
        "lls_echo/__init__.py",
        include_str!("../../../deploy/examples/llama-stack-provider/lls_echo/__init__.py"),
    ),
    (
        "lls_echo/config.py",
        include_str!("../../../deploy/examples/llama-stack-provider/lls_echo/config.py"),
    ),
    (
        "lls_echo/impl.py",
        include_str!("../../../deploy/examples/llama-stack-provider/lls_echo/impl.py"),
    ),
    (
        "lls_echo/provider.py",
        include_str!("../../../deploy/examples/llama-stack-provider/lls_echo/provider.py"),
    ),
];
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
