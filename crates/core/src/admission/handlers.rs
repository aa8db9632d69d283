//! The two webhooks: parse a review, call [`super::defaults`] or [`super::validate`](mod@super::validate), respond.
//!
//! The object itself is not changed. Only its spec is parsed into our type, to make the decision, so that unknown fields are
//! kept. Objects come from any user who may create them, so their size is checked before they are parsed.

use std::str::Utf8Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use kube::core::GroupVersionKind;
use kube::core::admission::{AdmissionResponse, Operation};
use kube::core::response::{Status, StatusCause, StatusDetails};
use kube::core::{ObjectMeta, Resource};
use runway_api::condition::shorten;
use runway_api::model_deployment::{ProviderStatus, Scaling};
use runway_api::{ModelDeployment, ModelDeploymentSpec, ModelDeploymentStatus, labels};
use runway_http::body::size;
use runway_http::{Budget, Form, Limits};
use runway_operator::scope::Namespaces;
use runway_operator::trace::{Recording, Traces};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::validate::MAX_MESSAGE;
use super::{Violation, apply_defaults, capabilities, validate};
use crate::providers::Providers;

/// Path of the mutating webhook.
pub const MUTATE_PATH: &str = "/mutate";
/// Path of the validating webhook.
pub const VALIDATE_PATH: &str = "/validate";

/// Maximum size of a spec as JSON, in bytes. The CRD allows for a large value in each field; large values in all of them are an
/// error or an attack.
const MAX_SPEC: usize = 256 * 1024;
/// Maximum size of the metadata as JSON, in bytes: the API server allows 256 KiB of annotations, and adds the managed fields.
const MAX_METADATA: usize = 512 * 1024;
/// Maximum length of a warning. The API server cuts longer ones itself, possibly within a character.
const MAX_WARNING: usize = 256;

/// Memory for reviews. Without a limit, a few large concurrent reviews could end the process; without a response, the API server
/// admits every request.
///
/// Memory for ordinary reviews of a few KiB: they are always admitted, and handled concurrently.
const REVIEWS: Budget = Budget {
    body: Limits::WEBHOOK.body,
    always: 64 * 1024,
    received: 16 * 1024 * 1024,
    // Parsing a body needs no more memory than its objects may have, on at most two threads.
    worked_on: Limits::WEBHOOK.body,
    // Slightly less than the API server's timeout.
    patience: Duration::from_secs(4),
    form: Form::Text,
};

/// Router of the webhooks. `providers` returns the current registered providers. Objects in other namespaces than those that are
/// watched are admitted unchanged. The trace of a new object begins here.
pub fn router(
    providers: impl Fn() -> Arc<Providers> + Clone + Send + Sync + 'static,
    namespaces: Namespaces,
    traces: Traces,
) -> Router {
    let watched = namespaces.clone();
    let mutate = post(async move |body: Bytes| mutate(&body, &watched, &traces));
    let check = post(async move |body: Bytes| check(&body, &namespaces, &providers()));
    REVIEWS.hold(Router::new().route(MUTATE_PATH, mutate).route(VALIDATE_PATH, check))
}

fn mutate(body: &[u8], namespaces: &Namespaces, traces: &Traces) -> Response {
    match read(body) {
        Ok(request) if !request.is_within(namespaces) => reply(allow(request.uid)),
        Ok(request) => {
            // The API server's own validation reports the error in more detail.
            let object = subject(&request).unwrap_or_default();
            let span = object.as_ref().and_then(|object| first_span(&request, object, traces));
            reply(mutation(&request, object, span.map(|span| span.traceparent())))
        }
        Err(Unreadable::Request { uid, .. }) => reply(allow(uid)),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

fn check(body: &[u8], namespaces: &Namespaces, providers: &Providers) -> Response {
    match read(body) {
        Ok(request) if !request.is_within(namespaces) => reply(allow(request.uid)),
        Ok(request) => reply(validation(&request, providers)),
        Err(Unreadable::Request { uid, violation }) => reply(deny(allow(uid), "", &[violation])),
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

/// First span of a new object.
fn first_span(request: &Request, object: &Object, traces: &Traces) -> Option<Recording> {
    if request.operation != Operation::Create || request.dry_run {
        return None;
    }
    let mut about = object.metadata.clone();
    about.name.get_or_insert_with(|| request.name.clone());
    about.namespace = about.namespace.or_else(|| request.namespace.clone());
    traces.admission(&about)
}

/// Sets defaults, and adds the finalizer and the trace to a new object.
fn mutation(request: &Request, object: Option<Object>, traceparent: Option<String>) -> AdmissionResponse {
    let response = allow(request.uid.clone());
    let Some(object) = object else { return response };
    let Ok(spec) = read_spec(&object) else { return response };

    let mut patch = defaults_patch(&object, &spec, replicas_before(request));
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

/// Rejects an invalid object with all violations.
fn validation(request: &Request, providers: &Providers) -> AdmissionResponse {
    let response = allow(request.uid.clone());
    let read = subject(request).and_then(|object| match object {
        Some(object) => Ok(Some((read_spec(&object)?, object.metadata, object.provider))),
        None => Ok(None),
    });
    let deployment = match read {
        Ok(None) => return response,
        Ok(Some((spec, metadata, provider))) => ModelDeployment {
            metadata,
            spec,
            status: provider.map(selected),
        },
        Err(violation) => return deny(response, &request.name, &[violation]),
    };
    let findings = validate(&deployment, providers).and(capabilities(&deployment, providers));
    let mut response = if findings.is_valid() {
        response
    } else {
        deny(response, &request.name, &findings.errors)
    };
    if !findings.warnings.is_empty() {
        response.warnings = Some(
            findings
                .warnings
                .into_iter()
                .map(|warning| shorten(warning, MAX_WARNING))
                .collect(),
        );
    }
    response
}

/// The status of a ModelDeployment with a selected provider.
fn selected(provider: String) -> ModelDeploymentStatus {
    ModelDeploymentStatus {
        provider: Some(ProviderStatus {
            name: Some(provider),
            ..ProviderStatus::default()
        }),
        ..ModelDeploymentStatus::default()
    }
}

/// The object to check, if any. An object that is being deleted is admitted unchanged, since deletion must always complete; so
/// is a change outside the spec (finalizers, labels, status).
fn subject(request: &Request) -> Result<Option<Object>, Violation> {
    let is_ours = request.kind.kind == ModelDeployment::kind(&())
        && request.sub_resource.as_deref().unwrap_or_default().is_empty();
    let Some(parts) = request.object.filter(|_| is_ours).map(Parts::of) else {
        return Ok(None);
    };
    if parts.is_deleted() || !changes(request, &parts) {
        return Ok(None);
    }
    Object::read(&parts).map(Some)
}

/// Whether the request changes the spec.
fn changes(request: &Request, parts: &Parts) -> bool {
    match request.operation {
        Operation::Create => true,
        Operation::Update => request
            .old_object
            .is_none_or(|old| !is_same(Parts::of(old).spec, parts.spec)),
        Operation::Delete | Operation::Connect => false,
    }
}

/// Whether two texts are equal JSON. The API server serializes equal values identically, so that large ones need not be parsed.
fn is_same(one: Option<&RawValue>, other: Option<&RawValue>) -> bool {
    let (Some(one), Some(other)) = (one.map(RawValue::get), other.map(RawValue::get)) else {
        return one.is_none() && other.is_none();
    };
    let value = |text: &str| serde_json::from_str::<Value>(text).ok();
    one == other || (one.len().max(other.len()) <= MAX_SPEC && value(one) == value(other))
}

/// A patch with additions only: both sides are our type's view of the spec, so that the user's unknown fields are in neither.
///
/// An autoscaler writes the number of replicas. A manifest without it, sent as a whole, must not reset it.
fn defaults_patch(object: &Object, before: &ModelDeploymentSpec, replicas: Option<i32>) -> Vec<PatchOperation> {
    let mut after = before.clone();
    if let Some(scaling) = after.scaling.as_mut().filter(|scaling| scaling.autoscaling.is_some()) {
        scaling.replicas = scaling.replicas.or(replicas);
    }
    apply_defaults(&mut after);
    let patch = json_patch::diff(&json!({ "spec": before }), &json!({ "spec": after }));
    // A list may be parsed as an object, but no named field can be added to it. The schema will reject it.
    let fits = patch.is_empty() || json_patch::patch(&mut json!({ "spec": object.spec }), &patch).is_ok();
    if fits { patch.0 } else { Vec::new() }
}

/// `spec.scaling.replicas` of the object that the request updates.
fn replicas_before(request: &Request) -> Option<i32> {
    #[derive(Deserialize)]
    struct Spec {
        scaling: Scaling,
    }
    let spec = Parts::of(request.old_object?).spec?;
    serde_json::from_str::<Spec>(spec.get()).ok()?.scaling.replicas
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

/// A client with tracing has set its own.
fn trace_patch(metadata: &ObjectMeta, traceparent: &str) -> Option<PatchOperation> {
    let (path, value) = match &metadata.annotations {
        Some(annotations) if annotations.contains_key(labels::TRACE) => return None,
        Some(_) => (
            PointerBuf::from_tokens(["metadata", "annotations", labels::TRACE]),
            json!(traceparent),
        ),
        None => (
            PointerBuf::from_tokens(["metadata", "annotations"]),
            json!({ labels::TRACE: traceparent }),
        ),
    };
    Some(PatchOperation::Add(AddOperation { path, value }))
}

/// A request that cannot be parsed.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    /// serde_json does not check skipped strings.
    #[error("the body must be JSON in UTF-8: {0}")]
    Text(Utf8Error),
    /// Without a uid there can be no response.
    #[error("the body must be an AdmissionReview with a request: {0}")]
    Review(serde_json::Error),
    /// There can be a response, but the object cannot be parsed.
    #[error("{}", violation.message)]
    Request { uid: String, violation: Violation },
}

/// The version in the webhook configurations, and the only one that is supported.
#[derive(Deserialize)]
enum Version {
    #[serde(rename = "admission.k8s.io/v1")]
    V1,
}

#[derive(Deserialize)]
enum Kind {
    AdmissionReview,
}

/// A review. Objects stay text until it is known that they must be checked and are not too large.
#[derive(Deserialize)]
struct Review<'a> {
    #[serde(rename = "apiVersion")]
    _version: Version,
    #[serde(rename = "kind")]
    _kind: Kind,
    #[serde(borrow)]
    request: Request<'a>,
}

/// The request of a review, with the fields that are used here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: String,
    kind: GroupVersionKind,
    sub_resource: Option<String>,
    #[serde(default)]
    name: String,
    namespace: Option<String>,
    operation: Operation,
    #[serde(default)]
    dry_run: bool,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
}

impl Request<'_> {
    /// Whether the object is in one of these namespaces.
    fn is_within(&self, namespaces: &Namespaces) -> bool {
        namespaces.contain(self.namespace.as_deref().unwrap_or_default())
    }
}

/// Fields that a request needs for a response.
#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "apiVersion")]
    _version: Version,
    #[serde(rename = "kind")]
    _kind: Kind,
    request: Uid,
}

#[derive(Deserialize)]
struct Uid {
    uid: String,
}

fn read(body: &[u8]) -> Result<Request<'_>, Unreadable> {
    let body = str::from_utf8(body).map_err(Unreadable::Text)?;
    let error = match serde_json::from_str::<Review>(body) {
        Ok(review) => return Ok(review.request),
        Err(error) => error,
    };
    let envelope: Envelope = serde_json::from_str(body).map_err(Unreadable::Review)?;
    Err(Unreadable::Request {
        uid: envelope.request.uid,
        violation: Violation {
            field: String::new(),
            message: shorten(format!("cannot parse the review: {error}"), MAX_MESSAGE),
        },
    })
}

/// The parts of an object as text; other parts are skipped.
#[derive(Default, Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

impl<'a> Parts<'a> {
    /// A value that is not an object has no parts.
    fn of(object: &'a RawValue) -> Self {
        serde_json::from_str(object.get()).unwrap_or_default()
    }

    /// The selected provider.
    fn provider(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct Status {
            provider: Option<Provider>,
        }
        #[derive(Deserialize)]
        struct Provider {
            name: Option<String>,
        }
        let status: Status = serde_json::from_str(self.status?.get()).ok()?;
        status.provider?.name.filter(|name| !name.is_empty())
    }

    fn is_deleted(&self) -> bool {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Deletion {
            deletion_timestamp: Option<IgnoredAny>,
        }
        let metadata = self.metadata.map(RawValue::get).unwrap_or_default();
        serde_json::from_str::<Deletion>(metadata).is_ok_and(|metadata| metadata.deletion_timestamp.is_some())
    }
}

/// An object to check.
#[derive(Debug)]
struct Object {
    metadata: ObjectMeta,
    spec: Value,
    provider: Option<String>,
}

impl Object {
    fn read(parts: &Parts) -> Result<Self, Violation> {
        let shorter = "shorten spec.provider.overrides, spec.env or spec.engine.args";
        let spec = read_part("spec", parts.spec, MAX_SPEC, shorter)?;
        let metadata = read_part("metadata", parts.metadata, MAX_METADATA, "shorten its annotations")?;
        let metadata: Option<ObjectMeta> =
            serde_path_to_error::deserialize(metadata).map_err(|error| unreadable(error, "metadata"))?;
        let metadata = metadata.ok_or_else(|| Violation {
            field: "metadata".to_owned(),
            message: "metadata is required: it names the object".to_owned(),
        })?;
        Ok(Self {
            metadata,
            spec,
            provider: parts.provider(),
        })
    }
}

/// A part of an object, null if it is absent.
fn read_part(field: &str, text: Option<&RawValue>, most: usize, way_out: &str) -> Result<Value, Violation> {
    let text = text.map_or("null", RawValue::get);
    let violation = |message: String| Violation {
        field: field.to_owned(),
        message: shorten(message, MAX_MESSAGE),
    };
    if text.len() > most {
        let (found, most) = (size(text.len()), size(most));
        return Err(violation(format!(
            "{field} is {found} of JSON, and at most {most} are accepted: {way_out}"
        )));
    }
    serde_json::from_str(text).map_err(|error| violation(format!("{field}: {error}")))
}

fn read_spec(object: &Object) -> Result<ModelDeploymentSpec, Violation> {
    if object.spec.is_null() {
        return Err(Violation {
            field: "spec".to_owned(),
            message: "spec is required: it says which model to serve".to_owned(),
        });
    }
    serde_path_to_error::deserialize(&object.spec).map_err(|error| unreadable(error, "spec"))
}

/// The path that could not be parsed, below `root`.
fn unreadable(error: serde_path_to_error::Error<serde_json::Error>, root: &str) -> Violation {
    let path = error.path().to_string();
    let field = match path.as_str() {
        "." => root.to_owned(),
        path => format!("{root}.{path}"),
    };
    Violation {
        message: shorten(format!("{field}: {}", error.into_inner()), MAX_MESSAGE),
        field,
    }
}

/// A rejection that kubectl shows as a list with one line per field.
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

/// Response to a request of which only the uid could be parsed.
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
