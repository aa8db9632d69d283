//! Registration of the provider: capabilities and rules (design 4.4, 4.5).

use runway_api::InferenceProviderConfigSpec;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{Capabilities, SelectionPolicy, SelectionRule, ValidationRule};

use crate::overrides;

pub(crate) fn registration() -> InferenceProviderConfigSpec {
    InferenceProviderConfigSpec {
        capabilities: Capabilities {
            engines: ["vllm", "sglang", "trtllm"].map(str::to_owned).to_vec(),
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
        validation_rules: names(),
        overrides: overrides::documented(),
        documentation: Some("https://github.com/kubeairunway/dynamo-provider".to_owned()),
        installation: Some(
            "Install Dynamo's operator with its Helm chart dynamo-platform (https://docs.nvidia.com/dynamo/latest/kubernetes). \
             Start this provider with --runtime-version where other runtime images than its default are to be used."
                .to_owned(),
        ),
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
fn names() -> Vec<ValidationRule> {
    let rule = |rule: String, message: String| ValidationRule { rule, message };
    vec![
        rule(
            "metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')".to_owned(),
            "metadata.name must begin with a letter and have no dots on provider dynamo, because Dynamo names a Service after it: \
             choose another name, as llama-3-1-8b"
                .to_owned(),
        ),
        rule(
            format!(
                "size(metadata.name) <= (spec.serving.mode == 'disaggregated' ? {LONGEST_NAME_DISAGGREGATED} : {LONGEST_NAME})"
            ),
            format!(
                "metadata.name must have at most {LONGEST_NAME} characters on provider dynamo, and {LONGEST_NAME_DISAGGREGATED} in disaggregated mode, \
                 because Dynamo puts it with the names of its workers into a label: choose a shorter name"
            ),
        ),
        rule(
            format!("size(metadata.namespace) + size(metadata.name) <= {}", LABEL - 1),
            format!(
                "metadata.name and metadata.namespace must have at most {} characters together on provider dynamo, because Dynamo puts both into a label: \
                 choose a shorter name",
                LABEL - 1
            ),
        ),
    ]
}

/// Characters of a label.
const LABEL: usize = 63;
/// A dash, `TrtllmWorker`, a dash and the hash.
pub(crate) const LONGEST_NAME: usize = LABEL - 22;
/// A dash, `TrtllmPrefillWorker`, a dash and the hash.
pub(crate) const LONGEST_NAME_DISAGGREGATED: usize = LABEL - 29;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compatible::{Engine, Role};
    use crate::graph::worker_name;

    #[test]
    fn the_longest_names_are_those_of_the_workers() {
        let longest = |roles: &[Role]| {
            let engines = [Engine::Vllm, Engine::Sglang, Engine::TrtLlm];
            let names = engines
                .iter()
                .flat_map(|e| roles.iter().map(|r| worker_name(*e, *r).len()));
            LABEL - names.max().unwrap() - "-".len() - "-01234567".len()
        };
        assert_eq!(LONGEST_NAME, longest(&[Role::Frontend, Role::Worker]));
        assert_eq!(LONGEST_NAME_DISAGGREGATED, longest(&[Role::Prefill, Role::Decode]));
    }
}
