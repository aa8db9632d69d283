//! Names and labels of the objects.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::core::{DynamicObject, ObjectMeta};
use runway_api::labels;
use serde::Serialize;
use serde_json::Value;

/// Namespace of the controllers.
pub const NAMESPACE: &str = runway_api::labels::SYSTEM_NAMESPACE;
/// The Secret with the core's certificate authority.
pub const WEBHOOK_SECRET: &str = "kubeairunway-webhook-ca";
/// The Service by which the API server reaches the core's admission.
pub const WEBHOOK_SERVICE: &str = "kubeairunway-webhook";
/// Says of which component an object is a part; the value is the component's name.
pub const COMPONENT_LABEL: &str = "app.kubernetes.io/component";
/// Oldest minor version of Kubernetes 1 that will do (CEL in CRDs, server-side apply).
pub const OLDEST_KUBERNETES: u32 = 26;
/// Beginning of the label that aggregates a role to one of Kubernetes' own; `true` does, any other value does not.
pub const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";
/// Annotation of the roles of users that records whether an installation has the policies for permissions of users.
pub const PERMISSION_POLICY: &str = "kubeairunway.ai/permission-policy";
/// The ConfigMap with `transports.json`, and the Secret with what it refers to, for the AsyncActor operator. Both are the
/// administrator's, and optional.
pub const TRANSPORTS: &str = "asya-transports";

/// Labels of every object of a component. By them it is found again, also by another version of this command.
pub(super) fn ours(component: &str) -> BTreeMap<String, String> {
    [
        (labels::MANAGED_BY, labels::MANAGED_BY_VALUE),
        ("app.kubernetes.io/name", "kubeairunway"),
        (COMPONENT_LABEL, component),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

pub(super) fn meta(component: &str, name: &str, namespace: Option<&str>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: Some(ours(component)),
        ..ObjectMeta::default()
    }
}

pub(super) fn labelled(mut object: DynamicObject, component: &str) -> DynamicObject {
    object.labels_mut().extend(ours(component));
    object
}

/// Any object as the API takes it. Types of Kubernetes always serialize.
pub(super) fn object(typed: &impl Serialize) -> DynamicObject {
    serde_json::to_value(typed)
        .and_then(serde_json::from_value)
        .unwrap_or_else(|_| DynamicObject {
            types: None,
            metadata: ObjectMeta::default(),
            data: Value::Null,
        })
}
