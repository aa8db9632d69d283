//! Reference of the status: every phase, condition, reason and Event of the project's kinds, with its meaning and remedy.
//!
//! The texts are here; the words come from `runway_api`. A new value of an enum does not compile without a text. A condition
//! type without a section, and a reason in the source or in a golden plan without a row, fail `page`.

mod async_actor;
mod events;
mod llama_stack;
mod model_deployment;
mod provider_config;
mod written;

use std::fmt::Write;

use anyhow::Result;

/// Path of the page.
pub(crate) const PATH: &str = "docs/status.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Status reference

Every phase, condition, reason and Event that the controllers write, with its meaning and what to do about it. `kubeairunway why KIND/NAME`
shows the conditions of one object and what it is waiting for; `kubeairunway check` examines a whole cluster
([checks](checks.md)). The message of a condition names the field, object or value that a row cannot know.

- `Ready` is always present. Use it in `kubectl wait --for=condition=Ready`.
- `Stalled` is present only while the controllers cannot continue without a change by a user. Its reason is that of `Ready`.
- Other conditions that report something unusual are present only while they are true.
- Reasons are part of the API: tools may compare them. Messages may change.
";

/// A kind with a status.
struct Kind {
    name: &'static str,
    /// Field of the word that summarizes the status.
    field: &'static str,
    /// Each word with its meaning and remedy.
    words: Vec<(&'static str, Text)>,
    conditions: &'static [Condition],
    /// Sections below the conditions.
    notes: &'static [Table],
    /// Folder of golden plans, whose conditions the page must explain.
    plans: Option<&'static str>,
}

/// Meaning and remedy of a word.
type Text = (&'static str, &'static str);

/// A condition type and its reasons.
struct Condition {
    kind: &'static str,
    present: Present,
    meaning: &'static str,
    reasons: &'static [Reason],
}

/// When a condition is in the list.
enum Present {
    Always,
    WhileTrue,
    /// In the case that the text names.
    If(&'static str),
}

/// A reason: status of the condition, text of the reason, meaning, remedy.
struct Reason(Is, &'static str, &'static str, &'static str);

/// Status of a condition.
#[derive(Clone, Copy)]
enum Is {
    True,
    False,
    /// Depends on the state in which the reason is written.
    Either,
}

/// Reasons outside the list of conditions.
struct Table {
    title: &'static str,
    text: &'static str,
    reasons: &'static [(&'static str, &'static str, &'static str)],
}

fn kinds() -> [Kind; 4] {
    [
        model_deployment::kind(),
        provider_config::kind(),
        async_actor::kind(),
        llama_stack::kind(),
    ]
}

/// The page.
///
/// # Errors
///
/// If a condition type or a reason that the code writes is missing, or a listed one is not in the code.
pub(crate) fn page() -> Result<String> {
    let kinds = kinds();
    written::compare(&kinds)?;
    let mut page = INTRODUCTION.to_owned();
    for kind in &kinds {
        kind.write(&mut page)?;
    }
    events::write(&mut page)?;
    Ok(page)
}

impl Kind {
    fn write(&self, page: &mut String) -> Result<()> {
        let Self { name, field, .. } = self;
        write!(page, "\n## {name}\n")?;
        if !self.words.is_empty() {
            write!(
                page,
                "\n### {name} {field}\n\n`status.{field}`. Not present before a controller has seen the object.\n"
            )?;
            write!(page, "\n| {field} | meaning | what to do |\n|---|---|---|\n")?;
            for (word, (meaning, remedy)) in &self.words {
                writeln!(page, "| `{word}` | {meaning} | {remedy} |")?;
            }
        }
        for condition in self.conditions {
            condition.write(name, page)?;
        }
        for Table { title, text, reasons } in self.notes {
            write!(
                page,
                "\n### {title}\n\n{text}\n\n| reason | meaning | what to do |\n|---|---|---|\n"
            )?;
            for (reason, meaning, remedy) in *reasons {
                writeln!(page, "| `{reason}` | {meaning} | {remedy} |")?;
            }
        }
        Ok(())
    }
}

impl Condition {
    fn write(&self, of: &str, page: &mut String) -> Result<()> {
        let present = match self.present {
            Present::Always => "Always present".to_owned(),
            Present::WhileTrue => "Present only while true".to_owned(),
            Present::If(when) => format!("Present {when}"),
        };
        write!(
            page,
            "\n### {of} condition {}\n\n{} {present}.\n",
            self.kind, self.meaning
        )?;
        if self.reasons.is_empty() {
            return Ok(());
        }
        write!(
            page,
            "\n| reason | status | meaning | what to do |\n|---|---|---|---|\n"
        )?;
        for Reason(is, reason, meaning, remedy) in self.reasons {
            let is = match is {
                Is::True => "True",
                Is::False => "False",
                Is::Either => "True or False",
            };
            writeln!(page, "| `{reason}` | {is} | {meaning} | {remedy} |")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_meaning_and_a_remedy() {
        for line in page().unwrap().lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split(" | ").collect();
            assert!(
                cells.iter().all(|cell| !cell.trim_matches([' ', '|']).is_empty()),
                "{line}"
            );
        }
    }

    #[test]
    fn a_condition_type_has_one_section_per_kind() {
        for kind in kinds() {
            let mut types: Vec<&str> = kind.conditions.iter().map(|c| c.kind).collect();
            let all = types.len();
            types.sort_unstable();
            types.dedup();
            assert_eq!(all, types.len(), "{}", kind.name);
        }
    }
}
