//! Registration of the provider.

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{Capabilities, SelectionPolicy};
use runway_provider::engine::VLLM;
use runway_provider::names::{Limit, Names};

use crate::head;

pub(crate) fn registration() -> InferenceProviderConfigSpec {
    InferenceProviderConfigSpec {
        capabilities: Capabilities {
            engines: vec![VLLM.name.to_owned()],
            serving_modes: vec![ServingMode::Aggregated, ServingMode::Disaggregated],
            cpu_support: false,
            gpu_support: true,
            per_engine: Vec::new(),
        },
        selection_rules: Vec::new(),
        selection_policy: Some(SelectionPolicy::Explicit),
        validation_rules: NAMES.rules(),
        overrides: Some(head::overrides()),
        documentation: Some("https://github.com/kubeairunway/kubeairunway/blob/main/docs/reference/providers.md#kuberay".to_owned()),
        installation: Some(
            "Install the KubeRay operator with its Helm chart (https://docs.ray.io/en/latest/cluster/kubernetes/getting-started/kuberay-operator-installation.html), \
             1.7 or newer if models are to be scaled to zero."
                .to_owned(),
        ),
        settings: None,
    }
}

/// A RayService's name must be a DNS-1035 label of at most 47 characters: a RayCluster, Services and pods are named
/// after it (KubeRay `utils/validation.go`, ValidateRayServiceMetadata, and `utils/constant.go`,
/// MaxRayServiceNameLength).
pub(crate) const NAMES: Names = Names {
    provider: "kuberay",
    limits: &[
        Limit::Service("KubeRay names Services after it"),
        Limit::Length(47, "KubeRay adds to it in the names of clusters and Services"),
    ],
};
