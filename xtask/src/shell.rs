//! Other programs, with their errors.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use runway_testbed::programs;

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// Runs a program in the root of the repository. Fails if the program fails.
pub(crate) fn run(program: &str, args: &[&str]) -> Result<()> {
    let status = command(program)
        .args(args)
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot run `{program}`: is it installed?"))?;
    if !status.success() {
        bail!("`{program} {}` failed", args.join(" "));
    }
    Ok(())
}

fn command(program: &str) -> Command {
    match program {
        "cargo" => programs::cargo(),
        _ => Command::new(program),
    }
}

/// Output of a program.
pub(crate) fn output(program: &str, args: &[&str]) -> Result<String> {
    let output = command(program)
        .args(args)
        .current_dir(root())
        .output()
        .with_context(|| format!("cannot run `{program}`: is it installed?"))?;
    if !output.status.success() {
        bail!(
            "`{program} {}` failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
