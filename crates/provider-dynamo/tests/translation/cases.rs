//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation, and the `operator`'s release;
//! - `upstream.yaml`, if the status is read: the object as Dynamo left it.
//!
//! The result is compared with `expected-v1alpha1.yaml`, `expected-v1beta1.yaml` and `expected-translation.yaml`, or
//! `expected-refusal.txt`, and `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::path::Path;

use runway_golden::Case;
use runway_provider::Translation;
use runway_provider::conformance::cases;
use serde_json::{Value, json};

use crate::{VERSIONS, crd, document, dynamo, request, translate};

#[test]
fn every_case_gives_what_is_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    runway_golden::check(&folder, 60, run);
}

fn run(case: &mut Case) {
    let given: Value = case.optional_yaml("given.yaml").unwrap_or_default();
    let provider = dynamo(&given["settings"]);
    let operator = given["operator"].as_str();
    let md = case.yaml("input.yaml");
    let mut reported = Vec::new();
    let mut refusals = Vec::new();
    for version in VERSIONS {
        let object = match translate(provider.as_ref(), &md, version, operator) {
            Ok(translation) => {
                let object = document(&translation);
                for problem in crd::problems(&object) {
                    case.problem(&problem);
                }
                reported.push(the_rest(&translation));
                Some(serde_saphyr::to_string(&object).unwrap())
            }
            Err(refusal) => {
                refusals.push(cases::refused(&refusal));
                None
            }
        };
        case.compare(&format!("expected-{version}.yaml"), object);
    }
    // Another schema does not change the deployment.
    assert!(
        reported.windows(2).all(|pair| pair[0] == pair[1]),
        "{case:?}: {reported:?}"
    );
    assert!(
        refusals.windows(2).all(|pair| pair[0] == pair[1]),
        "{case:?}: {refusals:?}"
    );
    case.compare(
        "expected-translation.yaml",
        reported
            .first()
            .map(|reported| serde_saphyr::to_string(reported).unwrap()),
    );
    case.compare("expected-refusal.txt", refusals.first().cloned());

    let upstream: Option<Value> = case.optional_yaml("upstream.yaml");
    let reading = upstream.map(|upstream| provider.read_status(&request(&md), &upstream));
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
        "podLabel": translation.pod_label,
    })
}
