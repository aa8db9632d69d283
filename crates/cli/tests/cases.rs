//! Every folder below `tests/render`, `tests/validate` and `tests/screens` is a case: the command is run in it, and what it says is
//! compared with the files there. `UPDATE_CASES=1 cargo test -p runway-cli` writes them anew: read what you commit.
//!
//! | file | what |
//! |---|---|
//! | `args` | the arguments, separated by blanks |
//! | `*.yaml` and others | what the arguments name; `stdin`, if it is there, is given on standard input |
//! | `stdout`, `stderr`, `code` | what must come out; without the file nothing, and code 0 |

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use clap::Parser;
use runway_cli::args::CommandLine;
use runway_golden::Case;

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
    runway_golden::check(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), 1, run);
}

fn run(case: &mut Case) {
    let stdin = fs::File::open(case.file("stdin")).map_or_else(|_| Stdio::null(), Stdio::from);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kubeairunway"));
    command
        .args(case.text("args").split_whitespace())
        .current_dir(case.folder())
        .env_remove("KUBECONFIG")
        .env("HOME", "nowhere");
    let output = command.stdin(stdin).output().unwrap();
    let code = output.status.code().unwrap_or(-1);
    let written = |bytes| Some(String::from_utf8(bytes).unwrap()).filter(|text| !text.is_empty());
    case.compare("stdout", written(output.stdout));
    case.compare("stderr", written(output.stderr));
    case.compare(
        "code",
        Some(code).filter(|code| *code != 0).map(|code| format!("{code}\n")),
    );
}
