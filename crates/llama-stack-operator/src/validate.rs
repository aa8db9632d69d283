//! The schema and rules of the CRD as a function, for `render` and for clusters with an older CRD.

use std::collections::BTreeMap;

use kube::ResourceExt;
use runway_api::LlamaStackDistribution;
use runway_api::llama_stack_distribution::{ApiSection, Distribution, ExternalProvider};
use runway_api::name::is_label;
use runway_operator::json;

/// Longest name: a Service `NAME-service` is made from it.
const MAX_NAME: usize = 55;
/// Longest id of a provider: the init container `external-provider-ID` has at most 63 characters.
const MAX_PROVIDER_ID: usize = 45;
/// Most bytes of a provider's configuration, as JSON: the ConfigMap with the configurations of all takes 1 MiB.
const MAX_CONFIG: usize = 64 * 1024;
/// Most providers in one section.
const MAX_PROVIDERS: usize = 16;

/// Errors of a spec, one sentence each.
pub fn validate(llsd: &LlamaStackDistribution) -> Vec<String> {
    let mut wrong = Vec::new();
    wrong.extend(name(&llsd.name_any()));
    wrong.extend(distribution(&llsd.spec.server.distribution));
    wrong.extend(numbers(llsd));
    let providers = llsd.external_providers();
    wrong.extend(providers.iter().flat_map(|(section, p)| provider(*section, p)));
    wrong.extend(crowded(&providers));
    wrong.extend(duplicate_ids(&providers));
    wrong
}

/// Errors for IDs that two external providers share, with their positions and images.
pub(crate) fn duplicate_ids(providers: &[(ApiSection, &ExternalProvider)]) -> Vec<String> {
    let mut by_id: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (section, provider) in providers {
        let place = format!("externalProviders.{} (image {})", section.field, provider.image);
        by_id.entry(&provider.provider_id).or_default().push(place);
    }
    by_id
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(id, places)| {
            format!(
                "Duplicate providerId '{id}' in {}: give each provider a unique id",
                places.join(" and ")
            )
        })
        .collect()
}

fn name(name: &str) -> Option<String> {
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    (!(starts && is_label(name) && name.len() <= MAX_NAME)).then(|| {
        format!("metadata.name must be at most {MAX_NAME} lower case letters, digits and '-', beginning with a letter: the name of the Service is derived from it")
    })
}

fn distribution(distribution: &Distribution) -> Option<String> {
    match (given(distribution.name.as_ref()), given(distribution.image.as_ref())) {
        (Some(_), Some(_)) => Some("spec.server.distribution: Only one of name or image can be specified".to_owned()),
        (None, None) => Some(
            "spec.server.distribution needs a name (starter, remote-vllm, meta-reference-gpu, postgres-demo, or one the operator was given) or an image".to_owned(),
        ),
        (None, Some(image)) if has_blanks(image) => {
            Some("spec.server.distribution.image must not contain spaces or control characters".to_owned())
        }
        _ => None,
    }
}

fn numbers(llsd: &LlamaStackDistribution) -> Vec<String> {
    let server = &llsd.spec.server;
    let port = server.container_spec.as_ref().and_then(|c| c.port);
    let autoscaling = server.autoscaling.as_ref();
    let budget = server.pod_disruption_budget.as_ref();
    let startup = server.pod_overrides.as_ref().and_then(|o| o.startup_timeout_seconds);
    let rules = [
        (
            llsd.spec.replicas.is_none_or(|n| (0..=1000).contains(&n)),
            "spec.replicas must be from 0 to 1000",
        ),
        (
            port.is_none_or(|n| (0..=65535).contains(&n)),
            "spec.server.containerSpec.port must be from 1 to 65535",
        ),
        (
            startup.is_none_or(|n| (10..=86400).contains(&n)),
            "spec.server.podOverrides.startupTimeoutSeconds must be from 10 to 86400",
        ),
        (
            server.workers.is_none_or(|n| (1..=1024).contains(&n)),
            "spec.server.workers must be from 1 to 1024",
        ),
        (
            autoscaling.is_none_or(|a| a.max_replicas >= 1 && a.min_replicas.is_none_or(|n| n <= a.max_replicas)),
            "spec.server.autoscaling.maxReplicas must be at least 1, and minReplicas must not be larger",
        ),
        (
            budget.is_none_or(|b| b.min_available.is_none() || b.max_unavailable.is_none()),
            "spec.server.podDisruptionBudget takes one of minAvailable and maxUnavailable, not both",
        ),
    ];
    rules
        .into_iter()
        .filter(|(kept, _)| !kept)
        .map(|(_, text)| text.to_owned())
        .collect()
}

fn provider(section: ApiSection, provider: &ExternalProvider) -> Vec<String> {
    let place = format!(
        "spec.server.externalProviders.{}: providerId '{}'",
        section.field, provider.provider_id
    );
    let mut wrong = Vec::new();
    if provider.provider_id.len() > MAX_PROVIDER_ID {
        wrong.push(format!(
            "{place} is {} characters long: at most {MAX_PROVIDER_ID} fit, an init container is named after it",
            provider.provider_id.len()
        ));
    } else if !is_label(&provider.provider_id) {
        wrong.push(format!(
            "{place} must be lower case letters, digits and '-': an init container is named after it"
        ));
    }
    let config = provider.config.as_ref().map_or(0, json::size);
    if config > MAX_CONFIG {
        wrong.push(format!(
            "{place}: config is {} KiB of JSON, and at most {} KiB are accepted: put files into a ConfigMap or an image",
            config.div_ceil(1024),
            MAX_CONFIG / 1024
        ));
    }
    if provider.image.is_empty() || has_blanks(&provider.image) {
        wrong.push(format!("{place} needs an image, without spaces or control characters"));
    }
    wrong
}

fn crowded(providers: &[(ApiSection, &ExternalProvider)]) -> Vec<String> {
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for (section, _) in providers {
        *count.entry(section.field).or_default() += 1;
    }
    count
        .into_iter()
        .filter(|(_, n)| *n > MAX_PROVIDERS)
        .map(|(field, n)| {
            format!("spec.server.externalProviders.{field} has {n} providers: at most {MAX_PROVIDERS} are allowed")
        })
        .collect()
}

/// A text that is set and not empty.
pub(crate) fn given(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|t| !t.is_empty())
}

fn has_blanks(text: &str) -> bool {
    text.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_that_is_too_large_is_refused_with_its_size() {
        let section = ApiSection {
            field: "inference",
            api: "inference",
        };
        let wrong = |length: usize| {
            let config = serde_json::json!({ "a": "x".repeat(length) });
            let given = ExternalProvider {
                provider_id: "echo".to_owned(),
                image: "registry.example/echo:1".to_owned(),
                config: config.as_object().cloned(),
                ..ExternalProvider::default()
            };
            provider(section, &given)
        };
        assert_eq!(wrong(60 * 1024), Vec::<String>::new());
        assert_eq!(
            wrong(65 * 1024),
            [
                "spec.server.externalProviders.inference: providerId 'echo': config is 66 KiB of JSON, and at most 64 KiB are accepted: put files into a ConfigMap or an image"
            ]
        );
    }
}
