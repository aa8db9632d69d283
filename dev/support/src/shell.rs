//! Other programs, with their errors.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// Runs a program in the root of the repository. Fails if the program fails.
pub fn run(program: &str, args: &[&str]) -> Result<()> {
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
        "cargo" => cargo(),
        _ => Command::new(program),
    }
}

/// Output of a program.
pub fn output(program: &str, args: &[&str]) -> Result<String> {
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

/// Cargo, as if called by hand. A cargo that runs this program passes variables of its package, and build scripts that read
/// that (ring's) would run again each time another one calls, and all that depends on them be compiled again.
pub fn cargo() -> Command {
    let mut cargo = Command::new("cargo");
    let of_outer_cargo = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| of_outer_cargo(name)) {
        cargo.env_remove(name);
    }
    cargo
}
