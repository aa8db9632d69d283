//! The reference of the command: the help of every verb, as the command prints it.

use std::fmt::Write;

use clap::{Command, CommandFactory};
use runway_cli::args::CommandLine;

use super::split;

/// Folder of the pages.
pub(crate) const FOLDER: &str = "docs/reference/command";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Command reference

Output of `kubeairunway VERB --help` for every verb. [The command](../../how-to/command.md) has examples and the exit codes.
";

/// A page for each verb, with its subcommands.
pub(crate) fn pages() -> Vec<(String, String)> {
    split::pages(FOLDER, &page(), |title| {
        let verb = title.trim_matches('`').split(' ').nth(1)?;
        Some(verb.to_owned())
    })
}

fn page() -> String {
    let mut command = CommandLine::command();
    command.build();
    let mut page = INTRODUCTION.to_owned();
    section(&mut command, &mut page);
    page
}

/// The help of a command, followed by that of its subcommands.
fn section(command: &mut Command, page: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
    // Writing to a String does not fail.
    let _ = write!(page, "\n## `{name}`\n\n```text\n{}\n```\n", help.trim_end());
    for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set()) {
        section(sub, page);
    }
}
