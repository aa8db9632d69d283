//! The `kubeairunway` command, also as `kubectl kubeairunway` when it is found as `kubectl-kubeairunway`.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use runway_cli::answer::Answer;
use runway_cli::args::CommandLine;
use runway_cli::{commands, complete};
use runway_client::diagnostic::Diagnostic;
use runway_client::text::Look;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    if complete::answered(&line, CommandLine::command) {
        return ExitCode::SUCCESS;
    }
    let line = parse(line);
    let look = Look {
        terminal: io::stdout().is_terminal() && !line.no_color,
    };
    let answer = commands::run(&line, &mut io::stdin(), look)
        .await
        .unwrap_or_else(|error| Answer {
            code: error.code(),
            talk: vec![Diagnostic::error(&error)],
            failed: true,
            ..Answer::default()
        });
    let noted = report(&answer);
    match answer.code {
        _ if !noted => ExitCode::FAILURE,
        Some(code) => ExitCode::from(code),
        None if answer.failed => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    }
}

/// Usage errors end the process with code 2.
fn parse(args: Vec<OsString>) -> CommandLine {
    let called = args.first().map(Path::new).and_then(Path::file_stem);
    let mut command = CommandLine::command();
    if called.is_some_and(|name| name == "kubectl-kubeairunway") {
        command = command.bin_name("kubectl kubeairunway");
    }
    let matches = command.get_matches_from(args);
    CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// Data to stdout, talk to stderr. Who stops reading has read enough: a broken pipe is success.
fn report(answer: &Answer) -> bool {
    for line in &answer.talk {
        // A closed stderr cannot be reported.
        let _ = writeln!(io::stderr(), "{line}");
    }
    let mut stdout = io::stdout().lock();
    match stdout.write_all(answer.data.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "error: cannot write to stdout: {error}");
            false
        }
        _ => true,
    }
}
