//! Invariants for every spec.

use std::collections::BTreeSet;

use proptest::prelude::*;
use runway_provider::conformance::fields;
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

/// A field with a recognizable value, and how it is found in the result.
struct Setting {
    field: &'static str,
    value: Value,
    marks: &'static [&'static str],
    /// Modes in which it applies: aggregated, disaggregated, or both.
    parts: Option<bool>,
}

fn settings() -> Vec<Setting> {
    let everywhere = |field, value, marks| Setting {
        field,
        value,
        marks,
        parts: None,
    };
    let where_parts_are = |parts, field, value, marks| Setting {
        field,
        value,
        marks,
        parts: Some(parts),
    };
    let mut settings = vec![
        everywhere("model.id", json!("Org/Marked-Id"), &["Org/Marked-Id"]),
        everywhere(
            "model.servedName",
            json!("marked-name"),
            &["marked-name", "model.servedName is ignored"],
        ),
        everywhere(
            "engine.contextLength",
            json!(31337),
            &["\"31337\"", "engine.contextLength is ignored"],
        ),
        everywhere(
            "engine.trustRemoteCode",
            json!(true),
            &["trust-remote-code", "engine.trustRemoteCode is ignored"],
        ),
        everywhere("engine.args", json!({"marked-flag": "marked-value"}), &["marked-value"]),
        everywhere("image", json!("image:1.2.9"), &["image:1.2.9"]),
        everywhere(
            "env",
            json!([{"name": "MARKED", "valueFrom": {"secretKeyRef": {"name": "marked-secret", "key": "k"}}}]),
            &["marked-secret"],
        ),
        everywhere(
            "podTemplate.metadata.labels",
            json!({"marked-label": "x"}),
            &["marked-label"],
        ),
        everywhere(
            "podTemplate.metadata.annotations",
            json!({"marked-annotation": "x"}),
            &["marked-annotation"],
        ),
        everywhere("secrets.huggingFaceToken", json!("marked-token"), &["marked-token"]),
        everywhere("nodeSelector", json!({"marked-pool": "x"}), &["marked-pool"]),
        everywhere(
            "tolerations",
            json!([{"key": "marked-taint", "operator": "Exists"}]),
            &["marked-taint"],
        ),
        everywhere(
            "provider.overrides",
            json!({"routerMode": "kv", "frontend": {"replicas": 9, "resources": {"cpu": "7", "memory": "77Gi"}}}),
            &["77Gi"],
        ),
    ];
    settings.extend([
        where_parts_are(false, "resources.cpu", json!("29"), &["\"29\""]),
        where_parts_are(false, "scaling.replicas", json!(7), &["\"replicas\":7"]),
        where_parts_are(false, "resources.gpu.count", json!(6), &["\"6\""]),
        where_parts_are(
            false,
            "resources.gpu.type",
            json!("marked.com/gpu"),
            &["marked.com/gpu"],
        ),
        where_parts_are(false, "resources.memory", json!("31Gi"), &["31Gi"]),
        where_parts_are(
            true,
            "scaling.prefill",
            json!({"replicas": 8, "gpu": {"count": 1}, "memory": "33Gi"}),
            &["33Gi"],
        ),
        where_parts_are(
            true,
            "scaling.decode",
            json!({"replicas": 0, "gpu": {"count": 5, "type": "decode.com/gpu"}}),
            &["decode.com/gpu"],
        ),
    ]);
    settings.extend(
        fields::of_pods()
            .into_iter()
            .map(|(field, value, marks)| everywhere(field, value, marks)),
    );
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

impl Setting {
    fn applies(&self, md: &Value) -> bool {
        let in_parts = md["spec"]["serving"]["mode"] == "disaggregated";
        self.parts.is_none_or(|parts| parts == in_parts)
    }

    fn apply(&self, md: &mut Value) {
        let pointer = format!("/spec/{}", self.field.replace('.', "/"));
        let (parents, field) = pointer.rsplit_once('/').unwrap();
        let mut at = md;
        for step in parents.split('/').skip(1) {
            at = at.as_object_mut().unwrap().entry(step).or_insert_with(|| json!({}));
        }
        match (&mut at[field], &self.value) {
            // Arguments are added to those for the model.
            (Value::Object(given), Value::Object(more)) if field == "args" => given.extend(more.clone()),
            (place, value) => *place = value.clone(),
        }
    }
}

fn translated(md: &Value, version: &str) -> Result<Translation, Refusal> {
    translate(&Dynamo::default(), md, version)
}

/// The visible result: the object and the messages.
fn seen(outcome: &Result<Translation, Refusal>) -> String {
    match outcome {
        Ok(translation) => format!("{} {}", document(translation), translation.ignored.join("\n")),
        Err(refusal) => refusal.message.clone(),
    }
}

#[test]
fn every_field_of_the_spec_is_tried() {
    let tried: BTreeSet<String> = settings()
        .iter()
        .map(|s| s.field)
        .chain(ELSEWHERE)
        .map(str::to_owned)
        .collect();
    assert_eq!(fields::of_spec(&tried), tried);
}

#[test]
fn every_field_is_used_or_reported_as_ignored() {
    for which in BASES {
        for version in VERSIONS {
            for setting in settings() {
                let mut md = base(which);
                if !setting.applies(&md) {
                    continue;
                }
                setting.apply(&mut md);
                let text = seen(&translated(&md, version));
                assert!(
                    setting.marks.iter().any(|mark| text.contains(mark)),
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
        let chosen: Vec<usize> = chosen.into_iter().filter(|index| all[*index].applies(&md)).collect();
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
            let told = setting.marks.iter().any(|mark| text.contains(mark));
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
                Setting { field, value, marks: &[], parts: None }.apply(&mut md);
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

fn holds_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(entries) => entries.iter().any(holds_null),
        Value::Object(fields) => fields.values().any(holds_null),
        _ => false,
    }
}
