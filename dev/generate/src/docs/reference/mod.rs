//! Field mapping: the effect of each field of a ModelDeployment, for every provider, engine and mode.
//!
//! The module contains no knowledge of providers. It renders a manifest without and with the field, as `kubeairunway render` does,
//! and reports the difference. A field is dropped silently if its value is not in the objects for every kind of worker, and it is
//! neither rejected nor reported as ignored: that fails the generation.

mod difference;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use anyhow::{Result, bail, ensure};
use difference::differences;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_api::model_deployment::ServingMode;
use runway_api::provider_config::{OverrideKey, OverrideType};
use runway_api::{CoreReason, condition, labels};
use runway_client::diagnostic::Level;
use runway_client::documents::Documents;
use runway_client::render::{Options, Show, render};
use runway_manifests as manifests;
use runway_provider::conformance::fields::{self, Field, put};
use serde_json::{Value, json};

use super::split;

/// Folder of the pages.
pub(crate) const FOLDER: &str = "docs/reference/fields";

const INTRODUCTION: &str = "<!-- Made by `cargo xtask gen` from the code. Do not edit. -->
# Field mapping

For every field of a `ModelDeployment`, on pages for each provider: the path in the upstream object, or the error message with which
the field is rejected, or the warning that it has no effect. No field is dropped silently: the generation of these pages fails unless
the value of each field is in what the upstream runs, for every kind of worker.

Each row compares a manifest without the field with one that sets it, rendered for the newest supported upstream schema. Use
`kubeairunway render` for your own manifest. Fields that select the provider or the kind of object (`provider.name`, `engine.type`,
`serving.mode`) are in the column *for*. A value may change several paths, such as a replica count that makes KAITO use another kind.
";

/// Groups of fields, which are pages.
const GROUPS: [&str; 4] = [MODEL, SCALING, PODS, STORAGE];
const MODEL: &str = "model and engine";
const SCALING: &str = "scaling and resources";
const PODS: &str = "pods";
const STORAGE: &str = "storage";

/// A manifest that works, for one provider and engine in one mode.
struct Base<'a> {
    provider: &'static str,
    label: String,
    spec: Value,
    /// Installed CRDs; if there are none, the newest known schemas are.
    crds: &'a [CustomResourceDefinition],
    outcome: Outcome,
}

/// Result of rendering a manifest.
struct Outcome {
    objects: Vec<Value>,
    refused: Vec<String>,
    warned: BTreeSet<String>,
}

/// Group of a field, by its path below `spec`.
fn group_of(path: &str) -> &'static str {
    let first = path.split('.').next().unwrap_or_default();
    match first {
        "model" if path.starts_with("model.storage") => STORAGE,
        "scaling" | "resources" => SCALING,
        "podTemplate" | "nodeSelector" | "tolerations" | "imagePullSecrets" | "serviceAccountName" => PODS,
        _ => MODEL,
    }
}

/// Pages for each provider, one for each group of fields.
pub(crate) fn pages() -> Result<Vec<(String, String)>> {
    let unlisted = fields::unlisted();
    ensure!(
        unlisted.is_empty(),
        "fields that are not both in the CRD of ModelDeployments and in the list of fields: {}; add or remove them in \
         ALL of crates/provider/src/conformance/fields.rs",
        unlisted.join(", ")
    );
    let bases = bases(&[]);
    let mut page = INTRODUCTION.to_owned();
    for provider in manifests::built_in_providers() {
        for group in GROUPS {
            write!(page, "\n## {}: {group}\n", provider.title())?;
            for field in fields::ALL.iter().filter(|field| group_of(field.path) == group) {
                let rows = bases
                    .iter()
                    .filter(|base| base.provider == provider.name())
                    .map(|base| Ok((base.label.clone(), tried(base, field)?)))
                    .collect::<Result<Vec<_>>>()?;
                section(&mut page, &format!("spec.{}", field.path), "for", &rows)?;
            }
            let base = bases.iter().find(|base| base.provider == provider.name());
            if let Some(base) = base.filter(|_| group == MODEL) {
                overrides(&mut page, base, &provider.registration().overrides.unwrap_or_default())?;
            }
        }
    }
    Ok(split::pages(FOLDER, &page, |title| Some(split::file_name(title))))
}

/// Every provider with every engine in every mode it supports; for KAITO's vLLM with and without an image, since it makes
/// different things of them.
fn bases(crds: &[CustomResourceDefinition]) -> Vec<Base<'_>> {
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
                    let outcome = outcome(&spec, crds);
                    if outcome.refused.is_empty() {
                        bases.push(Base {
                            provider: provider.name(),
                            label,
                            spec,
                            crds,
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

/// Images that pods of models have by default, with providers and engines. KAITO's presets have none: KAITO writes those pods.
pub(crate) fn images() -> BTreeMap<String, BTreeSet<String>> {
    let mut images: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for base in bases(&[]).iter().filter(|base| base.spec["image"].is_null()) {
        let without_gpus = with(&base.spec, "resources.gpu.count", json!(0));
        for spec in [&base.spec, &without_gpus] {
            let outcome = outcome(spec, base.crds);
            for image in outcome
                .objects
                .iter()
                .flat_map(images_in)
                .filter(|_| outcome.refused.is_empty())
            {
                let engine = base.spec["engine"]["type"].as_str().unwrap_or_default();
                let user = format!("{}, {engine}", base.provider);
                images.entry(image).or_default().insert(user);
            }
        }
    }
    images
}

/// Texts of all fields `image`.
pub(crate) fn images_in(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) => {
            let image = fields.get("image").and_then(Value::as_str).map(str::to_owned);
            image.into_iter().chain(fields.values().flat_map(images_in)).collect()
        }
        Value::Array(items) => items.iter().flat_map(images_in).collect(),
        _ => Vec::new(),
    }
}

/// The documented overrides of a provider, an unknown key, and a value of the wrong type.
fn overrides(page: &mut String, base: &Base, documented: &[OverrideKey]) -> Result<()> {
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
    let mut rows = Vec::new();
    for (key, value) in trials {
        let shown = format!("`{key}: {value}`");
        let spec = with(&base.spec, &format!("provider.overrides.{key}"), value);
        let effect = cell(base, &format!("provider.overrides.{key}"), &spec, |_, _| true)?;
        rows.push((shown, effect));
    }
    section(page, "spec.provider.overrides", "override", &rows)
}

/// Effect of a field on a manifest, as a cell of the table. Fails if the value is lost.
fn tried(base: &Base, field: &Field) -> Result<String> {
    let mut spec = base.spec.clone();
    field.set(&mut spec);
    cell(base, field.path, &spec, |before, after| {
        field.is_in(&spec, before, after)
    })
}

/// Effect of a field, as a cell of the table. Fails if it has none, or if the objects with it do not have its value.
fn cell(base: &Base, field: &str, spec: &Value, is_there: impl Fn(&[Value], &[Value]) -> bool) -> Result<String> {
    let (before, after) = (&base.outcome, outcome(spec, base.crds));
    if !after.refused.is_empty() {
        return Ok(format!("refused: {}", after.refused.join("; ")));
    }
    let paths = differences(&before.objects, &after.objects);
    let warned: Vec<&str> = after.warned.difference(&before.warned).map(String::as_str).collect();
    let places: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    let is_reported = warned.iter().any(|text| text.contains("ignored"));
    if !is_reported && (places.is_empty() || !is_there(&before.objects, &after.objects)) {
        bail!(
            "spec.{field} is dropped silently by {} ({}): it changes {}",
            base.provider,
            base.label,
            if places.is_empty() {
                "nothing".to_owned()
            } else {
                places.join(", ")
            }
        );
    }
    match (places.is_empty(), warned.is_empty()) {
        (true, _) => Ok(format!("ignored with warning: {}", warned.join("; "))),
        (false, true) => Ok(places.join("<br>")),
        (false, false) => Ok(format!(
            "{}<br>with warning: {}",
            places.join("<br>"),
            warned.join("; ")
        )),
    }
}

/// Rows with the same outcome are one row.
fn section(page: &mut String, field: &str, column: &str, rows: &[(String, String)]) -> Result<()> {
    write!(page, "\n### {field}\n\n| {column} | effect |\n|---|---|\n")?;
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for (_, outcome) in rows {
        if !done.insert(outcome) {
            continue;
        }
        let labels: Vec<&str> = rows
            .iter()
            .filter(|(_, o)| o == outcome)
            .map(|(label, _)| label.as_str())
            .collect();
        writeln!(
            page,
            "| {} | {} |",
            labels.join(", "),
            outcome.replace('|', "\\|").replace('\n', " ")
        )?;
    }
    Ok(())
}

/// Renders a manifest of this spec: its objects without our own annotations, errors and warnings.
fn outcome(spec: &Value, crds: &[CustomResourceDefinition]) -> Outcome {
    let manifest = json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
        "metadata": { "name": "my-model", "namespace": "default" }, "spec": spec,
    });
    let rendered = |show| {
        let mut documents = Documents::default();
        documents.take_in_text("field", &manifest.to_string());
        for crd in crds {
            documents.take_in_text("crd", &json!(crd).to_string());
        }
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
    let of_autoscaler = conditions.iter().filter(|c| c["type"] == condition::AUTOSCALER_READY);
    let without_metric = of_autoscaler.filter(|c| c["reason"] == CoreReason::MetricUnknown.as_str());
    refused.extend(without_metric.filter_map(|c| c["message"].as_str()).map(str::to_owned));
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
            annotations.retain(|key, _| key == labels::RETAIN || !key.starts_with(labels::PREFIX));
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

fn with(spec: &Value, path: &str, value: Value) -> Value {
    let mut spec = spec.clone();
    put(&mut spec, path, value);
    spec
}

#[cfg(test)]
mod tests {
    use runway_testbed::crds;

    use super::*;

    #[test]
    fn no_field_is_dropped_silently() -> Result<()> {
        pages().map(drop)
    }

    /// Older schemas, and KAITO without its optional kind.
    #[test]
    fn no_field_is_dropped_silently_by_older_upstreams() -> Result<()> {
        for (provider, crd) in [("dynamo", crds::DYNAMO_V1ALPHA1), ("kaito", crds::KAITO_WORKSPACES)] {
            let crds = crds::upstream_crds(&[crd])?;
            let bases: Vec<Base> = bases(&crds)
                .into_iter()
                .filter(|base| base.provider == provider)
                .collect();
            assert!(!bases.is_empty(), "{provider} serves nothing with {crd}");
            for (base, field) in bases
                .iter()
                .flat_map(|base| fields::ALL.iter().map(move |field| (base, field)))
            {
                tried(base, field)?;
            }
        }
        Ok(())
    }

    #[test]
    fn a_lost_value_is_found() {
        let bases = bases(&[]);
        let base = bases.iter().find(|base| base.provider == "direct").unwrap();
        let spec = with(&base.spec, "model.servedName", json!("marker"));
        assert!(cell(base, "model.servedName", &spec, |_, _| true).is_ok());
        let lost = cell(base, "model.servedName", &spec, |_, _| false).unwrap_err();
        assert!(lost.to_string().contains("is dropped silently by direct"), "{lost}");
        let unchanged = cell(base, "none", &base.spec, |_, _| true).unwrap_err();
        assert!(unchanged.to_string().ends_with("it changes nothing"), "{unchanged}");
    }
}
