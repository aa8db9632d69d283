//! Invariants for every spec.

use proptest::prelude::*;
use runway_operator::quantity;
use runway_provider::conformance::fields::{self, Setting, documents, seen};
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

fn settings() -> Vec<Setting> {
    let set = Setting::new;
    let mut all = vec![
        set("model.id", json!("Org/Marked-Id"), &["Org/Marked-Id"]),
        set(
            "model.servedName",
            json!("marked-name"),
            &["marked-name", "model.servedName is ignored"],
        ),
        set(
            "engine.contextLength",
            json!(31337),
            &["31337", "engine.contextLength is ignored"],
        ),
        set(
            "engine.trustRemoteCode",
            json!(true),
            &[
                "trust-remote-code",
                "trust_remote_code",
                "engine.trustRemoteCode is ignored",
            ],
        ),
        set("engine.args", json!({"marked-flag": "marked-value"}), &["marked-value"]),
        set("scaling.replicas", json!(7), &["\"replicas\":7"]),
        set("resources.gpu.count", json!(6), &["\"nvidia.com/gpu\":\"6\""]),
        set("resources.gpu.type", json!("marked.com/gpu"), &["marked.com/gpu"]),
        set("resources.memory", json!("31Gi"), &["31Gi"]),
        set("resources.cpu", json!("29"), &["\"29\""]),
        set("image", json!("image:marked"), &["image:marked"]),
        set(
            "env",
            json!([{"name": "MARKED", "valueFrom": {"secretKeyRef": {"name": "marked-secret", "key": "k"}}}]),
            &["marked-secret"],
        ),
        set(
            "tolerations",
            json!([{"key": "marked-taint", "operator": "Exists"}]),
            &["marked-taint"],
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

    /// Applied objects equal what the server stores: no empty values, and canonical quantities.
    #[test]
    fn objects_compare_equal_with_what_the_server_stores(
        (md, _) in any_md(),
        memory in "(0\\.5|1024|1536)(Mi|Gi|M)",
        cpu in "(0\\.5|1000m|1\\.5|2)",
    ) {
        let mut md = md;
        for (field, value) in [("resources.memory", json!(memory)), ("resources.cpu", json!(cpu))] {
            Setting::new(field, value, &[]).apply(&mut md);
        }
        let Ok(translation) = translate(&md) else { return Ok(()) };
        for document in documents(&translation) {
            prop_assert!(!holds_nothing(&document), "{}", document);
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
