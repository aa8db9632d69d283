//! Pausing, resuming and deleting a ModelDeployment, as the user. The answer to each is the page of the result.

use askama::Template;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use runway_api::{ModelDeployment, labels};
use runway_client::cluster::Error;
use runway_operator::clock;
use runway_operator::telemetry::chain;
use serde_json::{Value, json};

use super::deployment::{Head, find};
use crate::guard::{Asker, Sent};
use crate::page::{self, Shell};
use crate::sessions::Session;

/// Who writes, as the server keeps it in managed fields.
pub const MANAGER: &str = "kubeairunway-console";

#[derive(Template)]
#[template(path = "delete.html")]
struct Delete {
    shell: Shell,
    head: Head,
    uid: String,
    error: String,
}

type Place = Path<(String, String)>;

/// Stops all changes to the upstream object.
pub async fn pause(Asker(session): Asker, Path((namespace, name)): Place) -> Response {
    annotate(&session, &namespace, &name, json!("true")).await
}

/// Lets them go on.
pub async fn resume(Asker(session): Asker, Path((namespace, name)): Place) -> Response {
    annotate(&session, &namespace, &name, Value::Null).await
}

async fn annotate(session: &Session, namespace: &str, name: &str, paused: Value) -> Response {
    let patch = json!({"metadata": {"annotations": {labels::PAUSED: paused}}});
    let params = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    match api(session, namespace)
        .patch(name, &params, &Patch::Merge(&patch))
        .await
    {
        Ok(_) => Redirect::to(&format!("/deployments/{namespace}/{name}")).into_response(),
        Err(error) => refused(session, error, format!("change ModelDeployment '{name}'")),
    }
}

/// Asks whether it is meant.
pub async fn ask(Asker(session): Asker, Path((namespace, name)): Place) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    page::html(&Delete {
        shell: Shell::new(&session, "deployments", format!("Delete {name}")),
        head: Head::new(&md, "delete", clock::now()),
        uid: md.metadata.uid.clone().unwrap_or_default(),
        error: String::new(),
    })
}

/// Deletes the one that was shown: not another one of the same name.
pub async fn delete(Asker(session): Asker, Path((namespace, name)): Place, Sent(form): Sent) -> Response {
    let uid = form.get("uid").filter(|uid| !uid.is_empty()).map(str::to_owned);
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api(&session, &namespace).delete(&name, &params).await {
        Ok(_) => Redirect::to("/deployments").into_response(),
        Err(error) => refused(&session, error, format!("delete ModelDeployment '{name}'")),
    }
}

/// The ModelDeployments of a namespace, as the user.
pub fn api(session: &Session, namespace: &str) -> Api<ModelDeployment> {
    Api::namespaced(session.lens.client(), namespace)
}

/// The page that says why something was not done.
pub fn refused(session: &Session, error: kube::Error, doing: String) -> Response {
    let lens = &session.lens;
    let cluster = lens.cluster();
    let error = cluster.explain(error, doing, "ModelDeployment");
    page::refuse(status(&error), &chain(&error))
}

/// The status of an answer that is an error.
pub fn status(error: &Error) -> StatusCode {
    match error {
        Error::NotFound { .. } => StatusCode::NOT_FOUND,
        Error::Forbidden { .. } => StatusCode::FORBIDDEN,
        Error::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
        Error::Other { source, .. } => match source.as_ref() {
            kube::Error::Api(status) => StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY),
            _ => StatusCode::BAD_GATEWAY,
        },
        _ => StatusCode::BAD_GATEWAY,
    }
}
