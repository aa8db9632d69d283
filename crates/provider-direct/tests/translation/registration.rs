//! The registration with its rules, as the core controller evaluates them.

use cel::{Context, Program};
use runway_provider::Provider;
use runway_provider_direct::Direct;
use serde_json::json;

use crate::translate;

#[test]
fn it_comes_after_every_provider_without_rules() {
    let rules = Direct::default().registration().selection_rules;
    let [only] = rules.as_slice() else {
        panic!("{rules:?}");
    };
    assert!(only.priority < 0, "a provider without a rule that holds has priority 0");
    assert!(holds(&only.condition, "md"));
}

#[test]
fn llamacpp_needs_no_gpus_and_the_others_do() {
    let capabilities = Direct::default().registration().capabilities;
    let support = |engine| capabilities.for_engine(engine).map(|s| (s.cpu, s.gpu));
    assert_eq!(support("llamacpp"), Some((true, true)));
    for engine in ["vllm", "sglang", "trtllm"] {
        assert_eq!(support(engine), Some((false, true)), "{engine}");
    }
    assert_eq!(support("mystery"), None);
}

/// At admission by the rules, and by the provider for a ModelDeployment that was validated before it registered.
#[test]
fn invalid_service_names_are_refused_at_admission_and_reconcile() {
    let (long, longest) = ("a".repeat(64), "a".repeat(63));
    for (name, refused_for) in [
        ("llama-8b", None),
        ("a", None),
        (longest.as_str(), None),
        ("llama-3.1-8b", Some("no dots")),
        ("7b-chat", Some("begin with a letter")),
        ("chat-", Some("begin with a letter")),
        (long.as_str(), Some("at most 63 characters")),
    ] {
        let rules = Direct::default().registration().validation_rules;
        let broken = rules
            .into_iter()
            .find(|rule| !holds(&rule.rule, name))
            .map(|rule| rule.message);
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"model": {"id": "Org/Model"}, "engine": {"type": "llamacpp"}},
        });
        let refused = translate(&md).err().map(|refusal| refusal.message);
        assert_eq!(broken, refused, "{name}");
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
