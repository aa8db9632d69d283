//! `kubeairunway check`: whether a cluster is as it should be, and if not, what is wrong and what to do.
//!
//! | module | content |
//! |---|---|
//! | [`observe`] | the reader: everything once, side by side; what may not be read is a result, too |
//! | [`observed`] | what was read, also as documents |
//! | [`judge`](mod@judge) | the table of checks, each with its judge: pure |
//! | [`report`] | text, JSON, JUnit |
//! | [`page`] | `docs/checks.md` |

pub mod judge;
pub mod observe;
pub mod observed;
pub mod page;
pub mod report;

use serde::Serialize;

pub use judge::{GROUPS, judge};
pub use observed::Observed;

/// How a check came out, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It could not be asked, or there is nothing to ask.
    Skipped,
    /// It works, and somebody should know this.
    Warning,
    /// It does not work.
    Error,
}

/// One question to a cluster.
pub struct Check {
    /// Stable: by it the check is named in output and documentation.
    pub id: &'static str,
    /// What holds when all is well.
    pub title: &'static str,
    /// What is looked at, and what is found wrong.
    pub looks_at: &'static str,
    /// What to do, where a finding does not say something more exact.
    pub remedy: &'static str,
    /// Its judge; absent: its group's, see [`Group::causes`].
    pub judge: Option<fn(&Observed) -> Judged>,
}

/// Checks about one thing.
pub struct Group {
    /// Stable.
    pub id: &'static str,
    /// For people.
    pub title: &'static str,
    /// When it is asked.
    pub asked: Asked,
    /// The checks, causes before consequences.
    pub checks: &'static [Check],
    /// The judge of those without one of their own: it tells of each object once, by the first check that does not hold.
    pub causes: Option<fn(&Observed) -> Causes>,
}

/// When a group is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Before and after the installation.
    Always,
    /// Before it, with `--pre`.
    Before,
    /// After it.
    After,
}

/// What a judge finds: nothing, or what is wrong; or why it cannot be said.
pub type Judged = Result<Vec<Finding>, Skip>;

/// What a judge of several checks finds, each with the id of its check.
pub type Causes = Result<Vec<(&'static str, Finding)>, Skip>;

/// Why a check was skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skip(pub String);

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What it is about, as `Deployment kubeairunway-system/kaito-provider`.
    pub subject: String,
    /// What is wrong, and why.
    pub text: String,
    /// What to do: a command where there is one.
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

    /// Something to be known.
    pub fn warning(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            level: Level::Warning,
            ..Self::error(subject, text)
        }
    }

    /// With what to do.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: remedy.into(),
            ..self
        }
    }
}

/// What came out of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The check's id.
    pub check: &'static str,
    /// What holds when all is well.
    pub title: &'static str,
    /// The worst finding.
    pub level: Level,
    /// Why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// What was found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Where it is explained.
    pub documentation: String,
}

/// What came out of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Judgement {
    /// The group's id.
    pub group: &'static str,
    /// For people.
    pub title: &'static str,
    /// Its checks.
    pub checks: Vec<Outcome>,
}

impl Judgement {
    /// The worst of its checks; one that was skipped is not bad.
    pub fn level(&self) -> Level {
        self.checks.iter().map(|c| c.level).max().unwrap_or(Level::Ok)
    }
}

/// Whether something does not work.
pub fn failed(all: &[Judgement]) -> bool {
    all.iter().any(|group| group.level() == Level::Error)
}
