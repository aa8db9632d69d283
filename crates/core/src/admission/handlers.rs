//! The two webhooks: reads a review, asks [`super::defaults`] or [`super::validate`](mod@super::validate), answers.
//!
//! The object is kept as it came. Only its spec is read into our type, and only for the decision: what a user wrote and we
//! do not know is nobody's to touch.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use kube::core::response::{Status, StatusCause, StatusDetails};
use kube::core::{ObjectMeta, Resource};
use runway_api::condition::shorten;
use runway_api::{ModelDeployment, ModelDeploymentSpec, labels};
use runway_operator::trace::{ANNOTATION, Recording, Traces};
use serde_json::{Value, json};

use super::validate::MAX_MESSAGE;
use super::{Violation, apply_defaults, validate};
use crate::providers::Providers;

/// Path of the mutating webhook.
pub const MUTATE_PATH: &str = "/mutate";
/// Path of the validating webhook.
pub const VALIDATE_PATH: &str = "/validate";

/// The version of AdmissionReview that the API server is told to send.
const API_VERSION: &str = "admission.k8s.io/v1";
/// A review holds an object twice, and etcd takes objects of about 1.5 MiB.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// The API server cuts longer warnings itself, in the middle of a character if need be.
const MAX_WARNING: usize = 256;

type Request = AdmissionRequest<DynamicObject>;

/// The webhooks; `providers` gives the registered providers as they are now. The trace of a new object begins here.
pub fn router(providers: impl Fn() -> Arc<Providers> + Clone + Send + Sync + 'static, traces: Traces) -> Router {
    Router::new()
        .route(MUTATE_PATH, post(async move |body: Bytes| mutate(&body, &traces)))
        .route(VALIDATE_PATH, post(async move |body: Bytes| check(&body, &providers())))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

fn mutate(body: &[u8], traces: &Traces) -> Response {
    match read(body) {
        Ok(request) => {
            let span = first_span(&request, traces);
            reply(mutation(&request, span.map(|span| span.traceparent())))
        }
        // The API server's own validation will say what is wrong with the object, and say it better.
        Err(Unreadable::Object { uid, .. }) => reply(allow(uid)),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

fn check(body: &[u8], providers: &Providers) -> Response {
    match read(body) {
        Ok(request) => reply(validation(&request, providers)),
        Err(Unreadable::Object { uid, violation }) => reply(deny(allow(uid), "", &[violation])),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

/// The first span of a new object.
fn first_span(request: &Request, traces: &Traces) -> Option<Recording> {
    let created = request.operation == Operation::Create && !request.dry_run;
    let object = subject(request).filter(|_| created)?;
    let mut about = object.metadata.clone();
    about.name.get_or_insert_with(|| request.name.clone());
    about.namespace = about.namespace.or_else(|| request.namespace.clone());
    traces.admission(&about)
}

/// Fills in defaults, and adds the finalizer to a new object, and its trace.
fn mutation(request: &Request, traceparent: Option<String>) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some(object) = subject(request) else {
        return response;
    };
    let Ok(spec) = read_spec(object) else { return response };

    let mut patch = defaults_patch(object, &spec);
    if request.operation == Operation::Create {
        patch.extend(finalizer_patch(&object.metadata));
        patch.extend(traceparent.and_then(|parent| trace_patch(&object.metadata, &parent)));
    }
    if patch.is_empty() {
        return response;
    }
    response
        .with_patch(Patch(patch))
        .unwrap_or_else(|_| allow(request.uid.clone()))
}

/// Refuses what is invalid, all violations at once.
fn validation(request: &Request, providers: &Providers) -> AdmissionResponse {
    let response = AdmissionResponse::from(request);
    let Some(object) = subject(request) else {
        return response;
    };
    let spec = match read_spec(object) {
        Ok(spec) => spec,
        Err(violation) => return deny(response, &request.name, &[violation]),
    };

    let deployment = ModelDeployment {
        metadata: object.metadata.clone(),
        spec,
        status: None,
    };
    let verdict = validate(&deployment, providers);
    let mut response = if verdict.is_valid() {
        response
    } else {
        deny(response, &request.name, &verdict.errors)
    };
    if !verdict.warnings.is_empty() {
        response.warnings = Some(
            verdict
                .warnings
                .into_iter()
                .map(|warning| shorten(warning, MAX_WARNING))
                .collect(),
        );
    }
    response
}

/// The object to look at, if there is anything to look at: deletion must always end, so an object that is being deleted
/// goes through as it is, and so does a change that leaves the spec alone (finalizers, labels, status).
fn subject(request: &Request) -> Option<&DynamicObject> {
    let object = request.object.as_ref()?;
    let ours = request.kind.kind == ModelDeployment::kind(&())
        && request.sub_resource.as_deref().unwrap_or_default().is_empty();
    let changed = match request.operation {
        Operation::Create => true,
        Operation::Update => request
            .old_object
            .as_ref()
            .is_none_or(|old| old.data.get("spec") != object.data.get("spec")),
        Operation::Delete | Operation::Connect => false,
    };
    (ours && changed && object.metadata.deletion_timestamp.is_none()).then_some(object)
}

/// A patch of additions alone: both sides are our type's reading of the spec, so what only the user's text has is in neither.
fn defaults_patch(object: &DynamicObject, before: &ModelDeploymentSpec) -> Vec<PatchOperation> {
    let mut after = before.clone();
    apply_defaults(&mut after);
    let patch = json_patch::diff(&json!({ "spec": before }), &json!({ "spec": after }));
    // A list can pass for an object when it is read, but nothing can be added to it by name. The schema will refuse it.
    let fits = json_patch::patch(&mut object.data.clone(), &patch).is_ok();
    if fits { patch.0 } else { Vec::new() }
}

fn finalizer_patch(metadata: &ObjectMeta) -> Option<PatchOperation> {
    let (path, value) = match &metadata.finalizers {
        Some(finalizers) if finalizers.iter().any(|name| name == labels::FINALIZER) => return None,
        Some(_) => (
            PointerBuf::from_tokens(["metadata", "finalizers", "-"]),
            json!(labels::FINALIZER),
        ),
        None => (
            PointerBuf::from_tokens(["metadata", "finalizers"]),
            json!([labels::FINALIZER]),
        ),
    };
    Some(PatchOperation::Add(AddOperation { path, value }))
}

/// A client that traces has brought its own.
fn trace_patch(metadata: &ObjectMeta, traceparent: &str) -> Option<PatchOperation> {
    let (path, value) = match &metadata.annotations {
        Some(annotations) if annotations.contains_key(ANNOTATION) => return None,
        Some(_) => (
            PointerBuf::from_tokens(["metadata", "annotations", ANNOTATION]),
            json!(traceparent),
        ),
        None => (
            PointerBuf::from_tokens(["metadata", "annotations"]),
            json!({ ANNOTATION: traceparent }),
        ),
    };
    Some(PatchOperation::Add(AddOperation { path, value }))
}

/// A request that cannot be read.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    /// It cannot even be answered.
    #[error("the body must be an AdmissionReview with a request: {0}")]
    Review(String),
    /// It can be answered, but what it is about cannot be read.
    #[error("{}", violation.message)]
    Object { uid: String, violation: Violation },
}

fn read(body: &[u8]) -> Result<Request, Unreadable> {
    let body: Value = serde_json::from_slice(body).map_err(|error| Unreadable::Review(error.to_string()))?;
    // The answer repeats both.
    if body["apiVersion"] != API_VERSION || body["kind"] != "AdmissionReview" {
        let why = format!("apiVersion must be {API_VERSION}, and kind AdmissionReview");
        return Err(Unreadable::Review(why));
    }
    let uid = body
        .pointer("/request/uid")
        .and_then(Value::as_str)
        .ok_or_else(|| Unreadable::Review("request.uid is missing".to_owned()))?;
    let review: AdmissionReview<DynamicObject> =
        serde_path_to_error::deserialize(&body).map_err(|error| Unreadable::Object {
            uid: uid.to_owned(),
            violation: unreadable(error, ""),
        })?;
    review
        .try_into()
        .map_err(|_| Unreadable::Review("request is missing".to_owned()))
}

fn read_spec(object: &DynamicObject) -> Result<ModelDeploymentSpec, Violation> {
    let Some(spec) = object.data.get("spec") else {
        return Err(Violation {
            field: "spec".to_owned(),
            message: "spec is required: it says which model to serve".to_owned(),
        });
    };
    serde_path_to_error::deserialize(spec).map_err(|error| unreadable(error, "spec"))
}

/// What could not be read, below `root`.
fn unreadable(error: serde_path_to_error::Error<serde_json::Error>, root: &str) -> Violation {
    let path = error.path().to_string();
    let path = path.trim_start_matches("request.").trim_start_matches("object.");
    let field = match (root, path) {
        (root, ".") => root.to_owned(),
        ("", path) => path.to_owned(),
        (root, path) => format!("{root}.{path}"),
    };
    Violation {
        message: shorten(format!("{field}: {}", error.into_inner()), MAX_MESSAGE),
        field,
    }
}

/// A denial that kubectl shows as a list with one line per field.
fn deny(mut response: AdmissionResponse, name: &str, violations: &[Violation]) -> AdmissionResponse {
    let causes = violations.iter().map(|violation| StatusCause {
        reason: "FieldValueInvalid".to_owned(),
        message: violation.message.clone(),
        field: violation.field.clone(),
    });
    let details = StatusDetails {
        name: name.to_owned(),
        group: ModelDeployment::group(&()).into_owned(),
        kind: ModelDeployment::kind(&()).into_owned(),
        causes: causes.collect(),
        uid: String::new(),
        retry_after_seconds: 0,
    };
    let messages: Vec<_> = violations.iter().map(|violation| violation.message.as_str()).collect();
    response.allowed = false;
    response.result = Status::failure(&messages.join("; "), "Invalid")
        .with_code(422)
        .with_details(details);
    response
}

/// A response to a request of which only the uid could be read.
fn allow(uid: String) -> AdmissionResponse {
    let mut response = AdmissionResponse::invalid("");
    response.uid = uid;
    response.allowed = true;
    response.result = Status::default();
    response
}

fn reply(response: AdmissionResponse) -> Response {
    Json(response.into_review()).into_response()
}
