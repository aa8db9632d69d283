//! Outcomes of a campaign, in a file with a line for each run: a campaign of hours that was interrupted continues.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::world::Tried;

/// Outcome of a run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The arguments that replay it.
    pub(crate) run: String,
    /// Kind of its faults.
    pub(crate) kind: String,
    /// Faults of writes that were carried out.
    pub(crate) faults: usize,
    /// Faults of events of watches.
    #[serde(default)]
    pub(crate) bends: usize,
    /// Changes of a walk.
    pub(crate) tried: Tried,
    /// Message of the failure.
    pub(crate) error: Option<String>,
}

/// Outcomes by the arguments of their runs: the last of each.
pub(crate) struct Journal {
    pub(crate) outcomes: BTreeMap<String, Outcome>,
    file: Option<File>,
}

impl Journal {
    /// Reads the outcomes of a file, which may not exist yet. Without a file, nothing is kept.
    pub(crate) fn open(path: Option<&str>) -> Result<Self> {
        let mut journal = Self {
            outcomes: BTreeMap::new(),
            file: None,
        };
        let Some(path) = path else {
            return Ok(journal);
        };
        let context = || format!("cannot read the outcomes in {path}");
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let mut file = file.with_context(context)?;
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(context)?;
        // The campaign may have been killed within a line.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64).with_context(context)?;
        for line in text[..whole].lines() {
            let outcome: Outcome = serde_json::from_str(line).with_context(context)?;
            journal.outcomes.insert(outcome.run.clone(), outcome);
        }
        journal.file = Some(file);
        Ok(journal)
    }

    /// Whether a run has ended without a failure. One that has failed is tried again.
    pub(crate) fn has_passed(&self, run: &str) -> bool {
        self.outcomes.get(run).is_some_and(|outcome| outcome.error.is_none())
    }

    /// Keeps an outcome.
    pub(crate) fn add(&mut self, outcome: Outcome) -> Result<()> {
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&outcome)? + "\n";
            file.write_all(line.as_bytes()).context("cannot keep an outcome")?;
        }
        self.outcomes.insert(outcome.run.clone(), outcome);
        Ok(())
    }
}

#[test]
fn interrupted_campaign_continues_after_its_last_whole_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("journal");
    let path = path.to_str().context("a path of text")?;
    let outcome = |run: &str, error: Option<&str>| Outcome {
        run: run.to_owned(),
        kind: "409".to_owned(),
        faults: 1,
        bends: 0,
        tried: Tried::default(),
        error: error.map(str::to_owned),
    };
    let mut journal = Journal::open(Some(path))?;
    journal.add(outcome("a", Some("another final state")))?;
    journal.add(outcome("b", Some("another final state")))?;
    journal.add(outcome("b", None))?;
    journal
        .file
        .as_mut()
        .context("a file")?
        .write_all(br#"{"run": "c", "ki"#)?;

    let mut journal = Journal::open(Some(path))?;
    assert_eq!(["a", "b", "c"].map(|run| journal.has_passed(run)), [false, true, false]);
    journal.add(outcome("c", None))?;
    let journal = Journal::open(Some(path))?;
    assert!(journal.has_passed("c"));
    assert_eq!(journal.outcomes.len(), 3);
    Ok(())
}
