//! Settings of an installation: what is wrong is reported with its path, what was found, and what is allowed.

use std::sync::Arc;

use runway_provider::{Configured, InvalidSettings, Provider};
use runway_provider_direct::Direct;
use serde_json::{Value, json};

fn invalid(settings: &Value) -> Option<String> {
    let configured = Configured::new(Arc::new(Direct::default()), settings.as_object());
    configured.invalid.as_ref().map(InvalidSettings::to_string)
}

#[test]
fn invalid_settings_are_reported_with_path_finding_and_remedy() {
    let table = [
        (
            json!({"image": {}}),
            "spec.settings.image: unknown field `image`, expected one of `images`, `registryMirror`, `imagePullSecrets`, `nodeLabels`, `drainSeconds`",
        ),
        (
            json!({"images": {"vlm": "a:1"}}),
            "spec.settings.images.vlm: unknown field `vlm`, expected one of `llamacpp`, `llamacppCpu`, `vllm`, `sglang`, `trtllm`",
        ),
        (
            json!({"images": {"vllm": 3}}),
            "spec.settings.images.vllm: invalid type: integer `3`, expected a string",
        ),
        (
            json!({"images": {"vllm": "two words"}}),
            "spec.settings.images.vllm: 'two words' is not an image, such as registry.example.com/team/vllm:v1",
        ),
        (
            json!({"registryMirror": "https://registry.example.com/"}),
            "spec.settings.registryMirror: 'https://registry.example.com/' is not a registry, such as registry.example.com/mirror, without a scheme and a slash at the end",
        ),
        (
            json!({"imagePullSecrets": ["team_registry"]}),
            "spec.settings.imagePullSecrets[0]: invalid name `team_registry`: use lowercase letters, digits, `-` and `.`; start and end with a letter or digit",
        ),
        (
            json!({"nodeLabels": {"gpu": {"pool": true}}}),
            "spec.settings.nodeLabels.gpu.pool: invalid type: boolean `true`, expected a string",
        ),
        (
            json!({"nodeLabels": {"cpu": {"-pool": "a"}}}),
            "spec.settings.nodeLabels.cpu: '-pool: a' is not a label, such as nvidia.com/gpu.present: \"true\"",
        ),
        (
            json!({"drainSeconds": 3601}),
            "spec.settings.drainSeconds: 3601 is more than 3600 seconds, the longest drain",
        ),
        (
            json!({"drainSeconds": "15s"}),
            "spec.settings.drainSeconds: invalid type: string \"15s\", expected u64",
        ),
    ];
    for (settings, expected) in table {
        assert_eq!(invalid(&settings).as_deref(), Some(expected), "{settings}");
    }
    let large = json!({"images": {"vllm": "a".repeat(70_000)}});
    assert!(invalid(&large).unwrap().contains("at most 65536 are allowed"));
}

#[test]
fn absent_and_empty_settings_are_valid() {
    for settings in [
        Value::Null,
        json!({}),
        json!({"images": {}}),
        json!({"registryMirror": null}),
    ] {
        assert_eq!(invalid(&settings), None, "{settings}");
    }
}

#[test]
fn every_setting_is_described() {
    let settings = Direct::default().settings().unwrap();
    for (name, schema) in settings.schema().as_value()["properties"].as_object().unwrap() {
        assert!(schema["description"].is_string(), "{name}");
    }
}
