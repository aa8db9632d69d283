//! One program as an image, ours in releases as in tests.

use std::path::Path;

use anyhow::{Context, Result};

use super::{Config, Rootfs};

/// The files and settings of an image of one program: `binary` at `/NAME` (its file name), also found at `links`, with
/// the shared libraries of this machine. No shell, nothing to write to, user 65532.
///
/// [`Config::write`] makes the archive; [`crate::Node::import_program`] gives it to a node in one go.
pub fn of_program(binary: &Path, links: &[&str]) -> Result<(Rootfs, Config)> {
    let name = binary
        .file_name()
        .and_then(|name| name.to_str())
        .with_context(|| format!("{} names no program", binary.display()))?;
    let inside = format!("/{name}");
    let mut rootfs = Rootfs::minimal();
    rootfs.file(&inside, binary, 0o755)?.add_libraries()?;
    for link in links {
        rootfs.link(*link, &inside);
    }
    let config = Config {
        entrypoint: vec![inside],
        ..Config::default()
    };
    Ok((rootfs, config))
}
