//! Helpers of the development programs and of xtask: other programs, files of the repository, commands and results in the
//! documentation.
#![allow(clippy::print_stderr, reason = "these are command line tools")]
#![allow(
    clippy::missing_errors_doc,
    reason = "every step can fail, and its error says what did"
)]

pub mod files;
pub mod record;
pub mod shell;
pub mod snippets;

use std::process::ExitCode;

use anyhow::Result;

/// Reports the start of a step.
pub fn step(text: &str) {
    eprintln!("▸ {text}");
}

/// Exit code of a program that ends so. Prints its error.
pub fn ended(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
