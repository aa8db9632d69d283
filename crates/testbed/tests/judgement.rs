//! Whether a model serves, as every part of the product judges it: the status that a wait reads, the router, the command `check`,
//! the object tree and the endpoint. They must agree for each ModelDeployment in a golden file of this repository.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::fs;
use std::path::{Path, PathBuf};

use kube::core::DynamicObject;
use runway_api::{ModelDeployment, ServingState};
use runway_client::documents::Documents;
use runway_client::tree::Health;
use runway_client::{endpoint, status, tree};
use runway_doctor::check::{self, Level, Observed};
use runway_golden::Case;
use runway_router::model::{Model, State};
use serde_json::{Value, json};

/// Tests with golden files that contain statuses of ModelDeployments.
const FOLDERS: [&str; 7] = [
    "provider/tests/plan",
    "core/tests/plan",
    "core/tests/states",
    "cli/tests/render",
    "cli/tests/screens",
    "client/tests/first_screen",
    "doctor/tests/faults",
];

#[test]
fn every_part_agrees_whether_a_model_serves() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut states = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut states);
    }
    let of = |state: ServingState| states.iter().filter(|(_, md)| md.serving_state() == state).count();
    assert!(states.len() >= 250, "only {} states", states.len());
    assert!(of(ServingState::Ready) >= 20 && of(ServingState::Partly) >= 5 && of(ServingState::ScaledToZero) >= 1);
    let wrong: Vec<String> = states.iter().flat_map(|(path, md)| disagreements(path, md)).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Parts that do not agree with the judgement of the API.
fn disagreements(path: &Path, md: &ModelDeployment) -> Vec<String> {
    let judged = md.serving_state();
    let mut wrong = Vec::new();
    let mut expect = |part: &str, is_agreed: bool| {
        if !is_agreed {
            wrong.push(format!("{}: {part}: {judged:?}", path.display()));
        }
    };
    let is_deleted = md.metadata.deletion_timestamp.is_some();

    let object: DynamicObject = serde_json::from_value(serde_json::to_value(md).unwrap()).unwrap();
    let waited = status::standing(&object).0 == status::Standing::Ready;
    expect("wait", is_deleted || waited == judged.is_as_desired());

    let routed = Model::of(md).map(|model| model.state);
    let has_endpoint = endpoint::access(md).is_some();
    let may_serve = matches!(judged, ServingState::Ready | ServingState::Partly);
    match routed {
        Some(State::Serving(_)) => expect("router", may_serve),
        Some(State::Starting(_) | State::Failed(_)) => expect("router", !may_serve || !has_endpoint),
        Some(State::Asleep) | None => {}
    }
    let access = endpoint::access(md).is_some_and(|access| access.serves);
    expect("endpoint", access == (judged == ServingState::Ready && has_endpoint));

    let tree = tree::deployment::tree(&tree::deployment::Parts {
        md: md.clone(),
        ..tree::deployment::Parts::default()
    });
    expect(
        "tree",
        is_deleted || (tree.root.health == Health::Good) == judged.is_as_desired(),
    );

    let failed = check_fails(md);
    expect("check", is_deleted || !failed || !judged.is_as_desired());
    wrong
}

/// Whether `check` reports that the model does not serve.
fn check_fails(md: &ModelDeployment) -> bool {
    let mut documents = Documents::default();
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [md] });
    documents.take_in_text("state.json", &list.to_string());
    let (observed, _) = Observed::from_documents(documents);
    let judged = check::judge(&observed, false);
    let mut checks = judged.iter().flat_map(|group| &group.checks);
    checks.any(|check| ["model-ready", "model-pods", "model-stale"].contains(&check.check) && check.level > Level::Ok)
}

/// The ModelDeployments with a status in the files of a folder. A `plan.yaml` has the status that a plan writes, and
/// `deployment.yaml` beside it the object.
fn collect(folder: &Path, states: &mut Vec<(PathBuf, ModelDeployment)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, states);
            continue;
        }
        let documents = documents(&path);
        if path.ends_with("plan.yaml") {
            let deployment = Case::new(folder.to_owned()).file("deployment.yaml");
            let mut object = self::documents(&deployment).pop().unwrap_or_default();
            for plan in documents.iter().filter(|plan| plan["status"].is_object()) {
                json_patch::merge(&mut object["status"], &plan["status"]);
            }
            states.extend(model(object).map(|md| (path, md)));
        } else {
            states.extend(documents.into_iter().filter_map(model).map(|md| (path.clone(), md)));
        }
    }
}

fn model(object: Value) -> Option<ModelDeployment> {
    let is_model = object["kind"] == "ModelDeployment" && object["status"].is_object();
    serde_json::from_value(object).ok().filter(|_| is_model)
}

fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let parts = text.split("\n---").map(|part| part.trim_start_matches("---"));
    parts.filter_map(|part| serde_saphyr::from_str(part).ok()).collect()
}
