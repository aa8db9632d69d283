//! Objects that a controller creates for another object: their kinds, owner and deletion, and the comparison of the desired object
//! with the live one, so that only differences are sent.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::core::{ApiResource, DynamicObject, ObjectMeta, TypeMeta};
use kube::{Resource, ResourceExt};
use runway_api::{EventReason, labels};
use serde_json::{Value, json};

use crate::json;
use crate::plan::{Admission, Apply, Delete, Note};

/// Time after which a controller stops waiting for deleted objects to disappear.
pub const CLEANUP_TIMEOUT: SignedDuration = SignedDuration::from_mins(5);

/// A condition in the status of an object that another controller reconciles. Text that is absent is empty.
///
/// ```
/// use runway_operator::object::{condition, conditions};
///
/// let status = serde_json::json!({ "conditions": [{ "type": "Ready", "status": "False", "reason": "Pulling" }] });
/// assert_eq!(conditions(&status).count(), 1);
/// assert!(condition(&status, "Ready").is_some_and(|c| c.is_false() && c.reason == "Pulling"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition<'a> {
    /// Type, such as `Ready`.
    pub type_: &'a str,
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// Reason in `CamelCase`.
    pub reason: &'a str,
    /// Message for people.
    pub message: &'a str,
    /// Time of the last transition.
    pub since: Option<Timestamp>,
    /// Generation of the object that was observed.
    pub generation: Option<i64>,
}

impl<'a> Condition<'a> {
    /// The message, or the reason if there is none.
    pub fn message_or_reason(&self) -> &'a str {
        if self.message.is_empty() {
            self.reason
        } else {
            self.message
        }
    }

    /// Whether the status is `True`.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }

    /// Whether the status is `False`.
    pub fn is_false(&self) -> bool {
        self.status == "False"
    }
}

/// The conditions of a status, or of another part of it that has `conditions`.
pub fn conditions(status: &Value) -> impl Iterator<Item = Condition<'_>> {
    let all = status["conditions"].as_array().into_iter().flatten();
    all.map(|condition| {
        let text = |field: &str| condition[field].as_str().unwrap_or_default();
        Condition {
            type_: text("type"),
            status: text("status"),
            reason: text("reason"),
            message: text("message"),
            since: text("lastTransitionTime").parse().ok(),
            generation: condition["observedGeneration"].as_i64(),
        }
    })
}

/// The condition of this type.
pub fn condition<'a>(status: &'a Value, type_: &str) -> Option<Condition<'a>> {
    conditions(status).find(|condition| condition.type_ == type_)
}

/// A kind of object, with the version in which it is written unless the cluster serves another one.
///
/// ```
/// use runway_operator::object::Kind;
///
/// const DEPLOYMENT: Kind = Kind::new("apps", "v1", "Deployment", "deployments");
/// assert_eq!(DEPLOYMENT.resource().api_version, "apps/v1");
/// assert_eq!(DEPLOYMENT.named("web"), "Deployment 'web'");
/// assert!(DEPLOYMENT.is_built_in());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// API version within the group, such as `v1`.
    pub version: &'static str,
    /// Kind, such as `Deployment`.
    pub kind: &'static str,
    /// Plural, such as `deployments`.
    pub plural: &'static str,
}

impl Kind {
    /// A kind of this group, version, kind and plural.
    pub const fn new(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            version,
            kind,
            plural,
        }
    }

    /// Whether Kubernetes itself brings it: the group of a CRD has a dot.
    pub fn is_built_in(self) -> bool {
        !self.group.contains('.')
    }

    /// Location in the API, in [`version`](Self::version).
    pub fn resource(self) -> ApiResource {
        self.resource_in(self.version)
    }

    /// Location in the API, in another version.
    pub fn resource_in(self, version: &str) -> ApiResource {
        ApiResource {
            group: self.group.to_owned(),
            version: version.to_owned(),
            api_version: match self.group {
                "" => version.to_owned(),
                group => format!("{group}/{version}"),
            },
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
        }
    }

    /// Name of its CRD.
    pub fn crd_name(self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// An object of this kind in a message, such as `Deployment 'web'`.
    pub fn named(self, name: &str) -> String {
        format!("{} '{name}'", self.kind)
    }
}

/// An object with the name and namespace of its owner, labels of what we create, and an owner reference. `label` is the label with
/// the name of the owner.
pub fn namesake<K: Resource<DynamicType = ()>>(of: &K, label: &str, kind: Kind, spec: &Value) -> DynamicObject {
    let labels = [
        (labels::MANAGED_BY, labels::MANAGED_BY_VALUE.to_owned()),
        (label, of.name_any()),
    ];
    DynamicObject {
        types: Some(TypeMeta {
            api_version: kind.resource().api_version,
            kind: kind.kind.to_owned(),
        }),
        metadata: ObjectMeta {
            name: Some(of.name_any()),
            namespace: of.namespace(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value)).into()),
            owner_references: Some(vec![owner(of)]),
            ..ObjectMeta::default()
        },
        data: json!({ "spec": spec }),
    }
}

/// Owner reference for an object that `owner` controls.
pub fn owner<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Deletion of a live object, in the background; absent for one without a uid.
pub fn deletion(resource: ApiResource, live: &DynamicObject) -> Option<Delete> {
    Some(Delete {
        resource,
        namespace: live.namespace().unwrap_or_default(),
        name: live.name_any(),
        uid: live.uid()?,
        foreground: false,
    })
}

/// Time left at `now` for a clean-up that began at `since`: zero after [`CLEANUP_TIMEOUT`].
pub fn time_left(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(CLEANUP_TIMEOUT - now.duration_since(since)).unwrap_or(Duration::ZERO)
}

/// Desired object, compared with the live one, which must be ours. Its hash is stored in the annotation `hash_key`, so that the
/// last applied state is known after a restart.
pub fn wanted(
    resource: ApiResource,
    mut desired: DynamicObject,
    live: Option<&DynamicObject>,
    hash_key: &str,
    drift: &'static str,
) -> Apply {
    let hash = json::hash(&desired);
    desired.annotations_mut().insert(hash_key.to_owned(), hash);
    let same_request = live.is_some_and(|l| l.annotations().get(hash_key) == desired.annotations().get(hash_key));
    let intact = live.is_some_and(|l| is_intact(l, &desired));
    let note = match live {
        None => Some(Note::new(
            EventReason::ResourceCreated,
            format!("Created {} '{}'", resource.kind, desired.name_any()),
        )),
        Some(_) if same_request && !intact => Some(Note::new(EventReason::DriftDetected, drift)),
        Some(_) => None,
    };
    if let Some(live) = live.filter(|_| !same_request) {
        remove_service_account(&mut desired, live);
    }
    Apply {
        resource,
        object: desired,
        live: live.and_then(ResourceExt::uid),
        force: live.is_some(),
        admission: Admission::Together,
        unchanged: same_request && intact,
        note,
    }
}

/// Removes the ServiceAccount of a live workload whose desired pods name none. To leave the name out is not enough: the API server
/// has copied it to the deprecated field `serviceAccount`, which no field manager owns, and copies it back from there
/// (`Convert_v1_PodSpec_To_core_PodSpec` in pkg/apis/core/v1/conversion.go, Kubernetes 1.36).
pub fn remove_service_account(desired: &mut DynamicObject, live: &DynamicObject) {
    let has_one = live.data.pointer("/spec/template/spec/serviceAccount").is_some();
    let pods = desired.data.pointer_mut("/spec/template/spec");
    if let Some(pods) = pods.filter(|pods| has_one && pods["serviceAccountName"].is_null()) {
        pods["serviceAccount"] = json!("");
    }
}

/// Whether a live object was created for this owner, by kind and uid.
pub fn is_ours<K: Resource<DynamicType = ()>>(owner: &K, live: &DynamicObject) -> bool {
    match (controller(live), &owner.meta().uid) {
        (Some(made_for), uid) => made_for.uid == uid.as_deref().unwrap_or_default() && made_for.kind == K::kind(&()),
        (None, Some(_)) => false,
        // Offline: nothing has a uid yet.
        (None, None) => true,
    }
}

/// Whether a live object is the desired one: both have the same controller, or neither has one and this field manager has
/// applied the live one.
pub fn is_same(desired: &DynamicObject, live: &DynamicObject, manager: &str) -> bool {
    match (controller(desired), controller(live)) {
        (Some(wanted), Some(found)) => wanted.uid == found.uid && wanted.kind == found.kind,
        (None, None) => is_applied_by(live, manager),
        _ => false,
    }
}

/// The owner reference of an object's controller.
pub fn controller(object: &DynamicObject) -> Option<&OwnerReference> {
    object.owner_references().iter().find(|o| o.controller == Some(true))
}

/// Whether this field manager has applied fields of an object.
fn is_applied_by(object: &DynamicObject, manager: &str) -> bool {
    object
        .managed_fields()
        .iter()
        .any(|entry| entry.manager.as_deref() == Some(manager) && entry.operation.as_deref() == Some("Apply"))
}

/// Manager of an object that is not ours, such as `controlled by Deployment 'web'`: its controller, the label
/// `app.kubernetes.io/managed-by`, or the field manager of the first write.
pub fn manager_of(live: &DynamicObject) -> String {
    if let Some(owner) = controller(live) {
        return format!("controlled by {} '{}'", owner.kind, owner.name);
    }
    let first_writer = || {
        // The writer of a status did not create the object, and may have written within the same second.
        let entries = live.managed_fields().iter();
        entries
            .filter(|entry| entry.manager.is_some() && entry.subresource.as_deref().unwrap_or_default().is_empty())
            .min_by_key(|entry| entry.time.as_ref().map(|t| t.0))?
            .manager
            .as_ref()
    };
    match live.labels().get("app.kubernetes.io/managed-by").or_else(first_writer) {
        Some(manager) if !manager.is_empty() => format!("managed by '{manager}'"),
        _ => "without a controller".to_owned(),
    }
}

/// Message about a name that is in use: the object, the expected owner, the actual manager. Callers append the remedy.
pub fn taken(object: &str, owner: &str, manager: &str) -> String {
    format!("{object} exists and was not created for this {owner} ({manager})")
}

/// Whether the live object still has everything that is desired.
fn is_intact(live: &DynamicObject, desired: &DynamicObject) -> bool {
    let labels_kept = desired
        .labels()
        .iter()
        .all(|(key, value)| live.labels().get(key) == Some(value));
    let annotations_kept = desired
        .annotations()
        .iter()
        .all(|(key, value)| live.annotations().get(key) == Some(value));
    let owner_kept = desired
        .owner_references()
        .iter()
        .all(|owner| live.owner_references().contains(owner));
    labels_kept && annotations_kept && owner_kept && json::contains(&live.data, &desired.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(metadata: &Value) -> DynamicObject {
        serde_json::from_value(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})).unwrap()
    }

    fn owned_by(uid: &str) -> DynamicObject {
        object(&json!({"name": "c", "labels": {"app.kubernetes.io/managed-by": "toys"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Toy", "name": "bear", "uid": uid, "controller": true}]}))
    }

    fn applied_by(manager: &str, operation: &str) -> DynamicObject {
        object(&json!({"name": "c", "managedFields": [{"manager": manager, "operation": operation}]}))
    }

    #[test]
    fn an_object_is_ours_by_its_controller_not_by_labels() {
        assert!(is_same(&owned_by("a"), &owned_by("a"), "toys"));
        assert!(!is_same(&owned_by("a"), &owned_by("b"), "toys"));
        assert!(!is_same(&owned_by("a"), &applied_by("toys", "Apply"), "toys"));
    }

    #[test]
    fn an_object_without_a_controller_is_ours_if_we_applied_it() {
        let desired = object(&json!({"name": "c"}));
        assert!(is_same(&desired, &applied_by("toys", "Apply"), "toys"));
        assert!(!is_same(&desired, &applied_by("toys", "Update"), "toys"));
        assert!(!is_same(&desired, &applied_by("kubectl", "Apply"), "toys"));
        assert!(!is_same(&desired, &owned_by("a"), "toys"));
    }

    #[test]
    fn a_service_account_that_is_no_longer_named_is_removed_with_the_next_change() {
        let deployment = |pods: &Value| {
            let mut object = object(&json!({"name": "c", "uid": "1"}));
            object.data = json!({ "spec": { "template": { "spec": pods } } });
            object
        };
        let sent = |desired: &Value, live: &DynamicObject| {
            let kind = Kind::new("apps", "v1", "Deployment", "deployments");
            wanted(kind.resource(), deployment(desired), Some(live), "hash", "drift")
        };
        let account = |apply: &Apply| apply.object.data["spec"]["template"]["spec"]["serviceAccount"].clone();

        let plain = json!({ "hostname": "h" });
        let named = json!({ "hostname": "h", "serviceAccountName": "a" });
        let with_both = json!({ "hostname": "h", "serviceAccountName": "a", "serviceAccount": "a" });
        let removed = sent(&plain, &deployment(&with_both));
        assert_eq!(account(&removed), "");
        assert_eq!(account(&sent(&named, &deployment(&with_both))), Value::Null);
        assert_eq!(account(&sent(&plain, &deployment(&plain))), Value::Null);

        // The next plan has nothing to remove, also if a webhook names one afterwards.
        for pods in [&plain, &with_both] {
            let mut live = deployment(pods);
            live.metadata.annotations = removed.object.metadata.annotations.clone();
            let again = sent(&plain, &live);
            assert!(again.unchanged && account(&again).is_null(), "{:?}", again.object);
        }
    }

    #[test]
    fn the_manager_of_an_object_is_named() {
        assert_eq!(manager_of(&owned_by("a")), "controlled by Toy 'bear'");
        assert_eq!(
            manager_of(&applied_by("kubectl-create", "Update")),
            "managed by 'kubectl-create'"
        );
        assert_eq!(manager_of(&object(&json!({"name": "c"}))), "without a controller");
        let status_within_the_same_second = json!({"name": "c", "managedFields": [
            {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "time": "2026-01-01T00:00:00Z"},
            {"manager": "kubectl-create", "operation": "Update", "time": "2026-01-01T00:00:00Z"},
        ]});
        assert_eq!(
            manager_of(&object(&status_within_the_same_second)),
            "managed by 'kubectl-create'"
        );
    }
}
