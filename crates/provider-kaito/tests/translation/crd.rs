//! Objects validated against the real CRDs with strict field validation. The CRDs are not part of the project. Without them the
//! test reports it and checks nothing.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{ConfigMap, PodTemplateSpec, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_provider::conformance::schema::{self, problems_of_type};
use runway_provider::upstream::{crd_name, detect};
use runway_provider::{Provider, State};
use runway_provider_kaito::Kaito;
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
        "ConfigMap" => problems_of_type::<ConfigMap>(object),
        "Service" => problems_of_type::<Service>(object),
        kind => {
            let Some(crd) = real(&format!("kaito.sh_{}s.yaml", kind.to_lowercase())) else {
                return Vec::new();
            };
            let mut problems = schema::problems(schema::of(&crd, object).unwrap(), object);
            let inference = if object["spec"].is_null() {
                &object["inference"]
            } else {
                &object["spec"]["template"]["inference"]
            };
            if !inference["template"].is_null() {
                problems.extend(problems_of_type::<PodTemplateSpec>(&inference["template"]));
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
