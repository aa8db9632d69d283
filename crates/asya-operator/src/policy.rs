//! Who may bind: a user must be allowed to change the target himself. The operator has the right, so without this anybody who may make
//! AsyncActors could put a container into any workload of the namespace. The API server asks its own authorizer; no webhook server.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
    ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Validation, Variable,
};
use kube::core::ObjectMeta;

use crate::targets::KNOWN;

/// Name of the policy and of its binding.
pub const POLICY: &str = "asya-binding-needs-the-right-to-update-the-target";

/// The policy and its binding.
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
                    // Deletion must always end, and what does not change the binding is nobody's business.
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

/// The plural of a kind: by the table, else as plurals usually are.
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
