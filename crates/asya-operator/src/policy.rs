//! Authorization of bindings: a user who binds an AsyncActor must be allowed to update the target. The operator has this right, so
//! without the policy each user who may create AsyncActors could add a container to any workload of the namespace. The API server
//! evaluates the policy with its own authorizer, without a webhook.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation, Variable,
};
use kube::core::ObjectMeta;

use crate::targets::KNOWN;

/// Name of the policy and of its binding.
pub const POLICY: &str = "asya-binding-needs-the-right-to-update-the-target";

/// The ValidatingAdmissionPolicy and its binding.
pub fn policy() -> (ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding) {
    let policy = ValidatingAdmissionPolicy {
        metadata: meta(),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_constraints: Some(MatchResources {
                resource_rules: Some(vec![NamedRuleWithOperations {
                    api_groups: Some(vec!["asya.sh".to_owned()]),
                    api_versions: Some(vec!["*".to_owned()]),
                    resources: Some(vec!["asyncactors".to_owned()]),
                    operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
                    ..NamedRuleWithOperations::default()
                }]),
                ..MatchResources::default()
            }),
            variables: Some(vec![
                variable(
                    "asks",
                    // Deletion must always finish, and changes beside the spec do not affect the binding.
                    "has(object.spec.workloadRef) && !has(object.metadata.deletionTimestamp) \
                     && (oldObject == null || !has(oldObject.spec.workloadRef) || object.spec != oldObject.spec)",
                ),
                variable(
                    "group",
                    "variables.asks && object.spec.workloadRef.apiVersion.contains('/') ? object.spec.workloadRef.apiVersion.split('/')[0] : ''",
                ),
                variable("kind", "variables.asks ? object.spec.workloadRef.kind : ''"),
                variable("resource", &plural()),
            ]),
            validations: Some(vec![Validation {
                expression: "!variables.asks || authorizer.group(variables.group).resource(variables.resource)\
                             .namespace(object.metadata.namespace).name(object.spec.workloadRef.name).check('update').allowed()"
                    .to_owned(),
                message_expression: Some(
                    "'workloadRef: you may not bind to ' + variables.kind + ' ' + object.spec.workloadRef.name \
                     + ', because you may not update it yourself: ask for the verb update on ' + variables.resource \
                     + (variables.group == '' ? '' : '.' + variables.group) + ' in namespace ' + object.metadata.namespace"
                        .to_owned(),
                ),
                reason: Some("Forbidden".to_owned()),
                ..Validation::default()
            }]),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    };
    let binding = ValidatingAdmissionPolicyBinding {
        metadata: meta(),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(POLICY.to_owned()),
            validation_actions: Some(vec!["Deny".to_owned()]),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
    };
    (policy, binding)
}

/// CEL expression for the plural of a kind: from the table, otherwise by the usual rule.
fn plural() -> String {
    let known = KNOWN
        .iter()
        .map(|kind| format!("'{}.{}': '{}'", kind.kind, kind.group, kind.plural));
    let table = known.collect::<Vec<_>>().join(", ");
    let key = "(variables.kind + '.' + variables.group)";
    format!("{key} in {{{table}}} ? {{{table}}}[{key}] : variables.kind.lowerAscii() + 's'")
}

fn variable(name: &str, expression: &str) -> Variable {
    Variable {
        name: name.to_owned(),
        expression: expression.to_owned(),
    }
}

fn meta() -> ObjectMeta {
    ObjectMeta {
        name: Some(POLICY.to_owned()),
        ..ObjectMeta::default()
    }
}
