//! Invariants for every spec.

use proptest::prelude::*;
use runway_provider::conformance::fields::{self, holds_null};
use runway_provider::{Refusal, Translation};
use runway_provider_dynamo::Dynamo;
use serde_json::{Value, json};

use crate::{VERSIONS, args, document, translate};

/// Base spec.
const BASES: [&str; 8] = [
    "vllm",
    "sglang",
    "trtllm",
    "vllm in parts",
    "sglang in parts",
    "trtllm in parts",
    "custom",
    "custom in parts",
];

fn base(which: &str) -> Value {
    let engine = ["vllm", "sglang", "trtllm"]
        .into_iter()
        .find(|e| which.starts_with(e))
        .unwrap_or("vllm");
    let mut spec = json!({"model": {"id": "Org/Base"}, "engine": {"type": engine}});
    if which.starts_with("custom") {
        spec["model"] = json!({"source": "custom"});
        spec["image"] = json!("image:1.3.1");
        spec["engine"]["args"] = json!({"model": "/models/base"});
    }
    if which.ends_with("parts") {
        spec["serving"] = json!({"mode": "disaggregated"});
        spec["scaling"] = json!({"prefill": {"gpu": {"count": 1}}, "decode": {"gpu": {"count": 1}}});
    } else {
        spec["resources"] = json!({"gpu": {"count": 1}});
    }
    json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "md", "namespace": "default"}, "spec": spec})
}

fn translated(md: &Value, version: &str) -> Result<Translation, Refusal> {
    translate(&Dynamo::default(), md, version, None)
}

#[test]
fn no_field_is_dropped() -> Result<(), String> {
    for version in VERSIONS {
        fields::check(&BASES.map(|which| (which, base(which))), |md| {
            let translation = translated(md, version)?;
            assert_model_is_named(&document(&translation));
            Ok(translation)
        })?;
    }
    Ok(())
}

fn assert_model_is_named(document: &Value) {
    for (name, args) in workers(document) {
        let at = args.iter().position(|arg| arg == "--model" || arg == "--model-path");
        let value = at.and_then(|at| args.get(at + 1));
        assert!(
            value.is_some_and(|value| !value.is_empty() && !value.starts_with("--")),
            "{name}: {args:?}"
        );
        assert!(args.iter().all(|arg| !arg.is_empty()));
    }
}

proptest! {
    #[test]
    fn absent_and_zero_stay_different(
        version in proptest::sample::select(VERSIONS.to_vec()),
        replicas in proptest::option::of(0_i32..4),
        frontends in proptest::option::of(1_i32..4),
        memory in proptest::option::of(Just("0")),
        context in proptest::option::of(1_i32..9),
    ) {
        let mut md = base("vllm");
        for (field, value) in [
            ("scaling.replicas", json!(replicas)),
            ("provider.overrides.frontend.replicas", json!(frontends)),
            ("resources.memory", json!(memory)),
            ("engine.contextLength", json!(context)),
        ] {
            if !value.is_null() {
                fields::put(&mut md["spec"], field, value);
            }
        }
        let translation = translated(&md, version).unwrap();
        prop_assert_eq!(translation.replicas, replicas.unwrap_or(1));
        let document = document(&translation);
        let component = |name: &str| {
            let list = document["spec"]["components"].as_array();
            list.map_or_else(|| document["spec"]["services"][name].clone(), |list| list.iter().find(|c| c["name"] == name).unwrap().clone())
        };
        prop_assert_eq!(&component("VllmWorker")["replicas"], &json!(replicas.unwrap_or(1)));
        prop_assert_eq!(&component("Frontend")["replicas"], &json!(frontends.unwrap_or(1)));
        let worker = component("VllmWorker");
        let resources = if version == "v1beta1" { &worker["podTemplate"]["spec"]["containers"][0]["resources"] } else { &worker["resources"] };
        prop_assert_eq!(&resources["limits"]["memory"], &json!(memory));
        prop_assert_eq!(args(&document, "VllmWorker").contains(&"--max-model-len".to_owned()), context.is_some());
        prop_assert!(!holds_null(&document), "{}", document);
    }
}

/// Names and arguments of the workers.
fn workers(document: &Value) -> Vec<(String, Vec<String>)> {
    let services = document["spec"]["services"].as_object().into_iter().flatten();
    let components = document["spec"]["components"].as_array().into_iter().flatten();
    let names: Vec<String> = services
        .map(|(name, _)| name.clone())
        .chain(components.map(|c| c["name"].as_str().unwrap().to_owned()))
        .collect();
    let workers = names.into_iter().filter(|name| name != "Frontend");
    workers.map(|name| (name.clone(), args(document, &name))).collect()
}
