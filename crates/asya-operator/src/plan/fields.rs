//! Field ownership, read from `metadata.managedFields`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::DynamicObject;
use runway_api::labels;
use runway_operator::json;
use serde_json::{Map, Value};

/// Fields that the operator owns by server-side apply.
fn ours(object: &DynamicObject) -> Option<&Value> {
    let entry = entries(object).find(|e| {
        e.manager.as_deref() == Some(labels::ASYA_MANAGER)
            && e.operation.as_deref() == Some("Apply")
            && e.subresource.as_deref().unwrap_or_default().is_empty()
    })?;
    Some(&entry.fields_v1.as_ref()?.0)
}

fn entries(object: &DynamicObject) -> impl Iterator<Item = &ManagedFieldsEntry> {
    object.metadata.managed_fields.iter().flatten()
}

/// Whether the operator owns any field.
pub(super) fn hold_something(object: &DynamicObject) -> bool {
    ours(object).is_some()
}

/// Whether the operator still owns every applied field. Other writers take over ownership of the fields that they change. Objects
/// without managed fields (offline) are compared by value.
pub(super) fn is_intact(live: &DynamicObject, sent: &DynamicObject) -> bool {
    let kept = |wanted: &std::collections::BTreeMap<String, String>,
                found: &std::collections::BTreeMap<String, String>| {
        wanted.iter().all(|(key, value)| found.get(key) == Some(value))
    };
    let (wanted, found) = (&sent.metadata, &live.metadata);
    let none = std::collections::BTreeMap::new();
    let metadata = kept(
        wanted.annotations.as_ref().unwrap_or(&none),
        found.annotations.as_ref().unwrap_or(&none),
    ) && kept(
        wanted.labels.as_ref().unwrap_or(&none),
        found.labels.as_ref().unwrap_or(&none),
    );
    let owners = wanted.owner_references.iter().flatten();
    let owned = owners
        .clone()
        .all(|o| found.owner_references.iter().flatten().any(|f| f == o));
    let body = match (entries(live).next(), ours(live)) {
        (None, _) => contains(&live.data, &sent.data),
        (Some(_), None) => false,
        (Some(_), Some(held)) => holds_all(held, &sent.data),
    };
    metadata && owned && body
}

/// Containment by value. Items of lists are matched by name, if they have names.
fn contains(live: &Value, sent: &Value) -> bool {
    let name = |item: &Value| item.get("name").and_then(Value::as_str).map(str::to_owned);
    match (live, sent) {
        (Value::Object(live), Value::Object(sent)) => sent.iter().all(|(key, wanted)| {
            live.get(key)
                .map_or_else(|| wanted.is_null(), |found| contains(found, wanted))
        }),
        (Value::Array(live), Value::Array(sent)) if sent.iter().all(|item| name(item).is_some()) => {
            sent.iter().all(|item| {
                live.iter()
                    .any(|found| name(found) == name(item) && contains(found, item))
            })
        }
        (live, sent) => json::contains(live, sent),
    }
}

/// Whether a field set has every field of a value.
fn holds_all(held: &Value, sent: &Value) -> bool {
    let Some(held) = held.as_object() else { return true };
    let fields: Map<String, Value> = held
        .iter()
        .filter(|(k, _)| *k != ".")
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    match sent {
        Value::Object(sent) => sent.iter().all(|(key, value)| {
            value.is_null()
                || fields
                    .get(&format!("f:{key}"))
                    .is_some_and(|inner| inner_holds(inner, value))
        }),
        Value::Array(items) if fields.keys().any(|k| k.starts_with("k:")) => items.iter().all(|item| {
            let entry = fields.iter().find(|(key, _)| is_key_of(key, item));
            entry.is_some_and(|(_, inner)| inner_holds(inner, item))
        }),
        Value::Array(items) if fields.keys().any(|k| k.starts_with("v:")) => {
            items.iter().all(|item| fields.contains_key(&format!("v:{item}")))
        }
        _ => true,
    }
}

/// Whether a field set below a field has every field of a value. An empty field set means the whole field.
fn inner_holds(held: &Value, sent: &Value) -> bool {
    held.as_object().is_none_or(Map::is_empty) || holds_all(held, sent)
}

/// Whether a key such as `k:{"name":"x"}` identifies this item. Keys that the item does not have are defaults of the API server.
fn is_key_of(key: &str, item: &Value) -> bool {
    let Some(Ok(Value::Object(pairs))) = key.strip_prefix("k:").map(serde_json::from_str) else {
        return false;
    };
    let given = pairs.iter().filter(|(name, _)| item.get(*name).is_some());
    given.clone().count() > 0 && given.into_iter().all(|(name, value)| item.get(name) == Some(value))
}

/// The last other field manager that wrote the object itself, not a subresource. It took over the operator's fields.
pub(super) fn last_writer(object: &DynamicObject) -> Option<String> {
    entries(object)
        .filter(|e| {
            e.manager.as_deref() != Some(labels::ASYA_MANAGER)
                && e.subresource.as_deref().unwrap_or_default().is_empty()
        })
        .max_by_key(|e| (e.time.as_ref().map(|t| t.0), e.manager.clone()))
        .and_then(|e| e.manager.clone())
}

/// Whether the operator is the only owner of `spec.replicas`. If it stopped applying the field, the API server would default it to 1.
pub(super) fn hold_replicas_alone(object: &DynamicObject) -> bool {
    let holds = |fields: &Value| fields.pointer("/f:spec/f:replicas").is_some();
    ours(object).is_some_and(holds)
        && entries(object)
            .filter(|e| e.fields_v1.as_ref().is_some_and(|f| holds(&f.0)))
            .count()
            == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(held: &Value, other: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "x", "annotations": {"h": "1"}, "managedFields": [
                {"manager": "asya-operator", "operation": "Apply", "fieldsV1": held, "time": "2026-01-01T00:00:00Z"},
                {"manager": other, "operation": "Update", "time": "2026-01-02T00:00:00Z",
                    "fieldsV1": {"f:spec": {"f:replicas": {}}}},
                {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status",
                    "time": "2026-01-03T00:00:00Z", "fieldsV1": {}},
            ]},
        }))
        .unwrap()
    }

    fn sent() -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x", "annotations": {"h": "1"}},
            "spec": {"template": {"spec": {"containers": [
                {"name": "a", "image": "i", "command": ["x"], "env": [{"name": "E", "value": "v"}]},
            ]}}},
        }))
        .unwrap()
    }

    fn held(container: &Value) -> Value {
        json!({"f:metadata": {"f:annotations": {"f:h": {}}}, "f:spec": {"f:template": {"f:spec": {"f:containers": {
            "k:{\"name\":\"a\"}": container}}}}})
    }

    #[test]
    fn field_with_another_owner_is_not_intact() {
        let whole = json!({".": {}, "f:name": {}, "f:image": {}, "f:command": {}, "f:env": {
            "k:{\"name\":\"E\"}": {".": {}, "f:name": {}, "f:value": {}}}});
        assert!(is_intact(&object(&held(&whole), "kserve"), &sent()));
        for taken in ["f:image", "f:command", "f:env"] {
            let mut less = whole.clone();
            less.as_object_mut().unwrap().remove(taken);
            assert!(!is_intact(&object(&held(&less), "kserve"), &sent()), "{taken}");
        }
        let mut value = whole.clone();
        value["f:env"]["k:{\"name\":\"E\"}"]
            .as_object_mut()
            .unwrap()
            .remove("f:value");
        assert!(!is_intact(&object(&held(&value), "kserve"), &sent()));
        assert!(!is_intact(&object(&json!({}), "kserve"), &sent()));
        assert_eq!(last_writer(&object(&json!({}), "kserve")).as_deref(), Some("kserve"));
    }

    #[test]
    fn without_managed_fields_values_are_compared() {
        let mut live = sent();
        assert!(is_intact(&live, &sent()));
        live.data["spec"]["template"]["spec"]["containers"][0]["image"] = json!("other");
        assert!(!is_intact(&live, &sent()));
    }
}
