//! Any bytes as an AdmissionReview: each webhook gives a well-formed answer for the same uid or refuses the request; the mutating
//! one lets every object through, and finds nothing more to do in what it has changed.

use std::sync::{Arc, LazyLock};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use runway_api::InferenceProviderConfig;
use runway_core::admission::handlers::{MUTATE_PATH, VALIDATE_PATH, router};
use runway_core::providers::Providers;
use runway_manifests::built_in_providers;
use runway_operator::scope::Namespaces;
use runway_operator::trace::Traces;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// The API server cuts longer warnings.
const MAX_WARNING: usize = 256;

pub fn run(data: &[u8]) {
    if let Some(answer) = answer(VALIDATE_PATH, data) {
        check(&answer, data);
    }
    let Some(answer) = answer(MUTATE_PATH, data) else {
        return;
    };
    check(&answer, data);
    assert_eq!(answer["allowed"], true, "defaulting refuses nothing");
    if answer.get("patch").is_some() {
        let mut review: Value = serde_json::from_slice(data).unwrap();
        mutate(&mut review["request"]["object"], &answer);
        let again = self::answer(MUTATE_PATH, review.to_string().as_bytes()).expect("an answer");
        assert_eq!(again.get("patch"), None, "{review}");
    }
}

/// The response of a webhook; none if it refuses the request.
fn answer(path: &str, body: &[u8]) -> Option<Value> {
    let request = Request::post(path).body(Body::from(body.to_vec())).unwrap();
    let (status, body) = crate::wait(async {
        let response = router(|| PROVIDERS.clone(), Namespaces::default(), Traces::default())
            .oneshot(request)
            .await
            .unwrap();
        (
            response.status(),
            to_bytes(response.into_body(), usize::MAX).await.unwrap(),
        )
    });
    if status == StatusCode::BAD_REQUEST {
        assert!(!body.is_empty(), "a refusal says why");
        return None;
    }
    assert_eq!(status, StatusCode::OK);
    let review: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(review["kind"], "AdmissionReview");
    Some(review["response"].clone())
}

fn check(answer: &Value, data: &[u8]) {
    let review: Value = serde_json::from_slice(data).unwrap();
    assert_eq!(answer["uid"], review["request"]["uid"]);
    let allowed = answer["allowed"].as_bool().expect("a decision");
    let message = answer["status"]["message"].as_str().unwrap_or_default();
    assert!(allowed || !message.is_empty(), "a denial says why: {answer}");
    for warning in answer["warnings"].as_array().into_iter().flatten() {
        assert!(warning.as_str().expect("text").len() <= MAX_WARNING);
    }
}

fn mutate(object: &mut Value, answer: &Value) {
    assert_eq!(answer["patchType"], "JSONPatch");
    let patch: Vec<u8> = serde_json::from_value(answer["patch"].clone()).unwrap();
    json_patch::patch(object, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap())
        .expect("a patch that fits");
}

static PROVIDERS: LazyLock<Arc<Providers>> = LazyLock::new(|| Arc::new(registered()));

/// The built-in providers, ready.
pub(crate) fn registered() -> Providers {
    let configs = built_in_providers().into_iter().map(|provider| {
        let mut config = InferenceProviderConfig::new(provider.name(), provider.registration());
        config.status = serde_json::from_value(json!({"ready": true, "lastHeartbeat": crate::NOW})).unwrap();
        Arc::new(config)
    });
    Providers::compile(configs, &Providers::default())
}
