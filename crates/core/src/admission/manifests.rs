//! The objects that tell the API server of the webhooks.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhook,
    ValidatingWebhookConfiguration,
};
use kube::core::{ObjectMeta, Resource};
use runway_api::{ModelDeployment, labels};
use runway_operator::webhook::Endpoint;

use super::handlers::{MUTATE_PATH, VALIDATE_PATH};

/// Name of the MutatingWebhookConfiguration.
pub const MUTATING_CONFIGURATION: &str = "kubeairunway-mutating";
/// Name of the ValidatingWebhookConfiguration.
pub const VALIDATING_CONFIGURATION: &str = "kubeairunway-validating";
/// Name of the webhook that fills in defaults.
pub const MUTATING_WEBHOOK: &str = "default.modeldeployments.kubeairunway.ai";
/// Name of the webhook that validates.
pub const VALIDATING_WEBHOOK: &str = "validate.modeldeployments.kubeairunway.ai";

/// Without the webhooks nothing is lost: the controllers default and validate again when they reconcile, and add the
/// finalizer (design 8, Webhook Unavailability). So a controller that is down must not keep anybody from working.
const FAILURE_POLICY: &str = "Ignore";
/// Longer than the slowest answer, shorter than a user's patience.
const TIMEOUT_SECONDS: i32 = 5;

/// The configuration of the webhook that fills in defaults. The controller adds the CA bundle.
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
            reinvocation_policy: Some("Never".to_owned()),
            rules: Some(vec![rule()]),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
            ..MutatingWebhook::default()
        }]),
    }
}

/// The configuration of the webhook that validates. The controller adds the CA bundle.
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

/// ModelDeployments as they are made and changed; not their status, nor the scale subresource.
fn rule() -> RuleWithOperations {
    RuleWithOperations {
        api_groups: Some(vec![ModelDeployment::group(&()).into_owned()]),
        api_versions: Some(vec![ModelDeployment::version(&()).into_owned()]),
        operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
        resources: Some(vec![ModelDeployment::plural(&()).into_owned()]),
        scope: Some("Namespaced".to_owned()),
    }
}

/// What the handlers would let through unread is not even sent: deletion and our own writes never wait for a webhook.
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
