//! A folder for each case in `tests/cases`:
//! - `input.yaml`: the ModelDeployment;
//! - `given.yaml`, if needed: the installed KubeRay, as `schema`, counted back from the newest known one, and `settings`;
//! - `upstream.yaml`, if the status is read: status of the RayService as KubeRay left it.
//!
//! The result is compared with `expected-object.yaml` and `expected-translation.yaml`, or `expected-refusal.txt`, and
//! `expected-reading.yaml`. `UPDATE_CASES=1 cargo test` writes them.

use std::path::Path;
use std::sync::Arc;

use runway_golden::Case;
use runway_provider::conformance::cases;
use runway_provider::{Configured, Translation};
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

use crate::{crd, document, installed, request};

#[test]
fn every_case_gives_what_is_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    runway_golden::check(&folder, 40, run);
}

fn run(case: &mut Case) {
    let given = case.optional_yaml::<Value>("given.yaml").unwrap_or_default();
    let upstream = case.optional_yaml::<Value>("upstream.yaml");
    let schema = given["schema"].as_u64().unwrap_or(0);
    let configured = Configured::new(Arc::new(KubeRay::default()), given["settings"].as_object());
    assert_eq!(configured.invalid, None);
    let provider = configured.provider;
    let request = request(&case.yaml("input.yaml"));
    let mut object = Value::Null;
    match provider.translate(&request, &installed(usize::try_from(schema).unwrap())) {
        Ok(translation) => {
            object = document(&translation);
            for problem in crd::problems(&object) {
                case.problem(&problem);
            }
            case.compare("expected-object.yaml", Some(serde_saphyr::to_string(&object).unwrap()));
            case.compare(
                "expected-translation.yaml",
                Some(serde_saphyr::to_string(&the_rest(&translation)).unwrap()),
            );
            case.compare("expected-refusal.txt", None);
        }
        Err(refusal) => {
            case.compare("expected-object.yaml", None);
            case.compare("expected-translation.yaml", None);
            case.compare("expected-refusal.txt", Some(cases::refused(&refusal)));
        }
    }
    let reading = upstream.map(|upstream| {
        for (field, value) in upstream.as_object().unwrap() {
            object[field] = value.clone();
        }
        cases::reading(&provider.read_status(&request, &object))
    });
    case.compare(
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
