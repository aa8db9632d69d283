//! Golden cases, one folder of `tests/plan` each:
//! - `actor.yaml`: the AsyncActor;
//! - `given.yaml`: the time, and differences from the defaults: the queue, other actors, KEDA, whether queues are managed;
//! - `objects.yaml`: a list of other objects in the namespace;
//! - `plan.yaml`: the expected plan. `{}` is an empty plan.
//!
//! After each case the operator must reach a steady state within a few steps. `UPDATE_CASES=1 cargo test` writes the actual plans:
//! review them before you commit them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use runway_api::async_actor::{SCALING_READY, Timeout, WORKLOAD_READY};
use runway_api::condition::Conditions;
use runway_api::{AsyncActor, AsyncActorStatus};
use runway_asya_operator::observe::Settings;
use runway_asya_operator::queue::QueueState;
use runway_asya_transport::tenants::Credentials;
use runway_golden::Case;
use runway_operator::apply::Error;
use runway_worlds::actor::{World, reported};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Given {
    now: Timestamp,
    #[serde(default)]
    queue: Queue,
    #[serde(default)]
    others: Vec<AsyncActor>,
    #[serde(default = "yes")]
    keda: bool,
    #[serde(default = "yes", rename = "managesQueues")]
    manages_queues: bool,
    /// Password of the user of the namespace, or why it is unknown.
    password: Option<String>,
    unknown: Option<String>,
    /// Whether no other actor of the namespace remains.
    #[serde(default)]
    last: bool,
    /// Whether the actor reaches a steady state without a change of time.
    #[serde(default = "yes")]
    rests: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Queue {
    Unknown,
    #[default]
    Ready,
    Failed,
    Differs,
    Removed,
    Left,
    Used,
}

fn yes() -> bool {
    true
}

#[test]
fn golden_cases_give_the_expected_plans() {
    runway_golden::check(&cases(), 30, |case| {
        let given: Given = case.yaml("given.yaml");
        let mut world = World::new(case.yaml("actor.yaml"), given.now);
        world.others = given.others;
        let credentials = |password| Credentials {
            username: "asya_team".to_owned(),
            password,
        };
        world.tenant = given
            .password
            .map(credentials)
            .map(Ok)
            .or_else(|| given.unknown.map(Err));
        world.is_last = given.last;
        (world.keda, world.manages_queues) = (given.keda, given.manages_queues);
        world.queue = match given.queue {
            Queue::Unknown => QueueState::Unknown,
            Queue::Ready => QueueState::Ready { drift: None },
            Queue::Failed => QueueState::Failed {
                message: "the broker does not answer".to_owned(),
            },
            Queue::Differs => QueueState::Ready {
                drift: Some("it is not durable".to_owned()),
            },
            Queue::Removed => QueueState::Removed { left: None },
            Queue::Used => QueueState::InUse {
                by: "1 unacknowledged message".to_owned(),
            },
            Queue::Left => QueueState::Removed { left: Some(7) },
        };
        for object in case.optional_yaml::<Vec<Value>>("objects.yaml").into_iter().flatten() {
            if object["kind"] == "Pod" {
                world.pods.push(serde_json::from_value(object).unwrap());
            } else {
                world.add(object);
            }
        }
        let seen = world.observed();
        let plan = runway_asya_operator::plan::plan(&seen);
        let again = runway_asya_operator::plan::plan(&seen);
        assert_eq!(reported(&plan), reported(&again), "{}: not deterministic", case.name());
        case.compare("plan.yaml", Some(reported(&plan)));
        if given.rests {
            world.rest();
        }
    });
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plan")
}

#[test]
fn examples_have_no_violations() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/examples/asya");
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert!(files.len() > 8, "examples are missing");
    for file in files {
        let file = file.unwrap().path();
        let actor: AsyncActor = runway_golden::yaml(&file);
        let wrong = runway_asya_operator::request::violations(&actor);
        assert!(wrong.is_empty(), "{}: {}", file.display(), wrong.join("; "));
    }
}

#[test]
fn a_cleanup_that_is_refused_is_reported_while_the_actor_terminates() {
    let case = Case::new(cases().join("deleted-workload-goes-first"));
    let given: Given = case.yaml("given.yaml");
    let seen = World::new(case.yaml("actor.yaml"), given.now).observed();
    let status = kube::core::Status::failure("denied by policy 'keep'", "Forbidden").with_code(403);
    let error = Error::Delete {
        kind: "Deployment".to_owned(),
        name: "embed".to_owned(),
        lasting: false,
        source: Box::new(kube::Error::Api(Box::new(status))),
    };
    let plan = runway_asya_operator::plan::after_failure(&seen, &error);
    let status: AsyncActorStatus = serde_json::from_value(plan.kube.status.unwrap()).unwrap();
    let ready = status.conditions.get_condition("Ready").unwrap();
    assert_eq!(
        (ready.reason.as_str(), ready.message.as_str()),
        (
            "Terminating",
            "Deployment 'embed' cannot be deleted: denied by policy 'keep'"
        )
    );
}

/// The world of a case with a target.
fn world_of(case: &str) -> World {
    let case = Case::new(cases().join(case));
    let given: Given = case.yaml("given.yaml");
    let mut world = World::new(case.yaml("actor.yaml"), given.now);
    for object in case.yaml::<Vec<Value>>("objects.yaml") {
        world.add(object);
    }
    world
}

/// Writes of the operator with another image of the sidecar, and its warnings.
fn after_upgrade(world: &World) -> (usize, String) {
    let mut seen = world.observed();
    seen.settings = Arc::new(Settings {
        sidecar_image: "asya-sidecar:2".to_owned(),
        ..(*seen.settings).clone()
    });
    let plan = runway_asya_operator::plan::plan(&seen).kube;
    let writes = plan.apply.iter().filter(|apply| !apply.unchanged).count() + plan.edit.len();
    let status = plan
        .status
        .map(|status| serde_json::from_value::<AsyncActorStatus>(status).unwrap());
    let conditions = status.map(|status| status.conditions).unwrap_or_default();
    let warning = conditions
        .get_condition("Warning")
        .map(|warning| warning.message.clone());
    (writes, warning.unwrap_or_default())
}

#[test]
fn upgraded_operator_restarts_no_target_until_its_template_changes() {
    let message = |object: &str, hint: &str| {
        format!(
            "The containers in {object} have the image and the transport of earlier settings of the operator. They get the present ones with the next change of its pod template{hint}"
        )
    };
    let rollout = ": kubectl rollout restart deployment/vllm";
    for (case, object, hint) in [
        ("bind-deployment", "Deployment 'vllm'", rollout),
        ("bind-kserve-standard", "InferenceService 'sk'", ""),
    ] {
        let mut world = world_of(case);
        world.rest();
        assert_eq!(after_upgrade(&world), (0, message(object, hint)), "{case}");

        // A change of the actor is the user's.
        let spec = world.actor.spec.clone();
        world.actor.spec.timeout = Some(Timeout {
            processing: Some(60),
            ..Timeout::default()
        });
        assert_eq!(after_upgrade(&world), (1, String::new()), "{case}");
        world.actor.spec = spec;

        // So is one of the template.
        let template = match case {
            "bind-deployment" => "/spec/template/spec",
            _ => "/spec/predictor",
        };
        for live in world.objects.values_mut() {
            if let Some(spec) = live.pointer_mut(template).and_then(Value::as_object_mut) {
                spec.insert("nodeSelector".to_owned(), serde_json::json!({"zone": "a"}));
            }
        }
        assert_eq!(after_upgrade(&world), (1, String::new()), "{case}");
    }
}

#[test]
fn refused_pod_is_reported_and_nothing_is_bound() {
    let world = world_of("bind-deployment");
    let quota = "pods \"asya-admission-check\" is forbidden: failed quota: cpu: must specify limits.cpu for: asya-runtime; asya-sidecar";
    let error = Error::Apply {
        kind: "Pod".to_owned(),
        name: "asya-admission-check".to_owned(),
        lasting: false,
        source: Box::new(kube::Error::Api(Box::new(
            kube::core::Status::failure(quota, "Forbidden").with_code(403),
        ))),
    };
    let plan = runway_asya_operator::plan::after_failure(&world.observed(), &error);
    assert!(
        plan.kube.apply.is_empty() && plan.kube.trials.is_empty(),
        "{}",
        reported(&plan)
    );
    let status: AsyncActorStatus = serde_json::from_value(plan.kube.status.unwrap()).unwrap();
    let injected = status.conditions.get_condition("RuntimeInjected").unwrap();
    assert_eq!(
        (
            injected.status.as_str(),
            injected.reason.as_str(),
            injected.message.as_str()
        ),
        (
            "False",
            "Refused",
            "the containers were not added, because the API server refuses pods that have them: pods \"asya-admission-check\" is forbidden: failed quota: cpu: must specify limits.cpu for: asya-runtime; asya-sidecar. Set spec.runtime.resources and spec.sidecar.resources within the quota, or increase it"
        )
    );
    assert_eq!(status.binding, None);
}

/// The operator watches only objects with its label, so usually the write detects an object with another owner.
#[test]
fn name_conflict_is_reported_in_the_condition_that_needs_the_object() {
    let case = Case::new(cases().join("standalone-scaled"));
    let given: Given = case.yaml("given.yaml");
    let seen = World::new(case.yaml("actor.yaml"), given.now).observed();
    for (kind, name, condition) in [
        ("ConfigMap", "asya-runtime", WORKLOAD_READY),
        ("ConfigMap", "embed-trigger-auth", SCALING_READY),
        ("TriggerAuthentication", "embed-trigger-auth", SCALING_READY),
        ("Deployment", "embed", WORKLOAD_READY),
    ] {
        let error = Error::NameTaken {
            kind: kind.to_owned(),
            name: name.to_owned(),
            manager: "managed by 'helm'".to_owned(),
            source: Box::new(kube::Error::LinesCodecMaxLineLengthExceeded),
        };
        let plan = runway_asya_operator::plan::after_failure(&seen, &error);
        let reported = reported(&plan);
        assert!(plan.kube.apply.is_empty() && plan.kube.delete.is_empty(), "{reported}");
        let status: AsyncActorStatus = serde_json::from_value(plan.kube.status.unwrap()).unwrap();
        let said = status.conditions.get_condition(condition).unwrap();
        assert_eq!(
            (said.status.as_str(), said.reason.as_str()),
            ("False", "NameTaken"),
            "{reported}"
        );
        assert!(said.message.starts_with(&format!(
            "{kind} '{name}' exists and was not created for this AsyncActor (managed by 'helm'): "
        )));
        assert!(
            plan.kube.events.iter().any(|note| note.reason == "NameTaken"),
            "{reported}"
        );
    }
}
