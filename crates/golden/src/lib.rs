//! Golden cases: a folder for each case, with its inputs and the expected results. For tests only.
//!
//! A file `base` in a folder names another case of the same suite: files that the folder does not have are those of that case.
//! So a folder contains only what is special about its case.
//!
//! `UPDATE_CASES=1 cargo test` writes the expected results; review them before you commit them.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot read its files fails"
)]

pub mod reported;
pub mod ssa;

use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

/// A case whose results are compared.
#[derive(Debug)]
pub struct Case {
    folder: PathBuf,
    base: Option<PathBuf>,
    differences: Vec<String>,
}

/// Runs all cases below a folder, those with a base after the others.
///
/// # Panics
/// A result differs from what is expected, with all differences as the message; or there are fewer cases than `at_least`.
pub fn check(folder: &Path, at_least: usize, mut run: impl FnMut(&mut Case)) {
    let cases = cases(folder);
    assert!(
        cases.len() >= at_least,
        "only {} cases in {}",
        cases.len(),
        folder.display()
    );
    let mut differences = Vec::new();
    for mut case in cases {
        run(&mut case);
        differences.extend(case.differences);
    }
    assert!(
        differences.is_empty(),
        "\n{}\nUPDATE_CASES=1 writes these results: review them before you commit them",
        differences.join("\n")
    );
}

/// Content of a YAML file.
///
/// # Panics
/// It cannot be read, or does not fit the type.
pub fn yaml<T: DeserializeOwned>(path: &Path) -> T {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The cases below a folder, in alphabetical order, those with a base after the others: a result that the base has just got is not
/// written twice.
///
/// # Panics
/// The folder cannot be read.
pub fn cases(folder: &Path) -> Vec<Case> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    let mut cases: Vec<Case> = folders.into_iter().map(Case::new).collect();
    cases.sort_by_key(|case| case.base.is_some());
    cases
}

impl Case {
    /// The case of a folder.
    ///
    /// # Panics
    /// Its base does not exist, or has a base itself.
    pub fn new(folder: PathBuf) -> Self {
        let base = fs::read_to_string(folder.join("base")).ok();
        let base = base.map(|name| folder.with_file_name(name.trim()));
        if let Some(base) = &base {
            assert!(base.is_dir(), "{}: the base does not exist", folder.display());
            assert!(!base.join("base").exists(), "{}: the base has a base", folder.display());
        }
        Self {
            folder,
            base,
            differences: Vec::new(),
        }
    }

    /// Name of the folder.
    pub fn name(&self) -> &str {
        self.folder
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
    }

    /// Folder of the case.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of a file: that of the base if only the base has it.
    pub fn file(&self, name: &str) -> PathBuf {
        let own = self.folder.join(name);
        match self.of_base(name) {
            Some(inherited) if !own.exists() => inherited,
            _ => own,
        }
    }

    /// Text of a file.
    ///
    /// # Panics
    /// It cannot be read.
    pub fn text(&self, name: &str) -> String {
        let path = self.file(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Content of a YAML file.
    ///
    /// # Panics
    /// It cannot be read, or does not fit the type.
    pub fn yaml<T: DeserializeOwned>(&self, name: &str) -> T {
        yaml(&self.file(name))
    }

    /// Content of a YAML file, if there is one.
    ///
    /// # Panics
    /// It does not fit the type.
    pub fn optional_yaml<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        self.file(name).exists().then(|| self.yaml(name))
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
            if let Err(error) = self.update(name, found) {
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

    /// Writes a result that is not that of the base.
    fn update(&mut self, name: &str, found: Option<String>) -> std::io::Result<()> {
        let own = self.folder.join(name);
        let inherited = self.of_base(name).map(fs::read_to_string).transpose()?;
        match found {
            Some(text) if inherited.as_ref() != Some(&text) => fs::write(own, text),
            None if inherited.is_some() => {
                self.problem(&format!(
                    "has no {name}, and its base has one: it needs another base, or none"
                ));
                Ok(())
            }
            _ => fs::remove_file(own),
        }
    }

    fn of_base(&self, name: &str) -> Option<PathBuf> {
        let inherited = self.base.as_ref()?.join(name);
        inherited.exists().then_some(inherited)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_base_are_those_that_the_case_lacks() -> std::io::Result<()> {
        let suite = tempfile::tempdir()?;
        for (file, text) in [
            ("plain/input.yaml", "a: 1"),
            ("plain/expected", "one"),
            ("special/base", "plain\n"),
            ("special/expected", "two"),
        ] {
            let path = suite.path().join(file);
            fs::create_dir_all(suite.path().join(file.split('/').next().unwrap_or_default()))?;
            fs::write(path, text)?;
        }
        let mut seen = Vec::new();
        check(suite.path(), 2, |case| {
            seen.push(format!(
                "{} {} {}",
                case.name(),
                case.text("input.yaml"),
                case.text("expected")
            ));
            let expected = case.text("expected");
            case.compare("expected", Some(expected));
            case.compare("refusal", None);
        });
        assert_eq!(seen, ["plain a: 1 one", "special a: 1 two"]);
        Ok(())
    }

    #[test]
    #[should_panic(expected = "--- expected\none+++ found\ntwo")]
    fn another_result_fails_the_check() {
        let suite = tempfile::tempdir().unwrap();
        fs::create_dir(suite.path().join("plain")).unwrap();
        fs::write(suite.path().join("plain/expected"), "one").unwrap();
        check(suite.path(), 1, |case| case.compare("expected", Some("two".to_owned())));
    }
}
