//! Conversion webhook: the API server sends objects in one version and gets them in another.

use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use kube::core::Status;
use runway_http::{Budget, Form};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Maximum size of a review, in bytes. A list is converted in one request and limited only by the API server; this is enough for
/// several thousand objects.
pub const MAX_BODY: usize = 32 * 1024 * 1024;

/// Concurrent reviews: one large list at a time.
const BUDGET: Budget = Budget {
    body: MAX_BODY,
    always: 64 * 1024,
    received: MAX_BODY,
    worked_on: MAX_BODY,
    patience: Duration::from_secs(20),
    form: Form::Text,
};

/// Converts an object to an `apiVersion`, or returns why it cannot. Pure; `metadata` must not change.
pub type Convert = fn(object: Value, api_version: &str) -> Result<Value, String>;

/// Serves `convert` at `path`.
pub fn router(path: &str, convert: Convert) -> Router {
    BUDGET.hold(Router::new().route(path, post(async move |body: Bytes| answer(&body, convert))))
}

/// A request. Objects stay text until they are converted: all of them parsed at once would take many times the memory.
#[derive(Deserialize)]
struct Review<'a> {
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    version: String,
    #[serde(borrow)]
    objects: Vec<&'a RawValue>,
}

/// A response.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    api_version: &'static str,
    kind: &'static str,
    response: Outcome,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    uid: String,
    result: Status,
    converted_objects: Vec<Box<RawValue>>,
}

fn answer(body: &[u8], convert: Convert) -> Response {
    let request = match serde_json::from_slice::<Review>(body) {
        Ok(review) => review.request,
        Err(error) => {
            let text = format!("the body must be a ConversionReview with a request: {error}\n");
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    // All objects or none, in the given order.
    let all: Result<Vec<_>, String> = request
        .objects
        .iter()
        .map(|object| one(object, &request.version, convert))
        .collect();
    let (result, converted_objects) = match all {
        Ok(objects) => (Status::success(), objects),
        Err(message) => (Status::failure(&message, "ConversionFailed"), Vec::new()),
    };
    let answer = Answer {
        api_version: "apiextensions.k8s.io/v1",
        kind: "ConversionReview",
        response: Outcome {
            uid: request.uid,
            result,
            converted_objects,
        },
    };
    Json(answer).into_response()
}

fn one(object: &RawValue, version: &str, convert: Convert) -> Result<Box<RawValue>, String> {
    let object = serde_json::from_str(object.get()).map_err(|error| error.to_string())?;
    serde_json::value::to_raw_value(&convert(object, version)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use serde_json::json;
    use tower::ServiceExt as _;

    use super::*;

    fn rename(mut object: Value, version: &str) -> Result<Value, String> {
        if object["bad"] == true {
            return Err("bad is bad".to_owned());
        }
        object["apiVersion"] = version.into();
        Ok(object)
    }

    async fn post(body: String) -> (StatusCode, Value) {
        let request = axum::http::Request::post("/convert").body(Body::from(body)).unwrap();
        let response = router("/convert", rename).oneshot(request).await.unwrap();
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }

    fn review(objects: &Value) -> String {
        let request = json!({ "uid": "u", "desiredAPIVersion": "x/v2", "objects": objects });
        json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request }).to_string()
    }

    #[tokio::test]
    async fn converted_objects_keep_their_order_or_are_refused() {
        let (_, answer) = post(review(&json!([{ "a": 1 }, { "b": 1.50 }]))).await;
        assert_eq!(answer["kind"], "ConversionReview");
        let response = &answer["response"];
        assert_eq!(
            (&response["uid"], &response["result"]["status"]),
            (&json!("u"), &json!("Success"))
        );
        assert_eq!(
            response["convertedObjects"],
            json!([{ "a": 1, "apiVersion": "x/v2" }, { "b": 1.5, "apiVersion": "x/v2" }])
        );
        let (_, answer) = post(review(&json!([{ "a": 1 }, { "bad": true }]))).await;
        assert_eq!(answer["response"]["result"]["message"], "bad is bad");
        assert_eq!(answer["response"]["convertedObjects"], json!([]));
    }

    #[tokio::test]
    async fn invalid_or_too_large_review_is_refused() {
        assert_eq!(post("{}".to_owned()).await.0, StatusCode::BAD_REQUEST);
        assert_eq!(post("x".repeat(MAX_BODY + 1)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    }
}
