//! Translation of ModelDeployments to Deployments and Services, and of their status back.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests are tests")]

mod cases;
mod properties;
mod registration;
mod settings;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use runway_api::ModelDeployment;
use runway_provider::conformance::fields::documents;
use runway_provider::conformance::schema::problems_of_type;
use runway_provider::{Installed, Provider, Refusal, Request, Translation};
use runway_provider_direct::Direct;
use serde_json::{Value, json};

fn request(md: &Value) -> Request {
    let md: ModelDeployment = serde_json::from_value(md.clone()).unwrap_or_else(|error| panic!("{error}: {md}"));
    Request::try_from(&md).unwrap()
}

fn translate(md: &Value) -> Result<Translation, Refusal> {
    Direct::default().translate(&request(md), &Installed::default())
}

/// Fields that a server would drop because the type does not have them.
fn problems(object: &Value) -> Vec<String> {
    match object["kind"].as_str().unwrap() {
        "Service" => problems_of_type::<Service>(object),
        _ => problems_of_type::<Deployment>(object),
    }
}

#[test]
fn schema_check_finds_invalid_fields() {
    let good = documents(
        &translate(&json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": {"name": "md", "namespace": "default"},
            "spec": {"model": {"id": "Org/Model"}, "engine": {"type": "llamacpp"}},
        }))
        .unwrap(),
    );
    for object in &good {
        assert_eq!(problems(object), Vec::<String>::new());
        let mut bad = object.clone();
        bad["spec"]["marked"] = json!("x");
        assert!(!problems(&bad).is_empty(), "nothing is seen in {bad}");
        bad = object.clone();
        bad["spec"]["selector"] = json!("x");
        assert!(!problems(&bad).is_empty(), "nothing is seen in {bad}");
    }
}
