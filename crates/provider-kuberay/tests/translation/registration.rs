//! The registration with its rules, as the core controller evaluates them.

use cel::{Context, Program};
use runway_api::model_deployment::ServingMode;
use runway_api::overrides;
use runway_api::provider_config::SelectionPolicy;
use runway_provider::Provider;
use runway_provider_kuberay::KubeRay;
use serde_json::json;

use crate::{installed, request};

#[test]
fn kuberay_must_be_named() {
    let registration = KubeRay::default().registration();
    assert_eq!(registration.selection_policy, Some(SelectionPolicy::Explicit));
    assert!(registration.selection_rules.is_empty());
}

#[test]
fn it_serves_vllm_on_gpus_in_both_modes() {
    let capabilities = KubeRay::default().registration().capabilities;
    let vllm = capabilities.for_engine("vllm").unwrap();
    assert_eq!((vllm.cpu, vllm.gpu), (false, true));
    assert_eq!(
        vllm.serving_modes,
        [ServingMode::Aggregated, ServingMode::Disaggregated]
    );
    for engine in ["sglang", "trtllm", "llamacpp"] {
        assert!(capabilities.for_engine(engine).is_none(), "{engine}");
    }
}

/// At admission by the rules, and by the provider for a ModelDeployment that it got from another selector.
#[test]
fn unsupported_names_are_refused_at_admission_and_reconcile() {
    let (fits, long) = ("a".repeat(47), "a".repeat(48));
    for (name, refused_for) in [
        ("llama-8b", None),
        ("a", None),
        (fits.as_str(), None),
        ("llama-3.1-8b", Some("no dots")),
        ("7b-chat", Some("begin with a letter")),
        (long.as_str(), Some("at most 47 characters")),
    ] {
        let rules = KubeRay::default().registration().validation_rules;
        let broken = rules
            .into_iter()
            .find(|rule| !holds(&rule.rule, name))
            .map(|rule| rule.message);
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"model": {"id": "Org/Model"}, "engine": {"type": "vllm"}, "resources": {"gpu": {"count": 1}}},
        });
        let refused = KubeRay::default().translate(&request(&md), &installed(0)).err();
        assert_eq!(broken, refused.map(|refusal| refusal.message), "{name}");
        match (refused_for, &broken) {
            (None, None) => {}
            (Some(text), Some(message)) => {
                assert!(message.starts_with("metadata.name must"), "{name}: {message}");
                assert!(
                    message.contains(text) && message.contains("choose a"),
                    "{name}: {message}"
                );
            }
            _ => panic!("{name}: {broken:?}"),
        }
    }
}

fn holds(rule: &str, name: &str) -> bool {
    let mut context = Context::default();
    context.add_variable("metadata", json!({"name": name})).unwrap();
    Program::compile(rule).unwrap().execute(&context).unwrap() == cel::Value::Bool(true)
}

#[test]
fn overrides_are_those_of_the_design() {
    let documented = KubeRay::default().registration().overrides.unwrap();
    let reported = |given: serde_json::Value| -> Vec<String> {
        let findings = overrides::check(given.as_object().unwrap(), &documented);
        findings.iter().map(ToString::to_string).collect()
    };
    let example = json!({"head": {"resources": {"cpu": "4", "memory": "8Gi"}, "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"}}});
    assert_eq!(reported(example), Vec::<String>::new());
    let wrong = json!({"head": {"resources": {"cpu": 4}, "rayStartParams": {"num-cpus": 0}, "replicsa": 2}});
    let found = reported(wrong).join("\n");
    for text in [
        "spec.provider.overrides.head.resources.cpu must be a string, not a number",
        "spec.provider.overrides.head.rayStartParams.num-cpus must be a string, not a number",
        "spec.provider.overrides.head.replicsa is unknown and ignored",
    ] {
        assert!(found.contains(text), "{found}");
    }
}
