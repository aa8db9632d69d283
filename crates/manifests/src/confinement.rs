//! The ValidatingAdmissionPolicy on the controllers themselves (Kubernetes 1.30 or newer).
//!
//! A controller of an installation for all namespaces may create workloads everywhere, so a stolen token of its ServiceAccount could
//! change the cluster's own components. With this policy, the API server accepts no write of these accounts in `kube-*` and in the
//! namespace of the control plane, with these exceptions:
//!
//! - objects of the product's own kinds, and Events: a status can be reported everywhere, and a deletion is always completed;
//! - in their own namespace the objects that the rules of their Role name, such as the Lease of each.

use std::collections::BTreeSet;

use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::core::DynamicObject;
use runway_api::labels;
use serde_json::json;

use super::component::Component;
use super::metadata::{NAMESPACE, meta, object};

/// Name of the policy and of its binding.
pub const POLICY: &str = "kubeairunway-controllers";
/// Groups of the objects that controllers may write in every namespace.
const EVERYWHERE: [&str; 4] = ["asya.sh", "events.k8s.io", "kubeairunway.ai", "llamastack.io"];
/// Verbs that change objects.
const WRITES: [&str; 4] = ["create", "delete", "patch", "update"];

/// The policy for the accounts of these components, and its binding.
pub fn policy<'a>(components: impl Iterator<Item = &'a Component>) -> Vec<DynamicObject> {
    let components: Vec<&Component> = components.collect();
    let accounts: Vec<&str> = components.iter().map(|component| component.name.as_str()).collect();
    // In each expression the namespace is the first text in quotes, so that kustomize can replace it.
    let account = format!(
        "has(request.userInfo.username) && \
         ['{NAMESPACE}'].exists(own, request.userInfo.username.startsWith('system:serviceaccount:' + own + ':')) && \
         request.userInfo.username.split(':')[3] in {}",
        list(&accounts)
    );
    let own: BTreeSet<String> = components.iter().flat_map(|component| written(component)).collect();
    let guarded = format!("request.namespace == '{NAMESPACE}' || request.namespace.startsWith('kube-')");
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": meta(labels::CORE_MANAGER, POLICY, None),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": { "resourceRules": [{
                "apiGroups": ["*"],
                "apiVersions": ["*"],
                "operations": ["*"],
                "resources": ["*/*"],
                "scope": "Namespaced",
            }]},
            "matchConditions": [
                { "name": "account", "expression": account },
                { "name": "namespace", "expression": format!("has(request.namespace) && ({guarded})") },
                { "name": "group", "expression": format!("!(request.resource.group in {})", list(&EVERYWHERE)) },
            ],
            "variables": [
                { "name": "account", "expression": "request.userInfo.username.split(':')[3]" },
                { "name": "resource", "expression": "request.resource.resource + (request.resource.group == '' ? '' : '.' + request.resource.group)" },
                { "name": "name", "expression": "has(request.name) ? request.name : ''" },
            ],
            "validations": [{
                "expression": format!(
                    "request.namespace == '{NAMESPACE}' && (variables.account + ' ' + variables.resource + ' ' + variables.name) in {}",
                    list(&own.into_iter().collect::<Vec<_>>())
                ),
                "messageExpression": "variables.account + ' of KubeAIRunway may not write ' + variables.resource + ' in namespace ' + \
                    request.namespace + ': use another namespace for models, actors and servers'",
                "message": "controllers of KubeAIRunway may not write in this namespace: use another one for models, actors and servers",
                "reason": "Forbidden",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": meta(labels::CORE_MANAGER, POLICY, None),
        "spec": { "policyName": POLICY, "validationActions": ["Deny"] },
    });
    vec![object(&policy), object(&binding)]
}

/// Objects that a component writes in its own namespace, as `ACCOUNT RESOURCE.GROUP NAME`. RBAC cannot limit a create to a name; the
/// policy limits it to the names in the other rules for the resource.
fn written(component: &Component) -> Vec<String> {
    let writes = |rule: &&PolicyRule| rule.verbs.iter().any(|verb| WRITES.contains(&verb.as_str()));
    let rules = component.access_in_namespace.iter().filter(writes);
    let named = rules.flat_map(|rule| {
        let groups = rule.api_groups.iter().flatten();
        groups.flat_map(move |group| {
            let resources = rule.resources.iter().flatten();
            resources.flat_map(move |resource| {
                let names = rule.resource_names.iter().flatten();
                let kind = format!("{resource}.{group}");
                let kind = kind.trim_end_matches('.').to_owned();
                names.map(move |name| format!("{} {kind} {name}", component.name))
            })
        })
    });
    named.collect()
}

/// A list of texts in CEL.
fn list(texts: &[impl AsRef<str>]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| format!("'{}'", text.as_ref())).collect();
    format!("[{}]", quoted.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{core, llama_stack};

    #[test]
    fn written_objects_are_the_lease_and_the_secret_of_the_webhook() {
        let lease = |name: &str| format!("{name} leases.coordination.k8s.io {name}");
        let secret = "kubeairunway-controller secrets kubeairunway-webhook-ca".to_owned();
        assert_eq!(written(&core()), [secret, lease("kubeairunway-controller")]);
        assert_eq!(written(&llama_stack()), [lease("llama-stack-operator")]);
    }
}
