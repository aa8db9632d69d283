//! The test bed's cache folder, and locks on its parts.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};

use crate::say;

/// Path of the cache folder. It is outside the checkout, so that all checkouts share it.
pub(crate) fn cache_folder() -> Result<PathBuf> {
    let base = environment("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .context("cannot find the cache folder: the user has no home directory; set XDG_CACHE_HOME")?;
    Ok(base.join("kubeairunway-testbed"))
}

/// Locks a part of the cache folder or of the machine, across processes, until the value drops. The lock
/// ends with the file handle, so a killed process leaves none behind.
pub(crate) fn hold(what: &str) -> Result<File> {
    let cache = cache_folder()?;
    fs::create_dir_all(&cache).with_context(|| {
        format!(
            "cannot create the cache folder {}; set XDG_CACHE_HOME to a folder that can be written",
            cache.display()
        )
    })?;
    let path = cache.join(format!("{what}.lock"));
    let file = File::create(&path).with_context(|| format!("cannot create the lock file {}", path.display()))?;
    if file.try_lock().is_err() {
        say(&format!("Another process is preparing {what}; waiting for it"));
        file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// Folder of the cache for a part with this content, which `install` fills once on this machine.
pub(crate) fn once(name: &str, content: &str, install: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let fingerprint = &hex::encode(Sha256::digest(content))[..12];
    let what = format!("{name}-{fingerprint}");
    let folder = cache_folder()?.join(&what);
    let complete = folder.join("complete");
    if complete.is_file() {
        return Ok(folder);
    }
    let _lock = hold(&what)?;
    if !complete.is_file() {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        install(&folder)?;
        fs::write(complete, "")?;
    }
    Ok(folder)
}

#[expect(
    clippy::disallowed_methods,
    reason = "these variables configure the program paths of every Kubernetes test tool; tests have no arguments"
)]
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
