//! What must be in a cluster for the control plane to run: CRDs, namespace, roles, webhooks. Made from code; `cargo xtask gen`
//! writes them to `deploy/`, and the test bed applies the same objects.

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use kube::core::{DynamicObject, ObjectMeta};
use runway_api::{InferenceProviderConfig, ModelDeployment, labels};
use runway_core::admission::manifests::{mutating, validating};
use runway_operator::webhook::Endpoint;
use runway_provider::Provider;
use serde::Serialize;

/// Where the controllers live.
pub const NAMESPACE: &str = "kubeairunway-system";
/// The Secret with the core's certificate authority.
pub const WEBHOOK_SECRET: &str = "kubeairunway-webhook-ca";

/// Our CRDs.
pub fn crds() -> [CustomResourceDefinition; 2] {
    [ModelDeployment::crd(), InferenceProviderConfig::crd()]
}

/// The providers that come with the product.
pub fn built_in_providers() -> Vec<Box<dyn Provider>> {
    vec![
        Box::new(runway_provider_kaito::Kaito::default()),
        Box::new(runway_provider_dynamo::Dynamo::default()),
        Box::new(runway_provider_kuberay::KubeRay),
    ]
}

/// Who a controller is to the API server.
#[derive(Clone, Copy, Debug)]
pub enum Identity {
    /// A ServiceAccount in [`NAMESPACE`].
    ServiceAccount,
    /// A user named by a client certificate: a controller beside the cluster.
    User,
}

/// Everything but the CRDs, in apply order.
pub fn objects(endpoint: &Endpoint, identity: Identity) -> Vec<DynamicObject> {
    let mut all = vec![object(&namespace())];
    all.extend(roles(labels::CORE_MANAGER, runway_core::access(), identity));
    all.extend(role_in_namespace(
        labels::CORE_MANAGER,
        runway_core::access_in_namespace(WEBHOOK_SECRET),
        identity,
    ));
    for provider in built_in_providers() {
        all.extend(provider_roles(provider.as_ref(), identity));
    }
    all.extend([object(&mutating(endpoint)), object(&validating(endpoint))]);
    all
}

/// The roles of a provider's controller.
pub fn provider_roles(provider: &dyn Provider, identity: Identity) -> Vec<DynamicObject> {
    roles(
        &labels::provider_manager(provider.name()),
        runway_provider::access(provider),
        identity,
    )
}

fn namespace() -> Namespace {
    Namespace {
        metadata: ObjectMeta {
            name: Some(NAMESPACE.to_owned()),
            labels: Some(ours()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    }
}

fn roles(controller: &str, rules: Vec<PolicyRule>, identity: Identity) -> Vec<DynamicObject> {
    let role = ClusterRole {
        metadata: meta(controller, None),
        rules: Some(rules),
        ..ClusterRole::default()
    };
    let binding = ClusterRoleBinding {
        metadata: meta(controller, None),
        role_ref: role_ref("ClusterRole", controller),
        subjects: Some(vec![subject(controller, identity)]),
    };
    vec![object(&role), object(&binding)]
}

fn role_in_namespace(controller: &str, rules: Vec<PolicyRule>, identity: Identity) -> Vec<DynamicObject> {
    let role = Role {
        metadata: meta(controller, Some(NAMESPACE)),
        rules: Some(rules),
    };
    let binding = RoleBinding {
        metadata: meta(controller, Some(NAMESPACE)),
        role_ref: role_ref("Role", controller),
        subjects: Some(vec![subject(controller, identity)]),
    };
    vec![object(&role), object(&binding)]
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

fn meta(name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(ours()),
        ..ObjectMeta::default()
    }
}

fn ours() -> std::collections::BTreeMap<String, String> {
    [(labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_VALUE.to_owned())].into()
}

/// Any object as the API takes it. Types of Kubernetes always serialize.
fn object(typed: &impl Serialize) -> DynamicObject {
    serde_json::to_value(typed)
        .and_then(serde_json::from_value)
        .unwrap_or_else(|_| DynamicObject {
            types: None,
            metadata: ObjectMeta::default(),
            data: serde_json::Value::Null,
        })
}
