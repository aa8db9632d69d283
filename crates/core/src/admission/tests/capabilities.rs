//! Capabilities at admission: errors for a named or selected provider, a warning while none is selected.

use runway_api::model_deployment::ProviderStatus;
use runway_api::{ModelDeployment, ModelDeploymentStatus};
use serde_json::{Value, json};

use super::{deployment, providers};
use crate::admission::{Findings, capabilities};
use crate::providers::Providers;

fn registered() -> Providers {
    providers(json!({
        "acme": {
            "capabilities": {"engines": ["vllm", "llamacpp"], "servingModes": ["aggregated"], "gpuSupport": true, "cpuSupport": false,
                "perEngine": [{"name": "llamacpp", "cpuSupport": true, "podMetrics": {"requestsInFlight": "busy"}}]},
            "validationRules": [{"rule": "size(spec.env) == 0", "message": "acme takes no env: remove spec.env"}],
        },
        "zenith": {"capabilities": {"engines": ["vllm", "sglang"], "servingModes": ["aggregated", "disaggregated"], "gpuSupport": true}},
        "unregistered": {"settings": {"a": "b"}},
    }))
}

fn model(engine: &str, gpus: u32, change: Value) -> ModelDeployment {
    let mut spec = json!({
        "model": {"id": "org/model"}, "engine": {"type": engine}, "resources": {"gpu": {"count": gpus}},
    });
    json_patch::merge(&mut spec, &change);
    deployment(spec)
}

fn named(provider: &str) -> Value {
    json!({"provider": {"name": provider}})
}

fn selected(provider: &str, mut md: ModelDeployment) -> ModelDeployment {
    md.status = Some(ModelDeploymentStatus {
        provider: Some(ProviderStatus {
            name: Some(provider.to_owned()),
            ..ProviderStatus::default()
        }),
        ..ModelDeploymentStatus::default()
    });
    md
}

fn refused(md: &ModelDeployment, expected: &[(&str, &str)]) {
    let findings = capabilities(md, &registered());
    let errors = findings.errors.iter();
    let found: Vec<_> = errors.map(|v| (v.field.as_str(), v.message.as_str())).collect();
    assert_eq!(found, expected);
    assert!(findings.warnings.is_empty(), "{findings:?}");
}

#[test]
fn autoscaling_by_a_metric_requires_its_name() {
    let by = |autoscaling: Value| json!({"provider": {"name": "acme"}, "scaling": {"autoscaling": autoscaling}});
    refused(
        &model("vllm", 1, by(json!({"maxReplicas": 2, "tokensPerSecond": 9}))),
        &[(
            "spec.scaling.autoscaling",
            "provider 'acme' has no pod metric for tokensPerSecond with vllm, only autoscaling.trigger: change spec.scaling.autoscaling, no registered provider does",
        )],
    );
    refused(
        &model("llamacpp", 0, by(json!({"maxReplicas": 2, "requestsInFlight": 9}))),
        &[],
    );
    refused(
        &model("vllm", 1, by(json!({"maxReplicas": 2, "trigger": {"type": "cron"}}))),
        &[],
    );
}

#[test]
fn a_named_provider_must_support_the_spec() {
    refused(
        &model("sglang", 1, named("acme")),
        &[(
            "spec.engine.type",
            "provider 'acme' does not support engine sglang: change spec.engine.type, or set spec.provider.name to a provider that does: zenith",
        )],
    );
    refused(
        &model("vllm", 0, named("zenith")),
        &[(
            "spec.resources.gpu",
            "provider 'zenith' does not run vllm without a GPU: change spec.resources.gpu, no registered provider does",
        )],
    );
    let mut disaggregated = named("acme");
    disaggregated["serving"] = json!({"mode": "disaggregated"});
    disaggregated["scaling"] = json!({"prefill": {"gpu": {"count": 1}}, "decode": {"gpu": {"count": 1}}});
    refused(
        &model("vllm", 0, disaggregated),
        &[(
            "spec.serving.mode",
            "provider 'acme' does not support serving mode disaggregated with vllm: change spec.serving.mode, or set spec.provider.name to a provider that does: zenith",
        )],
    );
    refused(&model("llamacpp", 0, named("acme")), &[]);
}

#[test]
fn a_selected_provider_must_support_a_change() {
    let md = selected("acme", model("sglang", 1, json!({})));
    refused(
        &md,
        &[(
            "spec.engine.type",
            "provider 'acme' does not support engine sglang: change spec.engine.type, or set spec.provider.name to a provider that does: zenith",
        )],
    );
    let env = json!({"env": [{"name": "A", "value": "b"}]});
    refused(
        &selected("acme", model("vllm", 1, env.clone())),
        &[("spec", "acme takes no env: remove spec.env")],
    );
    // The named provider takes over.
    let mut moved = env;
    moved["provider"] = json!({"name": "zenith"});
    refused(&selected("acme", model("vllm", 1, moved)), &[]);
}

#[test]
fn a_spec_without_a_suitable_provider_causes_a_warning() {
    let warnings = |md: &ModelDeployment| capabilities(md, &registered());
    assert_eq!(
        warnings(&model("llamacpp", 0, json!({"env": [{"name": "A", "value": "b"}]}))),
        Findings {
            errors: Vec::new(),
            warnings: vec![
                "No provider supports engine=llamacpp, gpu=false, mode=aggregated: acme acme takes no env: remove spec.env; \
                 unregistered does not support engine llamacpp; zenith does not support engine llamacpp"
                    .to_owned()
            ],
        }
    );
    assert_eq!(warnings(&model("vllm", 1, json!({}))), Findings::default());
    // The validation reports an engine that nothing supports; without providers, nothing is known.
    assert_eq!(warnings(&model("trtllm", 1, json!({}))), Findings::default());
    let md = model("trtllm", 1, json!({}));
    assert_eq!(capabilities(&md, &Providers::default()), Findings::default());
}

#[test]
fn a_provider_without_capabilities_refuses_nothing() {
    refused(&model("vllm", 1, named("unregistered")), &[]);
    refused(&model("vllm", 1, named("missing")), &[]);
    refused(&selected("missing", model("vllm", 1, json!({}))), &[]);
}
