//! The registration with its rules, as the core controller evaluates them.

use cel::{Context, Program};
use runway_api::overrides;
use runway_provider::Provider;
use runway_provider_dynamo::Dynamo;
use serde_json::{Value, json};

use crate::{VERSIONS, translate};

#[test]
fn dynamo_is_the_default_for_gpus() {
    for (engine, mode, gpus, priority) in [
        ("trtllm", "aggregated", 1, 100),
        ("sglang", "aggregated", 1, 100),
        ("vllm", "aggregated", 1, 50),
        ("vllm", "disaggregated", 0, 90),
        ("sglang", "disaggregated", 0, 100),
        ("vllm", "aggregated", 0, 0),
        ("llamacpp", "aggregated", 4, 0),
    ] {
        // The core normalizes the spec: absent GPUs are 0, without an object.
        let resources = if gpus == 0 {
            json!({})
        } else {
            json!({"gpu": {"count": gpus}})
        };
        let spec = json!({"engine": {"type": engine}, "serving": {"mode": mode}, "resources": resources});
        let rules = Dynamo::default().registration().selection_rules;
        let met = rules
            .iter()
            .filter(|rule| holds(&rule.condition, &spec, &json!({})))
            .map(|rule| rule.priority);
        assert_eq!(met.max().unwrap_or(0), priority, "{engine} {mode} {gpus}");
    }
}

#[test]
fn all_engines_run_in_all_modes_on_gpus_alone() {
    let capabilities = Dynamo::default().registration().capabilities;
    for engine in ["vllm", "sglang", "trtllm"] {
        let support = capabilities.for_engine(engine).unwrap();
        assert_eq!(
            (support.cpu, support.gpu, support.serving_modes.len()),
            (false, true, 2)
        );
    }
    assert_eq!(capabilities.for_engine("llamacpp"), None);
}

/// At admission by the rules, and by the provider for a ModelDeployment that it got from another selector.
#[test]
fn unsupported_names_are_refused_at_admission_and_reconcile() {
    let name = |length: usize| "a".repeat(length);
    for (name, namespace, mode, refused_for) in [
        ("llama-8b".to_owned(), "default", "aggregated", None),
        ("a".to_owned(), "default", "disaggregated", None),
        ("llama-3.1-8b".to_owned(), "default", "aggregated", Some("have no dots")),
        (
            "7b-chat".to_owned(),
            "default",
            "aggregated",
            Some("begin with a letter"),
        ),
        (name(41), "default", "aggregated", None),
        (name(42), "default", "aggregated", Some("at most 41 characters")),
        (name(34), "default", "disaggregated", None),
        (name(35), "default", "disaggregated", Some("34 in disaggregated mode")),
        (name(30), &*name(32), "aggregated", None),
        (name(31), &*name(32), "aggregated", Some("62 characters together")),
    ] {
        let rules = Dynamo::default().registration().validation_rules;
        let gpu = json!({"gpu": {"count": 1}});
        let mut spec = json!({"model": {"id": "Org/Model"}, "engine": {"type": "vllm"}, "serving": {"mode": mode}});
        match mode {
            "aggregated" => spec["resources"] = gpu,
            _ => spec["scaling"] = json!({"prefill": gpu, "decode": gpu}),
        }
        let metadata = json!({"name": name, "namespace": namespace});
        let broken = rules
            .into_iter()
            .find(|rule| !holds(&rule.rule, &spec, &metadata))
            .map(|rule| rule.message);
        let md = json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": metadata, "spec": spec});
        for version in VERSIONS {
            let refused = translate(&Dynamo::default(), &md, version, None).err();
            assert_eq!(broken, refused.map(|refusal| refusal.message), "{name}");
        }
        match (refused_for, &broken) {
            (None, None) => {}
            (Some(text), Some(message)) => assert!(message.contains(text), "{name}: {message}"),
            _ => panic!("{name}: {broken:?}"),
        }
    }
}

fn holds(rule: &str, spec: &Value, metadata: &Value) -> bool {
    let mut context = Context::default();
    context.add_variable("spec", spec).unwrap();
    context.add_variable("metadata", metadata).unwrap();
    Program::compile(rule).unwrap().execute(&context).unwrap() == cel::Value::Bool(true)
}

#[test]
fn the_documented_overrides_are_registered() {
    let known = Dynamo::default().registration().overrides.unwrap();
    let findings = |given: Value| -> Vec<String> {
        let findings = overrides::check(given.as_object().unwrap(), &known);
        findings.iter().map(|f| format!("{} {f}", f.is_error())).collect()
    };
    let documented =
        json!({"routerMode": "kv", "frontend": {"replicas": 2, "resources": {"cpu": "4", "memory": "8Gi"}}});
    assert_eq!(findings(documented), Vec::<String>::new());
    let wrong =
        json!({"routerMode": 1, "frontend": {"replicas": "2", "replicsa": 2, "resources": {"cpu": 4, "gpu": 1}}});
    let found = findings(wrong);
    for expected in [
        "true spec.provider.overrides.routerMode must be a string, not a number",
        "true spec.provider.overrides.frontend.replicas must be a whole number, not a string",
        "false spec.provider.overrides.frontend.replicsa is unknown and ignored",
        "true spec.provider.overrides.frontend.resources.cpu must be a string, not a number",
        "false spec.provider.overrides.frontend.resources.gpu is unknown and ignored",
    ] {
        assert!(
            found.iter().any(|text| text.starts_with(expected)),
            "{expected}: {found:#?}"
        );
    }
    assert_eq!(found.len(), 5);
}
