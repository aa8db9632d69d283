//! Objects validated against the real CRD with strict field validation. The CRD is not part of the project. Without it the test
//! reports it and checks nothing.

use std::path::PathBuf;
use std::sync::LazyLock;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runway_provider::conformance::schema::{self, problems_of_type};
use runway_provider::upstream::detect;
use runway_provider::{Provider, State};
use runway_provider_kuberay::KubeRay;
use serde_json::{Value, json};

use crate::installed;

/// Number of schemas before the newest one.
fn detected(crd: &CustomResourceDefinition) -> Option<usize> {
    let upstream = &KubeRay::default().upstreams()[0];
    let found = detect(upstream, Some(crd));
    assert!(
        matches!(&found, State::Known { version, .. } if version == "v1"),
        "{found:?}"
    );
    (0..upstream.schemas.len()).find(|before| installed(*before).state(upstream.kind) == found)
}

#[test]
fn the_real_crd_is_the_newest_that_is_known() {
    if let Some(crd) = &*CRD {
        assert_eq!(detected(crd), Some(0));
    }
}

#[test]
fn older_releases_are_known_by_what_they_lack() {
    let Some(mut crd) = CRD.clone() else { return };
    let mut lacks = |path: &str, field: &str| {
        let v1 = crd.spec.versions.iter_mut().find(|v| v.name == "v1").unwrap();
        let mut at = v1.schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
        for step in path.split('.') {
            at = at.properties.as_mut().unwrap().get_mut(step).unwrap();
        }
        at.properties.as_mut().unwrap().remove(field).unwrap();
        detected(&crd)
    };
    assert_eq!(lacks("spec", "suspend"), Some(1));
    assert_eq!(lacks("status", "conditions"), Some(2));
}

#[test]
fn schema_check_finds_invalid_fields() {
    if CRD.is_none() {
        return;
    }
    let template = json!({"spec": {"containers": [{"name": "x", "image": "x"}]}});
    let group =
        json!({"groupName": "workers", "replicas": 1, "minReplicas": 0, "maxReplicas": 1, "template": template});
    let good = json!({"apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "x"}, "spec": {
        "serveConfigV2": "{}",
        "rayClusterConfig": {"headGroupSpec": {"template": template}, "workerGroupSpecs": [group]},
    }});
    assert_eq!(problems(&good), Vec::<String>::new());
    for (at, wrong) in [
        ("/spec/serveConfigV2", json!({})),
        (
            "/spec/rayClusterConfig",
            json!({"rayversion": "2.56.0", "headGroupSpec": {"template": template}}),
        ),
        (
            "/spec/rayClusterConfig/headGroupSpec",
            json!({"template": template, "rayStartParams": {"num-cpus": 0}}),
        ),
        ("/spec/rayClusterConfig/workerGroupSpecs/0/maxReplicas", json!("1")),
        (
            "/spec/rayClusterConfig/workerGroupSpecs/0/template/spec/containers/0/image",
            json!(1),
        ),
        (
            "/spec/rayClusterConfig/workerGroupSpecs/0/template/metadata",
            json!({"label": {}}),
        ),
    ] {
        let mut bad = good.clone();
        match bad.pointer_mut(at) {
            Some(value) => *value = wrong,
            None => bad.pointer_mut(at.rsplit_once('/').unwrap().0).unwrap()["metadata"] = wrong,
        }
        assert!(!problems(&bad).is_empty(), "nothing is seen in {bad}");
    }
}

/// Validation errors of a RayService.
pub(crate) fn problems(object: &Value) -> Vec<String> {
    let Some(crd) = &*CRD else { return Vec::new() };
    let mut problems = schema::problems(schema::of(crd, object).unwrap(), object);
    let cluster = &object["spec"]["rayClusterConfig"];
    let workers = cluster["workerGroupSpecs"].as_array().into_iter().flatten();
    for group in workers.chain([&cluster["headGroupSpec"]]) {
        problems.extend(problems_of_type::<PodTemplateSpec>(&group["template"]));
    }
    problems
}

static CRD: LazyLock<Option<CustomResourceDefinition>> = LazyLock::new(|| {
    let file = "ray.io_rayservices.yaml";
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
});
