//! Registration of the provider.

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::{DEFAULT_GPU, ServingMode};
use runway_api::provider_config::{Capabilities, EngineCapabilities, SelectionPolicy, SelectionRule, ValidationRule};
use runway_provider::engine::{LLAMACPP, VLLM};
use runway_provider::names::{Limit, Names};

use crate::config::KaitoConfig;
use crate::family;

pub(crate) fn registration(config: &KaitoConfig) -> InferenceProviderConfigSpec {
    InferenceProviderConfigSpec {
        capabilities: capabilities(),
        selection_rules: vec![
            rule("!has(spec.resources.gpu) || spec.resources.gpu.count == 0", 100),
            rule("spec.engine.type == 'llamacpp'", 100),
        ],
        selection_policy: Some(SelectionPolicy::Automatic),
        validation_rules: NAMES
            .rules()
            .into_iter()
            .chain(preset_rules(config))
            .chain([llamacpp_rule()])
            .collect(),
        overrides: Some(family::overrides()),
        documentation: Some("https://github.com/kubeairunway/kubeairunway/blob/main/docs/reference/providers.md#kaito".to_owned()),
        installation: Some(
            "Install KAITO's workspace operator with its Helm chart (https://kaito-project.github.io/kaito/docs/installation). \
             With nodes of your own set featureGates.disableNodeAutoProvisioning=true in the chart; where KAITO provisions nodes, \
             set the provider's settings nodeProvisioning and instanceTypes."
                .to_owned(),
        ),
        settings: None,
    }
}

/// Presets and containers run vLLM's own server, which exports its metrics (KAITO
/// `presets/workspace/inference/vllm/inference_api.py`). Not all servers of llama.cpp models export llama.cpp's.
fn capabilities() -> Capabilities {
    Capabilities {
        engines: vec![VLLM.name.to_owned(), LLAMACPP.name.to_owned()],
        serving_modes: vec![ServingMode::Aggregated],
        cpu_support: true,
        gpu_support: true,
        per_engine: vec![
            VLLM.capabilities(),
            EngineCapabilities {
                pod_metrics: None,
                ..LLAMACPP.capabilities()
            },
        ],
    }
}

fn rule(condition: &str, priority: i32) -> SelectionRule {
    SelectionRule {
        condition: condition.to_owned(),
        priority,
    }
}

/// Names that KAITO or its objects cannot have. A Workspace's name must be a DNS-1123 label (KAITO workspace_validation.go,
/// Validate). Its Service has the same name, which must begin with a letter. So has its StatefulSet, whose pods carry the name
/// and 11 more characters in a label of at most 63 (kubernetes issue 64023).
pub(crate) const NAMES: Names = Names {
    provider: "kaito",
    limits: &[
        Limit::Service("KAITO names a Service after it"),
        Limit::Length(LONGEST_NAME, "KAITO names a StatefulSet after it"),
    ],
};

/// Rules for fields that presets do not support, so that KAITO is not selected for a ModelDeployment that it would refuse.
fn preset_rules(config: &KaitoConfig) -> Vec<ValidationRule> {
    if config.images.vllm.is_some() {
        return Vec::new();
    }
    let gpu = format!("!has(spec.resources.gpu) || spec.resources.gpu.type in ['', '{DEFAULT_GPU}']");
    [
        ("size(spec.env) == 0".to_owned(), PRESET_ENV),
        ("size(spec.tolerations) == 0".to_owned(), PRESET_TOLERATIONS),
        (gpu, PRESET_GPU),
        (PODS_UNSET.to_owned(), PRESET_PODS),
    ]
    .into_iter()
    .map(|(supported, message)| ValidationRule {
        rule: format!("spec.engine.type != 'vllm' || (has(spec.image) && spec.image != '') || {supported}"),
        message: message.to_owned(),
    })
    .collect()
}

/// Without an image, another provider may have one.
fn llamacpp_rule() -> ValidationRule {
    ValidationRule {
        rule: "spec.engine.type != 'llamacpp' || (has(spec.image) && spec.image != '')".to_owned(),
        message: LLAMACPP_IMAGE.to_owned(),
    }
}

/// The port is that of KAITO's Services.
pub(crate) const LLAMACPP_IMAGE: &str = "llamacpp engine requires spec.image to be set: KAITO has no image of its own for llama.cpp. \
                                         Set spec.image to one that runs llama.cpp, such as ghcr.io/ggml-org/llama.cpp:server, \
                                         or provider.name to direct, which has one";

pub(crate) const PRESET_ENV: &str = "spec.env cannot be passed to KAITO's preset pods: \
                                     set spec.image to run vLLM in your own container, or remove spec.env";
pub(crate) const PRESET_TOLERATIONS: &str = "spec.tolerations cannot be passed to KAITO's preset pods, which tolerate KAITO's GPU taints only: \
                                             set spec.image to run vLLM in your own container, or remove spec.tolerations";
/// Whether a ModelDeployment sets none of the fields that only a provider which writes the pods can pass on.
const PODS_UNSET: &str = "(size(spec.imagePullSecrets) == 0 && !has(spec.serviceAccountName) && size(spec.model.storage.volumes) == 0 && size(spec.podTemplate.spec) == 0)";
const PRESET_PODS: &str = "spec.imagePullSecrets, spec.serviceAccountName, spec.model.storage and podTemplate.spec cannot be passed to KAITO's preset pods: \
                                     set spec.image to run vLLM in your own container, or remove them";
const PRESET_GPU: &str = "resources.gpu.type must be nvidia.com/gpu for KAITO's presets: \
                                     set spec.image to run vLLM in your own container, or remove resources.gpu.type";

/// Maximum length of the name of a Workspace, so that its pods can be created.
pub(crate) const LONGEST_NAME: usize = 52;
