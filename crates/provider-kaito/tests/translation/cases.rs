//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation, CRDs that are `missing` or `older`, objects that are `present`;
//! - `upstream.yaml`, if the status is read: the main object as KAITO left it, and its Workspaces in `replicas.yaml`.
//!
//! The result is compared with `expected-objects.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::path::Path;

use runway_provider::conformance::cases::{self, Case};
use runway_provider::conformance::fields::documents;
use runway_provider::{Kind, Translation};
use runway_provider_kaito::{INFERENCE_SET, SERVICE, WORKSPACE};
use serde_json::{Value, json};

use crate::{crd, installed, kaito, request, yaml};

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
    let (missing, older) = (texts("missing"), texts("older"));
    let provider = kaito(&given["settings"]);
    let mut request = request(&yaml(&case.file("input.yaml")));
    request.present = texts("present").iter().map(|name| present(name)).collect();

    match provider.translate(&request, &installed(&missing, &older)) {
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
    let (upstream, replicas) = (case.file("upstream.yaml"), case.file("replicas.yaml"));
    let reading = upstream.exists().then(|| {
        let main = yaml(&upstream);
        if replicas.exists() {
            provider.read_replicas(&request, &main, yaml(&replicas).as_array().unwrap())
        } else {
            provider.read_status(&request, &main)
        }
    });
    case.compare(
        "expected-reading.yaml",
        reading.map(|reading| serde_saphyr::to_string(&cases::reading(&reading)).unwrap()),
    );
}

/// An object by `KIND/NAME`.
fn present(name: &str) -> (Kind, String) {
    let (kind, name) = name.split_once('/').unwrap();
    let kinds = [WORKSPACE, INFERENCE_SET, SERVICE];
    (
        kinds.into_iter().find(|known| known.kind == kind).unwrap(),
        name.to_owned(),
    )
}

fn the_rest(translation: &Translation) -> Value {
    let mut rest = json!({
        "endpoint": translation.endpoint,
        "replicas": translation.replicas,
        "ignored": translation.ignored,
        "immutable": translation.objects.last().unwrap().immutable,
    });
    if let Some(limit) = &translation.scaling_limit {
        rest["scalingLimit"] = json!(limit);
    }
    rest
}
