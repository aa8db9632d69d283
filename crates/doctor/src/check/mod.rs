//! `kubeairunway check`: problems of a cluster, with causes and remedies.
//!
//! | module | content |
//! |---|---|
//! | [`observe`] | the reader: everything once, side by side; what may not be read is a result, too |
//! | [`observed`] | objects and facts that were read, also as documents |
//! | [`judge`](mod@judge) | the table of checks, each with its judge: pure |
//! | [`report`] | text, JSON, JUnit |
//! | [`page`] | `docs/reference/checks.md` |

pub mod judge;
pub mod observe;
pub mod observed;
pub mod page;
pub mod report;

use serde::Serialize;

pub use judge::{GROUPS, judge};
pub use observed::Observed;

/// Result of a check, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No problem.
    Ok,
    /// Nothing to check, or not allowed to read it.
    Skipped,
    /// Works, but needs attention.
    Warning,
    /// Does not work.
    Error,
}

/// A check of one property of a cluster.
pub struct Check {
    /// Stable ID, used in output and documentation.
    pub id: &'static str,
    /// Expected state, shown as the title.
    pub title: &'static str,
    /// Description: what is read, and when the check fails.
    pub looks_at: &'static str,
    /// Remedy, for findings without one of their own.
    pub remedy: &'static str,
    /// Its judge; if absent, [`Group::causes`] judges it.
    pub judge: Option<fn(&Observed) -> Judged>,
}

/// Checks about one thing.
pub struct Group {
    /// Stable.
    pub id: &'static str,
    /// Text for the user.
    pub title: &'static str,
    /// Phase of the installation in which the group runs.
    pub phase: Phase,
    /// The checks, causes before consequences.
    pub checks: &'static [Check],
    /// Judge of the checks without one of their own. It reports each object once, under the first check that fails.
    pub causes: Option<fn(&Observed) -> Causes>,
}

/// Phase of the installation in which a group of checks runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Before and after the installation.
    Always,
    /// Before it, with `--pre`.
    Before,
    /// After it.
    After,
}

/// Findings of a judge, or the reason why it was skipped.
pub type Judged = Result<Vec<Finding>, Skip>;

/// Findings of a judge of several checks, each with the ID of its check.
pub type Causes = Result<Vec<(&'static str, Finding)>, Skip>;

/// Reason why a check was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

/// A problem that a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Severity.
    pub level: Level,
    /// Object, such as `Deployment kubeairunway-system/kaito-provider`.
    pub subject: String,
    /// Problem and cause.
    pub text: String,
    /// Remedy, a command if possible.
    pub remedy: String,
}

impl Finding {
    /// Something that does not work. Without a remedy of its own, the check's is shown.
    pub fn error(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            level: Level::Error,
            subject: subject.into(),
            text: text.into(),
            remedy: String::new(),
        }
    }

    /// A warning.
    pub fn warning(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            level: Level::Warning,
            ..Self::error(subject, text)
        }
    }

    /// A fact that needs no attention: the check still passes.
    pub fn note(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            level: Level::Skipped,
            ..Self::error(subject, text)
        }
    }

    /// The same finding with a remedy.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: remedy.into(),
            ..self
        }
    }
}

/// Result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The check's id.
    pub check: &'static str,
    /// Expected state, shown as the title.
    pub title: &'static str,
    /// The worst finding.
    pub level: Level,
    /// Reason why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Findings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// URL of the documentation.
    pub documentation: String,
}

/// Results of a group of checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    /// The group's id.
    pub group: &'static str,
    /// Text for the user.
    pub title: &'static str,
    /// Results of the checks in the group.
    pub checks: Vec<Outcome>,
}

impl Judgement {
    /// The worst of its checks; one that was skipped is not bad.
    pub fn level(&self) -> Level {
        self.checks.iter().map(|c| c.level).max().unwrap_or(Level::Ok)
    }
}

/// Whether any check failed.
pub fn failed(all: &[Judgement]) -> bool {
    all.iter().any(|group| group.level() == Level::Error)
}
