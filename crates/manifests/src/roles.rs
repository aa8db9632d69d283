//! Permissions of controllers and of users.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::labels;
use runway_operator::access::{by_scope, rule};
use runway_operator::scope::Namespaces;

use super::metadata::{AGGREGATE, NAMESPACE, PERMISSION_POLICY, meta, object};

/// Beginning of the names of the roles of users.
pub const USERS: &str = "kubeairunway-";

/// Identity of a controller at the API server.
#[derive(Clone, Copy, Debug)]
pub enum Identity {
    /// A ServiceAccount in [`NAMESPACE`].
    ServiceAccount,
    /// A user named by a client certificate: a controller beside the cluster.
    User,
}

/// The account of a controller. Only its pods say that they want a token.
pub(super) fn service_account(controller: &str) -> DynamicObject {
    object(&ServiceAccount {
        metadata: meta(controller, controller, Some(NAMESPACE)),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    })
}

/// The roles of a controller and their bindings. If it watches some namespaces only, its ClusterRole is limited to objects without
/// a namespace, and it has a Role in each of the namespaces.
pub(super) fn of_controller(
    controller: &str,
    everywhere: &[PolicyRule],
    in_own: &[PolicyRule],
    identity: Identity,
    namespaces: &Namespaces,
) -> Vec<DynamicObject> {
    let (everywhere, within) = if namespaces.are_all() {
        (everywhere.to_vec(), Vec::new())
    } else {
        by_scope(everywhere)
    };
    let mut all = Vec::new();
    if !everywhere.is_empty() {
        let role = ClusterRole {
            metadata: meta(controller, controller, None),
            rules: Some(everywhere),
            ..ClusterRole::default()
        };
        let binding = ClusterRoleBinding {
            metadata: meta(controller, controller, None),
            role_ref: role_ref("ClusterRole", controller),
            subjects: Some(vec![subject(controller, identity)]),
        };
        all.extend([object(&role), object(&binding)]);
    }
    all.extend(in_one(controller, NAMESPACE, in_own, identity));
    for namespace in namespaces.names() {
        all.extend(in_one(controller, namespace.as_str(), &within, identity));
    }
    all
}

/// The Role of a controller in a namespace, and its binding.
fn in_one(controller: &str, namespace: &str, rules: &[PolicyRule], identity: Identity) -> Vec<DynamicObject> {
    if rules.is_empty() {
        return Vec::new();
    }
    let role = Role {
        metadata: meta(controller, controller, Some(namespace)),
        rules: Some(rules.to_vec()),
    };
    let binding = RoleBinding {
        metadata: meta(controller, controller, Some(namespace)),
        role_ref: role_ref("Role", controller),
        subjects: Some(vec![subject(controller, identity)]),
    };
    vec![object(&role), object(&binding)]
}

/// Permissions of users, aggregated to Kubernetes' own roles view, edit and admin unless the installation turns it off.
///
/// InferenceProviderConfigs have no namespace: admin's rights on them count only where it is bound in the whole cluster.
pub(super) fn of_users() -> Vec<DynamicObject> {
    let read = &["get", "list", "watch"];
    let write = &["create", "update", "patch", "delete", "deletecollection"];
    let (group, asya) = ("kubeairunway.ai", "asya.sh");
    let (llama_stack, distributions) = ("llamastack.io", "llamastackdistributions");
    vec![
        user_role(
            "view",
            vec![
                rule(group, &["modeldeployments", "inferenceproviderconfigs"], read),
                rule(group, &["modeldeployments/status", "modeldeployments/scale"], &["get"]),
                rule(llama_stack, &[distributions], read),
                rule(llama_stack, &["llamastackdistributions/status"], &["get"]),
                rule(asya, &["asyncactors"], read),
                rule(asya, &["asyncactors/status", "asyncactors/queue"], &["get"]),
            ],
        ),
        user_role(
            "edit",
            vec![
                rule(group, &["modeldeployments"], write),
                rule(group, &["modeldeployments/scale"], &["update", "patch"]),
                rule(llama_stack, &[distributions], write),
                rule(asya, &["asyncactors"], write),
                rule(asya, &["asyncactors/messages"], &["create"]),
            ],
        ),
        user_role(
            "admin",
            vec![
                rule(group, &["inferenceproviderconfigs"], write),
                // Dead letters have the payloads of all users.
                rule(asya, &["asyncactors/dlq"], &["get", "update", "delete"]),
            ],
        ),
    ]
}

fn user_role(of: &str, rules: Vec<PolicyRule>) -> DynamicObject {
    let mut role = ClusterRole {
        metadata: meta(labels::CORE_MANAGER, &format!("{USERS}{of}"), None),
        rules: Some(rules),
        ..ClusterRole::default()
    };
    role.labels_mut().insert(format!("{AGGREGATE}{of}"), "true".to_owned());
    role.annotations_mut()
        .insert(PERMISSION_POLICY.to_owned(), "true".to_owned());
    object(&role)
}

pub(super) fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
    }
}

fn subject(name: &str, identity: Identity) -> Subject {
    match identity {
        Identity::ServiceAccount => Subject {
            kind: "ServiceAccount".to_owned(),
            name: name.to_owned(),
            namespace: Some(NAMESPACE.to_owned()),
            api_group: None,
        },
        Identity::User => Subject {
            kind: "User".to_owned(),
            name: name.to_owned(),
            namespace: None,
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
        },
    }
}
