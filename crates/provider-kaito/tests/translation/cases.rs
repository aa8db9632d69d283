//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation, CRDs that are `missing`;
//! - `upstream.yaml`, if the status is read: the main object as KAITO left it.
//!
//! The result is compared with `expected-objects.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::fs;
use std::path::{Path, PathBuf};

use runway_provider::{Reading, Translation};
use serde_json::{Value, json};

use crate::{crd, documents, installed, kaito, request, yaml};

#[test]
fn every_case_gives_what_is_expected() {
    let mut differences = Vec::new();
    let folders = folders();
    assert!(folders.len() > 30, "cases are missing");
    for folder in folders {
        run(&folder, &mut differences);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn folders() -> Vec<PathBuf> {
    let all = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")).unwrap();
    let mut folders: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

fn run(folder: &Path, differences: &mut Vec<String>) {
    let given = if folder.join("given.yaml").exists() {
        yaml(&folder.join("given.yaml"))
    } else {
        Value::Null
    };
    let texts = |field: &str| -> Vec<String> {
        given[field]
            .as_array()
            .into_iter()
            .flatten()
            .map(|text| text.as_str().unwrap().to_owned())
            .collect()
    };
    let missing = texts("missing");
    let provider = kaito(&given["settings"]);
    let request = request(&yaml(&folder.join("input.yaml")));

    let mut outcome = Outcome { folder, differences };
    match provider.translate(
        &request,
        &installed(&missing.iter().map(String::as_str).collect::<Vec<_>>()),
    ) {
        Ok(translation) => {
            let objects = documents(&translation);
            for object in &objects {
                outcome.differences.extend(
                    crd::problems(object)
                        .into_iter()
                        .map(|p| format!("{}: {p}", folder.display())),
                );
            }
            let texts: Vec<_> = objects
                .iter()
                .map(|object| serde_saphyr::to_string(object).unwrap())
                .collect();
            outcome.compare("expected-objects.yaml", Some(texts.join("---\n")));
            outcome.compare(
                "expected-translation.yaml",
                Some(serde_saphyr::to_string(&the_rest(&translation)).unwrap()),
            );
            outcome.compare("expected-refusal.txt", None);
        }
        Err(refusal) => {
            outcome.compare("expected-objects.yaml", None);
            outcome.compare("expected-translation.yaml", None);
            outcome.compare("expected-refusal.txt", Some(format!("{}: {refusal}\n", refusal.reason)));
        }
    }
    let upstream = folder.join("upstream.yaml");
    let reading = upstream
        .exists()
        .then(|| provider.read_status(&request, &yaml(&upstream)));
    outcome.compare(
        "expected-reading.yaml",
        reading.map(|reading| serde_saphyr::to_string(&told(&reading)).unwrap()),
    );
}

fn the_rest(translation: &Translation) -> Value {
    json!({
        "endpoint": translation.endpoint,
        "replicas": translation.replicas,
        "ignored": translation.ignored,
        "immutable": translation.objects.last().unwrap().immutable,
    })
}

fn told(reading: &Reading) -> Value {
    json!({
        "phase": reading.phase,
        "reason": reading.reason,
        "message": reading.message,
        "ready": reading.ready,
        "available": reading.available,
        "lastChange": reading.last_change.map(|time| time.to_string()),
    })
}

struct Outcome<'a> {
    folder: &'a Path,
    differences: &'a mut Vec<String>,
}

impl Outcome<'_> {
    fn compare(&mut self, file: &str, found: Option<String>) {
        let path = self.folder.join(file);
        let expected = fs::read_to_string(&path).ok();
        if expected == found {
            return;
        }
        if std::env::var_os("UPDATE_CASES").is_some() {
            match found {
                Some(text) => fs::write(&path, text).unwrap(),
                None => fs::remove_file(&path).unwrap(),
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
