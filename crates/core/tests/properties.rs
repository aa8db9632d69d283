//! Invariants of the core and two providers with a server that does server-side apply.
//!
//! The planners are real; the server, the upstream operators and the clock are simulated in memory.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

mod registered;
mod states;
mod world;

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{Capabilities, SelectionRule};
use runway_api::{InferenceProviderConfigSpec, ModelDeployment, ModelDeploymentSpec};
use runway_core::admission::defaults::apply_defaults;
use runway_core::observe::Observed;
use runway_core::providers::Providers;
use runway_core::selection::select;
use runway_golden::reported;
use serde_json::{Value, json};
use world::{Step, World};

use crate::registered::{How, registered};
use runway_golden::ssa;

/// A spec by a user: any field may be absent, 0 or empty.
fn any_spec() -> impl Strategy<Value = Value> {
    let number = || option::of(prop_oneof![Just(0), Just(1), Just(2), Just(1000)]);
    let text = || {
        option::of(prop_oneof![
            Just(String::new()),
            Just("x".to_owned()),
            Just("amd.com/gpu".to_owned())
        ])
    };
    let gpu = move || option::of((number(), text()).prop_map(|(count, kind)| json!({"count": count, "type": kind})));
    let part = move || {
        option::of((number(), gpu(), text()).prop_map(|(n, gpu, m)| json!({"replicas": n, "gpu": gpu, "memory": m})))
    };
    let mode = option::of(prop_oneof![Just("aggregated"), Just("disaggregated")]);
    let engine = option::of((text(), number(), any::<Option<bool>>()).prop_map(|(kind, length, trust)| {
        json!({"type": kind, "contextLength": length, "trustRemoteCode": trust, "args": {"flag": ""}})
    }));
    let scaling = option::of(
        (number(), part(), part())
            .prop_map(|(n, prefill, decode)| json!({"replicas": n, "prefill": prefill, "decode": decode})),
    );
    let resources = option::of((gpu(), text()).prop_map(|(gpu, memory)| json!({"gpu": gpu, "memory": memory})));
    (text(), engine, option::of(mode), scaling, resources, text()).prop_map(
        |(id, engine, mode, scaling, resources, image)| {
            let serving = mode.map(|mode| json!({"mode": mode}));
            without_nulls(json!({
                "model": {"id": id}, "engine": engine, "serving": serving, "scaling": scaling,
                "resources": resources, "image": image,
            }))
        },
    )
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.into_iter().filter(|(_, v)| !v.is_null());
            kept.map(|(key, v)| (key, without_nulls(v))).collect()
        }
        other => other,
    }
}

fn defaulted(spec: &Value) -> Value {
    let mut spec: ModelDeploymentSpec = serde_json::from_value(spec.clone()).unwrap();
    apply_defaults(&mut spec);
    serde_json::to_value(spec).unwrap()
}

fn any_provider() -> impl Strategy<Value = (InferenceProviderConfigSpec, How)> {
    let how = prop_oneof![4 => Just(How::Healthy), 1 => Just(How::Silent), 1 => Just(How::NotReady)];
    (any::<bool>(), any::<bool>(), any::<bool>(), vec(-2..3_i32, 0..3), how).prop_map(
        |(vllm, cpu, gpu, priorities, how)| {
            let engine = if vllm { "vllm" } else { "llamacpp" };
            let rule = |priority| SelectionRule {
                condition: if priority == 1 {
                    "spec.engine.tpye == ''"
                } else {
                    "true"
                }
                .to_owned(),
                priority,
            };
            let capabilities = Capabilities {
                engines: vec![engine.to_owned()],
                serving_modes: vec![ServingMode::Aggregated],
                cpu_support: cpu,
                gpu_support: gpu,
                per_engine: Vec::new(),
            };
            let spec = InferenceProviderConfigSpec {
                capabilities,
                selection_rules: priorities.into_iter().map(rule).collect(),
                ..InferenceProviderConfigSpec::default()
            };
            (spec, how)
        },
    )
}

/// Fields that may get defaults, besides the type of a GPU.
const FILLED: [&str; 5] = [
    "model.source",
    "serving.mode",
    "scaling.replicas",
    "scaling.prefill.replicas",
    "scaling.decode.replicas",
];

proptest! {
    #[test]
    fn applying_defaults_twice_changes_no_spec(spec in any_spec()) {
        let once = defaulted(&spec);
        prop_assert_eq!(&defaulted(&once), &once);
    }

    #[test]
    fn defaults_keep_given_values_and_add_only_documented_ones(spec in any_spec()) {
        let after = ssa::fields(&defaulted(&spec));
        let before = ssa::fields(&spec);
        for (path, value) in &before {
            prop_assert_eq!(after.get(path), Some(value), "{}", path.join("."));
        }
        for path in after.keys().filter(|path| !before.contains_key(*path)) {
            let path = path.join(".");
            let is_gpu_type = path.ends_with("gpu.type");
            prop_assert!(FILLED.contains(&path.as_str()) || is_gpu_type, "{path} was made up");
        }
    }

    #[test]
    fn selection_does_not_depend_on_the_order_of_providers(
        given in vec(any_provider(), 1..6),
        engine in prop_oneof![Just("vllm"), Just("llamacpp")],
        gpus in 0..2,
    ) {
        let md: ModelDeployment = serde_json::from_value(json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "m", "namespace": "n"},
            "spec": {"model": {"id": "x/y"}, "engine": {"type": engine}, "resources": {"gpu": {"count": gpus}}},
        })).unwrap();
        let now = world::START.parse().unwrap();
        let mut configs: Vec<_> = given
            .into_iter()
            .enumerate()
            .map(|(at, (spec, how))| Arc::new(registered(&format!("p{at}"), spec, how, now)))
            .collect();
        let forwards = select(&md, &Providers::compile(configs.clone(), &Providers::default()), now);
        configs.reverse();
        let backwards = select(&md, &Providers::compile(configs.clone(), &Providers::default()), now);
        prop_assert_eq!(&forwards, &backwards);
        if let Ok(winner) = &forwards.winner {
            let best = forwards.candidates.iter().filter(|c| c.eligible).max_by_key(|c| (c.priority, std::cmp::Reverse(c.name.clone())));
            prop_assert_eq!(&best.unwrap().name, winner);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Invariants are checked at every write (see [`World`]); this is checked after all controllers have settled.
    #[test]
    fn all_controllers_settle_and_deletion_completes(steps in vec(world::step(), 0..24)) {
        let mut world = World::new();
        for step in steps {
            world.take(&step);
            if matches!(step, Step::Rest) {
                world.rest();
                world.is_explained();
            }
        }
        world.take(&Step::Delete);
        world.deletion_ends();
    }
}

#[test]
fn status_of_a_hostile_spec_is_bounded_and_written_once() {
    let long = "é".repeat(500);
    let rules: Vec<Value> = (0..32)
        .map(|n| json!({"rule": "false", "message": format!("{n} {long}")}))
        .collect();
    let spec = json!({"capabilities": {"engines": ["vllm"]}, "validationRules": rules});
    let now = world::START.parse().unwrap();
    let provider = registered("hostile", serde_json::from_value(spec).unwrap(), How::Healthy, now);
    let env: Vec<Value> = (0..100).map(|_| json!({"name": ""})).collect();
    let mut md = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "m", "namespace": "n"},
        "spec": {"model": {}, "engine": {"type": "vllm"}, "provider": {"name": "hostile"}, "env": env},
    });
    let plan_of = |md: &Value| {
        runway_core::plan::plan(&Observed {
            md: Arc::new(serde_json::from_value(md.clone()).unwrap()),
            providers: Arc::new(Providers::compile([Arc::new(provider.clone())], &Providers::default())),
            selector_enabled: true,
            autoscalers: runway_core::autoscalers::Autoscalers::default(),
            now,
        })
    };
    let status = plan_of(&md).status.unwrap();
    let message = status["message"].as_str().unwrap();
    assert!(message.len() <= 4096, "{} bytes", message.len());
    md["status"] = status;
    assert!(plan_of(&md).is_silent(), "{}", reported::plan(&plan_of(&md)));
}
