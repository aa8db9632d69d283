//! Translation of ModelDeployments to DynamoGraphDeployments, and of their status back.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "helpers of tests are tests"
)]

mod cases;
mod crd;
mod flags;
mod properties;
mod registration;

use std::sync::Arc;

use runway_api::ModelDeployment;
use runway_provider::conformance::fields::documents;
use runway_provider::{Configured, Installed, Provider, Refusal, Request, State, Translation};
use runway_provider_dynamo::{DYNAMO_GRAPH_DEPLOYMENT, Dynamo};
use serde_json::Value;

/// The API versions, the newest first.
const VERSIONS: [&str; 2] = ["v1beta1", "v1alpha1"];

/// The provider with settings of an installation.
fn dynamo(settings: &Value) -> Arc<dyn Provider> {
    let configured = Configured::new(Arc::new(Dynamo::default()), settings.as_object());
    assert_eq!(configured.invalid, None);
    configured.provider
}

fn request(md: &Value) -> Request {
    let md: ModelDeployment = serde_json::from_value(md.clone()).unwrap_or_else(|error| panic!("{error}: {md}"));
    Request::try_from(&md).unwrap()
}

fn installed(version: &str, operator: Option<&str>) -> Installed {
    let state = State::Known {
        version: version.to_owned(),
        hash: String::new(),
    };
    Installed::new([(DYNAMO_GRAPH_DEPLOYMENT, state)]).with_release(operator.map(|release| release.parse().unwrap()))
}

fn translate(dynamo: &dyn Provider, md: &Value, version: &str, operator: Option<&str>) -> Result<Translation, Refusal> {
    dynamo.translate(&request(md), &installed(version, operator))
}

/// The only object, as it is applied.
fn document(translation: &Translation) -> Value {
    let mut all = documents(translation);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Arguments of a component.
fn args(document: &Value, name: &str) -> Vec<String> {
    let service = &document["spec"]["services"][name];
    let args = if service.is_null() {
        let components = document["spec"]["components"].as_array().unwrap();
        let component = components.iter().find(|c| c["name"] == name).unwrap();
        &component["podTemplate"]["spec"]["containers"][0]["args"]
    } else {
        &service["extraPodSpec"]["mainContainer"]["args"]
    };
    let list = args.as_array().into_iter().flatten();
    list.map(|arg| arg.as_str().unwrap().to_owned()).collect()
}
