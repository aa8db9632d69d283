//! Fields of a ModelDeployment for property tests of a provider: none may be dropped silently.

use std::collections::BTreeSet;

use kube::CustomResourceExt;
use kube::core::GroupVersion;
use runway_api::ModelDeployment;
use serde_json::{Value, json};

use crate::contract::{Object, Refusal, Translation};

/// A field of the spec with a recognizable value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Dotted path below `spec`.
    pub field: &'static str,
    /// Value for it.
    pub value: Value,
    /// Texts of which one must be in the objects or in a message.
    pub marks: &'static [&'static str],
}

impl Setting {
    /// A field, its value, and how it is found in the result.
    pub fn new(field: &'static str, value: Value, marks: &'static [&'static str]) -> Self {
        Self { field, value, marks }
    }

    /// Sets the field in a ModelDeployment. Arguments are added to those that are there.
    pub fn apply(&self, md: &mut Value) {
        let mut at = &mut md["spec"];
        for step in self.field.split('.') {
            at = &mut at[step];
        }
        match (at, &self.value) {
            (Value::Object(there), Value::Object(more)) if self.field == "engine.args" => there.extend(more.clone()),
            (place, value) => *place = value.clone(),
        }
    }

    /// Whether the field applies in the serving mode of a ModelDeployment: admission rejects those of the other mode.
    pub fn applies_to(&self, md: &Value) -> bool {
        if md["spec"]["serving"]["mode"] == "disaggregated" {
            self.field != "scaling.replicas" && !self.field.starts_with("resources.")
        } else {
            !self.field.starts_with("scaling.prefill") && !self.field.starts_with("scaling.decode")
        }
    }

    /// Whether one of its marks is in the result of [`seen`].
    pub fn is_in(&self, seen: &str) -> bool {
        self.marks.iter().any(|mark| seen.contains(mark))
    }
}

/// Objects of a translation as they are applied, without what the loop adds.
pub fn documents(translation: &Translation) -> Vec<Value> {
    let document = |object: &Object| {
        let version = GroupVersion::gv(object.kind.group, &object.version);
        let mut document = json!({
            "apiVersion": version.api_version(), "kind": object.kind.kind, "metadata": {"name": object.name},
        });
        for (field, value) in object.body.as_object().into_iter().flatten() {
            document[field] = value.clone();
        }
        document
    };
    translation.objects.iter().map(document).collect()
}

/// Text with everything that users see of a translation: the objects and the ignored fields, or the refusal.
pub fn seen(outcome: &Result<Translation, Refusal>) -> String {
    match outcome {
        Ok(translation) => format!(
            "{} {}",
            Value::Array(documents(translation)),
            translation.ignored.join("\n")
        ),
        Err(refusal) => refusal.message.clone(),
    }
}

/// Whether a value contains null, which the API server does not store.
pub fn holds_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(entries) => entries.iter().any(holds_null),
        Value::Object(fields) => fields.values().any(holds_null),
        _ => false,
    }
}

/// The fields of these settings and those that are tried elsewhere, to be compared with [`of_spec`].
pub fn tried(settings: &[Setting], elsewhere: &[&str]) -> BTreeSet<String> {
    let fields = settings.iter().map(|setting| setting.field);
    fields.chain(elsewhere.iter().copied()).map(str::to_owned).collect()
}

/// Fields of the spec, as dotted paths with `[]` for the items of a list, down to maps and values. A path in `tried` counts as one
/// field. A test compares the result with `tried`, so that a new field of the API fails it.
pub fn of_spec(tried: &BTreeSet<String>) -> BTreeSet<String> {
    let schema = serde_json::to_value(ModelDeployment::crd()).unwrap_or_default();
    let spec = &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut found = BTreeSet::new();
    leaves("", spec, tried, &mut found);
    found
}

fn leaves(path: &str, schema: &Value, tried: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        None if schema["items"]["properties"].is_object() && !tried.contains(path) => {
            leaves(&format!("{path}[]"), &schema["items"], tried, found);
        }
        Some(properties) if !tried.contains(path) => {
            for (name, inner) in properties {
                let at = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(&at, inner, tried, found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Fields of pods and volumes.
pub fn of_pods() -> Vec<Setting> {
    vec![
        Setting::new(
            "podTemplate.metadata.labels",
            json!({"marked-label": "x"}),
            &["marked-label"],
        ),
        Setting::new(
            "podTemplate.metadata.annotations",
            json!({"marked-annotation": "x"}),
            &["marked-annotation"],
        ),
        Setting::new("secrets.huggingFaceToken", json!("marked-token"), &["marked-token"]),
        Setting::new("nodeSelector", json!({"marked-pool": "x"}), &["marked-pool"]),
        Setting::new(
            "imagePullSecrets",
            json!([{"name": "marked-registry"}]),
            &["marked-registry", "spec.imagePullSecrets"],
        ),
        Setting::new(
            "serviceAccountName",
            json!("marked-account"),
            &["marked-account", "spec.serviceAccountName"],
        ),
        Setting::new(
            "podTemplate.spec.affinity",
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "marked-host"}]}}),
            &["marked-host", "podTemplate.spec.affinity"],
        ),
        Setting::new(
            "podTemplate.spec.topologySpreadConstraints",
            json!([{"maxSkew": 1, "topologyKey": "marked-zone", "whenUnsatisfiable": "DoNotSchedule"}]),
            &["marked-zone", "podTemplate.spec.topologySpreadConstraints"],
        ),
        Setting::new(
            "podTemplate.spec.priorityClassName",
            json!("marked-priority"),
            &["marked-priority", "podTemplate.spec.priorityClassName"],
        ),
        Setting::new(
            "podTemplate.spec.runtimeClassName",
            json!("marked-runtime"),
            &["marked-runtime", "podTemplate.spec.runtimeClassName"],
        ),
        Setting::new(
            "podTemplate.spec.schedulerName",
            json!("marked-scheduler"),
            &["marked-scheduler", "podTemplate.spec.schedulerName"],
        ),
        Setting::new(
            "podTemplate.spec.securityContext",
            json!({"runAsUser": 31337}),
            &["31337", "podTemplate.spec.securityContext"],
        ),
        Setting::new(
            "podTemplate.spec.shmSize",
            json!("37Gi"),
            &["37Gi", "podTemplate.spec.shmSize"],
        ),
        Setting::new(
            "model.storage.volumes",
            json!([{"name": "marked", "claimName": "marked-claim", "mountPath": "/marked"}]),
            &["marked-claim", "spec.model.storage"],
        ),
    ]
}
