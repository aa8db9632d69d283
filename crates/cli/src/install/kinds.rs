//! Names and scope of the kinds of our objects, so that no discovery request is needed.

use kube::core::{ApiResource, DynamicObject};
pub use runway_client::change::{id, kind};

/// Group and version, kind, plural and scope of each kind, in apply order.
const KINDS: [(&str, &str, &str, bool); 22] = [
    ("v1", "Namespace", "namespaces", false),
    (
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        false,
    ),
    ("v1", "ServiceAccount", "serviceaccounts", true),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", false),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRoleBinding",
        "clusterrolebindings",
        false,
    ),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", true),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Secret", "secrets", true),
    ("v1", "Service", "services", true),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true),
    ("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", true),
    ("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", true),
    ("coordination.k8s.io/v1", "Lease", "leases", true),
    ("v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    ("apps/v1", "Deployment", "deployments", true),
    (
        "admissionregistration.k8s.io/v1",
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicy",
        "validatingadmissionpolicies",
        false,
    ),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        false,
    ),
    (
        "kubeairunway.ai/v1alpha1",
        "InferenceProviderConfig",
        "inferenceproviderconfigs",
        false,
    ),
];

/// Kinds that an upgrade never deletes, because users' objects would be deleted with them.
pub const KEPT: [&str; 2] = ["Namespace", "CustomResourceDefinition"];

/// Kinds of which a component may have objects in the namespaces that it watches.
pub const IN_WATCHED_NAMESPACES: [&str; 2] = ["Role", "RoleBinding"];

/// Kinds that no component contains.
pub const MADE_BY_OTHERS: [&str; 4] = ["ConfigMap", "Secret", "Lease", "InferenceProviderConfig"];

/// Position of a kind in apply order.
pub fn rank(kind: &str) -> usize {
    KINDS
        .iter()
        .position(|(_, known, ..)| *known == kind)
        .unwrap_or(KINDS.len())
}

/// Whether the kind of an object has a namespace, if it is one of these.
pub fn is_namespaced(object: &DynamicObject) -> Option<bool> {
    find(object).map(|(.., namespaced)| namespaced)
}

/// API resource and scope of an object's kind, if it is one of these.
pub fn resource(object: &DynamicObject) -> Option<(ApiResource, bool)> {
    let (group_version, kind, plural, namespaced) = find(object)?;
    Some((api_resource(group_version, kind, plural), namespaced))
}

/// All of these kinds.
pub fn all() -> impl Iterator<Item = (ApiResource, bool)> {
    KINDS
        .iter()
        .map(|(group_version, kind, plural, namespaced)| (api_resource(group_version, kind, plural), *namespaced))
}

fn find(object: &DynamicObject) -> Option<(&'static str, &'static str, &'static str, bool)> {
    let types = object.types.as_ref()?;
    KINDS
        .iter()
        .find(|(group_version, kind, ..)| *group_version == types.api_version && *kind == types.kind)
        .copied()
}

fn api_resource(group_version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = group_version.rsplit_once('/').unwrap_or(("", group_version));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: group_version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}
