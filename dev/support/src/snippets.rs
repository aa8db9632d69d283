//! Fenced blocks of the documentation, and the commands in them, tried by the parsers of their programs.

use std::fs;

use anyhow::{Context, Result, ensure};
use clap::Command;
use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};

use crate::{files, shell};

/// A fenced block.
pub struct Block {
    /// `FILE:LINE` of its fence.
    pub place: String,
    /// Text after the fence, such as `yaml fragment`.
    pub mark: String,
    /// The lines between the fences.
    pub text: String,
}

/// The blocks of all pages.
pub fn all() -> Result<Vec<Block>> {
    let mut all = Vec::new();
    for path in files::markdown()? {
        let text = fs::read_to_string(shell::root().join(&path)).with_context(|| format!("cannot read {path}"))?;
        all.extend(blocks(&path, &text));
    }
    Ok(all)
}

/// The blocks of a page.
pub fn blocks(path: &str, text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut inside = false;
    for (number, line) in (1..).zip(text.lines()) {
        if let Some(mark) = line.trim_start().strip_prefix("```") {
            inside = !inside;
            if inside {
                blocks.push(Block {
                    place: format!("{path}:{number}"),
                    mark: mark.trim().to_owned(),
                    text: String::new(),
                });
            }
        } else if inside && let Some(block) = blocks.last_mut() {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    blocks
}

impl Block {
    /// Its commands that start with these words, without them.
    pub fn commands(&self, start: &[&str]) -> Vec<Vec<String>> {
        if self.mark != "console" {
            return Vec::new();
        }
        let text = self.text.replace("\\\n", " ");
        let lines = text.lines().filter_map(|line| line.strip_prefix("$ "));
        let ours = |words: Vec<String>| {
            let ours = words.len() >= start.len() && words.iter().zip(start).all(|(word, start)| word == start);
            ours.then(|| words[start.len()..].to_vec())
        };
        lines.flat_map(split).filter_map(ours).collect()
    }
}

/// The commands of a line of shell: without comments, redirections and variables that are set before.
fn split(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for letter in line.chars() {
        match (quote, letter) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | '&' | ';' | '>') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
                // What follows `>` is a file.
                if letter == '>' {
                    words.push(">".to_owned());
                }
            }
            (None, ' ') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// Error of a program for these arguments.
pub fn rejected(program: &mut Command, arguments: &[String]) -> Option<String> {
    // `…` stands for more of the same, and NAME for a name.
    let words = arguments.iter().filter(|word| *word != "…").map(|word| {
        let is_name = !word.starts_with('-') && !word.contains(char::is_lowercase);
        if is_name { word.to_lowercase() } else { word.clone() }
    });
    let name = program.get_name().to_owned();
    let error = program
        .try_get_matches_from_mut([name].into_iter().chain(words))
        .err()?;
    if matches!(
        error.kind(),
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return None;
    }
    Some(error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// Checks the definition of the arguments of a program that `cargo xtask` starts, and its commands in the documentation.
pub fn check(program: Command) -> Result<()> {
    let names: Vec<String> = program.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    check_those(program, |first| names.iter().any(|name| name == first))
}

/// Checks the definition of the arguments of `cargo xtask`, and all of its commands in the documentation.
pub fn check_all(xtask: Command) -> Result<()> {
    check_those(xtask, |_| true)
}

fn check_those(mut program: Command, is_ours: impl Fn(&str) -> bool) -> Result<()> {
    program.clone().debug_assert();
    let mut errors = Vec::new();
    for block in all()? {
        let commands = block.commands(&["cargo", "xtask"]).into_iter();
        for words in commands.filter(|words| words.first().is_none_or(|first| is_ours(first))) {
            errors.extend(rejected(&mut program, &words).map(|error| format!("{}: {error}", block.place)));
        }
    }
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}
