//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation;
//! - `upstream.yaml`, if the status is read: the object as Dynamo left it.
//!
//! The result is compared with `expected-v1alpha1.yaml`, `expected-v1beta1.yaml` and `expected-translation.yaml`, or
//! `expected-refusal.txt`, and `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use runway_provider::{Provider, Reading, Translation};
use serde_json::{Value, json};

use crate::{VERSIONS, crd, document, dynamo, request, translate, yaml};

#[test]
fn every_case_gives_what_is_expected() {
    let mut differences = Vec::new();
    let folders = folders();
    assert!(folders.len() > 60, "cases are missing");
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
    let provider = provider(&folder.join("given.yaml"));
    let md = yaml(&folder.join("input.yaml"));
    let mut outcome = Outcome { folder, differences };
    let mut told = Vec::new();
    let mut refusals = Vec::new();
    for version in VERSIONS {
        let object = match translate(provider.as_ref(), &md, version) {
            Ok(translation) => {
                let object = document(&translation);
                let problems = crd::problems(&object);
                outcome
                    .differences
                    .extend(problems.into_iter().map(|p| format!("{}: {p}", folder.display())));
                told.push(the_rest(&translation));
                Some(serde_saphyr::to_string(&object).unwrap())
            }
            Err(refusal) => {
                refusals.push(format!("{}: {refusal}\n", refusal.reason));
                None
            }
        };
        outcome.compare(&format!("expected-{version}.yaml"), object);
    }
    // Another schema does not change the deployment.
    assert!(
        told.windows(2).all(|pair| pair[0] == pair[1]),
        "{}: {told:?}",
        folder.display()
    );
    assert!(
        refusals.windows(2).all(|pair| pair[0] == pair[1]),
        "{}: {refusals:?}",
        folder.display()
    );
    outcome.compare(
        "expected-translation.yaml",
        told.first().map(|told| serde_saphyr::to_string(told).unwrap()),
    );
    outcome.compare("expected-refusal.txt", refusals.first().cloned());

    let upstream = folder.join("upstream.yaml");
    let reading = upstream
        .exists()
        .then(|| provider.read_status(&request(&md), &yaml(&upstream)));
    outcome.compare(
        "expected-reading.yaml",
        reading.map(|reading| serde_saphyr::to_string(&read(&reading)).unwrap()),
    );
}

fn provider(given: &Path) -> Arc<dyn Provider> {
    let given = if given.exists() { yaml(given) } else { Value::Null };
    dynamo(&given["settings"])
}

fn the_rest(translation: &Translation) -> Value {
    json!({
        "endpoint": translation.endpoint,
        "replicas": translation.replicas,
        "ignored": translation.ignored,
        "immutable": translation.objects.last().unwrap().immutable,
        "podLabel": translation.pod_label,
    })
}

fn read(reading: &Reading) -> Value {
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
