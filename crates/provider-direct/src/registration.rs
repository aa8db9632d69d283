//! Registration of the provider (design 3.9).

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{Capabilities, EngineCapabilities, SelectionPolicy, SelectionRule, ValidationRule};

use crate::engine::{self, Dialect};
use crate::overrides;

/// The lowest priority of a rule. A provider without a matching rule has 0, so that any other eligible provider wins.
const LAST: i32 = -10_000;

pub(crate) fn registration() -> InferenceProviderConfigSpec {
    InferenceProviderConfigSpec {
        capabilities: Capabilities {
            engines: engine::ALL.map(|dialect| dialect.name.to_owned()).into(),
            serving_modes: vec![ServingMode::Aggregated],
            cpu_support: true,
            gpu_support: true,
            per_engine: engine::ALL.map(capabilities).into(),
        },
        selection_rules: vec![SelectionRule {
            condition: "true".to_owned(),
            priority: LAST,
        }],
        selection_policy: Some(SelectionPolicy::Automatic),
        validation_rules: names(),
        overrides: overrides::documented(),
        documentation: Some("https://github.com/kubeairunway/direct-provider".to_owned()),
        installation: Some(
            "Nothing else is needed: models run as Deployments and Services. Models with GPUs need nodes with a device plugin, \
             such as NVIDIA's."
                .to_owned(),
        ),
    }
}

fn capabilities(dialect: &Dialect) -> EngineCapabilities {
    EngineCapabilities {
        name: dialect.name.to_owned(),
        serving_modes: None,
        cpu_support: Some(dialect.cpu_image.is_some()),
        gpu_support: Some(true),
    }
}

/// A Service's name must be a DNS label of RFC 1035 (Kubernetes `pkg/apis/core/validation`, ValidateServiceName).
fn names() -> Vec<ValidationRule> {
    vec![
        ValidationRule {
            rule: "metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".to_owned(),
            message: BAD_NAME.to_owned(),
        },
        ValidationRule {
            rule: "size(metadata.name) <= 63".to_owned(),
            message: LONG_NAME.to_owned(),
        },
    ]
}

const BAD_NAME: &str = "metadata.name must begin with a letter and have no dots on provider direct, because a Service is named after it: \
                        choose another name, such as llama-3-1-8b";
const LONG_NAME: &str = "metadata.name must have at most 63 characters on provider direct, because a Service is named after it: \
                         choose a shorter name";

/// Reason why a Service cannot have this name. Repeats the rules above for a ModelDeployment that was validated without them.
pub(crate) fn name_problem(name: &str) -> Option<&'static str> {
    let is_label = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    match name.len() {
        _ if !is_label => Some(BAD_NAME),
        64.. => Some(LONG_NAME),
        _ => None,
    }
}
