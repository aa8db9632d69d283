//! Invariants for every spec.

use proptest::prelude::*;
use runway_provider::conformance::fields::{self, Setting, holds_null, seen};
use runway_provider::{Provider, Refusal, Translation};
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

use crate::{crd, document, installed, request, serve_config};

/// Base spec.
const BASES: [&str; 4] = ["aggregated", "by image", "custom", "disaggregated"];

fn base(which: &str) -> Value {
    let part = json!({"gpu": {"count": 1}, "memory": "9Gi"});
    let spec = match which {
        "aggregated" => json!({"model": {"id": "Org/Base"}, "resources": {"gpu": {"count": 1}}}),
        "by image" => json!({"model": {"id": "Org/Base"}, "resources": {"gpu": {"count": 1}}, "image": "image:base"}),
        "custom" => {
            json!({"model": {"id": "/models/base", "source": "custom"}, "resources": {"gpu": {"count": 1}}, "image": "image:base"})
        }
        _ => {
            json!({"model": {"id": "Org/Base"}, "image": "image:base", "serving": {"mode": "disaggregated"}, "scaling": {"prefill": part, "decode": part}})
        }
    };
    let mut md = json!({"metadata": {"name": "md", "namespace": "default"}, "spec": spec});
    md["spec"]["engine"] = json!({"type": "vllm"});
    md
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
        set("engine.contextLength", json!(31337), &["max_model_len: 31337"]),
        set("engine.trustRemoteCode", json!(true), &["trust_remote_code: true"]),
        set(
            "engine.args",
            json!({"marked-flag": "marked-value"}),
            &["marked_flag: \\\"marked-value\\\""],
        ),
        set("scaling.replicas", json!(7), &["num_replicas: 7"]),
        set("scaling.prefill.replicas", json!(7), &["num_replicas: 7"]),
        set("scaling.prefill.gpu.count", json!(6), &["/gpu\":\"6\""]),
        set("scaling.prefill.gpu.type", json!("marked.com/gpu"), &["marked.com/gpu"]),
        set("scaling.prefill.memory", json!("31Gi"), &["31Gi"]),
        set("scaling.decode.replicas", json!(8), &["num_replicas: 8"]),
        set("scaling.decode.gpu.count", json!(4), &["/gpu\":\"4\""]),
        set("scaling.decode.gpu.type", json!("noted.com/gpu"), &["noted.com/gpu"]),
        set("scaling.decode.memory", json!("37Gi"), &["37Gi"]),
        set("resources.gpu.count", json!(6), &["/gpu\":\"6\""]),
        set("resources.gpu.type", json!("marked.com/gpu"), &["marked.com/gpu"]),
        set("resources.memory", json!("31Gi"), &["31Gi"]),
        set("resources.cpu", json!("29"), &["\"cpu\":\"29\""]),
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
        set(
            "provider.overrides",
            json!({"head": {"resources": {"cpu": "23"}, "rayStartParams": {"marked-param": "x"}}}),
            &["marked-param"],
        ),
    ];
    all.extend(fields::of_pods());
    all
}

/// Fields that decide which object is created, tested case by case; autoscaling is handled by the core.
const ELSEWHERE: [&str; 6] = [
    "model.source",
    "provider.name",
    "engine.type",
    "serving.mode",
    "scaling.autoscaling",
    "gateway",
];

fn translate(md: &Value) -> Result<Translation, Refusal> {
    KubeRay::default().translate(&request(md), &installed(0))
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
            if !setting.applies_to(&md) {
                continue;
            }
            setting.apply(&mut md);
            let outcome = seen(&translate(&md));
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
    (0..BASES.len(), some).prop_map(|(which, mut chosen)| {
        let mut md = base(BASES[which]);
        chosen.retain(|index| settings()[*index].applies_to(&md));
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
        for setting in chosen.into_iter().map(|index| settings().remove(index)) {
            let told = outcome.is_err() || setting.is_in(&text);
            prop_assert!(told, "{} is nowhere in {text}", setting.field);
        }
    }

    #[test]
    fn every_object_matches_the_crd((md, _) in any_md()) {
        if let Ok(translation) = translate(&md) {
            prop_assert_eq!(crd::problems(&document(&translation)), Vec::<String>::new());
            prop_assert!(serve_config(&document(&translation)).is_object());
        }
    }

    #[test]
    fn the_same_spec_gives_the_same_object((md, _) in any_md()) {
        let shuffled: Value = serde_json::from_str(&md.to_string()).unwrap();
        prop_assert_eq!(translate(&md), translate(&shuffled));
    }

    #[test]
    fn absent_and_zero_stay_different(
        replicas in proptest::option::of(0_i32..4),
        gpus in proptest::option::of(0_i32..4),
        memory in proptest::option::of(Just("0")),
        cpu in proptest::option::of(Just("0")),
        context in proptest::option::of(1_i32..9),
    ) {
        let mut md = base("aggregated");
        md["spec"]["resources"] = json!({});
        let fields = [
            ("scaling.replicas", json!(replicas)),
            ("resources.gpu.count", json!(gpus)),
            ("resources.memory", json!(memory)),
            ("resources.cpu", json!(cpu)),
            ("engine.contextLength", json!(context)),
        ];
        for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_null()) {
            Setting::new(field, value, &[]).apply(&mut md);
        }
        let outcome = translate(&md);
        let Some(gpus) = gpus.filter(|n| *n > 0) else {
            prop_assert_eq!(outcome.unwrap_err().message, "KubeRay requires GPU (set resources.gpu.count > 0)");
            return Ok(());
        };
        let translation = outcome.unwrap();
        let object = document(&translation);
        prop_assert_eq!(translation.replicas, replicas.unwrap_or(1));
        prop_assert_eq!(object["spec"]["suspend"] == true, replicas == Some(0));
        let group = &object["spec"]["rayClusterConfig"]["workerGroupSpecs"][0];
        prop_assert_eq!(&group["replicas"], &json!(replicas.unwrap_or(1)));
        prop_assert_eq!(&group["rayStartParams"]["num-gpus"], &json!(gpus.to_string()));
        let resources = &group["template"]["spec"]["containers"][0]["resources"];
        prop_assert_eq!(&resources["limits"]["nvidia.com/gpu"], &json!(gpus.to_string()));
        prop_assert_eq!(&resources["requests"]["memory"], &json!(memory.unwrap_or("32Gi")));
        prop_assert_eq!(&resources["requests"]["cpu"], &json!(cpu));
        let config = serve_config(&object);
        let arguments = &config["applications"][0]["args"]["llm_configs"][0]["engine_kwargs"];
        prop_assert_eq!(&arguments["max_model_len"], &json!(context));
        prop_assert_eq!(&arguments["tensor_parallel_size"], &json!(gpus));
        prop_assert!(arguments.get("trust_remote_code").is_none());
        prop_assert!(!holds_null(&object), "{object}");
    }
}
