//! Models by their full names: `NAMESPACE/NAME`, or `NAMESPACE/*` for all models of a namespace. Pure.

use std::str::FromStr;

use runway_api::{Name, Namespace};

use crate::model::Model;

/// One model, or all models of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    namespace: Namespace,
    /// `None`: all.
    name: Option<Name>,
}

/// Reason why a text is not a pattern.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid model '{0}': use NAMESPACE/NAME, or NAMESPACE/* for all models of a namespace")]
pub struct Invalid(String);

impl Pattern {
    /// Whether it is that of a model.
    pub fn matches(&self, model: &Model) -> bool {
        self.namespace == model.namespace && self.name.as_ref().is_none_or(|name| *name == model.name)
    }
}

impl FromStr for Pattern {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let parsed = text.split_once('/').and_then(|(namespace, name)| {
            let namespace = namespace.parse().ok()?;
            let name = if name == "*" { None } else { Some(name.parse().ok()?) };
            Some(Self { namespace, name })
        });
        parsed.ok_or_else(|| Invalid(runway_api::condition::shorten(text.to_owned(), 100)))
    }
}
