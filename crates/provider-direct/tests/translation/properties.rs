//! Invariants for every spec.

use proptest::prelude::*;
use runway_operator::quantity;
use runway_provider::conformance::fields::{self, documents};
use serde_json::{Value, json};

use crate::translate;

/// Base spec.
const BASES: [&str; 8] = [
    "llamacpp",
    "llamacpp on gpus",
    "llamacpp custom",
    "vllm",
    "vllm custom",
    "sglang",
    "trtllm",
    "trtllm custom",
];

fn base(which: &str) -> Value {
    let engine = which.split(' ').next().unwrap();
    let mut spec = json!({"model": {"id": "Org/Base"}, "engine": {"type": engine}});
    if which.ends_with("custom") {
        spec["model"] = json!({"source": "custom"});
        spec["image"] = json!("image:base");
    }
    if engine != "llamacpp" || which.ends_with("gpus") {
        spec["resources"] = json!({"gpu": {"count": 1}});
    }
    json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "md", "namespace": "default"}, "spec": spec})
}

#[test]
fn no_field_is_dropped() -> Result<(), String> {
    fields::check(&BASES.map(|which| (which, base(which))), |md| {
        let translation = translate(md)?;
        for document in documents(&translation) {
            assert!(!holds_nothing(&document), "{document}");
        }
        Ok(translation)
    })
}

proptest! {
    #[test]
    fn absent_and_zero_stay_different(
        replicas in proptest::option::of(0_i32..4),
        gpus in proptest::option::of(0_i32..4),
        memory in proptest::option::of(Just("0")),
        context in proptest::option::of(1_i32..9),
    ) {
        let mut md = base("llamacpp");
        let fields = [
            ("scaling.replicas", json!(replicas)),
            ("resources.gpu.count", json!(gpus)),
            ("resources.memory", json!(memory)),
            ("engine.contextLength", json!(context)),
        ];
        for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
            fields::put(&mut md["spec"], field, value);
        }
        let translation = translate(&md).unwrap();
        let spec = &translation.objects.last().unwrap().body["spec"];
        prop_assert_eq!(translation.replicas, replicas.unwrap_or(1));
        prop_assert_eq!(&spec["replicas"], &json!(replicas.unwrap_or(1)));
        let container = &spec["template"]["spec"]["containers"][0];
        let limit = gpus.filter(|n| *n > 0).map(|n| n.to_string());
        prop_assert_eq!(&container["resources"]["limits"]["nvidia.com/gpu"], &json!(limit));
        prop_assert_eq!(&container["resources"]["limits"]["memory"], &json!(memory));
        prop_assert_eq!(&container["resources"]["requests"]["memory"], &json!(memory));
        prop_assert_eq!(container["args"].as_array().unwrap().contains(&json!("--ctx-size")), context.is_some());
    }

    /// As the server stores them.
    #[test]
    fn quantities_are_canonical(
        which in proptest::sample::select(BASES.to_vec()),
        memory in "(0\\.5|1024|1536)(Mi|Gi|M)",
        cpu in "(0\\.5|1000m|1\\.5|2)",
    ) {
        let mut md = base(which);
        for (field, value) in [("resources.memory", json!(memory)), ("resources.cpu", json!(cpu))] {
            fields::put(&mut md["spec"], field, value);
        }
        let Ok(translation) = translate(&md) else { return Ok(()) };
        for document in documents(&translation) {
            let resources = &document["spec"]["template"]["spec"]["containers"][0]["resources"];
            for amounts in [&resources["requests"], &resources["limits"]] {
                for amount in amounts.as_object().into_iter().flat_map(|all| all.values()) {
                    prop_assert_eq!(amount.as_str().unwrap(), quantity::canonical(amount.as_str().unwrap()));
                }
            }
        }
    }
}

/// Whether it contains null or empty values; an `emptyDir` is an empty object.
fn holds_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(entries) => entries.is_empty() || entries.iter().any(holds_nothing),
        Value::Object(fields) => {
            fields.is_empty()
                || fields
                    .iter()
                    .any(|(name, inner)| name != "emptyDir" && holds_nothing(inner))
        }
        _ => false,
    }
}
