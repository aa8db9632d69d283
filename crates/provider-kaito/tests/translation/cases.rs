//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation, CRDs that are `missing` or `older`, objects that are `present`;
//! - `upstream.yaml`, if the status is read: the main object as KAITO left it, and its Workspaces in `replicas.yaml`.
//!
//! The result is compared with `expected-objects.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::path::Path;

use runway_golden::Case;
use runway_provider::conformance::cases;
use runway_provider::conformance::fields::documents;
use runway_provider::{Kind, Translation};
use runway_provider_kaito::{INFERENCE_SET, SERVICE, WORKSPACE};
use serde_json::{Value, json};

use crate::{crd, installed, kaito, request};

#[test]
fn every_case_gives_what_is_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    runway_golden::check(&folder, 30, run);
}

fn run(case: &mut Case) {
    let given: Value = case.optional_yaml("given.yaml").unwrap_or_default();
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
    let mut request = request(&case.yaml("input.yaml"));
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
    let replicas: Option<Vec<Value>> = case.optional_yaml("replicas.yaml");
    let upstream: Option<Value> = case.optional_yaml("upstream.yaml");
    let reading = upstream.map(|main| match &replicas {
        Some(replicas) => provider.read_replicas(&request, &main, replicas),
        None => provider.read_status(&request, &main),
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
