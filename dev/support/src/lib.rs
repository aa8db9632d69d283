//! Helpers of the development programs and of xtask: other programs, files of the repository, versions of parts from outside,
//! commands and results in the documentation.
#![allow(clippy::print_stderr, reason = "these are command line tools")]
#![allow(
    clippy::missing_errors_doc,
    reason = "every step can fail, and its error says what did"
)]

pub mod files;
pub mod record;
pub mod shell;
pub mod snippets;
pub mod versions;

use std::process::ExitCode;

use anyhow::Result;

/// An older release of Kubernetes, against whose control plane tests can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum OlderKubernetes {
    /// The oldest one that is tested.
    #[value(name = "1.30")]
    V1_30,
    /// One between that and the one of all other tests.
    #[value(name = "1.33")]
    V1_33,
}

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
