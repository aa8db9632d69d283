//! Field mapping: the effect of each field of a ModelDeployment, for every provider, engine and mode.
//!
//! The module contains no knowledge of providers. It renders a manifest without and with the field, as `kubeairunway render` does,
//! and reports the difference. A field that changes nothing and is neither rejected nor warned about fails the generation.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Result, bail};
use runway_api::condition;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::OverrideType;
use runway_client::diagnostic::Level;
use runway_client::documents::Documents;
use runway_client::manifests;
use runway_client::render::{Options, Show, render};
use serde_json::{Map, Value, json};

/// Path of the page.
pub(crate) const PATH: &str = "docs/reference/fields.md";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Field mapping

For every field of a `ModelDeployment` and every provider: the path in the upstream object, or the error message with which the field
is rejected, or the warning that it has no effect. No field is dropped silently: the generation of this page would fail.

Each row compares a manifest without the field with one that sets it, rendered for the newest supported upstream schema. Use
`kubeairunway render` for your own manifest. Fields that select the provider or the kind of object (`provider.name`, `engine.type`,
`serving.mode`) are in the column *for*. A value may change several paths, such as a replica count that makes KAITO use another kind.
";

/// A field with a value that can be found in the output.
struct Probe {
    field: &'static str,
    value: fn(engine: &str) -> Value,
}

macro_rules! probe {
    ($field:literal, $value:tt) => {
        Probe {
            field: $field,
            value: |_| json!($value),
        }
    };
}

/// One probe per field of the spec, in the order of the CRD. A test compares them with the CRD.
const PROBES: [Probe; 36] = [
    probe!("model.id", "example/marker"),
    probe!("model.servedName", "marker"),
    probe!("model.source", "custom"),
    probe!("engine.contextLength", 4321),
    probe!("engine.trustRemoteCode", true),
    Probe {
        field: "engine.args",
        value: |engine| match engine {
            "trtllm" => json!({ "max-batch-size": "77" }),
            "sglang" => json!({ "random-seed": "77" }),
            _ => json!({ "seed": "77" }),
        },
    },
    probe!("scaling.replicas", 3),
    probe!("scaling.prefill.replicas", 3),
    probe!("scaling.prefill.gpu.count", 2),
    probe!("scaling.prefill.gpu.type", "amd.com/gpu"),
    probe!("scaling.prefill.memory", "77Gi"),
    probe!("scaling.decode.replicas", 3),
    probe!("scaling.decode.gpu.count", 2),
    probe!("scaling.decode.gpu.type", "amd.com/gpu"),
    probe!("scaling.decode.memory", "77Gi"),
    probe!("resources.gpu.count", 2),
    probe!("resources.gpu.type", "amd.com/gpu"),
    probe!("resources.memory", "77Gi"),
    probe!("resources.cpu", "7"),
    probe!("image", "example.com/marker:1.2.3"),
    probe!("env", [{ "name": "MARKER", "value": "77" }]),
    probe!("podTemplate.metadata.labels", { "marker": "77" }),
    probe!("podTemplate.metadata.annotations", { "example.com/marker": "77" }),
    probe!("secrets.huggingFaceToken", "marker"),
    probe!("nodeSelector", { "marker": "77" }),
    probe!("tolerations", [{ "key": "marker", "operator": "Exists" }]),
    probe!("imagePullSecrets", [{ "name": "marker" }]),
    probe!("serviceAccountName", "marker"),
    probe!("podTemplate.spec.affinity", { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [{ "topologyKey": "marker" }] } }),
    probe!("podTemplate.spec.topologySpreadConstraints", [{ "maxSkew": 1, "topologyKey": "marker", "whenUnsatisfiable": "DoNotSchedule" }]),
    probe!("podTemplate.spec.priorityClassName", "marker"),
    probe!("podTemplate.spec.runtimeClassName", "marker"),
    probe!("podTemplate.spec.schedulerName", "marker"),
    probe!("podTemplate.spec.securityContext", { "runAsUser": 77 }),
    probe!("podTemplate.spec.shmSize", "77Gi"),
    probe!("model.storage.volumes", [
        { "name": "models", "purpose": "modelCache", "claimName": "marker" },
        { "name": "adapters", "image": { "reference": "example.com/marker:1" }, "mountPath": "/adapters" },
    ]),
];

/// A manifest that works, for one provider, engine and mode.
struct Base {
    provider: &'static str,
    label: String,
    engine: String,
    spec: Value,
    outcome: Outcome,
}

/// Result of rendering a manifest.
struct Outcome {
    objects: Vec<Value>,
    refused: Vec<String>,
    warned: BTreeSet<String>,
}

/// The page.
pub(crate) fn page() -> Result<String> {
    let bases = bases();
    let mut page = INTRODUCTION.to_owned();
    for probe in &PROBES {
        let rows = bases
            .iter()
            .map(|base| {
                let mut spec = base.spec.clone();
                put(&mut spec, probe.field, (probe.value)(&base.engine));
                Ok((base.provider, base.label.clone(), cell(base, probe.field, &spec)?))
            })
            .collect::<Result<Vec<_>>>()?;
        section(&mut page, &format!("spec.{}", probe.field), "for", &rows)?;
    }
    overrides(&mut page, &bases)?;
    Ok(page)
}

/// Every provider with every engine in every mode it supports; for KAITO's vLLM with and without an image, since it makes
/// different things of them.
fn bases() -> Vec<Base> {
    let mut bases = Vec::new();
    for provider in manifests::built_in_providers() {
        let capabilities = provider.registration().capabilities;
        for engine in capabilities.engine_names() {
            for mode in &capabilities.serving_modes {
                let mut spec = json!({
                    "provider": { "name": provider.name() },
                    "model": { "id": "Qwen/Qwen3-0.6B" },
                    "engine": { "type": engine },
                });
                match mode {
                    ServingMode::Aggregated => put(&mut spec, "resources.gpu.count", json!(1)),
                    ServingMode::Disaggregated => {
                        put(&mut spec, "serving.mode", json!("disaggregated"));
                        put(&mut spec, "scaling.prefill.gpu.count", json!(1));
                        put(&mut spec, "scaling.decode.gpu.count", json!(1));
                        put(&mut spec, "scaling.prefill.memory", json!("64Gi"));
                        put(&mut spec, "scaling.decode.memory", json!("64Gi"));
                    }
                }
                let with_image = with(&spec, "image", json!("example.com/engine:1.0.0"));
                let mut add = |label: String, spec: Value| {
                    let outcome = outcome(&spec);
                    if outcome.refused.is_empty() {
                        bases.push(Base {
                            provider: provider.name(),
                            label,
                            engine: engine.to_owned(),
                            spec,
                            outcome,
                        });
                    }
                };
                let label = match mode {
                    ServingMode::Aggregated => engine.to_owned(),
                    ServingMode::Disaggregated => format!("{engine} disaggregated"),
                };
                add(label.clone(), spec);
                if provider.name() == "kaito" {
                    add(format!("{label} with image"), with_image);
                }
            }
        }
    }
    bases
}

/// The documented overrides of each provider, an unknown key, and a value of the wrong type.
fn overrides(page: &mut String, bases: &[Base]) -> Result<()> {
    let mut rows = Vec::new();
    for provider in manifests::built_in_providers() {
        let Some(base) = bases.iter().find(|base| base.provider == provider.name()) else {
            continue;
        };
        let documented = provider.registration().overrides.unwrap_or_default();
        let mut trials: Vec<(String, Value)> = documented
            .iter()
            .map(|o| {
                let value = match (o.path.as_str(), o.kind) {
                    ("routerMode", _) => json!("kv"),
                    ("rollout", _) => json!("Surge"),
                    ("serviceType", _) => json!("NodePort"),
                    ("imageFamily", _) => json!("LlamaServer"),
                    (_, OverrideType::Integer) => json!(3),
                    (_, OverrideType::StringMap) => json!({ "marker": "77" }),
                    _ => json!("7"),
                };
                (o.path.clone(), value)
            })
            .collect();
        trials.push(("replicsa".to_owned(), json!(2)));
        trials.extend(documented.first().map(|o| (o.path.clone(), json!([7]))));
        for (key, value) in trials {
            let shown = format!("`{key}: {value}`");
            let spec = with(&base.spec, &format!("provider.overrides.{key}"), value);
            rows.push((
                provider.name(),
                shown,
                cell(base, &format!("provider.overrides.{key}"), &spec)?,
            ));
        }
    }
    section(page, "spec.provider.overrides", "override", &rows)
}

/// Effect of a field, as a cell of the table. Fails if it has none.
fn cell(base: &Base, field: &str, spec: &Value) -> Result<String> {
    let (before, after) = (&base.outcome, outcome(spec));
    if !after.refused.is_empty() {
        return Ok(format!("refused: {}", after.refused.join("; ")));
    }
    let paths = differences(&before.objects, &after.objects);
    let warned: Vec<&str> = after.warned.difference(&before.warned).map(String::as_str).collect();
    let places: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    match (places.is_empty(), warned.is_empty()) {
        (true, true) => bail!(
            "spec.{field} has no effect and no warning with {} ({})",
            base.provider,
            base.label
        ),
        (true, false) => Ok(format!("ignored with warning: {}", warned.join("; "))),
        (false, true) => Ok(places.join("<br>")),
        (false, false) => Ok(format!(
            "{}<br>with warning: {}",
            places.join("<br>"),
            warned.join("; ")
        )),
    }
}

/// Rows with the same outcome for a provider are one row.
fn section(page: &mut String, field: &str, column: &str, rows: &[(&str, String, String)]) -> Result<()> {
    write!(
        page,
        "\n## {field}\n\n| provider | {column} | effect |\n|---|---|---|\n"
    )?;
    let mut done: BTreeSet<(&str, &str)> = BTreeSet::new();
    for (provider, _, outcome) in rows {
        if !done.insert((provider, outcome)) {
            continue;
        }
        let labels: Vec<&str> = rows
            .iter()
            .filter(|(p, _, o)| p == provider && o == outcome)
            .map(|(_, label, _)| label.as_str())
            .collect();
        writeln!(
            page,
            "| {provider} | {} | {} |",
            labels.join(", "),
            outcome.replace('|', "\\|").replace('\n', " ")
        )?;
    }
    Ok(())
}

/// Renders a manifest of this spec: its objects without our own annotations, errors and warnings.
fn outcome(spec: &Value) -> Outcome {
    let manifest = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": { "name": "my-model", "namespace": "default" }, "spec": spec,
    });
    let rendered = |show| {
        let mut documents = Documents::default();
        documents.take_in_text("field", &manifest.to_string());
        let now = jiff::Timestamp::UNIX_EPOCH;
        render(documents, &Options { show, now })
    };
    let objects = rendered(Show::Objects);
    let status = rendered(Show::Status);
    let conditions = status
        .documents
        .first()
        .and_then(|d| d.data["status"]["conditions"].as_array().cloned());
    let conditions = conditions.unwrap_or_default();
    let messages = |kind: &str, status: &str| -> Vec<String> {
        conditions
            .iter()
            .filter(|c| c["type"] == kind && c["status"] == status)
            .map(|c| c["message"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let said = |level: Level| {
        objects
            .diagnostics
            .iter()
            .filter(move |d| d.level == level)
            .map(|d| d.text.clone())
    };
    let mut refused: Vec<String> = said(Level::Error).collect();
    refused.extend(messages(condition::PROVIDER_COMPATIBLE, "False"));
    let mut warned: BTreeSet<String> = messages(condition::FIELDS_IGNORED, "True").into_iter().collect();
    warned.extend(messages(condition::OVERRIDES_IGNORED, "True"));
    // Admission and the provider's condition say the same of some fields, with more or fewer words.
    let admission: Vec<String> = said(Level::Warning)
        .filter(|text| !warned.iter().any(|known| same(known, text)))
        .collect();
    warned.extend(admission);
    let objects = objects.documents.iter().filter_map(|object| {
        let mut object = serde_json::to_value(object).ok()?;
        if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|key, _| !key.starts_with("kubeairunway.ai/"));
        }
        Some(object)
    });
    Outcome {
        objects: objects.collect(),
        refused,
        warned,
    }
}

/// Whether two warnings begin with the same field, named with or without the way to it.
fn same(one: &str, other: &str) -> bool {
    let field = |text: &str| -> Option<String> { text.split([' ', ':']).next()?.rsplit('.').next().map(str::to_owned) };
    field(one) == field(other)
}

/// Paths at which two lists of objects differ, as `Kind path`.
fn differences(before: &[Value], after: &[Value]) -> Vec<String> {
    let kind = |object: &Value| object["kind"].as_str().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for object in after {
        match before.iter().find(|b| kind(b) == kind(object)) {
            Some(earlier) => differ(earlier, object, &kind(object), " ", &mut found),
            None => found.push(kind(object)),
        }
    }
    for object in before {
        if !after.iter().any(|a| kind(a) == kind(object)) {
            found.push(format!("no {}", kind(object)));
        }
    }
    found
}

fn differ(before: &Value, after: &Value, path: &str, dot: &str, found: &mut Vec<String>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(before), Value::Object(after)) => {
            for (key, value) in after {
                let path = format!("{path}{dot}{key}");
                differ(before.get(key).unwrap_or(&Value::Null), value, &path, ".", found);
            }
            found.extend(
                before
                    .keys()
                    .filter(|key| !after.contains_key(*key))
                    .map(|key| format!("{path}{dot}{key} (gone)")),
            );
        }
        (Value::Null, Value::Object(after)) if path.ends_with("metadata") || after.values().any(is_nested) => {
            differ(&Value::Object(Map::new()), &json!(after), path, ".", found);
        }
        (Value::Array(before), Value::Array(after)) => differ_in_list(before, after, path, found),
        (Value::Null, Value::Array(after)) if after.iter().any(|item| item.get("name").is_some()) => {
            differ_in_list(&[], after, path, found);
        }
        (Value::String(before), Value::String(after)) if after.len() > 60 => {
            found.push(format!("{path} ({})", changed_words(before, after)));
        }
        _ => found.push(path.to_owned()),
    }
}

fn is_nested(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

/// Items with a name are compared with the one of that name; of plain lists the new items are shown.
fn differ_in_list(before: &[Value], after: &[Value], path: &str, found: &mut Vec<String>) {
    if after.iter().all(|item| !is_nested(item)) {
        let added: Vec<String> = added(before, after).iter().map(|item| word(item)).collect();
        return found.push(match added.as_slice() {
            [] => path.to_owned(),
            words => format!("{path} ({})", words.join(" ")),
        });
    }
    for (index, item) in after.iter().enumerate() {
        let (label, earlier) = match item["name"].as_str() {
            Some(name) => (name.to_owned(), before.iter().find(|b| b["name"] == name)),
            None => (index.to_string(), before.get(index)),
        };
        let path = format!("{path}[{label}]");
        match earlier {
            Some(earlier) => differ(earlier, item, &path, ".", found),
            None => found.push(path),
        }
    }
}

/// The items of `after` that `before` has not, each as often as it is new.
fn added<'a>(before: &[Value], after: &'a [Value]) -> Vec<&'a Value> {
    let mut left: Vec<&Value> = before.iter().collect();
    after
        .iter()
        .filter(|item| match left.iter().position(|b| b == item) {
            Some(index) => {
                left.remove(index);
                false
            }
            None => true,
        })
        .collect()
}

/// The lines, or else the words, of a long text that are new.
fn changed_words(before: &str, after: &str) -> String {
    let by = |pattern: fn(char) -> bool| -> Vec<String> {
        let mut known: Vec<&str> = before.split(pattern).map(str::trim).collect();
        let mut new = Vec::new();
        for part in after.split(pattern).map(str::trim) {
            if !known.contains(&part) {
                known.push(part);
                new.push(part.to_owned());
            }
        }
        new
    };
    let lines = by(|c| c == '\n');
    let parts = if lines.iter().any(|line| line.len() > 80) {
        by(char::is_whitespace)
    } else {
        lines
    };
    parts.join(" ")
}

fn word(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn with(spec: &Value, path: &str, value: Value) -> Value {
    let mut spec = spec.clone();
    put(&mut spec, path, value);
    spec
}

/// Sets what a dotted path names.
fn put(spec: &mut Value, path: &str, value: Value) {
    let mut place = spec;
    for key in path.split('.') {
        place = &mut place[key];
    }
    *place = value;
}

#[cfg(test)]
mod tests {
    use runway_provider::conformance::fields;

    use super::*;

    /// Fields that choose what a column of the page is about, and overrides, which are listed by their keys.
    const APART: [&str; 4] = ["provider.name", "engine.type", "serving.mode", "provider.overrides"];

    #[test]
    fn every_field_of_the_crd_has_its_section() {
        let shown: BTreeSet<String> = PROBES
            .iter()
            .map(|probe| probe.field)
            .chain(APART)
            .map(str::to_owned)
            .collect();
        assert_eq!(fields::of_spec(&shown), shown);
    }

    #[test]
    fn every_field_has_an_effect_or_a_warning() -> Result<()> {
        page().map(drop)
    }

    #[test]
    fn differences_name_their_place() {
        let before = json!([{ "kind": "A", "spec": { "list": ["x", "y"], "named": [{ "name": "main", "a": 1 }] } }]);
        let after = json!([{ "kind": "A", "spec": { "list": ["x", "z", "y"], "named": [{ "name": "main", "a": 2 }], "new": 1 } }]);
        let found = differences(before.as_array().unwrap(), after.as_array().unwrap());
        assert_eq!(found, ["A spec.list (z)", "A spec.named[main].a", "A spec.new"]);
    }
}
