//! Our own programs, as processes: cargo builds no program for the tests of another package.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
pub use runway_dev_support::shell::cargo;

/// Builds all of them where need be, and returns the folder they are in.
///
/// All of them, whichever are wanted: cargo chooses the features of libraries for what is built together, so another choice
/// would compile everything once more.
///
/// # Errors
///
/// They do not build, or this program is in no target folder.
pub async fn build(release: bool) -> Result<PathBuf> {
    let mut cargo = tokio::process::Command::from(cargo());
    cargo.args(["build", "--workspace", "--bins", "--locked"]);
    // A release build takes minutes the first time: cargo says how far it is.
    cargo.arg(if release { "--release" } else { "--quiet" });
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    let built = cargo.status().await.context("cannot run cargo")?;
    ensure!(built.success(), "our own programs do not build");
    Ok(target_folder()?.join(if release { "release" } else { "debug" }))
}

/// Target folder of cargo, which contains this program.
fn target_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program's file")?;
    let profile = own.ancestors().find(|f| f.ends_with("debug") || f.ends_with("release"));
    let target = profile.and_then(Path::parent);
    Ok(target.context("this program is in no target folder")?.to_owned())
}
