//! Invariants for every spec.

use proptest::prelude::*;
use runway_provider::conformance::fields::{self, Setting, holds_null, seen};
use runway_provider::{Refusal, Translation};
use runway_provider_dynamo::Dynamo;
use serde_json::{Value, json};

use crate::{VERSIONS, args, document, translate};

/// Base spec.
const BASES: [&str; 9] = [
    "vllm",
    "sglang",
    "trtllm",
    "vllm in parts",
    "sglang in parts",
    "trtllm in parts",
    "custom",
    "custom in parts",
    "custom in args",
];

fn base(which: &str) -> Value {
    let engine = ["vllm", "sglang", "trtllm"]
        .into_iter()
        .find(|e| which.starts_with(e))
        .unwrap_or("vllm");
    let mut spec = json!({"model": {"id": "Org/Base"}, "engine": {"type": engine}});
    if which.starts_with("custom") {
        spec["model"] = json!({"source": "custom"});
        spec["image"] = json!("image:1.3.1");
    }
    if which.ends_with("args") {
        spec["engine"]["args"] = json!({"model": "/models/base"});
    }
    if which.ends_with("parts") {
        spec["serving"] = json!({"mode": "disaggregated"});
        spec["scaling"] = json!({"prefill": {"gpu": {"count": 1}}, "decode": {"gpu": {"count": 1}}});
    } else {
        spec["resources"] = json!({"gpu": {"count": 1}});
    }
    json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {"name": "md", "namespace": "default"}, "spec": spec})
}

fn settings() -> Vec<Setting> {
    let set = Setting::new;
    let mut settings = vec![
        set("model.id", json!("Org/Marked-Id"), &["Org/Marked-Id"]),
        set(
            "model.servedName",
            json!("marked-name"),
            &["marked-name", "model.servedName is ignored"],
        ),
        set(
            "engine.contextLength",
            json!(31337),
            &["\"31337\"", "engine.contextLength is ignored"],
        ),
        set(
            "engine.trustRemoteCode",
            json!(true),
            &["trust-remote-code", "engine.trustRemoteCode is ignored"],
        ),
        set("engine.args", json!({"marked-flag": "marked-value"}), &["marked-value"]),
        set("image", json!("image:1.2.9"), &["image:1.2.9"]),
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
            json!({"routerMode": "kv", "frontend": {"replicas": 9, "resources": {"cpu": "7", "memory": "77Gi"}}}),
            &["77Gi"],
        ),
        set("resources.cpu", json!("29"), &["\"29\""]),
        set("scaling.replicas", json!(7), &["\"replicas\":7"]),
        set("resources.gpu.count", json!(6), &["\"6\""]),
        set("resources.gpu.type", json!("marked.com/gpu"), &["marked.com/gpu"]),
        set("resources.memory", json!("31Gi"), &["31Gi"]),
        set(
            "scaling.prefill",
            json!({"replicas": 8, "gpu": {"count": 1}, "memory": "33Gi"}),
            &["33Gi"],
        ),
        set(
            "scaling.decode",
            json!({"replicas": 0, "gpu": {"count": 5, "type": "decode.com/gpu"}}),
            &["decode.com/gpu"],
        ),
    ];
    settings.extend(fields::of_pods());
    settings
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

fn translated(md: &Value, version: &str) -> Result<Translation, Refusal> {
    translate(&Dynamo::default(), md, version, None)
}

#[test]
fn every_field_of_the_spec_is_tried() {
    let tried = fields::tried(&settings(), &ELSEWHERE);
    assert_eq!(fields::of_spec(&tried), tried);
}

#[test]
fn every_field_is_used_or_reported_as_ignored() {
    for which in BASES {
        for version in VERSIONS {
            for setting in settings() {
                let mut md = base(which);
                if !setting.applies_to(&md) {
                    continue;
                }
                setting.apply(&mut md);
                let text = seen(&translated(&md, version));
                assert!(
                    setting.is_in(&text),
                    "{which} {version}: {} is nowhere in {text}",
                    setting.field
                );
            }
        }
    }
}

fn any_md() -> impl Strategy<Value = (Value, Vec<usize>, &'static str)> {
    let some = proptest::sample::subsequence((0..settings().len()).collect::<Vec<_>>(), 0..=settings().len());
    let version = proptest::sample::select(VERSIONS.to_vec());
    (0..BASES.len(), some, version).prop_map(|(which, chosen, version)| {
        let mut md = base(BASES[which]);
        let all = settings();
        let chosen: Vec<usize> = chosen.into_iter().filter(|index| all[*index].applies_to(&md)).collect();
        for index in &chosen {
            all[*index].apply(&mut md);
        }
        (md, chosen, version)
    })
}

proptest! {
    #[test]
    fn settings_do_not_drop_each_other((md, chosen, version) in any_md()) {
        let outcome = translated(&md, version);
        prop_assert!(outcome.is_ok(), "{outcome:?}");
        let text = seen(&outcome);
        for setting in chosen.into_iter().map(|index| settings().remove(index)) {
            let told = setting.is_in(&text);
            prop_assert!(told, "{} is nowhere in {text}", setting.field);
        }
    }

    #[test]
    fn the_same_spec_gives_the_same_object((md, _, version) in any_md()) {
        let shuffled: Value = serde_json::from_str(&md.to_string()).unwrap();
        prop_assert_eq!(translated(&md, version), translated(&shuffled, version));
    }

    #[test]
    fn the_model_is_named_or_not_at_all((md, _, version) in any_md()) {
        let document = document(&translated(&md, version).unwrap());
        for (name, args) in workers(&document) {
            let at = args.iter().position(|arg| arg == "--model" || arg == "--model-path");
            prop_assert!(at.is_some() || md["spec"]["model"]["source"] == "custom");
            if let Some(value) = at.map(|at| &args[at + 1]) {
                prop_assert!(!value.is_empty() && !value.starts_with("--"), "{name}: {args:?}");
            }
            prop_assert!(args.iter().all(|arg| !arg.is_empty()));
        }
    }

    #[test]
    fn absent_and_zero_stay_different(
        version in proptest::sample::select(VERSIONS.to_vec()),
        replicas in proptest::option::of(0_i32..4),
        frontends in proptest::option::of(1_i32..4),
        memory in proptest::option::of(Just("0")),
        context in proptest::option::of(1_i32..9),
    ) {
        let mut md = base("vllm");
        for (field, value) in [
            ("scaling.replicas", json!(replicas)),
            ("provider.overrides.frontend.replicas", json!(frontends)),
            ("resources.memory", json!(memory)),
            ("engine.contextLength", json!(context)),
        ] {
            if !value.is_null() {
                Setting::new(field, value, &[]).apply(&mut md);
            }
        }
        let translation = translated(&md, version).unwrap();
        prop_assert_eq!(translation.replicas, replicas.unwrap_or(1));
        let document = document(&translation);
        let component = |name: &str| {
            let list = document["spec"]["components"].as_array();
            list.map_or_else(|| document["spec"]["services"][name].clone(), |list| list.iter().find(|c| c["name"] == name).unwrap().clone())
        };
        prop_assert_eq!(&component("VllmWorker")["replicas"], &json!(replicas.unwrap_or(1)));
        prop_assert_eq!(&component("Frontend")["replicas"], &json!(frontends.unwrap_or(1)));
        let worker = component("VllmWorker");
        let resources = if version == "v1beta1" { &worker["podTemplate"]["spec"]["containers"][0]["resources"] } else { &worker["resources"] };
        prop_assert_eq!(&resources["limits"]["memory"], &json!(memory));
        prop_assert_eq!(args(&document, "VllmWorker").contains(&"--max-model-len".to_owned()), context.is_some());
        prop_assert!(!holds_null(&document), "{}", document);
    }
}

/// Names and arguments of the workers.
fn workers(document: &Value) -> Vec<(String, Vec<String>)> {
    let services = document["spec"]["services"].as_object().into_iter().flatten();
    let components = document["spec"]["components"].as_array().into_iter().flatten();
    let names: Vec<String> = services
        .map(|(name, _)| name.clone())
        .chain(components.map(|c| c["name"].as_str().unwrap().to_owned()))
        .collect();
    let workers = names.into_iter().filter(|name| name != "Frontend");
    workers.map(|name| (name.clone(), args(document, &name))).collect()
}
