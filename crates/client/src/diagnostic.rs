//! Diagnostics on stderr. Each is one line, so that `grep` finds whole messages.

use std::fmt;

use runway_operator::telemetry::chain;

/// Severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A request was not fulfilled.
    Error,
    /// A problem that does not block the request.
    Warning,
    /// Additional information.
    Note,
}

/// A line on stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Severity.
    pub level: Level,
    /// Object, such as `ModelDeployment/NAME`; `None` if the text names it.
    pub subject: Option<String>,
    /// The text.
    pub text: String,
}

impl Diagnostic {
    /// A diagnostic from an error whose text names the object.
    pub fn error(error: &(impl std::error::Error + 'static)) -> Self {
        Self {
            level: Level::Error,
            subject: None,
            text: chain(error),
        }
    }

    /// Something about an object.
    pub fn about(level: Level, subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            level,
            subject: Some(subject.into()),
            text: text.into(),
        }
    }
}

impl Diagnostic {
    /// The line without its severity.
    pub fn body(&self) -> String {
        match &self.subject {
            Some(subject) => format!("{}: {}", one_line(subject), one_line(&self.text)),
            None => one_line(&self.text),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Error => "error",
            Level::Warning => "warning",
            Level::Note => "note",
        };
        write!(f, "{level}: {}", self.body())
    }
}

/// Control characters must neither break the line nor reach a terminal.
pub fn one_line(text: &str) -> String {
    text.trim()
        .chars()
        .map(|c| if c == '\n' { ' ' } else { c })
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
