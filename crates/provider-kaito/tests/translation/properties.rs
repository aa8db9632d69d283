//! Invariants for every spec.

use proptest::prelude::*;
use runway_provider::conformance::fields::{self, Setting, holds_null, seen};
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

fn settings() -> Vec<Setting> {
    let set = Setting::new;
    let mut all = vec![
        set("model.id", json!("Org/Marked-Id"), &["Org/Marked-Id"]),
        set(
            "model.servedName",
            json!("marked-name"),
            &["marked-name", "model.servedName is ignored"],
        ),
        set("engine.contextLength", json!(31337), &["31337"]),
        set(
            "engine.trustRemoteCode",
            json!(true),
            &["trust-remote-code", "engine.trustRemoteCode is ignored"],
        ),
        set("engine.args", json!({"marked-flag": "marked-value"}), &["marked-value"]),
        set("scaling.replicas", json!(7), &["\"replicas\":7"]),
        set(
            "resources.gpu.count",
            json!(6),
            &["\"nvidia.com/gpu\":\"6\"", "resources.gpu.count: 6 is ignored"],
        ),
        set("resources.gpu.type", json!("marked.com/gpu"), &["marked.com/gpu"]),
        set("resources.memory", json!("31Gi"), &["31Gi"]),
        set(
            "resources.cpu",
            json!("29"),
            &["\"29\"", "resources.cpu: 29 is ignored"],
        ),
        set("image", json!("image:marked"), &["image:marked"]),
        set(
            "env",
            json!([{"name": "MARKED", "valueFrom": {"secretKeyRef": {"name": "marked-secret", "key": "k"}}}]),
            &["marked-secret", "spec.env"],
        ),
        set(
            "tolerations",
            json!([{"key": "marked-taint", "operator": "Exists"}]),
            &["marked-taint", "spec.tolerations"],
        ),
    ];
    all.extend(fields::of_pods());
    all
}

/// Fields that decide which objects are created, tested case by case; overrides and provider are handled by
/// the loop, autoscaling by the core.
const ELSEWHERE: [&str; 9] = [
    "model.source",
    "provider.name",
    "provider.overrides",
    "engine.type",
    "serving.mode",
    "scaling.prefill",
    "scaling.decode",
    "scaling.autoscaling",
    "gateway",
];

fn translate(md: &Value) -> Result<Translation, Refusal> {
    Kaito::default().translate(&request(md), &installed(&[], &[]))
}

#[test]
fn every_field_of_the_spec_is_tried() {
    let tried = fields::tried(&settings(), &ELSEWHERE);
    assert_eq!(fields::of_spec(&tried), tried);
}

#[test]
fn every_field_is_used_or_reported_as_ignored() {
    for which in BASES {
        for setting in settings() {
            let mut md = base(which);
            setting.apply(&mut md);
            let outcome = seen(&translate(&md));
            // A GPU type alone requests no GPU: there is no resource of that type.
            if setting.field == "resources.gpu.type" && !base(which)["spec"]["resources"].is_object() {
                continue;
            }
            assert!(
                setting.is_in(&outcome),
                "{which}: {} is nowhere in {outcome}",
                setting.field
            );
        }
    }
}

fn any_md() -> impl Strategy<Value = (Value, Vec<usize>)> {
    let some = proptest::sample::subsequence((0..settings().len()).collect::<Vec<_>>(), 0..=settings().len());
    (0..BASES.len(), some).prop_map(|(which, chosen)| {
        let mut md = base(BASES[which]);
        for index in &chosen {
            settings()[*index].apply(&mut md);
        }
        (md, chosen)
    })
}

proptest! {
    #[test]
    fn settings_do_not_drop_each_other((md, chosen) in any_md()) {
        let outcome = translate(&md);
        let text = seen(&outcome);
        let gpu = md["spec"]["resources"]["gpu"]["count"].is_number();
        for setting in chosen.into_iter().map(|index| settings().remove(index)) {
            let mut marks = setting.marks.to_vec();
            if setting.field == "resources.gpu.count" {
                marks.push("\"marked.com/gpu\":\"6\"");
            }
            let told = outcome.is_err() || marks.iter().any(|mark| text.contains(mark)) || (setting.field == "resources.gpu.type" && !gpu);
            prop_assert!(told, "{} is nowhere in {text}", setting.field);
        }
    }

    #[test]
    fn the_same_spec_gives_the_same_objects((md, _) in any_md()) {
        let shuffled: Value = serde_json::from_str(&md.to_string()).unwrap();
        prop_assert_eq!(translate(&md), translate(&shuffled));
    }

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
            Setting::new(field, value, &[]).apply(&mut md);
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
