//! Every folder below `tests/render`, `tests/validate` and `tests/screens` is a case: the command is run in it, and what it says is
//! compared with the files there. `UPDATE_GOLDEN=1 cargo test -p runway-cli` writes them anew: read what you commit.
//!
//! | file | what |
//! |---|---|
//! | `args` | the arguments, separated by blanks |
//! | `*.yaml` and others | what the arguments name; `stdin`, if it is there, is given on standard input |
//! | `stdout`, `stderr`, `code` | what must come out; an empty file may be left out |

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Parser;
use runway_cli::args::CommandLine;

#[test]
fn render() {
    check_all("tests/render");
}

#[test]
fn validate() {
    check_all("tests/validate");
}

#[test]
fn screens() {
    check_all("tests/screens");
}

/// The next steps of the screens in `runway-client`, which cannot see the command line.
#[test]
fn the_commands_that_a_first_screen_names_exist() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/tests/first_screen");
    let mut named = 0;
    for case in fs::read_dir(folder).unwrap() {
        let screen = fs::read_to_string(case.unwrap().path().join("screen.txt")).unwrap();
        for rest in screen.split("kubeairunway ").skip(1) {
            let command = rest.split([';', '\n']).next().unwrap_or_default();
            let command = command.split(". ").next().unwrap_or_default();
            let words = ["kubeairunway"].into_iter().chain(command.split_whitespace());
            if let Err(error) = CommandLine::try_parse_from(words) {
                panic!("kubeairunway {command}: {error}");
            }
            named += 1;
        }
    }
    assert!(named >= 20, "only {named} commands are named");
}

fn check_all(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut cases: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    cases.sort();
    assert!(!cases.is_empty());
    let differing: Vec<String> = cases.iter().flat_map(|case| check(case)).collect();
    assert!(
        differing.is_empty(),
        "\n{}\nUPDATE_GOLDEN=1 accepts what came out",
        differing.join("\n")
    );
}

fn check(case: &Path) -> Vec<String> {
    let args = fs::read_to_string(case.join("args")).unwrap_or_else(|e| panic!("{}: {e}", case.join("args").display()));
    let stdin = fs::File::open(case.join("stdin")).map_or_else(|_| Stdio::null(), Stdio::from);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubeairunway"));
    command
        .args(args.split_whitespace())
        .current_dir(case)
        .env_remove("KUBECONFIG")
        .env("HOME", "nowhere");
    let output = command.stdin(stdin).output().unwrap();
    let code = output
        .status
        .code()
        .map_or_else(|| "killed".to_owned(), |code| code.to_string());
    let got = [
        ("stdout", String::from_utf8(output.stdout).unwrap()),
        ("stderr", String::from_utf8(output.stderr).unwrap()),
        ("code", format!("{code}\n")),
    ];
    got.into_iter()
        .filter_map(|(name, got)| differs(&case.join(name), &got))
        .collect()
}

fn differs(file: &Path, got: &str) -> Option<String> {
    let wanted = fs::read_to_string(file).unwrap_or_default();
    if wanted == got {
        return None;
    }
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        if got.is_empty() {
            fs::remove_file(file).unwrap();
        } else {
            fs::write(file, got).unwrap();
        }
        return None;
    }
    Some(format!("== {}\n-- wanted\n{wanted}-- got\n{got}", file.display()))
}
