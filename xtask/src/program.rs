//! Programs of the workspace that xtask starts. Cargo builds them when they are needed.

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use runway_dev_support::shell;

/// Arguments of another program, which parses them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Arguments {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _all: Vec<String>,
}

/// Becomes a program with the arguments of xtask. Returns only if it cannot be started.
pub(crate) fn become_program(name: &str) -> Result<()> {
    let path = build(&[name])?.join(name);
    let error = Command::new(&path).args(std::env::args_os().skip(1)).exec();
    Err(error).with_context(|| format!("cannot run {}", path.display()))
}

/// Builds programs, and returns the folder that contains them.
///
/// With the features of the whole workspace, as tests have them: no crate is compiled twice.
pub(crate) fn build(names: &[&str]) -> Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo.args(["build", "--workspace", "--locked", "--quiet"]);
    cargo.args(names.iter().flat_map(|name| ["--bin", name]));
    let built = cargo.current_dir(shell::root()).status().context("cannot run cargo")?;
    if !built.success() {
        bail!("{} cannot be built", names.join(", "));
    }
    let own = std::env::current_exe().context("cannot find the file of this program")?;
    let target = own.ancestors().nth(2).context("this program is in no target folder")?;
    Ok(target.join("debug"))
}
