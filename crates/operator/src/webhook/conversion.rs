//! A conversion webhook: the API server sends objects in one version and gets them in another.

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use kube::core::Status;
use kube::core::conversion::{ConversionRequest, ConversionResponse, ConversionReview};
use serde_json::Value;

/// A list is converted in one request, and has no bound but the API server's own.
const MAX_BODY: usize = 64 * 1024 * 1024;

/// Brings an object to an `apiVersion`, or says why that cannot be. Pure; `metadata` must stay as it is.
pub type Convert = fn(object: Value, api_version: &str) -> Result<Value, String>;

/// Serves `convert` at `path`.
pub fn router(path: &str, convert: Convert) -> Router {
    Router::new()
        .route(path, post(async move |body: Bytes| answer(&body, convert)))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

fn answer(body: &[u8], convert: Convert) -> Response {
    let review = serde_json::from_slice::<ConversionReview>(body).map_err(|error| error.to_string());
    let response = match review.and_then(|r| ConversionRequest::from_review(r).map_err(|error| error.to_string())) {
        Ok(request) => converted(request, convert),
        Err(error) => ConversionResponse::invalid(failure(&format!("this is no ConversionReview: {error}"))),
    };
    Json(response.into_review()).into_response()
}

/// All or nothing, in the order they came.
fn converted(mut request: ConversionRequest, convert: Convert) -> ConversionResponse {
    let objects = std::mem::take(&mut request.objects);
    let version = request.desired_api_version.clone();
    let response = ConversionResponse::for_request(request);
    let all: Result<Vec<Value>, String> = objects.into_iter().map(|object| convert(object, &version)).collect();
    match all {
        Ok(objects) => response.success(objects),
        Err(message) => response.failure(failure(&message)),
    }
}

fn failure(message: &str) -> Status {
    Status::failure(message, "ConversionFailed")
}
