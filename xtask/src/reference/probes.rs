//! The fields of a ModelDeployment, each with a value that can be recognized in what is made of it.

use serde_json::{Value, json};

/// A field with a value.
pub(super) struct Probe {
    /// Path in the spec, with `[]` for the items of a list.
    pub(super) field: &'static str,
    value: fn(engine: &str) -> Value,
    marks: Marks,
}

/// Words by which the value is recognized.
enum Marks {
    /// The texts and numbers of the value.
    Value,
    /// Other words, one of which is enough.
    Words(&'static [&'static str]),
    /// None: the field removes something.
    Nothing,
}

impl Probe {
    /// The path and the value to set. A field of a list's item needs the whole list.
    pub(super) fn setting(&self, engine: &str) -> (&'static str, Value) {
        let path = self.field.split_once("[]").map_or(self.field, |(list, _)| list);
        (path, (self.value)(engine))
    }

    /// Whether each kind of worker has the field: neither those of one kind of worker alone, nor those of a claim.
    pub(super) fn is_per_worker(&self) -> bool {
        !self.field.starts_with("scaling.") && !OF_CLAIMS.contains(&self.field)
    }

    /// Alternatives of words that must all occur in what is made.
    pub(super) fn marks(&self, engine: &str) -> Vec<Vec<String>> {
        match self.marks {
            Marks::Value => {
                let mut words = Vec::new();
                scalars(&(self.value)(engine), &mut words);
                words.into_iter().map(|word| vec![word]).collect()
            }
            Marks::Words(words) => vec![words.iter().map(|word| (*word).to_owned()).collect()],
            Marks::Nothing => Vec::new(),
        }
    }
}

fn scalars(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.values().for_each(|field| scalars(field, found)),
        Value::Array(items) => items.iter().for_each(|item| scalars(item, found)),
        Value::String(text) => found.push(text.clone()),
        Value::Number(number) => found.push(number.to_string()),
        Value::Null | Value::Bool(_) => {}
    }
}

const fn field(field: &'static str, value: fn(&str) -> Value) -> Probe {
    Probe {
        field,
        value,
        marks: Marks::Value,
    }
}

const fn marked(field: &'static str, words: &'static [&'static str], value: fn(&str) -> Value) -> Probe {
    Probe {
        field,
        value,
        marks: Marks::Words(words),
    }
}

/// One probe per field of the spec, in the order of the CRD. A test compares them with the CRD.
pub(super) const ALL: [Probe; 47] = [
    marked("model.id", &["example/marker", "huggingface://example/marker"], |_| {
        json!("example/marker")
    }),
    field("model.servedName", |_| json!("marker")),
    Probe {
        field: "model.source",
        value: |_| json!("custom"),
        marks: Marks::Nothing,
    },
    field("engine.contextLength", |_| json!(4321)),
    marked("engine.trustRemoteCode", &["trust-remote-code"], |_| json!(true)),
    field("engine.args", |engine| match engine {
        "trtllm" => json!({ "max-batch-size": "77" }),
        "sglang" => json!({ "random-seed": "77" }),
        _ => json!({ "seed": "77" }),
    }),
    field("scaling.replicas", |_| json!(3)),
    field(
        "scaling.autoscaling",
        |_| json!({ "maxReplicas": 7, "requestsInFlight": 77 }),
    ),
    field("scaling.prefill.replicas", |_| json!(3)),
    field("scaling.prefill.gpu.count", |_| json!(2)),
    marked("scaling.prefill.gpu.type", &[AMD], |_| json!(AMD)),
    field("scaling.prefill.memory", |_| json!("77Gi")),
    field("scaling.decode.replicas", |_| json!(3)),
    field("scaling.decode.gpu.count", |_| json!(2)),
    marked("scaling.decode.gpu.type", &[AMD], |_| json!(AMD)),
    field("scaling.decode.memory", |_| json!("77Gi")),
    field("resources.gpu.count", |_| json!(2)),
    marked("resources.gpu.type", &[AMD], |_| json!(AMD)),
    field("resources.memory", |_| json!("77Gi")),
    field("resources.cpu", |_| json!("7")),
    field("image", |_| json!("example.com/marker:1.2.3")),
    field("env", |_| json!([{ "name": "MARKER", "value": "77" }])),
    field("podTemplate.metadata.labels", |_| json!({ "marker": "77" })),
    field(
        "podTemplate.metadata.annotations",
        |_| json!({ "example.com/marker": "77" }),
    ),
    field("secrets.huggingFaceToken", |_| json!("marker")),
    field("nodeSelector", |_| json!({ "marker": "77" })),
    field("tolerations", |_| json!([{ "key": "marker", "operator": "Exists" }])),
    field("imagePullSecrets", |_| json!([{ "name": "marker" }])),
    field("serviceAccountName", |_| json!("marker")),
    field(
        "podTemplate.spec.affinity",
        |_| json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "marker" }] } }),
    ),
    field(
        "podTemplate.spec.topologySpreadConstraints",
        |_| json!([{ "maxSkew": 1, "topologyKey": "marker", "whenUnsatisfiable": "DoNotSchedule" }]),
    ),
    field("podTemplate.spec.priorityClassName", |_| json!("marker")),
    field("podTemplate.spec.runtimeClassName", |_| json!("marker")),
    field("podTemplate.spec.schedulerName", |_| json!("marker")),
    field("podTemplate.spec.securityContext", |_| json!({ "runAsUser": 77 })),
    field("podTemplate.spec.shmSize", |_| json!("77Gi")),
    marked(
        "model.storage.volumes[].name",
        &["storage-marker"],
        |_| json!([{ "name": "marker", "claimName": "models", "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].purpose",
        // Its default directory: llama-server has a LLAMA_CACHE without a volume, too.
        &["HF_HOME", "/model-cache"],
        |_| json!([{ "name": "models", "claimName": "models", "purpose": "modelCache" }]),
    ),
    marked(
        "model.storage.volumes[].claimName",
        &["marker"],
        |_| json!([{ "name": "models", "claimName": "marker", "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].image.reference",
        &["example.com/marker:1"],
        |_| json!([{ "name": "models", "image": { "reference": "example.com/marker:1" }, "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].image.pullPolicy",
        &["Never"],
        |_| json!([{ "name": "models", "image": { "reference": "example.com/models:1", "pullPolicy": "Never" }, "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].size",
        &["77Gi"],
        |_| json!([{ "name": "models", "size": "77Gi", "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].storageClassName",
        &["marker"],
        |_| json!([{ "name": "models", "size": "1Gi", "storageClassName": "marker", "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].accessMode",
        &["ReadWriteMany"],
        |_| json!([{ "name": "models", "size": "1Gi", "accessMode": "ReadWriteMany", "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].retain",
        &["true"],
        |_| json!([{ "name": "models", "size": "1Gi", "retain": true, "mountPath": "/models" }]),
    ),
    marked(
        "model.storage.volumes[].mountPath",
        &["/marker"],
        |_| json!([{ "name": "models", "claimName": "models", "mountPath": "/marker" }]),
    ),
    marked(
        "model.storage.volumes[].readOnly",
        &["readOnly"],
        |_| json!([{ "name": "models", "claimName": "models", "mountPath": "/models", "readOnly": true }]),
    ),
];

/// GPUs of another vendor than the default.
const AMD: &str = "amd.com/gpu";

/// Fields of a PersistentVolumeClaim that is created.
const OF_CLAIMS: [&str; 4] = [
    "model.storage.volumes[].size",
    "model.storage.volumes[].storageClassName",
    "model.storage.volumes[].accessMode",
    "model.storage.volumes[].retain",
];
