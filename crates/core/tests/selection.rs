//! The decision table of the selection, with the providers' registrations.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

mod registered;

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use registered::{How, registered};
use runway_api::{InferenceProviderConfigSpec, ModelDeployment};
use runway_core::providers::Providers;
use runway_core::selection::{NoProvider, matched, select};
use runway_provider::Provider;
use runway_provider_direct::Direct;
use runway_provider_kaito::Kaito;
use serde_json::{Value, json};

use runway_golden::{ssa, yaml};

fn now() -> Timestamp {
    "2026-03-01T10:00:00Z".parse().unwrap()
}

fn shipped(name: &str) -> InferenceProviderConfigSpec {
    match name {
        "kaito" => Kaito::default().registration(),
        "direct" => Direct::default().registration(),
        other => yaml(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/providers/{other}.yaml"))),
    }
}

fn providers(names: &[&str]) -> Providers {
    let configs = names
        .iter()
        .map(|name| Arc::new(registered(name, shipped(name), How::Healthy, now())));
    let providers = Providers::compile(configs, &Providers::default());
    for (name, provider) in providers.iter() {
        assert_eq!(provider.problems, Vec::<String>::new(), "rules of {name}");
    }
    providers
}

/// A ModelDeployment with this engine; `patch` is merged into its spec.
fn asking(engine: &str, patch: &Value) -> ModelDeployment {
    let mut md = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": {"name": "llama", "namespace": "default"},
        "spec": {"model": {"id": "meta-llama/Llama-3.1-8B-Instruct"}, "engine": {"type": engine}},
    });
    if engine == "llamacpp" {
        md["spec"]["image"] = json!("llama-cpp:1");
    }
    ssa::patch(&mut md["spec"], patch);
    serde_json::from_value(md).unwrap()
}

fn gpus(count: i32) -> Value {
    json!({"resources": {"gpu": {"count": count}}})
}

fn disaggregated() -> Value {
    json!({"serving": {"mode": "disaggregated"}, "scaling": {
        "prefill": {"replicas": 1, "gpu": {"count": 4}}, "decode": {"replicas": 2, "gpu": {"count": 2}},
    }})
}

#[test]
fn the_decision_table() {
    const ALL: &[&str] = &["dynamo", "kaito", "kuberay"];
    let table = [
        // Three ways to request no GPU: only KAITO supports that.
        (
            "llamacpp",
            json!({}),
            "kaito",
            "engine=llamacpp, gpu=false, mode=aggregated",
        ),
        (
            "llamacpp",
            gpus(0),
            "kaito",
            "engine=llamacpp, gpu=false, mode=aggregated",
        ),
        (
            "llamacpp",
            json!({"resources": {"memory": "8Gi"}}),
            "kaito",
            "engine=llamacpp, gpu=false, mode=aggregated",
        ),
        // Engines that a single provider supports.
        ("trtllm", gpus(1), "dynamo", "engine=trtllm, gpu=true, mode=aggregated"),
        ("sglang", gpus(8), "dynamo", "engine=sglang, gpu=true, mode=aggregated"),
        (
            "llamacpp",
            gpus(1),
            "kaito",
            "engine=llamacpp, gpu=true, mode=aggregated",
        ),
        // Separate prefill and decode workers.
        (
            "vllm",
            disaggregated(),
            "dynamo",
            "engine=vllm, gpu=true, mode=disaggregated",
        ),
        (
            "trtllm",
            disaggregated(),
            "dynamo",
            "engine=trtllm, gpu=true, mode=disaggregated",
        ),
        // The default; also with several GPUs, for which a rule of KubeRay once won.
        ("vllm", gpus(1), "dynamo", "engine=vllm, gpu=true, mode=aggregated"),
        ("vllm", gpus(2), "dynamo", "engine=vllm, gpu=true, mode=aggregated"),
        ("vllm", gpus(8), "dynamo", "engine=vllm, gpu=true, mode=aggregated"),
    ];
    for (engine, patch, winner, why) in table {
        let md = asking(engine, &patch);
        let selected = select(&md, &providers(ALL), now());
        assert_eq!(selected.winner.as_deref(), Ok(winner), "{engine} {patch}");
        assert_eq!(matched(&md.spec), format!("matched capabilities: {why}"));
        assert_eq!(selected.candidates.len(), 3);
        let chosen: Vec<_> = selected
            .candidates
            .iter()
            .filter(|c| c.reason.starts_with("chosen"))
            .collect();
        assert_eq!((chosen.len(), chosen[0].name.as_str()), (1, winner), "{engine} {patch}");
    }
}

#[test]
fn selection_fails_without_a_provider_for_the_engine() {
    let table = [
        (
            "vllm",
            json!({}),
            "No provider supports engine=vllm, gpu=false, mode=aggregated: kaito does not run vllm without a GPU; \
             dynamo does not run vllm without a GPU; kuberay is selected only if spec.provider.name names it",
        ),
        (
            "trtllm",
            gpus(0),
            "No provider supports engine=trtllm, gpu=false, mode=aggregated: dynamo does not run trtllm without a GPU; \
             kaito does not support engine trtllm; kuberay is selected only if spec.provider.name names it",
        ),
        (
            "llamacpp",
            disaggregated(),
            "No provider supports engine=llamacpp, gpu=true, mode=disaggregated: dynamo does not support engine llamacpp; \
             kaito does not support serving mode disaggregated with llamacpp; \
             kuberay is selected only if spec.provider.name names it",
        ),
    ];
    for (engine, patch, message) in table {
        let selected = select(
            &asking(engine, &patch),
            &providers(&["dynamo", "kaito", "kuberay"]),
            now(),
        );
        assert_eq!(selected.winner, Err(NoProvider::NoneSuitable(message.to_owned())));
    }
}

#[test]
fn kuberay_is_never_selected_automatically() {
    let selected = select(&asking("vllm", &gpus(2)), &providers(&["kuberay"]), now());
    assert!(
        matches!(selected.winner, Err(NoProvider::NoneSuitable(_))),
        "{:?}",
        selected.winner
    );
}

#[test]
fn kaito_serves_vllm_on_gpus_where_dynamo_is_not_installed() {
    let selected = select(&asking("vllm", &gpus(1)), &providers(&["kaito", "kuberay"]), now());
    assert_eq!(selected.winner.as_deref(), Ok("kaito"));
}

/// The capability matrix, as registered.
#[test]
fn the_capability_matrix() {
    // Engine, then for kaito, dynamo and kuberay: without GPU, with GPU, disaggregated.
    let matrix = [
        ("vllm", ["-g-", "-gd", "-gd"]),
        ("sglang", ["---", "-gd", "---"]),
        ("trtllm", ["---", "-gd", "---"]),
        ("llamacpp", ["cg-", "---", "---"]),
    ];
    for (engine, expected) in matrix {
        let found = ["kaito", "dynamo", "kuberay"].map(|name| {
            let Some(support) = shipped(name).capabilities.for_engine(engine) else {
                return "---".to_owned();
            };
            let disaggregated = support
                .serving_modes
                .iter()
                .any(|mode| mode.as_str() == "disaggregated");
            [(support.cpu, 'c'), (support.gpu, 'g'), (disaggregated, 'd')]
                .map(|(has, letter)| if has { letter } else { '-' })
                .iter()
                .collect()
        });
        assert_eq!(found, expected, "{engine}");
    }
}

#[test]
fn a_name_that_kaito_does_not_support_selects_another_provider() {
    let mut md = asking("vllm", &gpus(1));
    md.metadata.name = Some("7b-chat".to_owned());
    let selected = select(&md, &providers(&["dynamo", "kaito"]), now());
    assert_eq!(selected.winner.as_deref(), Ok("dynamo"));
    let kaito = selected.candidates.iter().find(|c| c.name == "kaito").unwrap();
    assert!(!kaito.eligible);
    assert_eq!(
        kaito.reason,
        "metadata.name must begin with a letter and have no dots on provider kaito, because KAITO names a Service after it: \
         choose another name, such as llama-3-1-8b"
    );
}

#[test]
fn candidates_that_are_not_selected_have_a_reason() {
    let selected = select(
        &asking("vllm", &gpus(1)),
        &providers(&["dynamo", "kaito", "kuberay"]),
        now(),
    );
    let reported: Vec<_> = selected
        .candidates
        .iter()
        .map(|c| (c.name.as_str(), c.eligible, c.priority, c.reason.as_str()))
        .collect();
    assert_eq!(
        reported,
        [
            (
                "dynamo",
                true,
                Some(50),
                "chosen, rule holds: has(spec.resources.gpu) && spec.resources.gpu.count > 0"
            ),
            ("kaito", true, Some(0), "lower priority or later name, no rule holds"),
            (
                "kuberay",
                false,
                None,
                "is selected only if spec.provider.name names it"
            ),
        ]
    );
}

/// A matching upstream wins; without one, plain Deployments do.
#[test]
fn direct_serves_models_without_another_eligible_provider() {
    let alone = providers(&["direct"]);
    let everybody = providers(&["direct", "dynamo", "kaito", "kuberay"]);
    for (engine, patch, upstream) in [
        ("llamacpp", json!({}), "kaito"),
        ("llamacpp", gpus(1), "kaito"),
        ("vllm", gpus(1), "dynamo"),
        ("sglang", gpus(2), "dynamo"),
        ("trtllm", gpus(1), "dynamo"),
    ] {
        let md = asking(engine, &patch);
        let chosen = |providers: &Providers| select(&md, providers, now()).winner.unwrap();
        assert_eq!(chosen(&alone), "direct", "{engine} {patch}");
        assert_eq!(chosen(&everybody), upstream, "{engine} {patch}");
    }
    assert!(select(&asking("vllm", &disaggregated()), &alone, now()).winner.is_err());
    // KAITO has no image for llama.cpp.
    let imageless = asking("llamacpp", &json!({"image": null}));
    assert_eq!(select(&imageless, &everybody, now()).winner.unwrap(), "direct");
}

/// KAITO's presets have no environment. With Dynamo not ready, such a ModelDeployment waits for Dynamo.
#[test]
fn kaito_is_not_selected_for_what_its_presets_do_not_support() {
    let with_dynamo = |how| {
        let configs = [("dynamo", how), ("kaito", How::Healthy)]
            .map(|(name, how)| Arc::new(registered(name, shipped(name), how, now())));
        Providers::compile(configs, &Providers::default())
    };
    let env = json!([{"name": "HF_ENDPOINT", "value": "https://mirror.example"}]);
    for (field, value) in [
        ("env", env),
        ("tolerations", json!([{"key": "spot", "operator": "Exists"}])),
        ("resources", json!({"gpu": {"type": "amd.com/gpu"}})),
    ] {
        let mut patch = gpus(1);
        ssa::patch(&mut patch, &json!({field: value}));
        let md = asking("vllm", &patch);
        let winner = |providers: &Providers| select(&md, providers, now()).winner;
        assert_eq!(winner(&with_dynamo(How::Healthy)), Ok("dynamo".to_owned()), "{field}");
        assert_eq!(
            winner(&with_dynamo(How::NotReady)),
            Err(NoProvider::NoneHealthy),
            "{field}"
        );
        let Err(NoProvider::NoneSuitable(why)) = winner(&providers(&["kaito"])) else {
            panic!("{field}: {:?}", winner(&providers(&["kaito"])));
        };
        assert!(why.contains(field) && why.contains("set spec.image"), "{why}");

        ssa::patch(&mut patch, &json!({"image": "vllm/vllm-openai:v0.11.0"}));
        let md = asking("vllm", &patch);
        let selected = select(&md, &with_dynamo(How::NotReady), now());
        assert_eq!(selected.winner, Ok("kaito".to_owned()), "{field}");
    }
}

/// A provider without rules has priority 0, even if the spec is too large for the evaluation of any rule.
#[test]
fn direct_comes_after_a_provider_without_rules() {
    let simple = InferenceProviderConfigSpec {
        selection_rules: Vec::new(),
        ..Direct::default().registration()
    };
    let configs = [("direct", Direct::default().registration()), ("simple", simple)]
        .map(|(name, spec)| Arc::new(registered(name, spec, How::Healthy, now())));
    let both = Providers::compile(configs, &Providers::default());
    for size in [1, 64 << 10] {
        let md = asking("llamacpp", &json!({"env": [{"name": "A", "value": "x".repeat(size)}]}));
        assert_eq!(select(&md, &both, now()).winner, Ok("simple".to_owned()), "{size}");
    }
}
