//! Registration of the provider: capabilities and rules.

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{Capabilities, SelectionPolicy, SelectionRule};
use runway_provider::names::{Limit, Names};

use crate::engine;
use crate::overrides;

pub(crate) fn registration() -> InferenceProviderConfigSpec {
    InferenceProviderConfigSpec {
        capabilities: Capabilities {
            engines: engine::ALL.map(|engine| engine.dialect.name.to_owned()).into(),
            serving_modes: vec![ServingMode::Aggregated, ServingMode::Disaggregated],
            cpu_support: false,
            gpu_support: true,
            // All engines in all modes.
            per_engine: Vec::new(),
        },
        selection_rules: vec![
            rule("spec.engine.type == 'trtllm'", 100),
            rule("spec.engine.type == 'sglang'", 100),
            rule("spec.serving.mode == 'disaggregated'", 90),
            rule(
                "spec.engine.type == 'vllm' && has(spec.resources.gpu) && spec.resources.gpu.count > 0",
                50,
            ),
        ],
        selection_policy: Some(SelectionPolicy::Automatic),
        validation_rules: NAMES.rules(),
        overrides: Some(overrides::documented()),
        documentation: Some("https://github.com/kubeairunway/kubeairunway/blob/main/docs/reference/providers.md#dynamo".to_owned()),
        installation: Some(
            "Install Dynamo's operator with its Helm chart dynamo-platform (https://docs.nvidia.com/dynamo/latest/kubernetes). \
             Runtime images have the release of the operator's Deployment dynamo-platform-dynamo-operator-controller-manager. \
             If it has another name, set the provider's setting runtimeVersion."
                .to_owned(),
        ),
        settings: None,
    }
}

fn rule(condition: &str, priority: i32) -> SelectionRule {
    SelectionRule {
        condition: condition.to_owned(),
        priority,
    }
}

/// Names that Dynamo or its objects cannot have (Dynamo `deploy/operator/internal/dynamo/graph.go`):
/// - the Service NAME-frontend: a letter first, no dots (GenerateComponentService);
/// - the label `nvidia.com/selector` with NAME-COMPONENT-HASH, of at most 63 characters, of which the hash has 8
///   (GetDCDResourceName);
/// - the label `nvidia.com/dynamo-namespace` with NAMESPACE-NAME, of at most 63 as well (ComputeDynamoNamespace).
pub(crate) const NAMES: Names = Names {
    provider: "dynamo",
    limits: &[
        Limit::Service("Dynamo names a Service after it"),
        Limit::LengthByMode {
            aggregated: LONGEST_NAME,
            disaggregated: LONGEST_NAME_DISAGGREGATED,
            because: "Dynamo puts it with the names of its workers into a label",
        },
        Limit::LengthWithNamespace(LABEL - 1, "Dynamo puts both into a label"),
    ],
};

/// Characters of a label.
const LABEL: usize = 63;
/// A dash, `TrtllmWorker`, a dash and the hash.
const LONGEST_NAME: usize = LABEL - 22;
/// A dash, `TrtllmPrefillWorker`, a dash and the hash.
const LONGEST_NAME_DISAGGREGATED: usize = LABEL - 29;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role::Role;

    #[test]
    fn the_longest_names_are_those_of_the_workers() {
        let longest = |roles: &[Role]| {
            let names = engine::ALL
                .iter()
                .flat_map(|e| roles.iter().map(|r| e.component(*r).len()));
            LABEL - names.max().unwrap() - "-".len() - "-01234567".len()
        };
        assert_eq!(LONGEST_NAME, longest(&[Role::Frontend, Role::Worker]));
        assert_eq!(LONGEST_NAME_DISAGGREGATED, longest(&[Role::Prefill, Role::Decode]));
    }
}
