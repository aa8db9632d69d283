//! The registration with its rules, as the core controller evaluates them.

use cel::{Context, Program};
use runway_provider::Provider;
use runway_provider_kaito::Kaito;
use serde_json::json;

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
        let refused = Kaito::default().translate(&request(&md), &installed(&[])).err();
        assert_eq!(broken, refused.map(|refusal| refusal.message), "{name}");
        match (refused_for, &broken) {
            (None, None) => {}
            (Some(text), Some(message)) => assert!(message.contains(text), "{name}: {message}"),
            _ => panic!("{name}: {broken:?}"),
        }
    }
}

fn holds(rule: &str, name: &str) -> bool {
    let mut context = Context::default();
    context.add_variable("metadata", json!({"name": name})).unwrap();
    Program::compile(rule).unwrap().execute(&context).unwrap() == cel::Value::Bool(true)
}
