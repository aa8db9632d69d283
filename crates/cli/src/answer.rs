//! Output and errors of commands.

use std::io;
use std::path::PathBuf;

use runway_client::diagnostic::{Diagnostic, Level};
use runway_client::{documents, source, text};

use crate::{install, verbs};

/// Output of a command.
#[derive(Debug, Default)]
pub struct Answer {
    /// For stdout.
    pub data: String,
    /// For stderr.
    pub talk: Vec<Diagnostic>,
    /// Whether a part of the request failed.
    pub failed: bool,
    /// Exit code, unless it is 0 or 1; see `docs/how-to/command.md`.
    pub code: Option<u8>,
}

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The objects cannot be read.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The transports of AsyncActors cannot be used.
    #[error(transparent)]
    Transports(#[from] runway_asya_operator::transports::Error),
    /// A document cannot be read.
    #[error(transparent)]
    Document(#[from] documents::Error),
    /// The answer cannot be written.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// The installation or removal failed.
    #[error(transparent)]
    Install(#[from] install::Error),
    /// A file cannot be written.
    #[error("cannot write {}", file.display())]
    Write {
        /// Path of the file.
        file: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// A Llama Stack provider cannot be created or checked.
    #[error(transparent)]
    Kit(#[from] runway_llama_stack_kit::Error),
    /// The console cannot be served.
    #[error(transparent)]
    Ui(#[from] runway_web::server::Error),
    /// The completion script cannot be generated.
    #[error("cannot generate the completion script")]
    Completion(#[from] io::Error),
    /// A verb failed.
    #[error(transparent)]
    Verb(#[from] verbs::Error),
}

impl Answer {
    /// An answer that failed if one of the diagnostics is an error.
    pub fn new(data: String, talk: Vec<Diagnostic>) -> Self {
        Self {
            data,
            failed: talk.iter().any(|d| d.level == Level::Error),
            talk,
            code: None,
        }
    }
}

impl Error {
    /// Exit code, unless it is 1.
    pub fn code(&self) -> Option<u8> {
        match self {
            Self::Verb(error) => error.code(),
            _ => None,
        }
    }
}

/// Joins screens with an empty line in between.
pub fn screens(all: impl Iterator<Item = String>) -> String {
    all.collect::<Vec<_>>().join("\n")
}
