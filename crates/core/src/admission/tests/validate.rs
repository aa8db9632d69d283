//! Validation: every message, every rule, all problems at once, bounded.

use proptest::prelude::*;
use runway_api::autoscaling::messages;
use runway_provider::engine;
use serde_json::{Map, Value, json};

use super::{any_spec, deployment, providers};
use crate::admission::validate::KNOWN_ENGINES;
use crate::admission::{Findings, apply_defaults, validate};
use crate::providers::Providers;

/// A valid spec with a merge patch.
fn spec(change: Value) -> Value {
    let mut spec =
        json!({"model": {"id": "org/model"}, "engine": {"type": "vllm"}, "resources": {"gpu": {"count": 1}}});
    json_patch::merge(&mut spec, &change);
    spec
}

fn disaggregated(change: Value) -> Value {
    let worker = json!({"gpu": {"count": 1}, "memory": "64Gi"});
    let mut spec = spec(
        json!({"resources": null, "serving": {"mode": "disaggregated"}, "scaling": {"prefill": worker, "decode": worker}}),
    );
    json_patch::merge(&mut spec, &change);
    spec
}

fn findings(spec: Value) -> Findings {
    validate(&deployment(spec), &Providers::default())
}

fn errors(spec: Value) -> Vec<(String, String)> {
    findings(spec)
        .errors
        .into_iter()
        .map(|violation| (violation.field, violation.message))
        .collect()
}

fn refused(spec: Value, expected: &[(&str, &str)]) {
    let found = errors(spec.clone());
    let found: Vec<_> = found
        .iter()
        .map(|(field, message)| (field.as_str(), message.as_str()))
        .collect();
    assert_eq!(found, expected, "{spec}");
}

#[test]
fn values_of_an_engine_flag_are_texts() {
    let with = |key: &str, text: &str| spec(json!({"engine": {"args": {key: text}}}));
    for text in [
        r#"["a=org/a", "b=org/b"]"#,
        "[1, 2]",
        r#"["[[1]]"]"#,
        "[a-z]",
        "a=org/a",
    ] {
        refused(with("lora-modules", text), &[]);
        assert_eq!(findings(with("lora-modules", text)).warnings, Vec::<String>::new());
    }
    for (text, why) in [
        ("[]", "an empty list"),
        ("[[1]]", "a list with an item that is neither a text nor a number"),
        (
            r#"["a", true]"#,
            "a list with an item that is neither a text nor a number",
        ),
    ] {
        let message = format!(
            "engine.args.lora-modules is {why}: for several values, set it to a list of texts, such as '[\"a=org/a\", \"b=org/b\"]'; \
             for one value that is a list, write it as the only text of a list"
        );
        refused(
            with("lora-modules", text),
            &[("spec.engine.args[lora-modules]", &message)],
        );
    }
    let option = |engine: &str| spec(json!({"engine": {"type": engine, "args": {"cuda_graph_config": "[{}]"}}}));
    assert_eq!(errors(option("trtllm")), []);
    assert_eq!(errors(option("sglang")).len(), 1);
}

#[test]
fn value_of_several_words_is_warned_of_if_the_flag_takes_several() {
    let warnings = |key: &str, text: &str| findings(spec(json!({"engine": {"args": {key: text}}}))).warnings;
    assert_eq!(
        warnings("lora_modules", "a=org/a b=org/b"),
        [
            "engine.args.lora_modules is passed as one value: for several values, set it to a list of texts, such as '[\"a=org/a\", \"b=org/b\"]'"
        ]
    );
    assert_eq!(
        warnings("lora-modules", r#"{"name": "a", "path": "org/a"}"#),
        Vec::<String>::new()
    );
    assert_eq!(warnings("chat-template", "a b"), Vec::<String>::new());
}

#[test]
fn autoscaling_requires_one_metric_and_a_range() {
    const FIELD: &str = "spec.scaling.autoscaling";
    const MIN: &str = "spec.scaling.autoscaling.minReplicas";
    let by = |autoscaling: Value| spec(json!({"scaling": {"autoscaling": autoscaling}}));
    let trigger = json!({"type": "cron"});
    refused(by(json!({"maxReplicas": 2, "queuedRequests": 1})), &[]);
    refused(by(json!({"minReplicas": 0, "maxReplicas": 2, "trigger": trigger})), &[]);
    refused(by(json!({"maxReplicas": 2})), &[(FIELD, messages::ONE_METRIC)]);
    refused(
        by(json!({"maxReplicas": 2, "queuedRequests": 1, "trigger": trigger})),
        &[(FIELD, messages::ONE_METRIC)],
    );
    refused(
        by(json!({"minReplicas": 3, "maxReplicas": 2, "queuedRequests": 1})),
        &[(MIN, messages::MIN_ABOVE_MAX)],
    );
    refused(
        by(json!({"minReplicas": 0, "maxReplicas": 2, "queuedRequests": 1})),
        &[(MIN, messages::ZERO_WITHOUT_TRIGGER)],
    );
    refused(
        by(json!({"minReplicas": 1, "maxReplicas": 1001, "queuedRequests": 0})),
        &[
            (
                "spec.scaling.autoscaling.maxReplicas",
                "scaling.autoscaling.maxReplicas must be between 1 and 1000, not 1001",
            ),
            (
                "spec.scaling.autoscaling.queuedRequests",
                "scaling.autoscaling.queuedRequests must be between 1 and 1000000, not 0",
            ),
        ],
    );
    refused(
        disaggregated(json!({"scaling": {"autoscaling": {"maxReplicas": 2, "queuedRequests": 1}}})),
        &[(
            FIELD,
            "scaling.autoscaling is not supported in disaggregated mode, because an autoscaler sets one number of replicas: remove it, and set scaling.prefill.replicas and scaling.decode.replicas",
        )],
    );
}

#[test]
fn known_engines_are_those_of_the_providers_table() {
    let mut table = engine::ALL.map(|engine| engine.name);
    let mut known = KNOWN_ENGINES;
    table.sort_unstable();
    known.sort_unstable();
    assert_eq!(known, table);
    for engine in engine::ALL {
        let found = errors(spec(json!({"engine": {"type": engine.name}, "resources": null})));
        let needs_gpu = engine.cpu_image.is_none();
        let message = needs_gpu.then(|| ("spec.resources.gpu.count".to_owned(), engine.requires_gpu()));
        assert_eq!(found, Vec::from_iter(message), "{}", engine.name);
    }
}

#[test]
fn documented_messages_are_used_verbatim() {
    const VLLM: (&str, &str) = (
        "spec.resources.gpu.count",
        "vLLM engine requires GPU (set resources.gpu.count > 0)",
    );
    const PREFILL: (&str, &str) = (
        "spec.scaling.prefill.gpu.count",
        "Disaggregated mode requires scaling.prefill.gpu.count",
    );
    const DECODE: (&str, &str) = (
        "spec.scaling.decode.gpu.count",
        "Disaggregated mode requires scaling.decode.gpu.count",
    );
    const PARTS: (&str, &str) = (
        "spec.scaling",
        "Disaggregated mode requires scaling.prefill and scaling.decode",
    );
    let engine = |name: &str| json!({"engine": {"type": name}, "resources": null});

    refused(spec(json!({"resources": {"gpu": {"count": 0}}})), &[VLLM]);
    refused(spec(json!({"resources": {"gpu": {"count": null}}})), &[VLLM]);
    refused(spec(json!({"resources": {"gpu": null}})), &[VLLM]);
    refused(spec(engine("vllm")), &[VLLM]);
    refused(
        spec(engine("sglang")),
        &[(
            "spec.resources.gpu.count",
            "SGLang engine requires GPU (set resources.gpu.count > 0)",
        )],
    );
    refused(
        spec(engine("trtllm")),
        &[(
            "spec.resources.gpu.count",
            "TensorRT-LLM engine requires GPU (set resources.gpu.count > 0)",
        )],
    );

    let both = (
        "spec.resources.gpu",
        "Cannot specify both resources.gpu and scaling.prefill/decode",
    );
    refused(disaggregated(json!({"resources": {"gpu": {"count": 1}}})), &[both]);
    refused(disaggregated(json!({"resources": {"gpu": {}}})), &[both]);
    refused(disaggregated(json!({"scaling": null})), &[PARTS]);
    refused(disaggregated(json!({"scaling": {"prefill": null}})), &[PARTS]);
    refused(disaggregated(json!({"scaling": {"decode": null}})), &[PARTS]);
    refused(
        disaggregated(json!({"scaling": {"prefill": {"gpu": null}}})),
        &[PREFILL],
    );
    refused(
        disaggregated(json!({"scaling": {"prefill": {"gpu": {"count": 0}}, "decode": {"gpu": {"count": null}}}})),
        &[PREFILL, DECODE],
    );
    refused(
        disaggregated(json!({"scaling": {"prefill": {"memory": null}, "decode": {"memory": null}}})),
        &[
            (
                "spec.scaling.prefill.memory",
                "Disaggregated mode requires scaling.prefill.memory",
            ),
            (
                "spec.scaling.decode.memory",
                "Disaggregated mode requires scaling.decode.memory",
            ),
        ],
    );
    refused(
        disaggregated(json!({"scaling": {"prefill": null, "decode": {"gpu": null}}})),
        &[PARTS, DECODE],
    );

    let required = ("spec.engine.type", "engine.type is required");
    refused(spec(json!({"engine": null})), &[required]);
    refused(spec(json!({"engine": {"type": null}})), &[required]);
    refused(spec(json!({"engine": {"type": ""}})), &[required]);
    let id = ("spec.model.id", "model.id is required when source is huggingface");
    refused(spec(json!({"model": {"id": null}})), &[id]);
    refused(spec(json!({"model": {"id": "", "source": "huggingface"}})), &[id]);

    let provider = ("spec.provider.name", "Provider 'nope' CRD not installed in cluster");
    refused(spec(json!({"provider": {"name": "nope"}})), &[provider]);
}

#[test]
fn url_as_model_id_is_refused_with_a_remedy() {
    let remedy = |id: &str| {
        let found = errors(spec(json!({"model": {"id": id}})));
        let [(field, message)] = found.as_slice() else {
            panic!("{id}: {found:?}");
        };
        assert_eq!(field, "spec.model.id", "{id}");
        message
            .strip_prefix("model.id must not be a URL: ")
            .unwrap_or(message)
            .to_owned()
    };
    for id in [
        "https://huggingface.co/Qwen/Qwen3-8B",
        "HTTPS://HuggingFace.co/Qwen/Qwen3-8B/",
        "http://www.huggingface.co/Qwen/Qwen3-8B?library=vllm",
        "https://huggingface.co/Qwen/Qwen3-8B#usage",
        "https://huggingface.co/Qwen/Qwen3-8B/tree/main",
        "https://hf.co/Qwen/Qwen3-8B/blob/main/config.json",
        "huggingface.co/Qwen/Qwen3-8B",
        "hf.co/Qwen/Qwen3-8B",
        "hf://Qwen/Qwen3-8B",
    ] {
        assert_eq!(remedy(id), "use the ID on the hub, Qwen/Qwen3-8B", "{id}");
    }
    for id in [
        "https://huggingface.co/Qwen",
        "https://huggingface.co",
        "https://huggingface.co/datasets/org/name",
        "https://example.com/Qwen/Qwen3-8B",
        "https://user@huggingface.co/Qwen/Qwen3-8B",
        "hf://",
        "://",
        "ftp://example.com/model",
    ] {
        assert_eq!(remedy(id), "use the ID on the hub, such as org/model", "{id}");
    }
    for (id, expected) in [
        (
            "s3://bucket/model",
            "for a model in object storage, set model.source to custom, spec.image to an image of an engine that can read it, and engine.args.model to the URL",
        ),
        (
            "file:///models/qwen",
            "for a model in files, mount them with model.storage.volumes, and set model.source to custom, spec.image to an image of the engine, and engine.args.model to the path",
        ),
        (
            "oci://registry.example.com/models/qwen:1",
            "for a model in an OCI image, mount it as an image in model.storage.volumes, and set model.source to custom, spec.image to an image of the engine, and engine.args.model to the path",
        ),
        (
            "ollama://llama3",
            "models of the Ollama library cannot be loaded; use the ID of the model on the hub, such as org/model",
        ),
    ] {
        assert_eq!(remedy(id), expected, "{id}");
    }
}

#[test]
fn ids_and_paths_are_not_urls() {
    for id in ["Qwen/Qwen3-8B", "gpt2", "org/model:Q4_K_M", "/models/qwen", "org/hf.co"] {
        assert_eq!(errors(spec(json!({"model": {"id": id}}))), [], "{id}");
    }
    let custom = json!({"model": {"source": "custom", "id": "s3://bucket/model"}, "image": "example.com/engine:1"});
    assert_eq!(errors(spec(custom)), []);
}

#[test]
fn valid_specs_cause_no_warning() {
    for spec in [
        spec(json!({})),
        spec(json!({"engine": {"type": "llamacpp"}, "resources": null})),
        spec(json!({"model": {"id": null, "source": "custom"}})),
        spec(json!({"provider": {"name": ""}})),
        spec(json!({"scaling": {"replicas": 0}})),
        disaggregated(json!({})),
        disaggregated(json!({"engine": {"type": "sglang"}})),
        spec(
            json!({"env": [{"name": "A", "value": "b"}, {"name": "B", "value": "", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        ),
        spec(
            json!({"podTemplate": {"metadata": {"labels": {"team": "a", "x.io/y": ""}, "annotations": {"n": "any text at all"}}}, "nodeSelector": {"kubeairunway.ai/pool": "a"}}),
        ),
    ] {
        assert_eq!(findings(spec.clone()), Findings::default(), "{spec}");
    }
}

#[test]
fn warnings() {
    for (spec, warning) in [
        (
            spec(json!({"model": {"source": "custom", "servedName": "x"}})),
            "servedName is ignored for custom source",
        ),
        (
            spec(json!({"engine": {"type": "trtllm", "contextLength": 4096}})),
            "contextLength is ignored for trtllm: it is fixed when the engine is built, so use an image built for the length you need",
        ),
        (
            spec(json!({"engine": {"trustRemoteCode": true}})),
            "trustRemoteCode runs code that comes with the model: enable it only for models whose authors you trust",
        ),
        (
            spec(json!({"scaling": {"prefill": {}}})),
            "scaling.prefill and scaling.decode are ignored in aggregated mode: set serving.mode to disaggregated to use them",
        ),
        (
            disaggregated(json!({"scaling": {"replicas": 3}})),
            "scaling.replicas is ignored in disaggregated mode: set scaling.prefill.replicas and scaling.decode.replicas",
        ),
        (
            disaggregated(json!({"resources": {"memory": "64Gi"}})),
            "resources.memory is ignored in disaggregated mode: set scaling.prefill.memory and scaling.decode.memory",
        ),
        (
            disaggregated(json!({"resources": {"cpu": "1"}})),
            "resources.cpu is ignored in disaggregated mode, where spec.resources does not apply: remove it",
        ),
    ] {
        assert_eq!(
            findings(spec.clone()),
            Findings {
                errors: vec![],
                warnings: vec![warning.to_owned()]
            },
            "{spec}"
        );
    }
}

#[test]
fn all_violations_are_reported_in_the_order_of_the_spec() {
    let spec = json!({
        "model": {},
        "provider": {"name": "nope"},
        "scaling": {"replicas": -1},
        "resources": {"gpu": {"count": -2}, "memory": "lots", "cpu": "0"},
        "env": [{"name": ""}, {"name": "A", "value": "b", "valueFrom": {}}],
        "podTemplate": {"metadata": {"labels": {"kubeairunway.ai/provider": "mine"}, "annotations": {"a b": ""}}},
        "nodeSelector": {"zone": "not valid"},
    });
    refused(
        spec,
        &[
            ("spec.model.id", "model.id is required when source is huggingface"),
            ("spec.provider.name", "Provider 'nope' CRD not installed in cluster"),
            ("spec.engine.type", "engine.type is required"),
            (
                "spec.scaling.replicas",
                "scaling.replicas must be between 0 and 1000, not -1",
            ),
            (
                "spec.resources.gpu.count",
                "resources.gpu.count must be between 0 and 1024, not -2",
            ),
            (
                "spec.resources.memory",
                "resources.memory must be a quantity such as 32Gi, not 'lots'",
            ),
            (
                "spec.resources.cpu",
                "resources.cpu must be greater than 0, such as 4 or 500m: omit it to request nothing",
            ),
            (
                "spec.env[0].name",
                "env[0] has no name: name the variable, or remove the entry",
            ),
            (
                "spec.env[1]",
                "env[1] ('A') has both value and valueFrom: keep one of them",
            ),
            (
                "spec.podTemplate.metadata.annotations[a b]",
                "podTemplate.metadata.annotations: invalid key 'a b': use at most 63 letters, digits, '-', '_' and '.', optionally after a domain and '/', such as example.com/team",
            ),
            (
                "spec.podTemplate.metadata.labels[kubeairunway.ai/provider]",
                "podTemplate.metadata.labels: 'kubeairunway.ai/provider' is reserved, every key under kubeairunway.ai/ is set by the controllers: use your own prefix",
            ),
            (
                "spec.nodeSelector[zone]",
                "nodeSelector: invalid value 'not valid' of 'zone': use at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
            ),
        ],
    );
}

#[test]
fn variable_names_follow_the_rules_of_the_api_server() {
    let env = |name: &str| spec(json!({"env": [{"name": name, "value": "1"}]}));
    for name in ["HF_HOME", "_a.b-c", "1", "my var"] {
        refused(env(name), &[]);
    }
    for (name, shown) in [("A=B", "A=B"), ("ä", "ä"), ("A\nB", "A\u{fffd}B")] {
        let message = format!("env[0]: invalid variable name '{shown}': use letters, digits, '_', '-' and '.'");
        refused(env(name), &[("spec.env[0].name", &message)]);
    }
}

#[test]
fn numbers_and_quantities_of_workers() {
    let spec = disaggregated(
        json!({"scaling": {"prefill": {"replicas": 1001, "memory": "0Gi"}, "decode": {"gpu": {"count": 2000}, "memory": "-1Gi"}}}),
    );
    refused(
        spec,
        &[
            (
                "spec.scaling.prefill.replicas",
                "scaling.prefill.replicas must be between 0 and 1000, not 1001",
            ),
            (
                "spec.scaling.decode.gpu.count",
                "scaling.decode.gpu.count must be between 0 and 1024, not 2000",
            ),
            (
                "spec.scaling.prefill.memory",
                "scaling.prefill.memory must be greater than 0, such as 64Gi: omit it to request nothing",
            ),
            (
                "spec.scaling.decode.memory",
                "scaling.decode.memory must be a quantity such as 64Gi, not '-1Gi'",
            ),
        ],
    );
    refused(
        self::spec(json!({"engine": {"contextLength": 0}})),
        &[(
            "spec.engine.contextLength",
            "engine.contextLength must be between 1 and 100000000, not 0",
        )],
    );
}

#[test]
fn an_unknown_engine_needs_a_provider_that_supports_it() {
    let custom = spec(json!({"engine": {"type": "custom"}}));
    let kaito = json!({"capabilities": {"engines": ["vllm", "llamacpp"]}});
    let third = json!({"capabilities": {"perEngine": [{"name": "custom"}]}});
    let ask = |spec: &Value, registered: Value| validate(&deployment(spec.clone()), &providers(registered)).message();

    assert_eq!(ask(&custom, json!({})), "");
    assert_eq!(ask(&custom, json!({"third": third})), "");
    assert_eq!(
        ask(
            &custom,
            json!({"kaito": kaito, "x": {"capabilities": {"engines": ["other"]}}})
        ),
        "engine.type 'custom' is supported by no registered provider (known: vllm, sglang, trtllm, llamacpp, other): correct it, or install a provider that supports it"
    );
    assert_eq!(
        ask(&spec(json!({"engine": {"type": "sglang"}})), json!({"kaito": kaito})),
        ""
    );
}

#[test]
fn rules_of_the_named_provider_are_checked() {
    let registered = providers(json!({
        "strict": {
            "capabilities": {"engines": ["vllm"]},
            "validationRules": [
                {"rule": "metadata.name.size() < 1", "message": "strict takes no names: leave it out"},
                {"rule": "spec.scaling.replicas == 1", "message": "one replica"},
                {"rule": "spec.engine.args.absent == 'x'", "message": "cannot be evaluated"},
            ],
        },
    }));
    let named = validate(&deployment(spec(json!({"provider": {"name": "strict"}}))), &registered);
    assert_eq!(
        named
            .errors
            .iter()
            .map(|v| (v.field.as_str(), v.message.as_str()))
            .collect::<Vec<_>>(),
        [("spec", "strict takes no names: leave it out")]
    );
    assert_eq!(named.warnings.len(), 1, "{:?}", named.warnings);
    assert!(
        named.warnings[0].starts_with("a validation rule of provider 'strict' was skipped: "),
        "{:?}",
        named.warnings
    );

    let unnamed = validate(&deployment(spec(json!({}))), &registered);
    assert_eq!(unnamed, Findings::default());
}

#[test]
fn unknown_overrides_of_the_named_provider_cause_warnings() {
    let registered = providers(json!({
        "dynamo": {"capabilities": {"engines": ["vllm"]}, "overrides": [{"path": "frontend.replicas", "type": "Integer"}]},
    }));
    let ask = |provider: Value| validate(&deployment(spec(json!({ "provider": provider }))), &registered);
    let overrides = json!({"frontend": {"replicsa": 1, "replicas": "two"}});
    assert_eq!(
        ask(json!({"name": "dynamo", "overrides": overrides})),
        Findings {
            errors: vec![],
            warnings: vec![
                "spec.provider.overrides.frontend.replicas must be a whole number, not a string".to_owned(),
                "spec.provider.overrides.frontend.replicsa is unknown and ignored (known: frontend.replicas)"
                    .to_owned(),
            ],
        }
    );
    assert_eq!(ask(json!({ "overrides": overrides })), Findings::default());
}

/// A registration without a list of overrides, whose provider takes overrides.
#[test]
fn overrides_of_a_provider_that_documents_none_cause_no_warning() {
    let registered = providers(json!({
        "silent": {"capabilities": {"engines": ["vllm"]}},
        "none": {"capabilities": {"engines": ["vllm"]}, "overrides": []},
    }));
    let ask = |name: &str| {
        let provider = json!({"name": name, "overrides": {"frontend": {"replicas": 2}}});
        validate(&deployment(spec(json!({ "provider": provider }))), &registered)
    };
    assert_eq!(ask("silent"), Findings::default());
    assert_eq!(
        ask("none").warnings,
        ["spec.provider.overrides.frontend is unknown and ignored (this provider has no overrides)"]
    );
}

#[test]
fn a_name_must_fit_a_service() {
    let mut deployment = deployment(spec(json!({})));
    deployment.metadata.name = Some("n".repeat(64));
    assert_eq!(
        validate(&deployment, &Providers::default()).errors[0].field,
        "metadata.name"
    );
}

#[test]
fn messages_about_a_hostile_spec_are_bounded() {
    let env: Vec<_> = (0..5000).map(|_| json!({"name": ""})).collect();
    let labels: Map<_, _> = (0..500)
        .map(|i| (format!("{i} {}", "ä\n".repeat(10_000)), json!("v".repeat(10_000))))
        .collect();
    let findings = findings(spec(json!({"env": env, "nodeSelector": labels})));
    assert_eq!(findings.errors.len(), 50);
    assert_eq!(findings.errors[49].message, "and 5951 more");
    for violation in &findings.errors {
        assert!(
            violation.message.len() <= 1024 && violation.field.len() <= 128,
            "{violation:?}"
        );
        assert!(!violation.message.contains('\n'));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn validation_never_panics_and_is_deterministic(spec in any_spec()) {
        let mut deployment = deployment(json!({"model": {}}));
        deployment.spec = spec;
        let findings = validate(&deployment, &Providers::default());
        prop_assert_eq!(&findings, &validate(&deployment, &Providers::default()));
        prop_assert!(findings.errors.iter().all(|violation| !violation.field.is_empty() && !violation.message.is_empty()));
    }

    /// Defaults make no spec valid or invalid.
    #[test]
    fn defaults_do_not_change_the_findings(spec in any_spec()) {
        let mut deployment = deployment(json!({"model": {}}));
        deployment.spec = spec;
        let before = validate(&deployment, &Providers::default());
        apply_defaults(&mut deployment.spec);
        prop_assert_eq!(before, validate(&deployment, &Providers::default()));
    }
}

#[test]
fn overrides_and_env_are_bounded_in_all() {
    let overrides = |length: usize| spec(json!({"provider": {"overrides": {"a": "x".repeat(length)}}}));
    let around = r#"{"a":""}"#.len();
    refused(overrides(64 * 1024 - around), &[]);
    refused(
        overrides(64 * 1024),
        &[(
            "spec.provider.overrides",
            "provider.overrides is 65 KiB of JSON, and at most 64 KiB are accepted: give the documented keys of the provider only",
        )],
    );
    let env = |length: usize| {
        let variables: Vec<_> = (0..8)
            .map(|i| json!({"name": format!("V{i}"), "value": "x".repeat(length)}))
            .collect();
        spec(json!({"env": variables}))
    };
    refused(env(16 * 1024), &[]);
    refused(
        env(20 * 1024),
        &[(
            "spec.env",
            "the values of env are 160 KiB together, and at most 128 KiB are accepted: put large ones into a ConfigMap, and name it in valueFrom",
        )],
    );
}
