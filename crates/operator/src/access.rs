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

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
