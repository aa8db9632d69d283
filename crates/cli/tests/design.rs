//! The validation rules with their texts, at admission or in `ProviderCompatible`, and the capability matrix of the providers, row
//! by row, as a user meets them.

use runway_client::diagnostic::Level;
use runway_client::documents::Documents;
use runway_client::render::{Options, Rendered, Show, render};
use serde_json::{Value, json};

/// Place in which a text reaches the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The manifest is refused.
    Admission,
    /// The manifest is taken, with a warning.
    Warning,
    /// The provider answers for itself: `ProviderCompatible=False`, phase Failed.
    Provider,
}

use At::{Admission, Provider, Warning};

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn every_row_of_section_8() {
    const VLLM: &str = "vLLM engine requires GPU (set resources.gpu.count > 0)";
    const BOTH: &str = "Cannot specify both resources.gpu and scaling.prefill/decode";
    const PARTS: &str = "Disaggregated mode requires scaling.prefill and scaling.decode";
    let cpu = json!({ "gpu": { "count": 0 } });
    let rows: Vec<(Value, At, &str)> = vec![
        (json!({ "resources": cpu }), Admission, VLLM),
        // Absent is as good as 0.
        (json!({ "resources": null }), Admission, VLLM),
        (
            json!({ "engine": { "type": "sglang" }, "resources": cpu }),
            Admission,
            "SGLang engine requires GPU (set resources.gpu.count > 0)",
        ),
        (
            json!({ "engine": { "type": "trtllm" }, "resources": cpu }),
            Admission,
            "TensorRT-LLM engine requires GPU (set resources.gpu.count > 0)",
        ),
        (
            apart(&json!({ "resources": { "gpu": { "count": 1 } } })),
            Admission,
            BOTH,
        ),
        (apart(&json!({ "scaling": { "prefill": null } })), Admission, PARTS),
        (apart(&json!({ "scaling": { "decode": null } })), Admission, PARTS),
        (apart(&json!({ "scaling": null })), Admission, PARTS),
        (
            apart(&json!({ "scaling": { "prefill": { "gpu": null } } })),
            Admission,
            "Disaggregated mode requires scaling.prefill.gpu.count",
        ),
        (
            apart(&json!({ "scaling": { "decode": { "gpu": { "count": 0 } } } })),
            Admission,
            "Disaggregated mode requires scaling.decode.gpu.count",
        ),
        (json!({ "engine": null }), Admission, "engine.type is required"),
        (
            json!({ "engine": { "type": "" } }),
            Admission,
            "engine.type is required",
        ),
        (
            json!({ "model": { "id": null } }),
            Admission,
            "model.id is required when source is huggingface",
        ),
        (
            json!({ "model": { "id": null, "source": "custom", "servedName": "mine" }, "image": "example.com/m:1", "env": [] }),
            Warning,
            "servedName is ignored for custom source",
        ),
        (
            json!({ "provider": { "name": "absent" } }),
            Admission,
            "Provider 'absent' CRD not installed in cluster",
        ),
        (
            with("kaito", "sglang", 1),
            Provider,
            "KAITO does not support sglang engine",
        ),
        (
            with("kaito", "trtllm", 1),
            Provider,
            "KAITO does not support trtllm engine",
        ),
        (
            with("dynamo", "llamacpp", 1),
            Provider,
            "Dynamo does not support llamacpp engine",
        ),
        (
            with("kuberay", "llamacpp", 1),
            Provider,
            "KubeRay does not support llamacpp engine",
        ),
        (
            with("kuberay", "sglang", 1),
            Provider,
            "KubeRay does not support sglang engine",
        ),
        (
            with("kuberay", "trtllm", 1),
            Provider,
            "KubeRay does not support trtllm engine",
        ),
        // The engines of both need GPUs, which admission reports first. It accepts an engine that no provider supports.
        (
            with("dynamo", "llamacpp", 0),
            Provider,
            "Dynamo does not support llamacpp engine",
        ),
        (
            apart(&json!({ "provider": { "name": "kaito" } })),
            Provider,
            "KAITO does not support disaggregated mode",
        ),
    ];
    for (change, at, text) in rows {
        let spec = changed(&change);
        let found = at_places(&spec, text);
        assert_eq!(found, [at], "'{text}' for {spec}");
    }
}

/// "gpu.count: 0" with Dynamo and KubeRay: admission's text about the engine comes first, so the provider's own text shows
/// when admission was bypassed and the provider is asked directly.
#[test]
fn providers_that_need_a_gpu_say_so_themselves() {
    for (name, text) in [
        ("dynamo", "Dynamo requires GPU (set resources.gpu.count > 0)"),
        ("kuberay", "KubeRay requires GPU (set resources.gpu.count > 0)"),
    ] {
        let provider = runway_manifests::built_in_providers()
            .into_iter()
            .find(|p| p.name() == name)
            .unwrap();
        let md: runway_api::ModelDeployment =
            serde_json::from_value(manifest(&changed(&with(name, "vllm", 0)))).unwrap();
        let request = runway_provider::Request::try_from(&md).unwrap();
        let installed = runway_provider::Installed::newest(&provider.upstreams());
        let refusal = provider.translate(&request, &installed).unwrap_err();
        assert_eq!(refusal.message, text);
    }
}

/// Engines and modes that each provider accepts when it is named.
#[test]
fn the_capability_matrix() {
    type Spec = fn(&str) -> Value;
    let rows: [(&str, Spec, [bool; 4]); 8] = [
        ("CPU inference", |p| llamacpp(p, 0), [true, false, false, true]),
        ("GPU inference", |p| with(p, "vllm", 1), [true, true, true, true]),
        ("vLLM engine", |p| with(p, "vllm", 1), [true, true, true, true]),
        ("sglang engine", |p| with(p, "sglang", 1), [false, true, false, true]),
        ("trtllm engine", |p| with(p, "trtllm", 1), [false, true, false, true]),
        ("llamacpp engine", |p| llamacpp(p, 1), [true, false, false, true]),
        ("GGUF models", |p| llamacpp(p, 0), [true, false, false, true]),
        (
            "Disaggregated P/D",
            |p| apart(&json!({ "provider": { "name": p } })),
            [false, true, true, false],
        ),
    ];
    for (criterion, spec, expected) in rows {
        for (provider, expected) in ["kaito", "dynamo", "kuberay", "direct"].into_iter().zip(expected) {
            let spec = changed(&spec(provider));
            let rendered = rendered(&spec, Show::Objects);
            assert_eq!(
                !rendered.documents.is_empty(),
                expected,
                "{criterion} on {provider}: {:?}",
                rendered.diagnostics
            );
        }
    }
}

/// KubeRay is never selected automatically, whichever other providers are registered.
#[test]
fn kuberay_is_never_chosen_by_itself() {
    for spec in [json!({}), apart(&json!({})), llamacpp("", 0), with("", "sglang", 1)] {
        let mut spec = changed(&spec);
        spec.as_object_mut().unwrap().remove("provider");
        let rendered = rendered(&spec, Show::Status);
        let chosen = &rendered.documents[0].data["status"]["provider"]["name"];
        assert!(chosen.is_string() && chosen != "kuberay", "{chosen} for {spec}");
    }
}

/// An upstream that fits is preferred to plain Deployments, which serve what is left.
#[test]
fn direct_is_chosen_last() {
    for (spec, expected) in [
        (with("", "vllm", 1), "dynamo"),
        (llamacpp("", 0), "kaito"),
        (apart(&json!({})), "dynamo"),
    ] {
        let mut spec = changed(&spec);
        spec.as_object_mut().unwrap().remove("provider");
        let rendered = rendered(&spec, Show::Status);
        let provider = &rendered.documents[0].data["status"]["provider"];
        assert_eq!(provider["name"], expected, "{spec}");
        let candidates = provider["candidates"].as_array().unwrap();
        let direct = candidates.iter().find(|c| c["name"] == "direct").unwrap();
        let aggregated = spec["serving"]["mode"] != "disaggregated";
        assert_eq!(direct["eligible"], aggregated, "{direct}");
    }
}

/// KV routing by overrides.
#[test]
fn kv_routing() {
    for (provider, expected) in [("kaito", false), ("dynamo", true)] {
        let spec = changed(&json!({ "provider": { "name": provider, "overrides": { "routerMode": "kv" } } }));
        let text = serde_json::to_string(&rendered(&spec, Show::Objects).documents).unwrap();
        assert_eq!(text.contains("\"kv\""), expected, "{provider}: {text}");
    }
}

fn with(provider: &str, engine: &str, gpus: i32) -> Value {
    json!({ "provider": { "name": provider }, "engine": { "type": engine }, "resources": { "gpu": { "count": gpus } } })
}

fn llamacpp(provider: &str, gpus: i32) -> Value {
    let mut spec = with(provider, "llamacpp", gpus);
    spec["image"] = json!("example.com/llama-cpp:1");
    spec
}

/// In disaggregated mode.
fn apart(change: &Value) -> Value {
    let part = json!({ "gpu": { "count": 1 }, "memory": "64Gi" });
    let mut spec = json!({
        "serving": { "mode": "disaggregated" }, "resources": null,
        "scaling": { "prefill": part, "decode": part },
    });
    json_patch::merge(&mut spec, change);
    spec
}

/// A spec that any provider takes, with a change.
fn changed(change: &Value) -> Value {
    let mut spec = json!({
        "model": { "id": "Qwen/Qwen3-0.6B" }, "engine": { "type": "vllm" }, "resources": { "gpu": { "count": 1 } },
    });
    json_patch::merge(&mut spec, change);
    spec
}

fn manifest(spec: &Value) -> Value {
    json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": { "name": "my-model", "namespace": "default" }, "spec": spec,
    })
}

fn rendered(spec: &Value, show: Show) -> Rendered {
    let mut documents = Documents::default();
    documents.take_in_text("design.yaml", &manifest(spec).to_string());
    let now = jiff::Timestamp::UNIX_EPOCH;
    render(documents, &Options { show, now })
}

/// Places in which this text reaches the user: exact, or followed by `: ` and what this cluster adds to it.
fn at_places(spec: &Value, text: &str) -> Vec<At> {
    let rendered = rendered(spec, Show::Status);
    let mut places: Vec<At> = rendered
        .diagnostics
        .iter()
        .filter(|d| d.text == text || d.text.starts_with(&format!("{text}: ")))
        .filter_map(|d| match d.level {
            Level::Error => Some(Admission),
            Level::Warning => Some(Warning),
            Level::Note => None,
        })
        .collect();
    for document in &rendered.documents {
        let status = &document.data["status"];
        let refused = status["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|c| c["type"] == "ProviderCompatible" && c["status"] == "False" && c["message"] == text);
        if refused && status["phase"] == "Failed" && status["message"] == text {
            places.push(Provider);
        }
    }
    places
}
