//! Files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell;

/// Rust files of a folder and its subfolders, sorted; or the file itself.
pub fn rust_files(place: &Path) -> Result<Vec<PathBuf>> {
    if place.is_file() {
        return Ok(vec![place.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(place).with_context(|| format!("cannot read {}", place.display()))? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Path of a file in the repository.
pub fn shown(file: &Path) -> String {
    file.strip_prefix(shell::root()).unwrap_or(file).display().to_string()
}

/// Markdown files that git knows.
pub fn markdown() -> Result<Vec<String>> {
    listed(&["*.md"])
}

/// Files that git knows, except those that it ignores, by patterns such as `*.md`.
pub fn listed(patterns: &[&str]) -> Result<Vec<String>> {
    let listed = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let listed = shell::output("git", &[&listed, patterns].concat())?;
    let files: Vec<String> = listed.lines().map(str::to_owned).collect();
    Ok(files
        .into_iter()
        .filter(|path| shell::root().join(path).is_file())
        .collect())
}
