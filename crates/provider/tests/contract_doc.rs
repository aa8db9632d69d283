//! `docs/reference/provider-contract.md` and the tests have the same rules.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use runway_provider::contract::VERSION;

/// Files with the tests of rules.
const TESTS: [&str; 2] = ["crates/provider/src/conformance", "crates/testbed/tests/contract.rs"];

#[test]
fn every_rule_has_a_test_and_every_test_is_a_rule() {
    let document = fs::read_to_string(root().join("docs/reference/provider-contract.md")).unwrap();
    let named: BTreeSet<String> = words(&document)
        .filter(|word| rule_of(word).is_some())
        .map(str::to_owned)
        .collect();
    let written: BTreeSet<String> = TESTS.iter().flat_map(|place| functions(&root().join(place))).collect();
    let missing: Vec<_> = named.difference(&written).collect();
    assert!(
        missing.is_empty(),
        "the document names tests that do not exist: {missing:?}"
    );
    let unnamed: Vec<_> = written.difference(&named).collect();
    assert!(
        unnamed.is_empty(),
        "tests of rules that the document does not name: {unnamed:?}"
    );
    assert!(
        written.len() >= 40,
        "only {} tests of rules: are they looked for in the right place?",
        written.len()
    );
}

#[test]
fn rules_are_numbered_without_gaps_and_each_is_written_once() {
    let document = fs::read_to_string(root().join("docs/reference/provider-contract.md")).unwrap();
    let headings: Vec<u32> = document
        .lines()
        .filter_map(|line| line.strip_prefix("### R")?.split(':').next()?.parse().ok())
        .collect();
    assert!(
        headings.iter().copied().eq(1..=39),
        "the rules are written as {headings:?}"
    );
    for rule in headings {
        let row = document
            .lines()
            .find(|line| line.starts_with(&format!("| [R{rule}](#r{rule}-")));
        let row = row.unwrap_or_else(|| panic!("R{rule} is not in the table"));
        let anchor = row.split(['(', ')']).nth(1).unwrap().trim_start_matches('#');
        let heading = document
            .lines()
            .find(|line| line.starts_with(&format!("### R{rule}:")))
            .unwrap();
        assert_eq!(anchor, anchor_of(heading), "the table leads nowhere for R{rule}");
        assert!(
            words(row).any(|word| rule_of(word) == Some(rule)),
            "R{rule} has no test of its number"
        );
    }
    assert!(
        document.contains(&format!("Version **{VERSION}**")),
        "the document is of another version than {VERSION}"
    );
}

/// The anchor that GitHub generates.
fn anchor_of(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-');
    kept.collect::<String>().replace(' ', "-")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// 12 for `r12_drift_is_reverted`.
fn rule_of(name: &str) -> Option<u32> {
    name.strip_prefix('r')?.split_once('_')?.0.parse().ok()
}

/// Functions in a file or folder that are named after a rule.
fn functions(place: &Path) -> Vec<String> {
    if place.is_dir() {
        return fs::read_dir(place)
            .unwrap()
            .flat_map(|entry| functions(&entry.unwrap().path()))
            .collect();
    }
    let text = fs::read_to_string(place).unwrap();
    text.split("fn ")
        .skip(1)
        .filter_map(|rest| rest.split('(').next())
        .filter(|name| rule_of(name).is_some())
        .map(str::to_owned)
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
