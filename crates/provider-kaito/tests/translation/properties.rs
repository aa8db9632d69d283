//! Invariants for every spec.

use proptest::prelude::*;
use runway_provider::conformance::fields::{self, holds_null};
use runway_provider::{Provider, Refusal, Translation};
use runway_provider_kaito::{INFERENCE_SET, Kaito};
use serde_json::{Value, json};

use crate::{installed, request};

/// Base spec.
const BASES: [&str; 5] = ["preset", "vllm by image", "llamacpp", "llamacpp on gpus", "custom"];

fn base(which: &str) -> Value {
    let (id, engine, image, gpus) = match which {
        "preset" => (Some("Org/Base"), "vllm", None, 1),
        "vllm by image" => (Some("Org/Base"), "vllm", Some("image:base"), 1),
        "llamacpp" => (Some("Org/Base"), "llamacpp", Some("image:base"), 0),
        "llamacpp on gpus" => (Some("Org/Base"), "llamacpp", Some("image:base"), 1),
        _ => (None, "llamacpp", Some("image:base"), 0),
    };
    let mut spec = json!({"model": {}, "engine": {"type": engine}});
    match id {
        Some(id) => spec["model"]["id"] = json!(id),
        None => spec["model"]["source"] = json!("custom"),
    }
    if let Some(image) = image {
        spec["image"] = json!(image);
    }
    if gpus > 0 {
        spec["resources"] = json!({"gpu": {"count": gpus}});
    }
    json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "md", "namespace": "default"}, "spec": spec})
}

fn translate(md: &Value) -> Result<Translation, Refusal> {
    Kaito::default().translate(&request(md), &installed(&[], &[]))
}

#[test]
fn no_field_is_dropped() -> Result<(), String> {
    fields::check(&BASES.map(|which| (which, base(which))), translate)
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
        let main = translation.objects.last().unwrap();
        prop_assert_eq!(translation.replicas, replicas.unwrap_or(1));
        prop_assert_eq!(main.kind, INFERENCE_SET);
        prop_assert_eq!(&main.body["spec"]["replicas"], &json!(replicas.unwrap_or(1)));
        let inference = &main.body["spec"]["template"]["inference"];
        let container = &inference["template"]["spec"]["containers"][0];
        let limit = gpus.filter(|n| *n > 0).map(|n| n.to_string());
        prop_assert_eq!(&container["resources"]["limits"]["nvidia.com/gpu"], &json!(limit));
        prop_assert_eq!(&container["resources"]["requests"]["memory"], &json!(memory));
        prop_assert_eq!(container["args"].as_array().unwrap().contains(&json!("--context-size")), context.is_some());
        prop_assert!(!holds_null(&main.body), "{}", main.body);
    }
}

/// `--KEY` and Python's `str(value)` for every entry of the section, as KAITO's server builds them.
#[test]
fn kaito_reads_the_flags_as_they_were_given() {
    let args = [
        ("max-num-seqs", "064"),
        ("quantization", "awq"),
        ("n", "null"),
        ("rate", "1e3"),
        ("size", "4"),
        ("share", "0.90"),
        ("bare", ""),
    ];
    let mut md = base("preset");
    md["spec"]["engine"]["args"] = args
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    let translation = translate(&md).unwrap();
    let file = translation.objects[0].body["data"]["inference_config.yaml"]
        .as_str()
        .unwrap();
    let read: Value = serde_saphyr::from_str(file).unwrap();
    let section = read["vllm"].as_object().unwrap();
    assert_eq!(section.len(), args.len());
    for (key, value) in args {
        let printed = match &section[key] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => panic!("{key}: {other}"),
        };
        let expected = if value.is_empty() {
            format!("--{key}")
        } else {
            value.to_owned()
        };
        assert_eq!(printed, expected, "{key}");
    }
}
