//! Objects validated against the real CRDs with strict field validation. The CRDs are not part of the project. Without them the
//! test reports it and checks nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_provider::conformance::schema::{self, problems_of_type};
use runway_provider::upstream::detect;
use runway_provider::{Provider, State, Upstream};
use runway_provider_dynamo::Dynamo;
use serde_json::{Value, json};

/// Releases of the CRD, by month.
static RELEASES: LazyLock<BTreeMap<&str, CustomResourceDefinition>> = LazyLock::new(|| {
    let releases = ["2026-02", "2026-08"];
    releases.into_iter().filter_map(|r| Some((r, real(r)?))).collect()
});

fn real(release: &str) -> Option<CustomResourceDefinition> {
    let file = format!("nvidia.com_dynamographdeployments.{release}.yaml");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/crds")
        .join(&file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(serde_saphyr::from_str(&text).unwrap()),
        Err(error) => {
            eprintln!("SKIPPED: nothing is checked against {file}, which cannot be read: {error}");
            None
        }
    }
}

fn upstream() -> Upstream {
    Dynamo::default().upstreams().remove(0)
}

fn known(crd: &CustomResourceDefinition) -> String {
    match detect(&upstream(), Some(crd)) {
        State::Known { version, .. } => version,
        other => panic!("{other:?}"),
    }
}

#[test]
fn newest_served_version_is_written() {
    for (release, version) in [("2026-02", "v1alpha1"), ("2026-08", "v1beta1")] {
        if let Some(crd) = RELEASES.get(release) {
            assert_eq!(known(crd), version);
        }
    }
    let Some(mut crd) = RELEASES.get("2026-08").cloned() else {
        return;
    };
    for version in &mut crd.spec.versions {
        version.storage = version.name == "v1alpha1";
    }
    assert_eq!(known(&crd), "v1beta1");
}

#[test]
fn the_first_v1beta1_is_known_too() {
    let Some(crd) = RELEASES.get("2026-08") else { return };
    let mut value = serde_json::to_value(crd).unwrap();
    for version in value["spec"]["versions"].as_array_mut().unwrap() {
        let spec = &mut version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        if let Some(component) = spec.pointer_mut("/components/items/properties") {
            component
                .as_object_mut()
                .unwrap()
                .remove("runtimeVersionOverride")
                .unwrap();
        }
    }
    assert_eq!(known(&serde_json::from_value(value).unwrap()), "v1beta1");
}

#[test]
fn a_changed_field_is_an_unknown_schema() {
    let Some(crd) = RELEASES.get("2026-02") else { return };
    let mut value = serde_json::to_value(crd).unwrap();
    let service = value
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/services/additionalProperties/properties")
        .unwrap();
    service["envFromSecret"] = json!({"type": "object"});
    let state = detect(&upstream(), Some(&serde_json::from_value(value).unwrap()));
    let State::Unknown { problems, .. } = state else {
        panic!("{state:?}")
    };
    assert_eq!(
        problems,
        ["spec.services{}.envFromSecret is of type object, expected string"]
    );
}

#[test]
fn schema_check_finds_invalid_fields() {
    let good = json!({
        "apiVersion": "nvidia.com/v1beta1", "kind": "DynamoGraphDeployment", "metadata": {"name": "x"},
        "spec": {"backendFramework": "vllm", "components": [{"name": "a", "type": "worker", "podTemplate": {"spec": {"containers": [{"name": "main"}]}}}]},
    });
    assert_eq!(problems(&good), Vec::<String>::new());
    if RELEASES.is_empty() {
        return;
    }
    for (at, wrong) in [
        ("/spec/backendFramework", json!("llamacpp")),
        ("/spec", json!({"services": {}})),
        ("/spec/components/0", json!({"type": "worker"})),
        ("/spec/components/0", json!({"name": "a", "componentType": "worker"})),
        ("/spec/components/0/type", json!("router")),
        (
            "/spec/components/0/podTemplate/spec/containers/0",
            json!({"name": "main", "router-mode": "kv"}),
        ),
        (
            "/spec/components/0/podTemplate/spec/containers/0",
            json!({"name": "main", "args": [1]}),
        ),
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(at).unwrap() = wrong;
        assert!(!problems(&bad).is_empty(), "nothing is seen in {bad}");
    }
}

/// Validation errors of an object, with each release that serves its version.
pub(crate) fn problems(object: &Value) -> Vec<String> {
    let schemas = RELEASES.values().filter_map(|crd| schema::of(crd, object));
    let mut problems: Vec<String> = schemas.flat_map(|schema| schema::problems(schema, object)).collect();
    for component in object["spec"]["components"].as_array().into_iter().flatten() {
        problems.extend(problems_of_type::<PodTemplateSpec>(&component["podTemplate"]));
    }
    problems
}
