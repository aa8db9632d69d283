//! Golden cases of a provider: a folder for each, with inputs and the expected results.
//!
//! `UPDATE_CASES=1 cargo test` writes the expected results; review them before you commit them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::{Value, json};

use crate::contract::{Reading, Refusal};

/// A case whose results are compared.
#[derive(Debug)]
pub struct Case {
    folder: PathBuf,
    differences: Vec<String>,
}

impl Case {
    /// Path of a file of the case.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Reports an error in a result, such as a field that the upstream's schema lacks.
    pub fn problem(&mut self, problem: &str) {
        self.differences.push(format!("{}: {problem}", self.folder.display()));
    }

    /// Compares a result with the file of this name, which does not exist if no result is expected.
    pub fn compare(&mut self, name: &str, found: Option<String>) {
        let path = self.file(name);
        let expected = fs::read_to_string(&path).ok();
        if expected == found {
            return;
        }
        if std::env::var_os("UPDATE_CASES").is_some() {
            let written = match found {
                Some(text) => fs::write(&path, text),
                None => fs::remove_file(&path),
            };
            if let Err(error) = written {
                self.problem(&format!("cannot write {name}: {error}"));
            }
            return;
        }
        let shown = |text: Option<String>| text.unwrap_or_else(|| "(nothing)\n".to_owned());
        self.differences.push(format!(
            "{}\n--- expected\n{}+++ found\n{}",
            path.display(),
            shown(expected),
            shown(found)
        ));
    }
}

/// Runs all cases below a folder, in alphabetical order. Returns the differences from the expected results, as messages for the
/// developer.
///
/// # Errors
/// The folder cannot be read, or has fewer cases than `at_least`.
pub fn differences(cases: &Path, at_least: usize, run: impl Fn(&mut Case)) -> io::Result<Vec<String>> {
    let mut folders = fs::read_dir(cases)?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()?;
    folders.sort();
    if folders.len() < at_least {
        return Err(io::Error::other(format!(
            "only {} cases in {}",
            folders.len(),
            cases.display()
        )));
    }
    let mut differences = Vec::new();
    for folder in folders {
        let mut case = Case {
            folder,
            differences: Vec::new(),
        };
        run(&mut case);
        differences.extend(case.differences);
    }
    Ok(differences)
}

/// A refusal, as text of a golden file.
pub fn refused(refusal: &Refusal) -> String {
    format!("{}: {refusal}\n", refusal.reason)
}

/// A reading of an upstream status, as a value of a golden file.
pub fn reading(reading: &Reading) -> Value {
    let mut value = json!({
        "phase": reading.phase,
        "reason": reading.reason,
        "message": reading.message,
        "ready": reading.ready,
        "available": reading.available,
        "lastChange": reading.last_change.map(|time| time.to_string()),
    });
    if let Some(time) = reading.settled_at {
        value["settledAt"] = json!(time.to_string());
    }
    for (label, found) in &reading.current {
        value["current"][label] = json!(found);
    }
    value
}
