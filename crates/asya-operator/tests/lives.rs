//! Life cycles of actors in a namespace in memory: new targets, conflicts, deletion, and properties of any sequence of changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

use jiff::{SignedDuration, Timestamp};
use proptest::collection::vec;
use proptest::prelude::*;
use runway_api::AsyncActor;
use runway_api::async_actor::{RUNTIME_INJECTED, Strategy as Way};
use runway_api::condition::Conditions;
use runway_asya_operator::plan;
use runway_asya_operator::queue::QueueState;
use runway_worlds::actor::{World, reported, take_out};
use serde_json::{Value, json};

const START: &str = "2026-03-01T10:00:00Z";

fn actor(spec: &Value) -> AsyncActor {
    serde_json::from_value(json!({
        "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "spec": spec,
        "metadata": {"name": "embed", "namespace": "team", "uid": "uid-of-embed", "generation": 1, "creationTimestamp": START},
    }))
    .unwrap()
}

fn bound(target: &str, more: &Value) -> Value {
    let mut spec = json!({
        "transport": "rabbitmq", "workloadRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
        "runtime": {"image": "a:1", "handler": "a.b", "targetURL": "http://vllm:8000"},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    spec
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-of-{name}"), "generation": 1, "resourceVersion": "1"},
        "spec": {"replicas": 1, "template": {"metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "model", "image": "m:1"}]}}},
        "status": {"replicas": 1, "readyReplicas": 1},
    })
}

fn world(spec: &Value) -> World {
    let mut world = World::new(actor(spec), START.parse().unwrap());
    world.add(deployment("vllm"));
    world.add(deployment("other"));
    world
}

fn live(world: &World, name: &str) -> Value {
    world.objects[&("apps".to_owned(), "Deployment".to_owned(), name.to_owned())].clone()
}

fn has_ours(object: &Value) -> bool {
    let containers = object
        .pointer("/spec/template/spec/containers")
        .and_then(Value::as_array)
        .unwrap();
    containers.iter().any(|c| c["name"] == "asya-sidecar")
}

fn change(world: &mut World, spec: &Value) {
    let mut changed = serde_json::to_value(&world.actor).unwrap();
    changed["spec"] = spec.clone();
    changed["metadata"]["generation"] = json!(world.actor.metadata.generation.unwrap() + 1);
    world.actor = serde_json::from_value(changed).unwrap();
}

fn delete(world: &mut World) {
    world.actor.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(world.now));
}

fn later(world: &mut World, seconds: i64) {
    world.now += SignedDuration::from_secs(seconds);
}

/// Another controller reverts the target.
fn revert(world: &mut World, name: &str) {
    let key = ("apps".to_owned(), "Deployment".to_owned(), name.to_owned());
    let object = world.objects.get_mut(&key).unwrap();
    take_out(object);
    object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap() + 1);
}

fn status(world: &World) -> runway_api::AsyncActorStatus {
    world.actor.status.clone().unwrap_or_default()
}

#[test]
fn previous_target_is_released_before_the_next_is_bound() {
    let scaling = json!({"scaling": {"enabled": true}});
    let mut world = world(&bound("vllm", &scaling));
    world.rest();
    assert!(has_ours(&live(&world, "vllm")));
    change(&mut world, &bound("other", &scaling));
    for _ in 0..6 {
        world.step();
        assert!(
            !(has_ours(&live(&world, "vllm")) && has_ours(&live(&world, "other"))),
            "in both"
        );
    }
    assert!(has_ours(&live(&world, "other")));
    assert_eq!(live(&world, "vllm"), deployment("vllm"), "as it was");
}

#[test]
fn change_of_strategy_releases_the_target_first() {
    let mut world = world(&bound("vllm", &json!({})));
    world.rest();
    change(&mut world, &bound("vllm", &json!({"binding": {"strategy": "Proxy"}})));
    world.rest();
    assert_eq!(live(&world, "vllm"), deployment("vllm"));
    assert!(
        world
            .objects
            .contains_key(&("apps".to_owned(), "Deployment".to_owned(), "embed-asya".to_owned()))
    );
    change(&mut world, &bound("vllm", &json!({})));
    world.rest();
    assert!(has_ours(&live(&world, "vllm")));
    assert!(
        !world
            .objects
            .contains_key(&("apps".to_owned(), "Deployment".to_owned(), "embed-asya".to_owned()))
    );
}

#[test]
fn deletion_removes_the_scaled_object_first_and_restores_the_target() {
    let mut world = world(&bound("vllm", &json!({"scaling": {"enabled": true}})));
    world.rest();
    let scaler = ("keda.sh".to_owned(), "ScaledObject".to_owned(), "asya-embed".to_owned());
    assert!(world.objects.contains_key(&scaler));
    delete(&mut world);
    world.step();
    assert!(
        !world.objects.contains_key(&scaler) && has_ours(&live(&world, "vllm")),
        "scaling goes first"
    );
    world.rest();
    assert!(world.gone);
    assert_eq!(live(&world, "vllm"), deployment("vllm"));
}

/// Pods that end hold messages that the broker does not count as waiting.
#[test]
fn queue_is_removed_after_the_last_pod() {
    let standalone = json!({"transport": "rabbitmq", "workload": {"template": {"spec": {"containers": [
        {"name": "asya-runtime", "image": "p:1"}]}}}});
    for spec in [
        standalone,
        bound("vllm", &json!({})),
        bound("vllm", &json!({"binding": {"strategy": "Proxy"}})),
    ] {
        let mut world = world(&spec);
        world.rest();
        let pod = json!({"metadata": {"name": "embed-1", "labels": {"asya.sh/actor": "embed"}}, "status": {"phase": "Running"}});
        world.pods.push(serde_json::from_value(pod).unwrap());
        delete(&mut world);
        world.rest();
        assert_eq!(world.queue, QueueState::Ready { drift: None }, "{spec}");
        assert_eq!(status(&world).status.as_deref(), Some("Terminating"), "{spec}");
        assert!(!world.gone);
        world.pods.clear();
        world.rest();
        assert!(
            world.gone && world.queue == QueueState::Removed { left: None },
            "{spec}"
        );
    }
}

#[test]
fn repeated_conflicts_stop_restoring_the_containers() {
    for (on_conflict, way) in [("Stop", None), ("Proxy", Some(Way::Proxy))] {
        let mut world = world(&bound("vllm", &json!({"binding": {"onConflict": on_conflict}})));
        world.rest();
        let mut applied = 0;
        for _ in 0..40 {
            if has_ours(&live(&world, "vllm")) {
                applied += 1;
                revert(&mut world, "vllm");
            }
            world.rest();
            later(&mut world, 400);
        }
        let status = status(&world);
        assert_eq!(applied, 6, "put in once, and back five times");
        assert_eq!(status.conflict_count, Some(6));
        let injected = status.conditions.get_condition(RUNTIME_INJECTED).unwrap();
        match way {
            None => assert_eq!(
                (injected.reason.as_str(), status.status.as_deref()),
                ("ConflictLoopDetected", Some("ConflictStopped"))
            ),
            Some(way) => {
                assert_eq!(injected.reason, "ConflictFallback");
                assert_eq!(status.binding.unwrap().strategy, Some(way));
            }
        }
    }
}

#[test]
fn proxy_after_conflicts_is_the_same_as_a_requested_proxy() {
    let runtime = json!({
        "image": "a:1", "handler": "a.b", "targetURL": "http://vllm:8000",
        "env": [{"name": "ASYA_TARGET_URL", "value": "http://gateway:8080"}],
    });
    let proxy = |binding: Value| {
        let mut world = world(&bound("vllm", &json!({"runtime": runtime, "binding": binding})));
        for _ in 0..12 {
            world.rest();
            if has_ours(&live(&world, "vllm")) {
                revert(&mut world, "vllm");
            }
            later(&mut world, 400);
        }
        live(&world, "embed-asya")["spec"].clone()
    };
    assert_eq!(
        proxy(json!({"onConflict": "Proxy"})),
        proxy(json!({"strategy": "Proxy"}))
    );
}

#[test]
fn one_conflict_per_hour_does_not_stop_binding() {
    let mut world = world(&bound("vllm", &json!({})));
    for _ in 0..20 {
        world.rest();
        later(&mut world, 10);
        world.rest();
        revert(&mut world, "vllm");
        world.rest();
        later(&mut world, 400);
        world.rest();
        assert!(has_ours(&live(&world, "vllm")));
        later(&mut world, 3600);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Target(bool),
    Way(u8),
    Scale(bool),
    Revert,
    Vanish,
    Appear,
    Keda(bool),
    Wait(i64),
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => any::<bool>().prop_map(Step::Target),
        1 => (0..4_u8).prop_map(Step::Way),
        1 => any::<bool>().prop_map(Step::Scale),
        3 => Just(Step::Revert),
        1 => Just(Step::Vanish),
        1 => Just(Step::Appear),
        1 => any::<bool>().prop_map(Step::Keda),
        1 => (0..4000_i64).prop_map(Step::Wait),
        4 => Just(Step::Turn),
    ]
}

#[derive(Clone, Default)]
struct Asked {
    other: bool,
    way: u8,
    scale: bool,
}

impl Asked {
    fn spec(&self) -> Value {
        let binding = [
            json!({}),
            json!({"strategy": "TemplatePatch"}),
            json!({"strategy": "Proxy"}),
            json!({"onConflict": "Proxy"}),
        ];
        let more = json!({"binding": binding[usize::from(self.way)], "scaling": {"enabled": self.scale}});
        bound(if self.other { "other" } else { "vllm" }, &more)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Model containers never change, plans are deterministic, every actor reaches a steady state, and deletion leaves nothing behind.
    #[test]
    fn targets_are_restored_after_any_sequence_of_changes(steps in vec(step(), 0..30)) {
        let mut asked = Asked::default();
        let mut world = world(&asked.spec());
        for step in steps {
            match step {
                Step::Target(other) => { asked.other = other; change(&mut world, &asked.spec()); }
                Step::Way(way) => { asked.way = way; change(&mut world, &asked.spec()); }
                Step::Scale(scale) => { asked.scale = scale; change(&mut world, &asked.spec()); }
                Step::Revert => {
                    let key = ("apps".to_owned(), "Deployment".to_owned(), "vllm".to_owned());
                    if world.objects.contains_key(&key) && has_ours(&live(&world, "vllm")) {
                        revert(&mut world, "vllm");
                    }
                }
                Step::Vanish => { world.objects.remove(&("apps".to_owned(), "Deployment".to_owned(), "vllm".to_owned())); }
                Step::Appear => {
                    let key = ("apps".to_owned(), "Deployment".to_owned(), "vllm".to_owned());
                    world.objects.entry(key).or_insert_with(|| deployment("vllm"));
                }
                Step::Keda(there) => {
                    world.keda = there;
                    if !there {
                        world.objects.retain(|key, _| key.0 != "keda.sh");
                    }
                }
                Step::Wait(seconds) => later(&mut world, seconds),
                Step::Turn => {
                    let seen = world.observed();
                    prop_assert_eq!(reported(&plan::plan(&seen)), reported(&plan::plan(&seen)));
                    world.step();
                }
            }
            for name in ["vllm", "other"] {
                let Some(object) = world.objects.get(&("apps".to_owned(), "Deployment".to_owned(), name.to_owned())) else { continue };
                let model = &object.pointer("/spec/template/spec/containers").unwrap()[0];
                prop_assert_eq!(model, &json!({"name": "model", "image": "m:1"}));
                prop_assert!(object["metadata"].get("ownerReferences").is_none());
            }
        }
        world.rest();
        delete(&mut world);
        world.rest();
        prop_assert!(world.gone);
        for name in ["vllm", "other"] {
            let Some(object) = world.objects.get(&("apps".to_owned(), "Deployment".to_owned(), name.to_owned())) else { continue };
            prop_assert!(!has_ours(object), "{}", object);
            prop_assert!(object["metadata"].get("annotations").is_none(), "{}", object);
        }
    }
}

/// A time is a value.
#[test]
fn unchanged_state_gives_a_silent_plan_at_any_time() {
    let mut world = world(&bound("vllm", &json!({})));
    world.rest();
    world.now = Timestamp::from_second(4_000_000_000).unwrap();
    assert!(plan::plan(&world.observed()).is_silent());
}
