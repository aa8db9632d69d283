//! Fenced blocks of the documentation, tried: commands by the parsers of their programs, manifests by rendering them.

use anyhow::Result;
use clap::CommandFactory;
use runway_cli::args::CommandLine;
use runway_client::diagnostic::Level;
use runway_client::documents::Documents;
use runway_client::render::{Options, Show, render};
use runway_dev_support::snippets::{self, Block, rejected};
use serde_json::Value;

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

/// Number of tried commands and documents in all pages, and the errors.
fn wrong() -> Result<(usize, Vec<String>)> {
    let mut wrong = Vec::new();
    let mut tried = 0;
    for block in snippets::all()? {
        let (count, complaints) = try_out(&block);
        tried += count;
        wrong.extend(
            complaints
                .into_iter()
                .map(|complaint| format!("{}: {complaint}", block.place)),
        );
    }
    Ok((tried, wrong))
}

/// Number of tried commands or documents of a block, and the errors. Commands of `cargo xtask` are tried in the crates of their
/// programs.
fn try_out(block: &Block) -> (usize, Vec<String>) {
    let language = block.mark.split(' ').next().unwrap_or_default();
    if !LANGUAGES.contains(&language) {
        let known = LANGUAGES.join(", ");
        return (0, vec![format!("language '{language}' of a block: use one of {known}")]);
    }
    match block.mark.as_str() {
        "console" => {
            let commands = block.commands(&["kubeairunway"]);
            let mut program = CommandLine::command();
            let rejected = commands
                .iter()
                .filter_map(|words| rejected(&mut program, words))
                .collect();
            (commands.len(), rejected)
        }
        "yaml" => (1, manifest(&block.text)),
        "json" => (
            1,
            serde_json::from_str::<Value>(&block.text)
                .err()
                .map(|e| e.to_string())
                .into_iter()
                .collect(),
        ),
        _ => (0, Vec::new()),
    }
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
    let errors = rendered
        .diagnostics
        .iter()
        .filter(|reported| reported.level == Level::Error);
    errors.map(|reported| reported.text.clone()).collect()
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
        let found: Vec<String> = snippets::blocks("p.md", page)
            .iter()
            .flat_map(|block| try_out(block).1)
            .collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("--nothing"), "{found:?}");
    }
}
