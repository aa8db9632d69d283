//! Upstream objects as they are applied: the provider's body with the metadata of the contract.

use std::collections::BTreeMap;

use kube::ResourceExt;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use runway_api::{EventReason, ModelDeployment, labels};
use runway_operator::object;
use runway_operator::plan::{Apply, Note};
use serde_json::Value;

use crate::contract::Object;

const DRIFT: &str = "Provider resource was modified directly, reconciling";

/// Fields for which an object was created: the identity of the spec, and those that the upstream does not allow to change.
pub(super) type MadeFor = BTreeMap<String, Value>;

/// Object to apply, compared with the live one.
pub(super) fn apply(md: &ModelDeployment, provider: &str, object: &Object, live: Option<&DynamicObject>) -> Apply {
    let apply = object::wanted(
        object.kind.resource_in(&object.version),
        dress(md, provider, object),
        live,
        labels::APPLIED_HASH,
        DRIFT,
    );
    reset(apply, object, live)
}

/// Resets fields that the desired object leaves out and another writer has set.
fn reset(mut apply: Apply, object: &Object, live: Option<&DynamicObject>) -> Apply {
    for (pointer, value) in &object.reset {
        let differs = live
            .and_then(|live| live.data.pointer(pointer))
            .is_some_and(|found| found != value);
        let parent = pointer.rsplit_once('/').filter(|_| differs);
        let Some((parent, field)) = parent else { continue };
        if let Some(parent) = apply.object.data.pointer_mut(parent) {
            parent[field] = value.clone();
            apply.note = apply
                .note
                .or_else(|| Some(Note::new(EventReason::DriftDetected, DRIFT)));
            apply.unchanged = false;
        }
    }
    apply
}

/// The fields for which this object is created.
pub(super) fn made_for(md: &ModelDeployment, object: &Object) -> MadeFor {
    let identity = md
        .spec
        .identity()
        .into_iter()
        .map(|(field, value)| (field.to_owned(), value));
    identity
        .chain(object.immutable.clone())
        .chain(object.not_rolled_out.clone())
        .collect()
}

/// Fields that a live object was created for.
fn recorded(live: &DynamicObject) -> Option<MadeFor> {
    serde_json::from_str(live.annotations().get(labels::MADE_FOR)?).ok()
}

/// Those of these fields that differ in what a live object was created for, each as a sentence.
pub(super) fn changed(live: &DynamicObject, wanted: &MadeFor) -> Vec<String> {
    let mut made_for = recorded(live).unwrap_or_default();
    made_for.retain(|field, _| wanted.contains_key(field));
    let mut wanted = wanted.clone();
    wanted.retain(|field, _| made_for.contains_key(field));
    differences(&made_for, &wanted)
}

/// Differences in what a live object was created for, each as a sentence; empty if it can be updated.
pub(super) fn outgrown(md: &ModelDeployment, live: &DynamicObject, object: &Object) -> Vec<String> {
    let Some(made_for) = recorded(live) else {
        return Vec::new();
    };
    let mut wanted = self::made_for(md, object);
    // Objects of an earlier release lack these fields. Recreating them would restart pods needlessly.
    if !object.not_rolled_out.keys().any(|field| made_for.contains_key(field)) {
        wanted.retain(|field, _| !object.not_rolled_out.contains_key(field));
    }
    let mut differences = differences(&made_for, &wanted);
    for difference in differences
        .iter_mut()
        .filter(|text| text.starts_with("spec.env changed"))
    {
        // Only their hash is recorded.
        let changed = changed_variables(&live.data, &object.body);
        if !changed.is_empty() {
            *difference = format!("spec.env changed: {}", changed.join(", "));
        }
    }
    differences
}

/// Names of the variables that differ between the containers of two objects.
fn changed_variables(live: &Value, wanted: &Value) -> Vec<String> {
    let (live, wanted) = (variables(live), variables(wanted));
    let names: std::collections::BTreeSet<&String> = live.keys().chain(wanted.keys()).collect();
    let changed = names.into_iter().filter(|name| live.get(*name) != wanted.get(*name));
    changed.cloned().collect()
}

/// The variables of all containers in an object, by name.
fn variables(value: &Value) -> BTreeMap<String, Value> {
    match value {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value) {
                ("env", Value::Array(all)) => {
                    let named = |variable: &Value| Some((variable["name"].as_str()?.to_owned(), variable.clone()));
                    all.iter().filter_map(named).collect()
                }
                _ => variables(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(variables).collect(),
        _ => BTreeMap::new(),
    }
}

fn differences(made_for: &MadeFor, wanted: &MadeFor) -> Vec<String> {
    let fields: std::collections::BTreeSet<&String> = made_for.keys().chain(wanted.keys()).collect();
    fields
        .into_iter()
        .filter(|field| made_for.get(*field) != wanted.get(*field))
        .map(|field| {
            format!(
                "{field} changed from {} to {}",
                shown(made_for.get(field)),
                shown(wanted.get(field))
            )
        })
        .collect()
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "nothing".to_owned(),
        Some(Value::String(text)) => format!("'{text}'"),
        Some(other) => other.to_string(),
    }
}

fn dress(md: &ModelDeployment, provider: &str, object: &Object) -> DynamicObject {
    let mut annotations = object.annotations.clone();
    let is_retained = annotations.get(labels::RETAIN).is_some_and(|retain| retain == "true");
    annotations.insert(
        labels::MADE_FOR.to_owned(),
        Value::Object(made_for(md, object).into_iter().collect()).to_string(),
    );
    DynamicObject {
        types: Some(TypeMeta {
            api_version: object.kind.resource_in(&object.version).api_version,
            kind: object.kind.kind.to_owned(),
        }),
        metadata: ObjectMeta {
            name: Some(object.name.clone()),
            namespace: md.namespace(),
            labels: Some(object_labels(md, provider)),
            annotations: Some(annotations),
            owner_references: (!is_retained).then(|| vec![object::owner(md)]),
            ..ObjectMeta::default()
        },
        data: object.body.clone(),
    }
}

/// Our labels, the user's labels with our prefix, and the queue of Kueue. Ours take precedence.
fn object_labels(md: &ModelDeployment, provider: &str) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = md
        .labels()
        .iter()
        .filter(|(key, _)| key.starts_with(labels::PREFIX) || *key == labels::QUEUE)
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    all.insert(labels::MANAGED_BY.to_owned(), labels::MANAGED_BY_VALUE.to_owned());
    all.insert(labels::DEPLOYMENT.to_owned(), md.name_any());
    all.insert(labels::PROVIDER.to_owned(), provider.to_owned());
    all.insert(labels::MODEL_SOURCE.to_owned(), md.spec.source().as_str().to_owned());
    all.insert(
        labels::ENGINE_TYPE.to_owned(),
        md.spec.engine_type().unwrap_or_default().to_owned(),
    );
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_that_differ_are_named() {
        let template = |env: Value| json!({"spec": {"template": {"spec": {"containers": [{"env": env}]}}}});
        let live = template(json!([{"name": "SAME", "value": "1"}, {"name": "GONE"}, {"name": "OTHER", "value": "a"}]));
        let wanted =
            template(json!([{"name": "SAME", "value": "1"}, {"name": "NEW"}, {"name": "OTHER", "value": "b"}]));
        assert_eq!(changed_variables(&live, &wanted), ["GONE", "NEW", "OTHER"]);
        assert!(changed_variables(&live, &live).is_empty());
    }
}
