//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation;
//! - `upstream.yaml`, if the status is read: the Deployment as its controller left it.
//!
//! The result is compared with `expected-objects.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runway_provider::{Configured, Installed, Reading, Refusal, Translation};
use runway_provider_direct::Direct;
use serde_json::{Value, json};

use crate::{documents, problems, request, yaml};

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
    let input = yaml(&folder.join("input.yaml"));
    let request = request(&input);
    let given = folder.join("given.yaml");
    let given = if given.exists() { yaml(&given) } else { Value::Null };
    let configured = Configured::new(Arc::new(Direct::default()), given["settings"].as_object());
    assert_eq!(configured.invalid, None);
    let provider = configured.provider;
    let translation = provider.translate(&request, &Installed::default());
    if let Ok(translation) = &translation {
        for object in documents(translation) {
            let found = problems(&object).into_iter();
            differences.extend(found.map(|problem| format!("{}: {problem}", folder.display())));
        }
    }
    let mut outcome = Outcome { folder, differences };
    outcome.compare("expected-objects.yaml", translation.as_ref().ok().map(objects));
    outcome.compare("expected-translation.yaml", translation.as_ref().ok().map(rest));
    outcome.compare("expected-refusal.txt", translation.as_ref().err().map(refused));
    let upstream = folder.join("upstream.yaml");
    let reading = upstream
        .exists()
        .then(|| provider.read_status(&request, &yaml(&upstream)));
    outcome.compare("expected-reading.yaml", reading.as_ref().map(told));
}

fn objects(translation: &Translation) -> String {
    let texts: Vec<_> = documents(translation)
        .iter()
        .map(|object| serde_saphyr::to_string(object).unwrap())
        .collect();
    texts.join("---\n")
}

fn rest(translation: &Translation) -> String {
    let rest = json!({
        "endpoint": translation.endpoint,
        "replicas": translation.replicas,
        "ignored": translation.ignored,
        "modelName": translation.model_name,
    });
    serde_saphyr::to_string(&rest).unwrap()
}

fn refused(refusal: &Refusal) -> String {
    format!("{}: {refusal}\n", refusal.reason)
}

fn told(reading: &Reading) -> String {
    let told = json!({
        "phase": reading.phase,
        "reason": reading.reason,
        "message": reading.message,
        "ready": reading.ready,
        "available": reading.available,
        "lastChange": reading.last_change.map(|time| time.to_string()),
    });
    serde_saphyr::to_string(&told).unwrap()
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
