//! RBAC rules, as controllers declare them.

use k8s_openapi::api::rbac::v1::PolicyRule;

/// A rule for resources of one API group.
pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..PolicyRule::default()
    }
}

/// The same rule for these object names only.
pub fn named(rule: PolicyRule, names: &[&str]) -> PolicyRule {
    PolicyRule {
        resource_names: Some(owned(names)),
        ..rule
    }
}

/// Kinds in rules whose objects have no namespace.
const WITHOUT_NAMESPACE: [&str; 8] = [
    "customresourcedefinitions",
    "groups",
    "inferenceproviderconfigs",
    "mutatingwebhookconfigurations",
    "subjectaccessreviews",
    "tokenreviews",
    "users",
    "validatingwebhookconfigurations",
];

/// Rules for objects without a namespace, and rules for objects in namespaces.
pub fn by_scope(rules: &[PolicyRule]) -> (Vec<PolicyRule>, Vec<PolicyRule>) {
    let has_none = |resource: &str| {
        let kind = resource.split_once('/').map_or(resource, |(kind, _)| kind);
        WITHOUT_NAMESPACE.contains(&kind)
    };
    let only = |without: bool| {
        let parts = rules.iter().map(|rule| {
            let resources = rule.resources.iter().flatten();
            PolicyRule {
                resources: Some(resources.filter(|r| has_none(r) == without).cloned().collect()),
                ..rule.clone()
            }
        });
        parts.filter(|rule| rule.resources != Some(Vec::new())).collect()
    };
    (only(true), only(false))
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_divided_by_the_scope_of_their_kinds() {
        let mixed = rule(
            "kubeairunway.ai",
            &["modeldeployments/status", "inferenceproviderconfigs/status"],
            &["patch"],
        );
        let pods = rule("", &["pods"], &["list"]);
        let (without, within) = by_scope(&[mixed, pods.clone()]);
        let part = |resource: &str| rule("kubeairunway.ai", &[resource], &["patch"]);
        assert_eq!(without, [part("inferenceproviderconfigs/status")]);
        assert_eq!(within, [part("modeldeployments/status"), pods]);
    }
}
