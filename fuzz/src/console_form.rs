//! Any bytes as the form of the web console: reading ends without a panic and gives the same twice; what it makes of a
//! ModelDeployment can be shown, read by the API's types or refused by them, and judged by admission.

use runway_api::ModelDeployment;
use runway_core::admission::{apply_defaults, validate};
use runway_core::providers::Providers;
use runway_web::form::{self, IDENTITY, Pairs};
use serde_json::json;

pub fn run(data: &[u8]) {
    let form = Pairs::parse(data);
    let fields = || IDENTITY.iter().chain(form::fields());
    let mut object =
        json!({"apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": {}, "spec": {}});
    let empty = object.clone();
    let mut faults = form::fill(&mut object, &form, fields());
    let mut again = empty;
    assert_eq!(
        (form::fill(&mut again, &form, fields()), &again),
        (faults.clone(), &object)
    );
    for field in fields() {
        let shown = form::shown(&object, field);
        assert!(
            !shown.is_empty()
                || form
                    .get(field.path)
                    .is_none_or(|given| given.trim().is_empty() || faults.contains_key(field.path))
                || object
                    .pointer(&form::pointer(field.path))
                    .is_none_or(|v| v.as_object().is_none_or(serde_json::Map::is_empty)),
            "{} is lost: {object}",
            field.path
        );
    }
    if let Ok(mut deployment) = serde_json::from_value::<ModelDeployment>(object) {
        apply_defaults(&mut deployment.spec);
        let verdict = validate(&deployment, &Providers::default());
        for (field, message) in form::placed(&verdict.errors) {
            form::mark(&mut faults, &field, &message);
        }
    }
}
