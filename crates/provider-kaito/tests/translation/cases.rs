//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation, CRDs that are `missing`;
//! - `upstream.yaml`, if the status is read: the main object as KAITO left it.
//!
//! The result is compared with `expected-objects.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::path::Path;

use runway_provider::Translation;
use runway_provider::conformance::cases::{self, Case};
use serde_json::{Value, json};

use crate::{crd, documents, installed, kaito, request, yaml};

#[test]
fn every_case_gives_what_is_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let differences = cases::differences(&folder, 30, run).unwrap();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

fn run(case: &mut Case) {
    let given = if case.file("given.yaml").exists() {
        yaml(&case.file("given.yaml"))
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
    let request = request(&yaml(&case.file("input.yaml")));

    match provider.translate(
        &request,
        &installed(&missing.iter().map(String::as_str).collect::<Vec<_>>()),
    ) {
        Ok(translation) => {
            let objects = documents(&translation);
            for object in &objects {
                for problem in crd::problems(object) {
                    case.problem(&problem);
                }
            }
            let texts: Vec<_> = objects
                .iter()
                .map(|object| serde_saphyr::to_string(object).unwrap())
                .collect();
            case.compare("expected-objects.yaml", Some(texts.join("---\n")));
            case.compare(
                "expected-translation.yaml",
                Some(serde_saphyr::to_string(&the_rest(&translation)).unwrap()),
            );
            case.compare("expected-refusal.txt", None);
        }
        Err(refusal) => {
            case.compare("expected-objects.yaml", None);
            case.compare("expected-translation.yaml", None);
            case.compare("expected-refusal.txt", Some(cases::refused(&refusal)));
        }
    }
    let upstream = case.file("upstream.yaml");
    let reading = upstream
        .exists()
        .then(|| provider.read_status(&request, &yaml(&upstream)));
    case.compare(
        "expected-reading.yaml",
        reading.map(|reading| serde_saphyr::to_string(&cases::reading(&reading)).unwrap()),
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
