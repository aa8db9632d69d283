//! Registration of the provider (design 3.9).

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{Capabilities, SelectionPolicy, ValidationRule};

use crate::head;

pub(crate) fn registration() -> InferenceProviderConfigSpec {
    InferenceProviderConfigSpec {
        capabilities: Capabilities {
            engines: vec!["vllm".to_owned()],
            serving_modes: vec![ServingMode::Aggregated, ServingMode::Disaggregated],
            cpu_support: false,
            gpu_support: true,
            per_engine: Vec::new(),
        },
        selection_rules: Vec::new(),
        selection_policy: Some(SelectionPolicy::Explicit),
        validation_rules: names(),
        overrides: head::overrides(),
        documentation: Some("https://github.com/kubeairunway/kuberay-provider".to_owned()),
        installation: Some(
            "Install the KubeRay operator with its Helm chart (https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/kuberay-operator-installation.html), \
             1.7 or newer if models are to be scaled to zero."
                .to_owned(),
        ),
    }
}

/// A RayService's name must be a DNS-1035 label of at most 47 characters: a RayCluster, Services and pods are named
/// after it (KubeRay `utils/validation.go`, ValidateRayServiceMetadata, and `utils/constant.go`,
/// MaxRayServiceNameLength).
fn names() -> Vec<ValidationRule> {
    vec![
        ValidationRule {
            rule: "metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".to_owned(),
            message: "metadata.name must begin with a letter and have no dots on provider kuberay, because KubeRay names Services after it: \
                      choose another name, as llama-3-1-8b"
                .to_owned(),
        },
        ValidationRule {
            rule: "size(metadata.name) <= 47".to_owned(),
            message: "metadata.name must have at most 47 characters on provider kuberay, because KubeRay adds to it in the names of clusters and Services: \
                      choose a shorter name"
                .to_owned(),
        },
    ]
}
