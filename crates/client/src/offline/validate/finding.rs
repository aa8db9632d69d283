//! Findings about a field.

use std::fmt;

use serde::Serialize;

/// Stage that reports a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum By {
    /// The schema of the CRD, or the API server's own rules for every object.
    Schema,
    /// A rule in CEL of the CRD.
    Rule,
    /// The controller, at admission.
    Admission,
    /// The controllers' plan: it is let in, and would not run.
    Plan,
}

/// Severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Weight {
    /// The object would be rejected.
    Error,
    /// The object would be accepted, with a warning.
    Warning,
}

/// Something that there is to say of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Severity.
    pub level: Weight,
    /// Stage that reports it.
    pub by: By,
    /// Path of the field, such as `spec.env[0].name`; empty for the whole object.
    pub field: String,
    /// The line of the file, from 1, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Problem and remedy.
    pub message: String,
}

impl Finding {
    pub(super) fn error(by: By, field: &str, message: impl Into<String>) -> Self {
        Self {
            level: Weight::Error,
            by,
            field: field.to_owned(),
            line: None,
            message: message.into(),
        }
    }

    pub(super) fn warning(by: By, field: &str, message: impl Into<String>) -> Self {
        Self {
            level: Weight::Warning,
            ..Self::error(by, field, message)
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.by, self.field.as_str()) {
            (_, "") => f.write_str(&self.message),
            (By::Schema, field) => write!(f, "{field} {}", self.message),
            // What controllers say mostly begins with the field, without `spec.`.
            (_, "spec") => f.write_str(&self.message),
            (_, field) if self.message.starts_with(field.trim_start_matches("spec.")) => f.write_str(&self.message),
            (_, field) => write!(f, "{field}: {}", self.message),
        }
    }
}
