//! The registration with its rules, as the core controller evaluates them.

use cel::{Context, Program};
use runway_provider::Provider;
use runway_provider_kaito::Kaito;
use serde_json::{Value, json};

use crate::{installed, request};

#[test]
fn the_selection_rules_are_the_designs() {
    let rules: Vec<_> = Kaito::default()
        .registration()
        .selection_rules
        .into_iter()
        .map(|r| (r.condition, r.priority))
        .collect();
    assert_eq!(
        rules,
        [
            (
                "!has(spec.resources.gpu) || spec.resources.gpu.count == 0".to_owned(),
                100
            ),
            ("spec.engine.type == 'llamacpp'".to_owned(), 100),
        ]
    );
}

#[test]
fn vllm_needs_gpus_and_llamacpp_does_not() {
    let capabilities = Kaito::default().registration().capabilities;
    let support = |engine| capabilities.for_engine(engine).map(|s| (s.cpu, s.gpu));
    assert_eq!(support("vllm"), Some((false, true)));
    assert_eq!(support("llamacpp"), Some((true, true)));
    assert_eq!(support("sglang"), None);
}

/// At admission by the rules, and by the provider for a ModelDeployment that it got from another selector.
#[test]
fn unsupported_names_are_refused_at_admission_and_reconcile() {
    let long = "a".repeat(53);
    for (name, refused_for) in [
        ("llama-8b", None),
        ("a", None),
        ("llama-3.1-8b", Some("no dots")),
        ("7b-chat", Some("begin with a letter")),
        (long.as_str(), Some("at most 52 characters")),
    ] {
        let broken = Kaito::default()
            .registration()
            .validation_rules
            .into_iter()
            .find(|rule| !holds(&rule.rule, name))
            .map(|rule| rule.message);
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"model": {"id": "Org/Model"}, "engine": {"type": "vllm"}, "resources": {"gpu": {"count": 1}}},
        });
        let refused = Kaito::default().translate(&request(&md), &installed(&[], &[])).err();
        assert_eq!(broken, refused.map(|refusal| refusal.message), "{name}");
        match (refused_for, &broken) {
            (None, None) => {}
            (Some(text), Some(message)) => assert!(message.contains(text), "{name}: {message}"),
            _ => panic!("{name}: {broken:?}"),
        }
    }
}

/// KAITO must not be selected for what it refuses afterwards.
#[test]
fn fields_that_presets_do_not_support_are_refused_at_admission_and_reconcile() {
    let env = json!([{"name": "HF_ENDPOINT", "value": "https://mirror.example"}]);
    let tolerations = json!([{"key": "spot", "operator": "Exists"}]);
    let image = "vllm/vllm-openai:v0.11.0";
    for (engine, spec, refused_for) in [
        ("vllm", json!({}), None),
        ("vllm", json!({"env": env}), Some("spec.env")),
        ("vllm", json!({"env": env, "image": ""}), Some("spec.env")),
        ("vllm", json!({"env": env, "image": image}), None),
        ("vllm", json!({"tolerations": tolerations}), Some("spec.tolerations")),
        ("vllm", json!({"tolerations": tolerations, "image": image}), None),
        (
            "vllm",
            json!({"resources": {"gpu": {"count": 1, "type": "amd.com/gpu"}}}),
            Some("resources.gpu.type"),
        ),
        (
            "vllm",
            json!({"imagePullSecrets": [{"name": "registry"}]}),
            Some("spec.imagePullSecrets"),
        ),
        (
            "vllm",
            json!({"imagePullSecrets": [{"name": "registry"}], "image": image}),
            None,
        ),
        (
            "vllm",
            json!({"serviceAccountName": "models"}),
            Some("spec.serviceAccountName"),
        ),
        (
            "vllm",
            json!({"podTemplate": {"spec": {"shmSize": "8Gi"}}}),
            Some("podTemplate.spec"),
        ),
        (
            "llamacpp",
            json!({"env": env, "tolerations": tolerations, "image": "runner:1"}),
            None,
        ),
        (
            "llamacpp",
            json!({}),
            Some("llamacpp engine requires spec.image to be set"),
        ),
        (
            "llamacpp",
            json!({"image": ""}),
            Some("llamacpp engine requires spec.image to be set"),
        ),
    ] {
        let mut whole = normalized(engine);
        whole["model"]["id"] = json!("Org/Model");
        whole["resources"] = json!({"gpu": {"count": 1, "type": "nvidia.com/gpu"}});
        for (field, value) in spec.as_object().unwrap() {
            whole[field] = value.clone();
        }
        let broken = Kaito::default()
            .registration()
            .validation_rules
            .into_iter()
            .find(|rule| !holds_for(&rule.rule, &whole, "llama-8b"))
            .map(|rule| rule.message);
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "llama-8b", "namespace": "default"}, "spec": whole,
        });
        let refused = Kaito::default().translate(&request(&md), &installed(&[], &[])).err();
        let refused = refused.map(|refusal| refusal.message);
        for found in [&broken, &refused] {
            match (refused_for, found) {
                (None, None) => {}
                (Some(field), Some(message)) => assert!(message.contains(field), "{spec}: {message}"),
                _ => panic!("{spec}: {broken:?}, {refused:?}"),
            }
        }
    }
}

fn holds(rule: &str, name: &str) -> bool {
    holds_for(rule, &normalized("vllm"), name)
}

/// A spec as rules see it.
fn normalized(engine: &str) -> Value {
    json!({
        "model": {"storage": {"volumes": []}}, "engine": {"type": engine}, "env": [], "tolerations": [], "imagePullSecrets": [],
        "podTemplate": {"spec": {}}, "resources": {},
    })
}

fn holds_for(rule: &str, spec: &Value, name: &str) -> bool {
    let mut context = Context::default();
    context.add_variable("spec", spec).unwrap();
    context.add_variable("metadata", json!({"name": name})).unwrap();
    Program::compile(rule).unwrap().execute(&context).unwrap() == cel::Value::Bool(true)
}
