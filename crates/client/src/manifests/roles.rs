//! Permissions of controllers and of users.

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::labels;
use runway_operator::access::rule;

use super::metadata::{NAMESPACE, meta, object};

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

/// The roles of a controller and their bindings.
pub(super) fn of_controller(
    controller: &str,
    everywhere: &[PolicyRule],
    in_namespace: &[PolicyRule],
    identity: Identity,
) -> Vec<DynamicObject> {
    let mut all = Vec::new();
    if !everywhere.is_empty() {
        let role = ClusterRole {
            metadata: meta(controller, controller, None),
            rules: Some(everywhere.to_vec()),
            ..ClusterRole::default()
        };
        let binding = ClusterRoleBinding {
            metadata: meta(controller, controller, None),
            role_ref: role_ref("ClusterRole", controller),
            subjects: Some(vec![subject(controller, identity)]),
        };
        all.extend([object(&role), object(&binding)]);
    }
    if !in_namespace.is_empty() {
        let role = Role {
            metadata: meta(controller, controller, Some(NAMESPACE)),
            rules: Some(in_namespace.to_vec()),
        };
        let binding = RoleBinding {
            metadata: meta(controller, controller, Some(NAMESPACE)),
            role_ref: role_ref("Role", controller),
            subjects: Some(vec![subject(controller, identity)]),
        };
        all.extend([object(&role), object(&binding)]);
    }
    all
}

/// Permissions of users, aggregated to Kubernetes' own roles view, edit and admin.
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
                rule(asya, &["asyncactors/queue"], &["get"]),
            ],
        ),
        user_role(
            "edit",
            vec![
                rule(group, &["modeldeployments"], write),
                rule(group, &["modeldeployments/scale"], &["update", "patch"]),
                rule(llama_stack, &[distributions], write),
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
        metadata: meta(labels::CORE_MANAGER, &format!("kubeairunway-{of}"), None),
        rules: Some(rules),
        ..ClusterRole::default()
    };
    let aggregate = format!("rbac.authorization.k8s.io/aggregate-to-{of}");
    role.labels_mut().insert(aggregate, "true".to_owned());
    object(&role)
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
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
