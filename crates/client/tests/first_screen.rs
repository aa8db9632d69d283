//! The first screen that a user reads of a model that fails: `kubeairunway status NAME`, as production code prints it after
//! the production plan. Each folder below `tests/first_screen` is a case.
//! `UPDATE_CASES=1 cargo test -p runway-client --test first_screen` writes `screen.txt`: read what you commit.
//!
//! | file | what |
//! |---|---|
//! | `state.yaml` | the ModelDeployment; what happened since to the objects made for it; its Pods; what else the cluster holds |
//! | `answer` | what came back from the endpoint, if it was asked, as `runway_provider` words it |
//! | `expect.yaml` | `object`, `reason` and `nextStep`: texts that the screen must hold, also with `UPDATE_CASES=1` |
//! | `screen.txt` | the whole screen |
//!
//! The status before and the objects are those of the production plan ten minutes earlier; a document of the same kind and name
//! is merged into its object, as the upstream's controller or a user changed it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use kube::CustomResourceExt;
use kube::core::DynamicObject;
use runway_api::{InferenceProviderConfig, ModelDeployment};
use runway_client::documents::Documents;
use runway_client::render::{self, Options, Planned, Show};
use runway_client::source::{Admission, Place, Source};
use runway_client::state::State;
use runway_client::status;
use runway_client::text::Look;
use runway_golden::Case;
use runway_manifests as manifests;
use runway_operator::client::ClientArgs;
use runway_provider::observe::{Answer, Verification};
use runway_provider::probe::ProbeDecision;
use serde::Deserialize;
use serde_json::{Value, json};

/// When the ModelDeployment was created.
const MADE: &str = "2026-11-21T09:50:00Z";
/// When the screen is read.
const NOW: &str = "2026-11-21T10:00:00Z";

/// Lines and columns of a terminal.
const LINES: usize = 24;
const COLUMNS: usize = 80;

/// Texts that the screen must hold.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Expected {
    object: String,
    reason: String,
    next_step: String,
}

#[test]
fn the_first_screen_holds_object_reason_and_next_step() {
    runway_golden::check(&folder(), 40, run);
}

#[test]
fn each_provider_is_among_the_cases() {
    let screens: Vec<String> = runway_golden::cases(&folder()).iter().map(screen).collect();
    for provider in manifests::built_in_providers() {
        let line = format!("\nProvider   {} ", provider.name());
        let of_it = screens.iter().filter(|screen| screen.contains(&line)).count();
        assert!(of_it >= 3, "{}: {of_it} cases", provider.name());
    }
}

#[test]
fn the_fields_that_a_screen_names_exist() {
    let schemas = [ModelDeployment::crd(), InferenceProviderConfig::crd()].map(|crd| {
        let crd = serde_json::to_value(crd).unwrap();
        crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
    });
    let mut named = 0;
    for case in runway_golden::cases(&folder()) {
        for field in fields(&screen(&case)) {
            let is_known = schemas.iter().any(|schema| exists(schema, &field));
            assert!(is_known, "{}: {field} does not exist", case.name());
            named += 1;
        }
    }
    assert!(named >= 20, "only {named} fields are named");
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/first_screen")
}

fn run(case: &mut Case) {
    let screen = screen(case);
    let expected: Expected = case.yaml("expect.yaml");
    let top = top(&screen);
    for (key, text) in [
        ("object", &expected.object),
        ("reason", &expected.reason),
        ("nextStep", &expected.next_step),
    ] {
        if text.is_empty() || !top.contains(text.as_str()) {
            case.problem(&format!("{key} '{text}' is not on the first screen:\n{screen}"));
        }
    }
    case.compare("screen.txt", Some(screen));
}

/// The lines that a terminal shows without scrolling, unwrapped.
fn top(screen: &str) -> String {
    let mut left = LINES;
    let fits = |line: &&str| {
        let rows = line.chars().count().div_ceil(COLUMNS).max(1);
        left = left.saturating_sub(rows);
        left > 0
    };
    screen.lines().take_while(fits).collect::<Vec<_>>().join("\n")
}

/// Names such as `spec.engine.args`.
fn fields(screen: &str) -> Vec<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.';
    screen
        .split(|c| !is_part(c))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.starts_with("spec."))
        .map(str::to_owned)
        .collect()
}

fn exists(schema: &Value, field: &str) -> bool {
    field
        .split('.')
        .try_fold(schema, |schema, part| schema["properties"].get(part))
        .is_some()
}

/// Output of `kubeairunway status` for a case.
fn screen(case: &Case) -> String {
    let mut objects = cluster(case);
    let md = objects.remove(0);
    let state = state(&objects);
    let planned = planned(&serde_json::from_value(md).unwrap(), &state, answer(case).as_deref());
    objects.insert(0, json!(planned.md));
    printed(&objects)
}

/// The cluster now: the ModelDeployment with the status before, the objects made for it, and what has happened since.
fn cluster(case: &Case) -> Vec<Value> {
    let mut since = parse(&case.text("state.yaml")).found.into_iter().map(|d| d.value);
    let mut md = since.next().unwrap();
    json_patch::merge(
        &mut md,
        &json!({ "metadata": {
            "namespace": "default", "uid": "11111111-2222-3333-4444-555555555555", "creationTimestamp": MADE, "generation": 1,
        } }),
    );
    let (settings, since): (Vec<Value>, Vec<Value>) =
        since.partition(|o| ["InferenceProviderConfig", "CustomResourceDefinition"].contains(&kind(o)));
    let before: Vec<Value> = [md].into_iter().chain(settings.clone()).collect();
    let mut objects = vec![json!(rendered(&before, Show::Status)[0])];
    objects.extend(rendered(&before, Show::Objects).iter().map(stored));
    objects.extend(settings);
    for change in since {
        let is_it = |o: &&mut Value| kind(o) == kind(&change) && o["metadata"]["name"] == change["metadata"]["name"];
        match objects.iter_mut().find(is_it) {
            Some(object) => json_patch::merge(object, &change),
            None => objects.push(change),
        }
    }
    objects
}

/// Objects that the controllers create at first.
fn rendered(objects: &[Value], show: Show) -> Vec<DynamicObject> {
    let now = MADE.parse().unwrap();
    let rendered = render::render(documents(objects), &Options { show, now });
    assert!(!rendered.failed, "{}: {:?}", objects[0], rendered.diagnostics);
    rendered.documents
}

/// An object as the server keeps it.
fn stored(object: &DynamicObject) -> Value {
    let mut stored = json!(object);
    let uid = format!("uid-of-the-{}", kind(&stored).to_lowercase());
    json_patch::merge(
        &mut stored,
        &json!({ "metadata": { "uid": uid, "creationTimestamp": MADE, "generation": 1 } }),
    );
    stored
}

fn planned(md: &ModelDeployment, state: &State, failure: Option<&str>) -> Planned {
    let now: Timestamp = NOW.parse().unwrap();
    let asked = |verification| render::plans_verified(md.clone(), state, &verification, now).unwrap();
    let first = asked(Verification::On(None));
    match (first.probe.clone(), failure) {
        (ProbeDecision::Send(question), Some(failure)) => asked(Verification::On(Some(Answer {
            about: question.about,
            outcome: Err(failure.to_owned()),
            at: now,
            attempt: 1,
        }))),
        (ProbeDecision::Send(question), None) => panic!("{question:?} needs an answer"),
        (_, Some(_)) => panic!("nothing is asked: {:?}", first.md.status),
        (_, None) => first,
    }
}

/// Output of the command without colors.
fn printed(objects: &[Value]) -> String {
    let place = Place {
        files: vec!["-".into()],
        ..Place::default()
    };
    let text = list(objects).to_string();
    let now = NOW.parse().unwrap();
    futures::executor::block_on(async {
        let mut source = Source::open(&place, &ClientArgs::default(), &mut text.as_bytes(), Admission::Past)
            .await
            .unwrap();
        assert!(source.said.is_empty(), "{:?}", source.said);
        let md = source.deployments(None, None).await.unwrap().remove(0);
        status::screen(&source.view(md, now).await, now, Look::default())
    })
}

fn answer(case: &Case) -> Option<String> {
    fs::read_to_string(case.file("answer"))
        .ok()
        .map(|text| text.trim().to_owned())
}

fn state(objects: &[Value]) -> State {
    let (state, said) = State::new(documents(objects));
    assert!(said.is_empty(), "{said:?}");
    state
}

fn documents(objects: &[Value]) -> Documents {
    parse(&list(objects).to_string())
}

fn parse(text: &str) -> Documents {
    let mut documents = Documents::default();
    documents.take_in_text("state.yaml", text);
    assert!(documents.errors.is_empty(), "{:?}", documents.errors);
    documents
}

fn list(objects: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": objects })
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}
