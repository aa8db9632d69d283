//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: the installed KubeRay, as `schema`, counted back from the newest known one, and `settings`;
//! - `upstream.yaml`, if the status is read: status of the RayService as KubeRay left it.
//!
//! The result is compared with `expected-object.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runway_provider::{Configured, Reading, Translation};
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

use crate::{crd, document, installed, request, yaml};

#[test]
fn every_case_gives_what_is_expected() {
    let mut differences = Vec::new();
    let folders = folders();
    assert!(folders.len() > 40, "cases are missing");
    for folder in folders {
        run(&folder, &mut differences);
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

pub(crate) fn folders() -> Vec<PathBuf> {
    let all = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")).unwrap();
    let mut folders: Vec<_> = all.map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders
}

fn run(folder: &Path, differences: &mut Vec<String>) {
    let optional = |file: &str| {
        Some(folder.join(file))
            .filter(|path| path.exists())
            .map(|path| yaml(&path))
    };
    let given = optional("given.yaml").unwrap_or_default();
    let schema = given["schema"].as_u64().unwrap_or(0);
    let configured = Configured::new(Arc::new(KubeRay::default()), given["settings"].as_object());
    assert_eq!(configured.invalid, None);
    let provider = configured.provider;
    let request = request(&yaml(&folder.join("input.yaml")));
    let mut outcome = Outcome { folder, differences };

    let mut object = Value::Null;
    match provider.translate(&request, &installed(usize::try_from(schema).unwrap())) {
        Ok(translation) => {
            object = document(&translation);
            let problems = crd::problems(&object);
            outcome
                .differences
                .extend(problems.into_iter().map(|p| format!("{}: {p}", folder.display())));
            outcome.compare("expected-object.yaml", Some(serde_saphyr::to_string(&object).unwrap()));
            outcome.compare(
                "expected-translation.yaml",
                Some(serde_saphyr::to_string(&the_rest(&translation)).unwrap()),
            );
            outcome.compare("expected-refusal.txt", None);
        }
        Err(refusal) => {
            outcome.compare("expected-object.yaml", None);
            outcome.compare("expected-translation.yaml", None);
            outcome.compare("expected-refusal.txt", Some(format!("{}: {refusal}\n", refusal.reason)));
        }
    }
    let reading = optional("upstream.yaml").map(|upstream| {
        for (field, value) in upstream.as_object().unwrap() {
            object[field] = value.clone();
        }
        told(&provider.read_status(&request, &object))
    });
    outcome.compare(
        "expected-reading.yaml",
        reading.map(|reading| serde_saphyr::to_string(&reading).unwrap()),
    );
}

fn the_rest(translation: &Translation) -> Value {
    json!({
        "endpoint": translation.endpoint,
        "replicas": translation.replicas,
        "ignored": translation.ignored,
        "podLabel": translation.pod_label,
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
