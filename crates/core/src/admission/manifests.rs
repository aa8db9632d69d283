//! Webhook configurations.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
    ValidatingWebhookConfiguration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{ObjectMeta, Resource};
use runway_api::{ModelDeployment, labels};
use runway_operator::webhook::Endpoint;

use super::handlers::{MUTATE_PATH, VALIDATE_PATH};

/// Name of the MutatingWebhookConfiguration.
pub const MUTATING_CONFIGURATION: &str = "kubeairunway-mutating";
/// Name of the ValidatingWebhookConfiguration.
pub const VALIDATING_CONFIGURATION: &str = "kubeairunway-validating";
/// Name of the defaulting webhook.
pub const MUTATING_WEBHOOK: &str = "default.modeldeployments.kubeairunway.ai";
/// Name of the validating webhook.
pub const VALIDATING_WEBHOOK: &str = "validate.modeldeployments.kubeairunway.ai";

/// Without the webhooks nothing is lost: controllers apply defaults, validate and add the finalizer when they reconcile. A
/// controller that is down must therefore not block requests.
const FAILURE_POLICY: &str = "Ignore";
/// Timeout in seconds: longer than the slowest response, and short for a user who waits.
const TIMEOUT_SECONDS: i32 = 5;

/// Configuration of the defaulting webhook. The controller adds the CA bundle.
pub fn mutating(endpoint: &Endpoint) -> MutatingWebhookConfiguration {
    MutatingWebhookConfiguration {
        metadata: metadata(MUTATING_CONFIGURATION),
        webhooks: Some(vec![MutatingWebhook {
            name: MUTATING_WEBHOOK.to_owned(),
            admission_review_versions: vec!["v1".to_owned()],
            client_config: endpoint.client_config(MUTATE_PATH, None),
            failure_policy: Some(FAILURE_POLICY.to_owned()),
            match_conditions: Some(match_conditions()),
            match_policy: Some("Equivalent".to_owned()),
            namespace_selector: Some(LabelSelector::default()),
            reinvocation_policy: Some("Never".to_owned()),
            rules: Some(vec![rule()]),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            ..MutatingWebhook::default()
        }]),
    }
}

/// Configuration of the validating webhook. The controller adds the CA bundle.
pub fn validating(endpoint: &Endpoint) -> ValidatingWebhookConfiguration {
    ValidatingWebhookConfiguration {
        metadata: metadata(VALIDATING_CONFIGURATION),
        webhooks: Some(vec![ValidatingWebhook {
            name: VALIDATING_WEBHOOK.to_owned(),
            admission_review_versions: vec!["v1".to_owned()],
            client_config: endpoint.client_config(VALIDATE_PATH, None),
            failure_policy: Some(FAILURE_POLICY.to_owned()),
            match_conditions: Some(match_conditions()),
            match_policy: Some("Equivalent".to_owned()),
            namespace_selector: Some(LabelSelector::default()),
            rules: Some(vec![rule()]),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            ..ValidatingWebhook::default()
        }]),
    }
}

fn metadata(name: &str) -> ObjectMeta {
    let managed_by = (labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_VALUE.to_owned());
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([managed_by].into()),
        ..ObjectMeta::default()
    }
}

/// ModelDeployments on create and update; not their status or scale subresource.
fn rule() -> RuleWithOperations {
    RuleWithOperations {
        api_groups: Some(vec![ModelDeployment::group(&()).into_owned()]),
        api_versions: Some(vec![ModelDeployment::version(&()).into_owned()]),
        operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
        resources: Some(vec![ModelDeployment::plural(&()).into_owned()]),
        scope: Some("Namespaced".to_owned()),
    }
}

/// Excludes requests that the handlers would admit unread: deletions and our own writes never wait for a webhook.
fn match_conditions() -> Vec<MatchCondition> {
    let condition = |name: &str, expression: &str| MatchCondition {
        name: name.to_owned(),
        expression: expression.to_owned(),
    };
    vec![
        condition("not-being-deleted", "!has(object.metadata.deletionTimestamp)"),
        condition(
            "spec-changes",
            "request.operation == 'CREATE' || object.spec != oldObject.spec",
        ),
    ]
}
