//! Invariants of a provider's plan for any observed state. `runway-core` tests the plans of the core and two providers together.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use runway_golden::reported;
use runway_golden::ssa;
use runway_operator::plan::{Finalizer, Plan};
use runway_provider::conformance::acme::Acme;
use runway_provider::model_pods::ModelPod;
use runway_provider::observe::{Child, Observed, Verification};
use runway_provider::{Installed, Provider, plan};
use serde_json::{Value, json};

const ACME: Acme = Acme("acme");
const START: &str = "2026-03-01T10:00:00Z";

/// A spec by a user, supported or not.
fn any_spec() -> impl Strategy<Value = Value> {
    let engine = prop_oneof![3 => Just("vllm"), 1 => Just("llamacpp"), 1 => Just("sglang")];
    let overrides = option::of(prop_oneof![
        Just(json!({"zone": "a"})),
        Just(json!({"zone": "b", "cache": {"size": 3}})),
        Just(json!({"zone": 3})),
        Just(json!({"zoen": "a"})),
    ]);
    let replicas = option::of(0..3_i32);
    (engine, overrides, replicas, any::<bool>(), any::<bool>()).prop_map(
        |(engine, overrides, replicas, flags, other)| {
            let mut spec = json!({
                "model": {"id": if other { "a/b" } else { "a/c" }}, "engine": {"type": engine}, "scaling": {},
                "provider": {},
            });
            if let Some(overrides) = overrides {
                spec["provider"]["overrides"] = overrides;
            }
            if let Some(replicas) = replicas {
                spec["scaling"]["replicas"] = replicas.into();
            }
            if flags {
                spec["engine"]["args"] = json!({"max-num-seqs": "64"});
            }
            spec
        },
    )
}

/// States of the objects, as merge patches.
fn any_changes() -> impl Strategy<Value = Vec<Value>> {
    let change = prop_oneof![
        Just(json!({"metadata": {"labels": null}})),
        Just(json!({"metadata": {"annotations": null}})),
        Just(json!({"metadata": {"ownerReferences": null}})),
        Just(json!({"metadata": {"deletionTimestamp": START}})),
        Just(json!({"spec": {"model": {"id": "somebody/else"}}})),
        Just(json!({"data": {"max-num-seqs": "1"}})),
        (
            "[A-Z][a-z]{3}|Ready|Broken|Queued",
            0..400_i64,
            option::of(".{0,40}"),
            0..3
        )
            .prop_map(|(state, age, message, ready)| {
                let at = Time(START.parse::<Timestamp>().unwrap() + SignedDuration::from_secs(age));
                json!({"status": {"state": state, "updatedAt": at, "message": message, "ready": ready}})
            }),
    ];
    vec(change, 0..3)
}

#[derive(Clone, Debug)]
struct Situation {
    before: Option<Value>,
    spec: Value,
    changes: Vec<Value>,
    annotations: Value,
    deleted_after: Option<i64>,
    successor: bool,
    finalizer: bool,
    pods: Option<Vec<(bool, bool)>>,
    verification: Verification,
    age: i64,
}

/// A pod that is ready or waits for a Secret, and that the model's workload controls or not.
fn pod(number: usize, (is_ready, is_ours): (bool, bool)) -> Option<ModelPod> {
    let mut pod = json!({"metadata": {"name": format!("llama-{number}")}, "status": {"phase": "Pending"}});
    if is_ours {
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "llama-0", "uid": "r", "controller": true}]);
    }
    pod["status"] = if is_ready {
        json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]})
    } else {
        json!({"phase": "Pending", "containerStatuses": [{
            "name": "model", "image": "model:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "CreateContainerConfigError", "message": "secret \"hf\" not found"}},
        }]})
    };
    ModelPod::of(
        ACME.component_labels(),
        ACME.compared_containers(),
        &serde_json::from_value(pod).unwrap(),
    )
}

fn any_situation() -> impl Strategy<Value = Situation> {
    let annotations = prop_oneof![
        6 => Just(json!({})),
        1 => Just(json!({"kubeairunway.ai/reconcile-paused": "true"})),
        1 => Just(json!({"kubeairunway.ai/dry-run": "true"})),
    ];
    let flag = || prop_oneof![4 => Just(false), 1 => Just(true)];
    (
        (
            option::weighted(0.8, any_spec()),
            any_spec(),
            any_changes(),
            annotations,
        ),
        (
            option::weighted(0.2, 0..400_i64),
            flag(),
            flag(),
            option::of(vec((any::<bool>(), any::<bool>()), 0..4)),
            0..800_i64,
        ),
        prop_oneof![
            Just(Verification::Assumed),
            Just(Verification::Off),
            Just(Verification::On(None))
        ],
    )
        .prop_map(
            |(
                (before, spec, changes, annotations),
                (deleted_after, successor, no_finalizer, pods, age),
                verification,
            )| {
                Situation {
                    before,
                    spec,
                    changes,
                    annotations,
                    deleted_after,
                    successor,
                    finalizer: !no_finalizer,
                    pods,
                    verification,
                    age,
                }
            },
        )
}

fn start() -> Timestamp {
    START.parse().unwrap()
}

fn deployment(spec: &Value) -> Value {
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": {"name": "llama", "namespace": "default", "uid": "uid-of-llama", "generation": 1, "resourceVersion": "1"},
        "spec": spec,
        "status": {"provider": {"name": "acme"}, "conditions": [{
            "type": "Validated", "status": "True", "reason": "ValidationPassed", "message": "Schema validation passed",
            "lastTransitionTime": START, "observedGeneration": 1,
        }]},
    })
}

fn see(md: &Value, objects: &[Value], situation: &Situation, age: i64) -> Observed {
    let children = ACME.children("llama").into_iter().filter_map(|child| {
        let is_it = |o: &&Value| o["kind"] == child.kind.kind && o["metadata"]["name"] == *child.name;
        let object = objects.iter().find(is_it)?;
        Some(Child {
            kind: child.kind,
            object: Arc::new(serde_json::from_value(object.clone()).unwrap()),
        })
    });
    let pods = situation.pods.iter().flatten().enumerate();
    let pods: Vec<ModelPod> = pods.filter_map(|(number, shape)| pod(number, *shape)).collect();
    Observed {
        md: Arc::new(serde_json::from_value(md.clone()).unwrap()),
        installed: Installed::newest(&ACME.upstreams()),
        invalid_settings: None,
        children: children.collect(),
        pods: situation.pods.as_ref().map(|_| pods),
        outage: None,
        verification: situation.verification.clone(),
        answer_timeout: Duration::from_secs(10),
        now: start() + SignedDuration::from_secs(age),
    }
}

/// Carries out a plan on the objects and the status, as a server would.
fn carry_out(plan: &Plan, md: &mut Value, objects: &mut Vec<Value>, now: Timestamp) {
    for delete in &plan.delete {
        for object in objects.iter_mut().filter(|o| o["metadata"]["uid"] == *delete.uid) {
            object["metadata"]["deletionTimestamp"] = json!(Time(now));
        }
    }
    for apply in plan.apply.iter().filter(|a| !a.unchanged) {
        let mut wanted = serde_json::to_value(&apply.object).unwrap();
        let there = |o: &Value| o["kind"] == wanted["kind"] && o["metadata"]["name"] == wanted["metadata"]["name"];
        let before = objects.iter().position(there).map(|at| objects.remove(at));
        wanted["metadata"]["uid"] = format!("uid-{}", apply.resource.kind).into();
        wanted["metadata"]["creationTimestamp"] = json!(Time(now));
        if let Some(before) = before {
            for key in ["uid", "creationTimestamp", "deletionTimestamp"] {
                wanted["metadata"][key] = before["metadata"][key].clone();
            }
            wanted["status"] = before["status"].clone();
        }
        objects.push(wanted);
    }
    if plan.finalizer == Finalizer::Add {
        md["metadata"]["finalizers"] = json!(["kubeairunway.ai/provider-cleanup"]);
    }
    if let Some(status) = &plan.status {
        let before = serde_json::from_value(md["status"].clone()).unwrap();
        let mine = ssa::fields(&serde_json::to_value(plan::owned(&before)).unwrap());
        let mut fields = ssa::fields(&md["status"]);
        fields.retain(|path, _| !mine.contains_key(path));
        fields.extend(ssa::fields(status));
        md["status"] = ssa::whole(&fields);
    }
}

/// The objects that an earlier spec led to, and what became of them.
fn earlier(situation: &Situation) -> Vec<Value> {
    let mut objects = Vec::new();
    if let Some(before) = &situation.before {
        let mut md = deployment(before);
        let plan = plan::plan(&ACME, &see(&md, &[], situation, 0));
        carry_out(&plan, &mut md, &mut objects, start());
    }
    for object in &mut objects {
        for change in &situation.changes {
            ssa::patch(object, change);
        }
    }
    objects
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn least_of_a_deployment_of_another_provider_leads_to_the_same_plan(situation in any_situation()) {
        let objects = earlier(&situation);
        let mut md = deployment(&situation.spec);
        md["status"]["provider"]["name"] = if situation.successor { "zenith".into() } else { Value::Null };
        if situation.finalizer {
            md["metadata"]["finalizers"] = json!(["kubeairunway.ai/provider-cleanup"]);
        }
        let whole = see(&md, &objects, &situation, situation.age);
        let least = Observed {
            md: Arc::new(plan::least(&ACME, whole.md.as_ref().clone())),
            ..whole.clone()
        };
        prop_assert_eq!(least.md.status.as_ref(), None);
        prop_assert_eq!(reported::plan(&plan::plan(&ACME, &least)), reported::plan(&plan::plan(&ACME, &whole)));
    }

    #[test]
    fn the_plan_after_an_applied_plan_is_silent(situation in any_situation()) {
        let mut objects = earlier(&situation);
        let mut md = deployment(&situation.spec);
        md["metadata"]["annotations"] = situation.annotations.clone();
        if situation.finalizer {
            md["metadata"]["finalizers"] = json!(["kubeairunway.ai/provider-cleanup"]);
        }
        if let Some(after) = situation.deleted_after {
            md["metadata"]["deletionTimestamp"] = json!(Time(start() + SignedDuration::from_secs(after)));
        }
        if situation.successor {
            md["spec"]["provider"]["name"] = "zenith".into();
        }

        let seen = see(&md, &objects, &situation, situation.age);
        let plan = plan::plan(&ACME, &seen);
        prop_assert_eq!(reported::plan(&plan), reported::plan(&plan::plan(&ACME, &seen)), "made twice");
        prop_assert_ne!(plan.look_again, Some(Duration::ZERO), "a hot loop");
        if let Some(status) = &plan.status {
            prop_assert!(status["message"].as_str().unwrap_or_default().len() <= 4096);
            prop_assert_eq!(&status["provider"]["name"], &Value::Null, "the name is the core's");
        }
        let conditions = plan.status.iter().flat_map(|status| status["conditions"].as_array().cloned().unwrap_or_default());
        for ready in conditions.filter(|condition| condition["type"] == "Ready") {
            let serves = ready["status"] == "True" || ready["reason"] == "ScaledToZero";
            let is_running = plan.status.as_ref().is_some_and(|status| status["phase"] == "Running");
            prop_assert_eq!(serves, is_running, "{}", ready);
            if !serves || ready["reason"] == "ScaledToZero" {
                continue;
            }
            let serving = situation.pods.as_ref().map(|pods| pods.iter().filter(|shape| **shape == (true, true)).count());
            let wanted = situation.spec["scaling"]["replicas"].as_u64().unwrap_or(1);
            let serves = serving.is_none_or(|pods| pods as u64 >= wanted);
            prop_assert!(serves, "{ready} with {serving:?} of {wanted} pods that serve");
        }
        if plan.finalizer == Finalizer::Remove {
            return Ok(());
        }
        let before = md.clone();
        carry_out(&plan, &mut md, &mut objects, seen.now);
        let mut next = plan::plan(&ACME, &see(&md, &objects, &situation, situation.age));
        let is_applied = plan.apply.iter().any(|apply| !apply.unchanged);
        if (plan.status.is_none() || is_applied) && next.apply.iter().all(|apply| apply.unchanged) {
            // The message about the spec is written when the objects are applied.
            carry_out(&next, &mut md, &mut objects, seen.now);
            next = plan::plan(&ACME, &see(&md, &objects, &situation, situation.age));
        }
        prop_assert!(next.is_silent(), "after\n{}\nwith {:#}\nstill\n{}", reported::plan(&plan), before["status"], reported::plan(&next));

        // A later message changes no transition time, unless the status of the condition changed.
        let later = plan::plan(&ACME, &see(&md, &objects, &situation, situation.age + 100));
        for condition in later.status.iter().flat_map(|s| s["conditions"].as_array().cloned().unwrap_or_default()) {
            let conditions = md["status"]["conditions"].as_array().unwrap();
            if let Some(earlier) = conditions.iter().find(|c| c["type"] == condition["type"] && c["status"] == condition["status"]) {
                prop_assert_eq!(&earlier["lastTransitionTime"], &condition["lastTransitionTime"]);
            }
        }
    }
}

#[test]
fn messages_about_hostile_overrides_are_bounded() {
    let wrong: Value = (0..2000)
        .map(|n| (format!("{}-{n}", "x".repeat(100)), json!(1)))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let map = json!({"zone": 1, "cache": wrong});
    let mut md =
        deployment(&json!({"model": {"id": "a/b"}, "engine": {"type": "vllm"}, "provider": {"overrides": map}}));
    md["spec"]["engine"]["type"] = "vllm".into();
    let situation = Situation {
        before: None,
        spec: Value::Null,
        changes: Vec::new(),
        annotations: json!({}),
        deleted_after: None,
        successor: false,
        finalizer: true,
        pods: None,
        verification: Verification::Assumed,
        age: 0,
    };
    for zone in [json!("a"), json!(1)] {
        md["spec"]["provider"]["overrides"]["zone"] = zone;
        let plan = plan::plan(&ACME, &see(&md, &[], &situation, 0));
        let status = plan.status.unwrap().to_string();
        assert!(status.len() < 128 * 1024, "{} bytes", status.len());
    }
}
