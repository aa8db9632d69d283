//! Packages of npm, installed once on this machine.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cache::once;
use crate::process::output;
use crate::say;

const PACKAGE: &str = include_str!("../clients/package.json");
const LOCK: &str = include_str!("../clients/package-lock.json");

/// Whether this machine has Node.js and npm. Otherwise a test of `what` is skipped, which is said past the test harness.
pub fn has_node(what: &str) -> bool {
    let is_there = |program: &str| {
        Command::new(program)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let has = is_there("node") && is_there("npm");
    if !has {
        say(&format!("SKIPPED: {what}, because there is no Node.js with npm"));
    }
    has
}

/// Folder with clients of OpenAI's and Anthropic's APIs, for scripts in it.
///
/// # Errors
/// They cannot be installed.
pub fn clients() -> Result<PathBuf> {
    once("npm-clients", LOCK, |folder| {
        say("Installing clients from npm, once");
        fs::write(folder.join("package.json"), PACKAGE)?;
        fs::write(folder.join("package-lock.json"), LOCK)?;
        let arguments = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
        output(Command::new("npm").args(arguments).current_dir(folder))?;
        Ok(())
    })
}
