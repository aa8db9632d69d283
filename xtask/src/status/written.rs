//! Condition types and reasons that the code writes: read from its source and from golden plans.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use regex::Regex;
use runway_api::async_actor::RUNTIME_INJECTED;
use runway_api::{EventReason, condition};

use super::{Kind, Reason};
use crate::shell;

/// Sources of condition types.
const TYPES: &[&str] = &["crates/api/src/condition.rs", "crates/api/src/async_actor.rs"];

/// Crates that write a status.
const WRITERS: &[&str] = &[
    "crates/api/src",
    "crates/core/src",
    "crates/provider/src",
    "crates/asya-operator/src",
    "crates/llama-stack-operator/src",
];

/// Crates that only pass on reasons; a row must name something that occurs here or in a writer.
const OTHERS: &[&str] = &[
    "crates/provider-direct",
    "crates/provider-dynamo",
    "crates/provider-kaito",
    "crates/provider-kuberay",
    "crates/operator/src",
];

/// Fails with the words that the page lacks, and with those that only the page has.
pub(super) fn compare(kinds: &[Kind]) -> Result<()> {
    let source = source(WRITERS)?;
    let mut wrong = Vec::new();
    for type_ in types()? {
        if !kinds.iter().flat_map(|kind| kind.conditions).any(|c| c.kind == type_) {
            wrong.push(format!("condition {type_} has no section"));
        }
    }
    for reason in reasons_in(&source)? {
        if EventReason::of(&reason).is_none() && !kinds.iter().any(|kind| kind.lists(&reason)) {
            wrong.push(format!("reason {reason} has no row"));
        }
    }
    for kind in kinds {
        for (type_, reason) in kind.plans.map(in_plans).transpose()?.unwrap_or_default() {
            if !kind.explains(&type_, &reason) {
                wrong.push(format!(
                    "{}: no row for {type_} {reason}, which a golden plan has",
                    kind.name
                ));
            }
        }
    }
    let everything = format!("{source}{}", self::source(OTHERS)?).to_lowercase();
    for reason in kinds.iter().flat_map(Kind::reasons) {
        if !everything.contains(&reason.to_lowercase()) {
            wrong.push(format!("no code writes the reason {reason}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "docs/status.md and the code differ; correct xtask/src/status:\n  {}",
        wrong.join("\n  ")
    );
    Ok(())
}

impl Kind {
    fn reasons(&self) -> impl Iterator<Item = &'static str> + use<> {
        let of_conditions = self
            .conditions
            .iter()
            .flat_map(|c| c.reasons)
            .map(|Reason(_, reason, ..)| *reason);
        of_conditions.chain(self.notes.iter().flat_map(|t| t.reasons).map(|(reason, ..)| *reason))
    }

    fn lists(&self, reason: &str) -> bool {
        self.reasons().any(|listed| listed == reason) || self.words.iter().any(|(word, _)| *word == reason)
    }

    /// Whether a row explains this reason of this condition type. Some conditions repeat the reasons of others.
    fn explains(&self, type_: &str, reason: &str) -> bool {
        let repeat = [condition::READY, condition::STALLED, RUNTIME_INJECTED];
        let own = self
            .conditions
            .iter()
            .filter(|c| c.kind == type_)
            .flat_map(|c| c.reasons);
        own.into_iter().any(|Reason(_, listed, ..)| *listed == reason)
            || (repeat.contains(&type_) && self.lists(reason))
    }
}

/// Values of the constants that name condition types.
fn types() -> Result<BTreeSet<String>> {
    let constant = Regex::new(r#"pub const [A-Z_]+: &str = "([A-Za-z]+)";"#)?;
    let mut types = BTreeSet::new();
    for file in TYPES {
        let text = fs::read_to_string(shell::root().join(file)).with_context(|| format!("cannot read {file}"))?;
        types.extend(constant.captures_iter(&text).map(|found| found[1].to_owned()));
    }
    ensure!(types.len() > 20, "no condition types found in {}", TYPES.join(" and "));
    Ok(types)
}

/// Reasons as they are written into a condition, a refusal or a failure.
fn reasons_in(source: &str) -> Result<BTreeSet<String>> {
    let written = [
        r#"\b(?:yes|no)\(\s*[A-Za-z_:]+,\s*"([A-Z][A-Za-z]+)""#,
        r#"\breason: "([A-Z][A-Za-z]+)""#,
        r#"\b(?:Refusal|Trouble)::(?:new|waiting)\(\s*"([A-Z][A-Za-z]+)""#,
        r#"\bChoice::none\(\s*"([A-Z][A-Za-z]+)""#,
        r#"\b(?:coming|never|passing)\(\s*"([A-Z][A-Za-z]+)""#,
    ];
    let mut reasons = BTreeSet::new();
    for pattern in written {
        reasons.extend(
            Regex::new(pattern)?
                .captures_iter(source)
                .map(|found| found[1].to_owned()),
        );
    }
    // Enums of reasons in `api`: a documented variant on each line.
    let variant = Regex::new(r"(?m)^ +/// .*\n +([A-Z][A-Za-z]+),$")?;
    for block in source.split("reasons! {").skip(1) {
        let block = block.split("\n}\n").next().unwrap_or_default();
        reasons.extend(variant.captures_iter(block).map(|found| found[1].to_owned()));
    }
    Ok(reasons)
}

/// Condition types with their reasons in the golden plans of a folder.
fn in_plans(folder: &str) -> Result<BTreeSet<(String, String)>> {
    let written = Regex::new(r#"type: "?(\w+)"?\n +status: "(?:True|False)"\n +reason: "?(\w+)"?\n"#)?;
    let mut found = BTreeSet::new();
    for case in fs::read_dir(shell::root().join(folder)).with_context(|| format!("cannot read {folder}"))? {
        let plan = fs::read_to_string(case?.path().join("plan.yaml")).unwrap_or_default();
        found.extend(written.captures_iter(&plan).map(|c| (c[1].to_owned(), c[2].to_owned())));
    }
    ensure!(!found.is_empty(), "no conditions found in the plans of {folder}");
    Ok(found)
}

/// Source of some crates, without tests beside the code, the conformance suite, which writes wrong statuses, and the answers of
/// admission, which have reasons of their own.
fn source(places: &[&str]) -> Result<String> {
    let mut all = String::new();
    for place in places {
        for file in crate::files::rust_files(&shell::root().join(place))? {
            if is_test(&file) {
                continue;
            }
            let text = fs::read_to_string(&file)?;
            all.push_str(text.split("#[cfg(test)]").next().unwrap_or_default());
        }
    }
    Ok(all)
}

fn is_test(file: &Path) -> bool {
    file.components().any(|part| {
        ["admission", "conformance", "tests.rs"]
            .iter()
            .any(|name| part.as_os_str() == *name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_without_a_row_is_found() {
        let code = r#"yes(condition::READY, "Shiny", ""); Refusal::waiting(
            "RustyPart", x); reason: "Dull"
            reasons! {
    /// Reasons.
    Words {
        /// One of them.
        Listed,
    }
}
"#;
        let found = reasons_in(code).unwrap();
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            ["Dull", "Listed", "RustyPart", "Shiny"]
        );
    }
}
