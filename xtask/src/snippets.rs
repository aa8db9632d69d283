//! Fenced blocks of the documentation, tried: commands by the parsers of their programs, manifests by rendering them.

use std::fs;

use anyhow::{Context, Result};
use clap::error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
use clap::{Command, CommandFactory};
use runway_client::diagnostic::Level;
use runway_client::documents::Documents;
use runway_client::render::{Options, Show, render};
use serde_json::Value;

use crate::{links, shell};

/// Languages of blocks, with how they are tried.
const LANGUAGES: &[&str] = &[
    // Commands after `$ `, and their output.
    "console",
    // Whole documents, unless marked `yaml fragment`.
    "yaml",
    "json",
    // Output, trees, formulas: nothing to try.
    "text",
    // Not tried: sources of other programs.
    "dockerfile",
    "lua",
    "promql",
    "python",
    "rust",
    "sh",
    "toml",
];

/// A fenced block.
struct Block {
    /// `FILE:LINE` of its fence.
    place: String,
    /// Text after the fence, such as `yaml fragment`.
    mark: String,
    text: String,
}

/// Number of tried commands and documents in all pages, and the errors.
fn wrong() -> Result<(usize, Vec<String>)> {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for path in links::markdown_files()? {
        let text = fs::read_to_string(shell::root().join(&path)).with_context(|| format!("cannot read {path}"))?;
        for block in blocks(&path, &text) {
            let (count, complaints) = block.try_out();
            tried += count;
            wrong.extend(
                complaints
                    .into_iter()
                    .map(|complaint| format!("{}: {complaint}", block.place)),
            );
        }
    }
    Ok((tried, wrong))
}

fn blocks(path: &str, text: &str) -> Vec<Block> {
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
    /// Number of tried commands or documents, and the errors.
    fn try_out(&self) -> (usize, Vec<String>) {
        let language = self.mark.split(' ').next().unwrap_or_default();
        if !LANGUAGES.contains(&language) {
            let known = LANGUAGES.join(", ");
            return (0, vec![format!("language '{language}' of a block: use one of {known}")]);
        }
        match self.mark.as_str() {
            "console" => {
                let commands = commands(&self.text);
                (
                    commands.len(),
                    commands.iter().filter_map(|words| refused(words)).collect(),
                )
            }
            "yaml" => (1, manifest(&self.text)),
            "json" => (
                1,
                serde_json::from_str::<Value>(&self.text)
                    .err()
                    .map(|e| e.to_string())
                    .into_iter()
                    .collect(),
            ),
            _ => (0, Vec::new()),
        }
    }
}

/// Commands of ours in a console block, as words.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let lines = text.lines().filter_map(|line| line.strip_prefix("$ "));
    let commands = lines.flat_map(split);
    commands
        .filter(|words| {
            matches!(
                words.iter().map(String::as_str).take(2).collect::<Vec<_>>()[..],
                ["kubeairunway", ..] | ["cargo", "xtask"]
            )
        })
        .collect()
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

/// Error of the program for these arguments.
fn refused(words: &[String]) -> Option<String> {
    let (mut command, words): (Command, &[String]) = match words {
        [cargo, xtask, ..] if cargo == "cargo" && xtask == "xtask" => (crate::Args::command(), &words[1..]),
        _ => (runway_cli::args::CommandLine::command(), words),
    };
    // `…` stands for more of the same, and NAME for a name.
    let words = words.iter().filter(|word| *word != "…").map(|word| {
        let is_name = !word.contains(char::is_lowercase);
        if is_name { word.to_lowercase() } else { word.clone() }
    });
    let error = command.try_get_matches_from_mut(words).err()?;
    if matches!(
        error.kind(),
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        return None;
    }
    Some(error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// Errors of a reader who applies this text.
fn manifest(text: &str) -> Vec<String> {
    let mut documents = Documents::default();
    documents.take_in_text("block", text);
    if !documents.errors.is_empty() {
        return documents.errors.iter().map(ToString::to_string).collect();
    }
    let now = jiff::Timestamp::UNIX_EPOCH;
    let rendered = render(
        documents,
        &Options {
            show: Show::Objects,
            now,
        },
    );
    let errors = rendered.diagnostics.iter().filter(|told| told.level == Level::Error);
    errors.map(|told| told.text.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_blocks_of_all_pages_work() {
        let (tried, wrong) = wrong().unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(tried > 50, "only {tried} tried");
    }

    #[test]
    fn wrong_blocks_are_found() {
        let page = "```console\n$ kubeairunway get --nothing   # comment\n$ X=1 && kubeairunway get | grep 'a b' > file\n```\n```\nx\n```\n\
            ```yaml\nkind: ModelDeployment\napiVersion: kubeairunway.ai/v1alpha1\nmetadata: {name: a}\nspec: {engine: {type: vllm}}\n```\n";
        let found: Vec<String> = blocks("p.md", page)
            .iter()
            .flat_map(|block| block.try_out().1)
            .collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("--nothing"), "{found:?}");
    }
}
