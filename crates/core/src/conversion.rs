//! Conversion of ModelDeployments between versions of the API. Pure.
//!
//! With one version, the API server calls no webhook. When the CRD has a second one, the core serves its conversion next to
//! admission, keeps the CA bundle in the CRD, and has the permission to do so: all three follow from [`is_needed`].

use kube::CustomResourceExt;
use runway_api::ModelDeployment;
use serde_json::{Value, json};

/// Path of the conversion webhook.
pub const CONVERT_PATH: &str = "/convert";

/// Versions that differ in name only. A version with another schema gets its own steps in [`convert`].
const ALIKE: [&str; 2] = ["kubeairunway.ai/v1alpha1", "kubeairunway.ai/v1beta1"];

/// Whether the CRD has several versions.
pub fn is_needed() -> bool {
    ModelDeployment::crd().spec.versions.len() > 1
}

/// Name of the CRD.
pub fn crd_name() -> &'static str {
    ModelDeployment::crd_name()
}

/// Converts a ModelDeployment to `api_version`. Nothing is lost: fields that a version does not know stay in place.
///
/// # Errors
///
/// The message for the API server, if the version or the object is not supported.
pub fn convert(mut object: Value, api_version: &str) -> Result<Value, String> {
    let from = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    if let Some(unknown) = [from.as_str(), api_version]
        .into_iter()
        .find(|version| !ALIKE.contains(version))
    {
        return Err(format!(
            "this version of the controller does not know {unknown}: upgrade it (kubeairunway controller upgrade)"
        ));
    }
    object["apiVersion"] = json!(api_version);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_round_trips() {
        let object =
            json!({ "apiVersion": ALIKE[0], "metadata": { "uid": "u" }, "spec": { "new": [0, null] }, "status": {} });
        let there = convert(object.clone(), ALIKE[1]).unwrap();
        assert_eq!(there["apiVersion"], ALIKE[1]);
        assert_eq!(convert(there, ALIKE[0]).unwrap(), object);
    }

    #[test]
    fn unknown_versions_are_refused_by_name() {
        let object = json!({ "apiVersion": ALIKE[0] });
        let refused = convert(object, "kubeairunway.ai/v2").unwrap_err();
        assert!(
            refused.contains("does not know kubeairunway.ai/v2: upgrade it"),
            "{refused}"
        );
    }
}
