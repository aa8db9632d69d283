//! Registration of the provider.

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{Capabilities, SelectionPolicy, SelectionRule};
use runway_provider::engine::{self, Dialect};
use runway_provider::names::{Limit, Names};

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
            per_engine: engine::ALL.map(Dialect::capabilities).into(),
        },
        selection_rules: vec![SelectionRule {
            condition: "true".to_owned(),
            priority: LAST,
        }],
        selection_policy: Some(SelectionPolicy::Automatic),
        validation_rules: NAMES.rules(),
        overrides: Some(overrides::documented()),
        documentation: Some("https://github.com/kubeairunway/kubeairunway/blob/main/docs/reference/providers.md#direct".to_owned()),
        installation: Some(
            "Nothing else is needed: models run as Deployments and Services. Models with GPUs need nodes with a device plugin, \
             such as NVIDIA's."
                .to_owned(),
        ),
        settings: None,
    }
}

/// A Service's name must be a DNS label of RFC 1035 (Kubernetes `pkg/apis/core/validation`, ValidateServiceName).
pub(crate) const NAMES: Names = Names {
    provider: "direct",
    limits: &[
        Limit::Service("a Service is named after it"),
        Limit::Length(63, "a Service is named after it"),
    ],
};
