//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: `settings` of the installation;
//! - `upstream.yaml`, if the status is read: the Deployment as its controller left it.
//!
//! The result is compared with `expected-objects.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::path::Path;
use std::sync::Arc;

use runway_golden::Case;
use runway_provider::conformance::cases;
use runway_provider::conformance::fields::documents;
use runway_provider::{Configured, Installed, Translation};
use runway_provider_direct::Direct;
use serde_json::{Value, json};

use crate::{problems, request};

#[test]
fn every_case_gives_what_is_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    runway_golden::check(&folder, 30, run);
}

fn run(case: &mut Case) {
    let input = case.yaml("input.yaml");
    let request = request(&input);
    let given: Value = case.optional_yaml("given.yaml").unwrap_or_default();
    let configured = Configured::new(Arc::new(Direct::default()), given["settings"].as_object());
    assert_eq!(configured.invalid, None);
    let provider = configured.provider;
    let translation = provider.translate(&request, &Installed::default());
    if let Ok(translation) = &translation {
        for object in documents(translation) {
            for problem in problems(&object) {
                case.problem(&problem);
            }
        }
    }
    case.compare("expected-objects.yaml", translation.as_ref().ok().map(objects));
    case.compare("expected-translation.yaml", translation.as_ref().ok().map(rest));
    case.compare("expected-refusal.txt", translation.as_ref().err().map(cases::refused));
    let upstream: Option<Value> = case.optional_yaml("upstream.yaml");
    let reading = upstream.map(|upstream| provider.read_status(&request, &upstream));
    case.compare(
        "expected-reading.yaml",
        reading.map(|reading| serde_saphyr::to_string(&cases::reading(&reading)).unwrap()),
    );
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
