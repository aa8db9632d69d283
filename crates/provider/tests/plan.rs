//! A folder for each case in `tests/plan`:
//! - `deployment.yaml`: the ModelDeployment;
//! - `given.yaml`: the time (`now`), and the rest of the observed state (see [`Given`]);
//! - `plan.yaml`: the expected plan. `{}` is silent.
//!
//! After every plan the next one must be silent, or only write the status of the new objects. `UPDATE_CASES=1 cargo test` writes
//! the actual plans: review them before you commit.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use runway_api::{ModelDeployment, labels};
use runway_golden::ssa::{self, Applied};
use runway_golden::{Case, reported};
use runway_operator::apply;
use runway_operator::plan::{Finalizer, Plan};
use runway_provider::conformance::acme::{Acme, FLEET, SERVER};
use runway_provider::model_pods::ModelPod;
use runway_provider::observe::{Answer, Child, Observed, Verification};
use runway_provider::plan::Decision;
use runway_provider::probe::ProbeDecision;
use runway_provider::{CLAIM, CONFIG_MAP, Installed, InvalidSettings, Kind, Provider, State, plan};
use serde::Deserialize;
use serde_json::{Value, json};

const ACME: Acme = Acme("acme");
/// Creation time of the objects.
const MADE: &str = "2026-03-01T10:00:00Z";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Given {
    now: Timestamp,
    /// Objects from an earlier spec: a merge patch from the ModelDeployment to the earlier one.
    made_from: Option<Value>,
    /// Changes since then: a merge patch for each kind, `gone` if it was deleted.
    #[serde(default)]
    since: BTreeMap<String, Value>,
    /// Complete objects with other owners.
    #[serde(default)]
    others: Vec<Value>,
    /// CRDs that differ from the newest known schema: `missing`, an older version, or the served versions with the problems.
    #[serde(default)]
    installed: BTreeMap<String, Crd>,
    /// Pods, including ready ones.
    #[serde(default)]
    pods: Option<Vec<Pod>>,
    /// Reason why the upstream operator does not act.
    outage: Option<String>,
    /// Path and message of the invalid setting of the installation.
    invalid_setting: Option<(String, String)>,
    /// State of the endpoint's verification; `assumed` by default.
    endpoint: Option<Endpoint>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum Endpoint {
    /// The endpoint is not asked.
    Off,
    /// A request is in progress.
    Unanswered,
    /// The endpoint responded for the current rollout.
    Answered {
        at: Timestamp,
        #[serde(default = "one")]
        attempt: u32,
        /// The failure, if the request failed.
        failure: Option<String>,
        /// The response is for an earlier rollout.
        #[serde(default)]
        earlier: bool,
    },
}

fn one() -> u32 {
    1
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Crd {
    Name(String),
    Unknown { served: Vec<String>, problems: Vec<String> },
}

#[test]
fn every_case_gives_what_is_expected() {
    runway_golden::check(&cases(), 40, |case| {
        let seen = observed(case);
        let Decision { plan, probe } = plan::decide(&ACME, &seen);
        case.compare("plan.yaml", Some(format!("{}{}", reported::plan(&plan), shown(&probe))));
        let next = settled(&seen, &plan);
        if plan.finalizer != Finalizer::Remove && !next.is_silent() {
            case.problem(&format!("not silent after it\n{}", reported::plan(&next)));
        }
    });
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan")
}

/// Events of the design that a provider sends: one per change.
#[test]
fn each_event_is_sent_once_per_change() {
    let table: [(&str, &[&str]); 12] = [
        ("create", &["Normal ResourceCreated: Created ModelServer 'llama'"]),
        ("unchanged", &[]),
        (
            "secret-missing",
            &[
                "Warning SecretNotFound: Secret 'hf-token' not found in namespace 'default': pod 'llama-0' waits for it. Create it, or correct the name in spec.secrets or spec.env",
            ],
        ),
        (
            "failed",
            &["Warning ProviderError: Provider resource in error state: CUDA out of memory"],
        ),
        // The same reason with another message.
        ("failed-for-another-reason", &[]),
        (
            "drift",
            &["Warning DriftDetected: Provider resource was modified directly, reconciling"],
        ),
        (
            "drift-of-labels",
            &["Warning DriftDetected: Provider resource was modified directly, reconciling"],
        ),
        ("update", &[]),
        ("running", &[]),
        ("running-unchanged", &[]),
        ("deletion-one-second-left", &[]),
        (
            "deletion-timed-out",
            &[
                "Warning FinalizerTimeout: Finalizer removed after timeout, provider resource may be orphaned: ModelServer 'llama' (held by acme.example/drain)",
            ],
        ),
    ];
    for (case, expected) in table {
        let seen = observed(&Case::new(cases().join(case)));
        let plan = plan::plan(&ACME, &seen);
        assert_eq!(reported::events(&plan), expected, "{case}");
        // Without its finalizer the object is gone.
        if plan.finalizer != Finalizer::Remove {
            let next = plan::plan(&ACME, &carried_out(&seen, &plan));
            assert_eq!(reported::events(&next), [""; 0], "{case}, once more");
        }
    }
}

/// Message of an API server before Kubernetes 1.36 without the feature gate, which drops the field `image` of the volume.
#[test]
fn a_cluster_without_image_volumes_is_reported_with_the_field() {
    let case = Case::new(cases().join("waiting-for-an-image-of-a-volume"));
    let refusal = "Deployment.apps \"llama\" is invalid: spec.template.spec.volumes[0]: Required value: must specify a volume type";
    let status = kube::core::Status::failure(refusal, "Invalid").with_code(422);
    let error = apply::Error::Apply {
        kind: "Deployment".to_owned(),
        name: "llama".to_owned(),
        lasting: false,
        source: Box::new(kube::Error::Api(Box::new(status))),
    };
    let plan = plan::after_failure(&ACME, &observed(&case), &error);
    let message = plan.status.unwrap()["message"].to_string();
    let hint = "spec.model.storage.volumes[adapters].image requires image volumes (Kubernetes 1.36, or the feature gate ImageVolume): use claimName instead if the cluster has none";
    assert!(
        message.contains("must specify a volume type") && message.contains(hint),
        "{message}"
    );
}

#[test]
fn a_deletion_that_is_refused_is_reported_while_the_model_terminates() {
    let denied = |case, code| {
        let case = Case::new(cases().join(case));
        let status = kube::core::Status::failure("denied by policy 'keep'", "Forbidden").with_code(code);
        let error = apply::Error::Delete {
            kind: "ModelServer".to_owned(),
            name: "llama".to_owned(),
            lasting: false,
            source: Box::new(kube::Error::Api(Box::new(status))),
        };
        plan::after_failure(&ACME, &observed(&case), &error).status
    };
    let status = denied("deletion", 403).unwrap();
    assert_eq!(status["phase"], "Terminating");
    assert_eq!(
        status["message"],
        "ModelServer 'llama' cannot be deleted: denied by policy 'keep'"
    );
    assert_eq!(denied("hand-over", 403).unwrap()["message"], status["message"]);
    assert_eq!(denied("running", 403).unwrap()["phase"], "Failed");
    // The status belongs to the other provider.
    assert_eq!(denied("another-provider-leftovers", 403), None);
    assert_eq!(denied("deletion", 500), None);
}

/// The probe to an endpoint, if any.
fn shown(probe: &ProbeDecision) -> String {
    match probe {
        ProbeDecision::Forget => String::new(),
        ProbeDecision::Keep => "answer: kept\n".to_owned(),
        ProbeDecision::Send(probe) => format!(
            "ask: {}, attempt {}, for model {}, {}\n",
            probe.at,
            probe.attempt,
            probe.model.as_deref().unwrap_or("of the image"),
            if probe.generates {
                "one token"
            } else {
                "the list of models"
            }
        ),
    }
}

/// The plan after `plan` and its status are written.
fn settled(seen: &Observed, plan: &Plan) -> Plan {
    let seen = carried_out(seen, plan);
    let next = plan::plan(&ACME, &seen);
    if plan.status.is_none() && next.apply.iter().all(|apply| apply.unchanged) {
        return plan::plan(&ACME, &carried_out(&seen, &next));
    }
    next
}

fn observed(case: &Case) -> Observed {
    let given: Given = case.yaml("given.yaml");
    let md: Value = case.yaml("deployment.yaml");
    let mut seen = Observed {
        md: Arc::new(serde_json::from_value(md.clone()).unwrap()),
        installed: installed(&given.installed),
        invalid_settings: given
            .invalid_setting
            .clone()
            .map(|(path, message)| InvalidSettings { path, message }),
        children: children(&md, &given),
        pods: given.pods.as_ref().map(|pods| {
            pods.iter()
                .filter_map(|pod| ModelPod::of(ACME.component_labels(), ACME.compared_containers(), pod))
                .collect()
        }),
        outage: given.outage.clone(),
        verification: Verification::Assumed,
        answer_timeout: Duration::from_secs(10),
        now: given.now,
    };
    seen.verification = verification(&seen, given.endpoint.as_ref());
    seen
}

/// State of the verification: a response refers to the probe of the plan without one.
fn verification(seen: &Observed, given: Option<&Endpoint>) -> Verification {
    match given {
        None => Verification::Assumed,
        Some(Endpoint::Off) => Verification::Off,
        Some(Endpoint::Unanswered) => Verification::On(None),
        Some(Endpoint::Answered {
            at,
            attempt,
            failure,
            earlier,
        }) => {
            let asked = Observed {
                verification: Verification::On(None),
                ..seen.clone()
            };
            let ProbeDecision::Send(probe) = plan::decide(&ACME, &asked).probe else {
                return Verification::On(None);
            };
            Verification::On(Some(Answer {
                about: if *earlier { "0/earlier".to_owned() } else { probe.about },
                outcome: failure.clone().map_or(Ok(()), Err),
                at: *at,
                attempt: *attempt,
            }))
        }
    }
}

fn installed(given: &BTreeMap<String, Crd>) -> Installed {
    Installed::new(ACME.upstreams().into_iter().map(|upstream| {
        let state = match given.get(upstream.kind.kind) {
            None => Installed::newest(std::slice::from_ref(&upstream)).state(upstream.kind),
            Some(Crd::Name(name)) if name == "missing" => State::Missing,
            Some(Crd::Name(version)) => State::Known {
                version: version.clone(),
                hash: "1".repeat(12),
            },
            Some(Crd::Unknown { served, problems }) => State::Unknown {
                served: served.clone(),
                problems: problems.clone(),
            },
        };
        (upstream.kind, state)
    }))
}

fn children(md: &Value, given: &Given) -> Vec<Child> {
    let mut objects = given.others.clone();
    if let Some(back) = &given.made_from {
        objects.extend(made(md, back).into_iter().filter_map(|mut object| {
            match given.since.get(object["kind"].as_str().unwrap()) {
                Some(Value::String(gone)) if gone == "gone" => return None,
                Some(change) => ssa::patch(&mut object, change),
                None => {}
            }
            Some(object)
        }));
    }
    objects
        .into_iter()
        .map(|object| Child {
            kind: kind(object["kind"].as_str().unwrap()),
            object: Arc::new(serde_json::from_value(object).unwrap()),
        })
        .collect()
}

/// Objects for the earlier ModelDeployment.
fn made(md: &Value, back: &Value) -> Vec<Value> {
    let mut before = md.clone();
    ssa::patch(&mut before, back);
    ssa::patch(
        &mut before,
        &json!({
            "metadata": { "deletionTimestamp": null, "annotations": null, "generation": 1 },
            "spec": { "provider": { "name": null } },
            "status": { "provider": { "name": "acme" }, "conditions": [validated(1)] },
        }),
    );
    let installed = Installed::newest(&ACME.upstreams());
    let seen = Observed {
        md: Arc::new(serde_json::from_value(before).unwrap()),
        installed,
        invalid_settings: None,
        children: Vec::new(),
        pods: None,
        outage: None,
        verification: Verification::Assumed,
        answer_timeout: Duration::from_secs(10),
        now: MADE.parse().unwrap(),
    };
    let plan = plan::plan(&ACME, &seen);
    assert!(!plan.apply.is_empty(), "nothing was made: {}", reported::plan(&plan));
    plan.apply.iter().map(|apply| stored(&apply.object, MADE)).collect()
}

fn validated(generation: i64) -> Value {
    json!({
        "type": "Validated", "status": "True", "reason": "ValidationPassed", "message": "Schema validation passed",
        "lastTransitionTime": MADE, "observedGeneration": generation,
    })
}

/// An object as the server stores it.
fn stored(object: &DynamicObject, created: &str) -> Value {
    let mut stored = serde_json::to_value(object).unwrap();
    let kind = object.types.as_ref().unwrap().kind.to_lowercase();
    stored["metadata"]["uid"] = format!("uid-of-the-{kind}").into();
    stored["metadata"]["creationTimestamp"] = created.into();
    stored
}

fn kind(name: &str) -> Kind {
    *[SERVER, FLEET, CONFIG_MAP, CLAIM]
        .iter()
        .find(|k| k.kind == name)
        .unwrap()
}

/// The state after a plan: objects exist, deleted ones are terminating, the status is written.
fn carried_out(seen: &Observed, plan: &Plan) -> Observed {
    let mut next = seen.clone();
    next.children.retain(|child| {
        let applied = |a: &&runway_operator::plan::Apply| {
            a.resource.kind == child.kind.kind && a.object.metadata.name == child.object.metadata.name
        };
        plan.apply.iter().find(applied).is_none_or(|a| a.unchanged)
    });
    for child in &mut next.children {
        if plan
            .delete
            .iter()
            .any(|d| child.object.metadata.uid.as_ref() == Some(&d.uid))
        {
            let mut going = (*child.object).clone();
            going.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(seen.now));
            child.object = Arc::new(going);
        }
    }
    for apply in plan.apply.iter().filter(|a| !a.unchanged) {
        let before = seen.child(
            kind(&apply.resource.kind),
            apply.object.metadata.name.as_deref().unwrap(),
        );
        let created = if before.is_some() { MADE } else { &seen.now.to_string() };
        let mut object = stored(&apply.object, created);
        if let Some(status) = before.and_then(|live| live.data.get("status")) {
            object["status"] = status.clone();
        }
        next.children.push(Child {
            kind: kind(&apply.resource.kind),
            object: Arc::new(serde_json::from_value(object).unwrap()),
        });
    }
    for edit in &plan.edit {
        let edited = |child: &&mut Child| child.object.metadata.name.as_ref() == Some(&edit.name);
        for child in next.children.iter_mut().filter(edited) {
            let mut object = serde_json::to_value(&*child.object).unwrap();
            ssa::patch(&mut object, &edit.patch);
            child.object = Arc::new(serde_json::from_value(object).unwrap());
        }
    }
    let mut md = serde_json::to_value(&*seen.md).unwrap();
    if plan.finalizer == Finalizer::Add {
        md["metadata"]["finalizers"] = json!([labels::FINALIZER]);
    }
    if let Some(status) = &plan.status {
        md["status"] = written(&seen.md, status);
    }
    next.md = Arc::new(serde_json::from_value(md).unwrap());
    next
}

/// The status after the provider has applied `wanted`, with the core's part unchanged.
fn written(md: &ModelDeployment, wanted: &Value) -> Value {
    let before = md.status.clone().unwrap_or_default();
    let mine = ssa::fields(&serde_json::to_value(plan::owned(&before)).unwrap());
    let mut theirs = ssa::fields(&serde_json::to_value(&before).unwrap());
    theirs.retain(|path, _| !mine.contains_key(path));
    let mut status = Applied::default();
    status.apply("core", &ssa::whole(&theirs)).unwrap();
    status.apply("acme", wanted).unwrap();
    assert_eq!(status.shared(), Vec::<String>::new());
    status.merged()
}
