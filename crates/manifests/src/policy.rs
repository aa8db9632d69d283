//! Optional ValidatingAdmissionPolicies that limit the users of each provider (Kubernetes 1.30 or newer).
//!
//! A controller may create upstream objects in every namespace, so a user who may create a ModelDeployment can indirectly create
//! them. With the policy of a provider, the API server asks first whether the *user* may create what that provider makes.

use kube::core::DynamicObject;
use runway_api::labels;
use runway_api::provider_config::SelectionPolicy;
use runway_provider::{Kind, Provider};
use serde_json::{Value, json};

use super::metadata::{meta, object};

/// The oldest minor version of Kubernetes 1 that knows ValidatingAdmissionPolicies as v1.
pub const OLDEST_KUBERNETES: u32 = 30;

/// Expression for the desired provider: the named one, or the one selected before, or an empty string. It reads the status of
/// the old object, because a user can write any status into a new one.
const PROVIDER: &str = "has(object.spec.provider) && has(object.spec.provider.name) ? object.spec.provider.name : \
    oldObject != null && has(oldObject.status) && has(oldObject.status.provider) && has(oldObject.status.provider.name) ? \
    oldObject.status.provider.name : ''";

/// The policy of a provider, and its binding.
pub fn of_provider(provider: &dyn Provider) -> Vec<DynamicObject> {
    let name = provider.name();
    let component = labels::provider_manager(name);
    let upstreams: Vec<Kind> = provider.upstreams().iter().map(|upstream| upstream.kind).collect();
    // Who names no provider may get any that is chosen by itself.
    let concerned = match provider.registration().selection_policy {
        Some(SelectionPolicy::Explicit) => format!("variables.provider == '{name}'"),
        _ => format!("variables.provider in ['', '{name}']"),
    };
    let validations: Vec<_> = upstreams
        .iter()
        .map(|kind| {
            let (group, plural) = (kind.group, kind.plural);
            let may = format!(
                "authorizer.group('{group}').resource('{plural}').namespace(object.metadata.namespace).check('create').allowed()"
            );
            json!({
                "expression": format!("!({concerned}) || {may}"),
                "messageExpression": format!(
                    "'spec.provider.name: ' + (variables.provider == '' ? 'without a name, provider {name} may be selected, and it' : \
                     'provider {name}') + ' creates {plural}.{group}, which you may not create in namespace ' + \
                     object.metadata.namespace + ': ' + (variables.provider == '' ? 'set a provider that you may use, or ' : '') + \
                     'ask an administrator for permission to create {plural}.{group}'"
                ),
                "message": format!("provider {name} creates {plural}.{group}, which you may not create"),
                "reason": "Forbidden",
            })
        })
        .collect();
    guard(
        &component,
        &format!("kubeairunway-{component}"),
        ("kubeairunway.ai", "modeldeployments"),
        &json!([{ "name": "provider", "expression": PROVIDER }]),
        &validations,
    )
}

/// A policy that checks each new spec of a kind, given as group and plural, and its binding. Deletion and changes beside the spec
/// are not checked.
pub(super) fn guard(
    component: &str,
    name: &str,
    (group, plural): (&str, &str),
    variables: &Value,
    validations: &[Value],
) -> Vec<DynamicObject> {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": meta(component, name, None),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": [group],
                "apiVersions": ["*"],
                "operations": ["CREATE", "UPDATE"],
                "resources": [plural],
            }]},
            "matchConditions": [
                { "name": "not-being-deleted", "expression": "!has(object.metadata.deletionTimestamp)" },
                { "name": "spec-changes", "expression": "request.operation == 'CREATE' || object.spec != oldObject.spec" },
            ],
            "variables": variables,
            "validations": validations,
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": meta(component, name, None),
        "spec": { "policyName": name, "validationActions": ["Deny"] },
    });
    vec![object(&policy), object(&binding)]
}
