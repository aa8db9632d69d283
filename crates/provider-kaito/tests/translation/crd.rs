//! Objects validated against the real CRDs with strict field validation. The CRDs are not part of the project. Without them the
//! test reports it and checks nothing.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use runway_provider::upstream::{crd_name, detect};
use runway_provider::{Provider, State};
use runway_provider_kaito::Kaito;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[test]
fn the_real_crds_are_known() {
    for upstream in Kaito::default().upstreams() {
        let Some(crd) = real(&format!("{}.yaml", file_of(&crd_name(upstream.kind)))) else {
            continue;
        };
        assert!(
            matches!(detect(&upstream, Some(&crd)), State::Known { version, .. } if version == "v1beta1"),
            "{:?}",
            detect(&upstream, Some(&crd))
        );
    }
}

#[test]
fn inference_sets_are_known_from_their_first_version_on() {
    let Some(mut crd) = real("kaito.sh_inferencesets.yaml") else {
        return;
    };
    crd.spec.versions.retain(|v| v.name == "v1alpha1");
    let upstream = &Kaito::default().upstreams()[1];
    assert!(
        matches!(detect(upstream, Some(&crd)), State::Known { version, .. } if version == "v1alpha1"),
        "{:?}",
        detect(upstream, Some(&crd))
    );
}

#[test]
fn schema_check_finds_invalid_fields() {
    let good = serde_json::json!({
        "apiVersion": "kaito.sh/v1beta1", "kind": "Workspace", "metadata": {"name": "x"},
        "resource": {"labelSelector": {"matchLabels": {}}},
        "inference": {"template": {"spec": {"containers": [{"name": "model", "image": "x"}]}}},
    });
    assert_eq!(problems(&good), Vec::<String>::new());
    if real("kaito.sh_workspaces.yaml").is_none() {
        return;
    }
    for (at, wrong) in [
        ("/resource/labelSelector/matchLabels", serde_json::json!({"a": 1})),
        ("/resource", serde_json::json!({})),
        ("/resource", serde_json::json!({"labelSelector": {}, "replicas": 1})),
        (
            "/inference",
            serde_json::json!({"preset": {"name": "x", "accessMode": "neither"}}),
        ),
        (
            "/inference/template/spec/containers/0",
            serde_json::json!({"name": "model", "imagePolicy": "x"}),
        ),
        (
            "/inference/template/spec/containers/0",
            serde_json::json!({"name": "model", "ports": [{"containerPort": "5000"}]}),
        ),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(at).unwrap() = wrong;
        assert!(!problems(&bad).is_empty(), "nothing is seen in {bad}");
    }
}

/// Validation errors of an object.
pub(crate) fn problems(object: &Value) -> Vec<String> {
    match object["kind"].as_str().unwrap() {
        "ConfigMap" => typed::<ConfigMap>(object),
        "Service" => typed::<Service>(object),
        kind => {
            let Some(crd) = real(&format!("kaito.sh_{}s.yaml", kind.to_lowercase())) else {
                return Vec::new();
            };
            let version = object["apiVersion"].as_str().unwrap().rsplit('/').next().unwrap();
            let version = crd.spec.versions.into_iter().find(|v| v.name == version).unwrap();
            let schema = version.schema.unwrap().open_api_v3_schema.unwrap();
            let mut problems = Vec::new();
            visit("", object, &schema, &mut problems);
            let inference = if object["spec"].is_null() {
                &object["inference"]
            } else {
                &object["spec"]["template"]["inference"]
            };
            if !inference["template"].is_null() {
                problems.extend(typed::<PodTemplateSpec>(&inference["template"]));
            }
            problems
        }
    }
}

fn real(file: &str) -> Option<CustomResourceDefinition> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/crds")
        .join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(serde_saphyr::from_str(&text).unwrap()),
        Err(error) => {
            eprintln!("SKIPPED: nothing is checked against {file}, which cannot be read: {error}");
            None
        }
    }
}

fn file_of(crd: &str) -> String {
    let (plural, group) = crd.split_once('.').unwrap();
    format!("{group}_{plural}")
}

/// A field that the type does not have would be dropped.
fn typed<T: DeserializeOwned + Serialize>(object: &Value) -> Vec<String> {
    match serde_json::from_value::<T>(object.clone()) {
        Err(error) => vec![error.to_string()],
        Ok(typed) => {
            let back = serde_json::to_value(&typed).unwrap();
            if runway_operator::json::contains(&back, object) {
                Vec::new()
            } else {
                vec![format!("{object} came back as {back}")]
            }
        }
    }
}

fn visit(path: &str, value: &Value, schema: &JSONSchemaProps, problems: &mut Vec<String>) {
    if schema.x_kubernetes_preserve_unknown_fields == Some(true) || schema.x_kubernetes_int_or_string == Some(true) {
        return;
    }
    let fits = match schema.type_.as_deref() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !fits {
        problems.push(format!(
            "{path} must be {}: {value}",
            schema.type_.as_deref().unwrap_or_default()
        ));
    }
    for required in schema.required.iter().flatten() {
        if value.get(required).is_none() {
            problems.push(format!("{path}.{required} is required"));
        }
    }
    if let Some(allowed) = &schema.enum_
        && !allowed.iter().any(|one| one.0 == *value)
    {
        problems.push(format!("{path} is {value}, which is none of {allowed:?}"));
    }
    match value {
        Value::Object(fields) => {
            for (name, inner) in fields {
                let at = format!("{path}.{name}");
                // Fields that the server sets.
                if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
                    continue;
                }
                match (
                    schema.properties.as_ref().and_then(|p| p.get(name)),
                    schema.additional_properties.as_ref(),
                ) {
                    (Some(property), _) => visit(&at, inner, property, problems),
                    (None, Some(JSONSchemaPropsOrBool::Schema(any))) => visit(&at, inner, any, problems),
                    (None, Some(JSONSchemaPropsOrBool::Bool(true))) => {}
                    (None, _) => problems.push(format!("{at} is unknown")),
                }
            }
        }
        Value::Array(entries) => {
            if let Some(JSONSchemaPropsOrArray::Schema(each)) = &schema.items {
                for (index, entry) in entries.iter().enumerate() {
                    visit(&format!("{path}[{index}]"), entry, each, problems);
                }
            }
        }
        _ => {}
    }
}
