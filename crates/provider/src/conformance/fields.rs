//! Fields of a ModelDeployment, each with a value that can be recognized in what is made of it.
//!
//! [`ALL`] is the one list of fields. Rule R15, the properties below, and the page with the field mapping try each of them, so that
//! no provider drops a field silently. [`unlisted`] finds a field of the CRD that is missing here.

use std::collections::BTreeSet;
use std::fmt;

use kube::CustomResourceExt;
use kube::core::GroupVersion;
use proptest::sample::subsequence;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use runway_api::ModelDeployment;
use serde_json::{Value, json};

use crate::contract::{Object, Refusal, Translation};

/// A field of the spec with a recognizable value.
#[derive(Clone, Copy)]
pub struct Field {
    /// Dotted path below `spec`, with `[]` for the items of a list.
    pub path: &'static str,
    value: fn(engine: &str) -> Value,
    marks: Marks,
}

/// Shown as its path.
impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path)
    }
}

/// Words by which a value is recognized.
#[derive(Clone, Copy)]
enum Marks {
    /// The texts and numbers of the value.
    Value,
    /// Other words, one of which is enough.
    Words(&'static [&'static str]),
    /// None: the field removes something.
    Nothing,
}

impl Field {
    /// Sets the field in a spec. A field of a list's item sets the whole list; arguments of the engine are added to those that exist.
    pub fn set(&self, spec: &mut Value) {
        let engine = spec["engine"]["type"].as_str().unwrap_or_default();
        let mut value = (self.value)(engine);
        if let ("engine.args", Value::Object(present)) = (self.path, &spec["engine"]["args"]) {
            for (flag, present) in present {
                value[flag] = present.clone();
            }
        }
        put(spec, self.place(), value);
    }

    /// The path that [`set`](Self::set) writes: that of the list for a field of its items.
    fn place(&self) -> &'static str {
        self.path.split_once("[]").map_or(self.path, |(list, _)| list)
    }

    /// Whether the field has a meaning beside the others: admission rejects those of the other serving mode, and without GPUs their
    /// resource name is unused.
    pub fn applies_to(&self, spec: &Value) -> bool {
        let is_of_roles = self.path.starts_with("scaling.prefill.") || self.path.starts_with("scaling.decode.");
        if spec["serving"]["mode"] == "disaggregated" {
            self.path != "scaling.replicas" && !self.path.starts_with("resources.")
        } else {
            !is_of_roles && (self.path != "resources.gpu.type" || spec["resources"]["gpu"]["count"].is_number())
        }
    }

    /// Whether `Provider::translate` maps the field: claims are created by the loop, autoscalers by the core.
    pub fn is_translated(&self) -> bool {
        !OF_CLAIMS.contains(&self.path) && self.path != "scaling.autoscaling"
    }

    /// Whether the objects that are made with the field have its value for every kind of worker, more often than those without it.
    pub fn is_in(&self, spec: &Value, before: &[Value], after: &[Value]) -> bool {
        let is_disaggregated = spec["serving"]["mode"] == "disaggregated";
        let is_of_all_workers = !self.path.starts_with("scaling.") && !OF_CLAIMS.contains(&self.path);
        let workers = 1 + usize::from(is_disaggregated && is_of_all_workers);
        self.words(spec).iter().all(|words| {
            let added = |word: &String| occurrences(after, word).saturating_sub(occurrences(before, word));
            words.iter().any(|word| added(word) >= workers)
        })
    }

    /// Whether a message names the field, a part of the spec that contains it, or its value.
    fn is_named_in(&self, message: &str, spec: &Value) -> bool {
        let part = self.place().rsplit_once('.').map_or("", |(part, _)| part);
        let is_part = part.contains('.') && message.contains(part);
        let mut values = self.words(spec).into_iter().flatten();
        is_part || message.contains(self.place()) || values.any(|value| message.contains(&value))
    }

    /// Alternatives of words that must all occur in what is made.
    fn words(&self, spec: &Value) -> Vec<Vec<String>> {
        match self.marks {
            Marks::Value => {
                let engine = spec["engine"]["type"].as_str().unwrap_or_default();
                let mut words = Vec::new();
                scalars(&(self.value)(engine), &mut words);
                words.into_iter().map(|word| vec![word]).collect()
            }
            Marks::Words(words) => vec![words.iter().map(|word| (*word).to_owned()).collect()],
            Marks::Nothing => Vec::new(),
        }
    }
}

/// Sets what a dotted path names.
pub fn put(spec: &mut Value, path: &str, value: Value) {
    let mut place = spec;
    for key in path.split('.') {
        place = &mut place[key];
    }
    *place = value;
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

const fn field(path: &'static str, value: fn(&str) -> Value) -> Field {
    Field {
        path,
        value,
        marks: Marks::Value,
    }
}

const fn marked(path: &'static str, words: &'static [&'static str], value: fn(&str) -> Value) -> Field {
    Field {
        path,
        value,
        marks: Marks::Words(words),
    }
}

/// One entry per field of the spec, in the order of the CRD, except [`APART`].
pub const ALL: [Field; 47] = [
    marked("model.id", &["example/marker", "huggingface://example/marker"], |_| {
        json!("example/marker")
    }),
    field("model.servedName", |_| json!("marker-name")),
    Field {
        path: "model.source",
        value: |_| json!("custom"),
        marks: Marks::Nothing,
    },
    field("engine.contextLength", |_| json!(4321)),
    marked("engine.trustRemoteCode", &["trust-remote-code"], |_| json!(true)),
    field("engine.args", |engine| match engine {
        "trtllm" => json!({ "max-batch-size": "7777" }),
        "sglang" => json!({ "random-seed": "7777" }),
        _ => json!({ "seed": "7777" }),
    }),
    field("scaling.replicas", |_| json!(13)),
    field(
        "scaling.autoscaling",
        |_| json!({ "maxReplicas": 7, "requestsInFlight": 77 }),
    ),
    field("scaling.prefill.replicas", |_| json!(13)),
    field("scaling.prefill.gpu.count", |_| json!(2)),
    marked("scaling.prefill.gpu.type", &[AMD], |_| json!(AMD)),
    field("scaling.prefill.memory", |_| json!("71Gi")),
    field("scaling.decode.replicas", |_| json!(17)),
    field("scaling.decode.gpu.count", |_| json!(4)),
    marked("scaling.decode.gpu.type", &[AMD], |_| json!(AMD)),
    field("scaling.decode.memory", |_| json!("73Gi")),
    field("resources.gpu.count", |_| json!(2)),
    marked("resources.gpu.type", &[AMD], |_| json!(AMD)),
    field("resources.memory", |_| json!("77Gi")),
    field("resources.cpu", |_| json!("29")),
    field("image", |_| json!("example.com/marker:1.2.3")),
    field("env", |_| json!([{ "name": "MARKER", "value": "marker-variable" }])),
    field("podTemplate.metadata.labels", |_| json!({ "marker": "marker-label" })),
    field(
        "podTemplate.metadata.annotations",
        |_| json!({ "example.com/marker": "marker-annotation" }),
    ),
    field("secrets.huggingFaceToken", |_| json!("marker-token")),
    field("nodeSelector", |_| json!({ "marker": "marker-node" })),
    field(
        "tolerations",
        |_| json!([{ "key": "marker-taint", "operator": "Exists" }]),
    ),
    field("imagePullSecrets", |_| json!([{ "name": "marker-registry" }])),
    field("serviceAccountName", |_| json!("marker-account")),
    field(
        "podTemplate.spec.affinity",
        |_| json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "marker-host" }] } }),
    ),
    field(
        "podTemplate.spec.topologySpreadConstraints",
        |_| json!([{ "maxSkew": 1, "topologyKey": "marker-zone", "whenUnsatisfiable": "DoNotSchedule" }]),
    ),
    field("podTemplate.spec.priorityClassName", |_| json!("marker-priority")),
    field("podTemplate.spec.runtimeClassName", |_| json!("marker-runtime")),
    field("podTemplate.spec.schedulerName", |_| json!("marker-scheduler")),
    field("podTemplate.spec.securityContext", |_| json!({ "runAsUser": 7654 })),
    field("podTemplate.spec.shmSize", |_| json!("79Gi")),
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

/// Fields that no value of [`ALL`] tries: they choose the provider or the kind of object, or are the same for every provider.
pub const APART: [&str; 5] = [
    "provider.name",
    "provider.overrides",
    "engine.type",
    "serving.mode",
    "gateway",
];

/// Fields of the CRD that are missing in [`ALL`], and those that [`ALL`] has and the CRD has not.
pub fn unlisted() -> Vec<String> {
    let listed: BTreeSet<String> = ALL
        .iter()
        .map(|field| field.path)
        .chain(APART)
        .map(str::to_owned)
        .collect();
    let schema = serde_json::to_value(ModelDeployment::crd()).unwrap_or_default();
    let spec = &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut found = BTreeSet::new();
    leaves("", spec, &listed, &mut found);
    found.symmetric_difference(&listed).cloned().collect()
}

fn leaves(path: &str, schema: &Value, listed: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        None if schema["items"]["properties"].is_object() && !listed.contains(path) => {
            leaves(&format!("{path}[]"), &schema["items"], listed, found);
        }
        Some(properties) if !listed.contains(path) => {
            for (name, inner) in properties {
                let at = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                leaves(&at, inner, listed, found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Checks for each of these ModelDeployments, with each of the fields and with many sets of them, that no field is dropped without
/// an error or an entry in `ignored`, that equal requests give equal translations, and that no object contains null.
///
/// # Errors
/// The first violation, with the smallest set of fields that shows it.
pub fn check(
    bases: &[(&str, Value)],
    translate: impl Fn(&Value) -> Result<Translation, Refusal>,
) -> Result<(), String> {
    for (name, base) in bases {
        let plain = translate(base).map_err(|refusal| format!("{name} is to be supported: {refusal}"))?;
        let fields: Vec<&Field> = ALL
            .iter()
            .filter(|field| field.is_translated() && field.applies_to(&base["spec"]))
            .collect();
        for field in &fields {
            check_set(base, &plain, &[field], &translate).map_err(|problem| format!("{name}: {problem}"))?;
        }
        let config = Config {
            failure_persistence: None,
            ..Config::default()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        TestRunner::new_with_rng(config, rng)
            .run(&subsequence(fields.clone(), 0..=fields.len()), |chosen| {
                check_set(base, &plain, &chosen, &translate).map_err(TestCaseError::fail)
            })
            .map_err(|problem| format!("{name}: {problem}"))?;
    }
    Ok(())
}

fn check_set(
    base: &Value,
    plain: &Translation,
    fields: &[&Field],
    translate: &impl Fn(&Value) -> Result<Translation, Refusal>,
) -> Result<(), String> {
    let mut md = base.clone();
    for field in fields {
        field.set(&mut md["spec"]);
    }
    let outcome = translate(&md);
    if outcome != translate(&md) {
        return Err(format!("{} is translated differently from call to call", md["spec"]));
    }
    let Translation { ignored, .. } = match &outcome {
        Ok(translation) => translation,
        Err(refusal) if refusal.message.trim().is_empty() => {
            return Err(format!("{} is refused without a text", md["spec"]));
        }
        Err(Refusal { message, .. }) => {
            return match fields {
                [field] if !field.is_named_in(message, &md["spec"]) => Err(format!(
                    "spec.{} is rejected with a message that names neither the field nor its value: {message}",
                    field.path
                )),
                _ => Ok(()),
            };
        }
    };
    let after = outcome.as_ref().map(documents).unwrap_or_default();
    // Fields together may take away what a default has put there, such as the only other "1".
    let before = if fields.len() == 1 {
        documents(plain)
    } else {
        Vec::new()
    };
    if after.iter().any(holds_null) {
        return Err(format!("{} gives null in {}", md["spec"], json!(after)));
    }
    let is_last = |at: usize| fields[at + 1..].iter().all(|later| later.place() != fields[at].place());
    let lost = (0..fields.len())
        .filter(|at| is_last(*at))
        .map(|at| fields[at])
        .find(|field| {
            let is_reported = ignored.iter().any(|text| text.contains(field.place()));
            !is_reported && !field.is_in(&md["spec"], &before, &after)
        });
    match lost {
        Some(field) => Err(format!(
            "spec.{} is dropped silently: {} gives {}",
            field.path,
            md["spec"],
            json!(after)
        )),
        None => Ok(()),
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

/// Whether a value contains null, which the API server does not store.
pub fn holds_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(entries) => entries.iter().any(holds_null),
        Value::Object(fields) => fields.values().any(holds_null),
        _ => false,
    }
}

/// Number of occurrences of a word in the values of objects. A switch that is on counts as its name, and `_` as `-`.
fn occurrences(objects: &[Value], word: &str) -> usize {
    let word = normal(word);
    let mut words = Vec::new();
    for object in objects {
        words_in("", object, &mut words);
    }
    words.into_iter().filter(|found| *found == word).count()
}

fn words_in(key: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(key, value)| {
            // The name of a resource, such as that of a GPU, is a key.
            found.extend(key.contains('/').then(|| normal(key)));
            words_in(key, value, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| words_in(key, item, found)),
        Value::Bool(true) => found.push(normal(key)),
        Value::Number(number) => found.push(number.to_string()),
        Value::String(text) => {
            let words = text.split(|c: char| !(c.is_alphanumeric() || "-._/:@".contains(c)));
            // `key: value` of YAML within a text.
            found.extend(words.map(|word| normal(word.trim_end_matches(':'))));
        }
        Value::Null | Value::Bool(false) => {}
    }
}

fn normal(word: &str) -> String {
    word.trim_start_matches('-').replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_crd_is_listed() {
        assert_eq!(unlisted(), Vec::<String>::new());
    }

    #[test]
    fn words_are_counted_in_values() {
        let objects = [json!({
            "args": ["--max_model-len", "4321", "--trust-remote-code"], "readOnly": true, "off": false,
            "yaml": "max_model_len: 4321\ntrust_remote_code: true", "n": 4321, "4321": "x",
        })];
        assert_eq!(occurrences(&objects, "4321"), 3);
        assert_eq!(occurrences(&objects, "trust_remote_code"), 2);
        assert_eq!(occurrences(&objects, "readOnly"), 1);
        assert_eq!(occurrences(&objects, "off"), 0);
        assert_eq!(occurrences(&objects, "432"), 0);
    }
}
