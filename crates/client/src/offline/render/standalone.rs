//! Rendered objects for a cluster without the controllers: without owners, and without labels and annotations that only the
//! controllers read.

use std::collections::BTreeSet;

use kube::ResourceExt;
use kube::core::DynamicObject;
use runway_api::ModelDeployment;
use runway_api::labels::{self, llama_stack};
use runway_manifests::built_in_providers;
use serde_json::{Map, Value};

use super::Rendered;
use crate::diagnostic::{Diagnostic, Level};

/// Labels of the controllers. Providers have further ones on their pods.
const LABELS: [&str; 8] = [
    labels::MANAGED_BY,
    labels::RECOMMENDED_MANAGED_BY,
    labels::DEPLOYMENT,
    labels::PROVIDER,
    labels::MODEL_SOURCE,
    labels::ENGINE_TYPE,
    labels::ASYA_ACTOR,
    labels::ASYA_LEGACY,
];
/// Values of `app.kubernetes.io/managed-by` that name a controller. Users may set others.
const MANAGERS: [&str; 3] = [labels::MANAGED_BY_VALUE, labels::ASYA_MANAGER, llama_stack::MANAGER];
/// Annotations of the controllers. Hashes of mounted ConfigMaps are not among them: they restart pods after a change.
const ANNOTATIONS: [&str; 9] = [
    labels::MADE_FOR,
    labels::APPLIED_HASH,
    labels::RETAIN,
    labels::ASYA_MANAGED_BY,
    labels::ASYA_BOUND_UID,
    labels::ASYA_BOUND_HASH,
    labels::ASYA_ADDED,
    llama_stack::APPLIED_HASH,
    llama_stack::TEMPLATE,
];

impl Rendered {
    /// Makes the objects independent of the controllers. An object that is of no use without them is omitted, with a warning.
    pub fn standalone(&mut self) {
        let marks = marks(&self.documents);
        for object in &self.documents {
            if let Some(warning) = warning(object) {
                let kind = object.types.as_ref().map_or("", |types| &types.kind);
                let subject = format!("{kind}/{}", object.name_any());
                self.diagnostics
                    .push(Diagnostic::about(Level::Warning, subject, warning));
            }
        }
        self.documents.retain(|object| !scales_a_model(object));
        for object in &mut self.documents {
            leave_controllers(object, &marks);
        }
    }
}

/// Labels to remove. Those by which an object selects others are kept.
fn marks(objects: &[DynamicObject]) -> BTreeSet<&'static str> {
    let providers = built_in_providers();
    let on_pods = providers.iter().flat_map(|provider| provider.pod_labels());
    let on_pods = on_pods.filter(|label| label.starts_with(labels::PREFIX));
    let mut selected = BTreeSet::new();
    for object in objects {
        collect_selected(&object.data, &mut selected);
    }
    let all = LABELS.into_iter().chain(on_pods);
    all.filter(|label| !selected.contains(*label)).collect()
}

fn warning(object: &DynamicObject) -> Option<&'static str> {
    if scales_a_model(object) {
        return Some(
            "omitted, because it scales the ModelDeployment: to scale its objects automatically, create an autoscaler for their kind",
        );
    }
    // A uid guards fields that are added to an object with another owner.
    object.uid().map(|_| {
        "has only the fields that are added to an existing object: add them to its manifest, or use kubectl apply --server-side"
    })
}

fn scales_a_model(object: &DynamicObject) -> bool {
    let target = &object.data["spec"]["scaleTargetRef"];
    target["kind"] == <ModelDeployment as kube::Resource>::kind(&()).as_ref()
}

fn leave_controllers(object: &mut DynamicObject, marks: &BTreeSet<&str>) {
    let metadata = &mut object.metadata;
    metadata.owner_references = None;
    metadata.uid = None;
    metadata.labels.take_if(|all| {
        all.retain(|key, value| !is_our_label(key, value, marks));
        all.is_empty()
    });
    metadata.annotations.take_if(|all| {
        all.retain(|key, _| !ANNOTATIONS.contains(&key.as_str()));
        all.is_empty()
    });
    leave_in_templates(&mut object.data, marks);
}

fn is_our_label(key: &str, value: &str, marks: &BTreeSet<&str>) -> bool {
    marks.contains(key) && (key != labels::RECOMMENDED_MANAGED_BY || MANAGERS.contains(&value))
}

/// Removes labels and annotations of the controllers from templates of pods and other objects.
fn leave_in_templates(value: &mut Value, marks: &BTreeSet<&str>) {
    match value {
        Value::Object(fields) => {
            let is_ours = |key: &str, value: &Value| is_our_label(key, value.as_str().unwrap_or_default(), marks);
            remove_from(fields, "labels", is_ours);
            remove_from(fields, "annotations", |key, _| ANNOTATIONS.contains(&key));
            fields.values_mut().for_each(|child| leave_in_templates(child, marks));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| leave_in_templates(item, marks)),
        _ => {}
    }
}

fn remove_from(fields: &mut Map<String, Value>, name: &str, is_ours: impl Fn(&str, &Value) -> bool) {
    let Some(Value::Object(all)) = fields.get_mut(name) else {
        return;
    };
    let before = all.len();
    all.retain(|key, value| !is_ours(key, value));
    if all.is_empty() && before > 0 {
        fields.remove(name);
    }
}

/// Keys of labels in the selectors of an object.
fn collect_selected<'a>(value: &'a Value, selected: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, child) in fields {
                match (name.as_str(), child) {
                    ("matchLabels" | "selector", Value::Object(labels)) => {
                        let labels = labels.iter().filter(|(_, value)| value.is_string());
                        selected.extend(labels.map(|(key, _)| key.as_str()));
                    }
                    ("matchExpressions", Value::Array(all)) => {
                        selected.extend(all.iter().filter_map(|one| one["key"].as_str()));
                    }
                    _ => {}
                }
                collect_selected(child, selected);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_selected(item, selected)),
        _ => {}
    }
}
