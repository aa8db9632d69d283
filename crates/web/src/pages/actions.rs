//! Pausing, resuming and deleting what a page is about, as the user. The answer to each is the page of the result.

use askama::Template;
use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Redirect, Response};
use kube::ResourceExt;
use runway_api::Namespace;
use runway_client::cluster::Error;
use runway_client::target::{Kind, Target};
use runway_operator::telemetry::chain;

use crate::guard::{Asker, Of, Sent};
use crate::page::Shell;
use crate::refusal;
use crate::sessions::Session;

/// Field manager of the console.
pub const MANAGER: &str = "kubeairunway-console";

/// The parts of the console whose objects can be paused and deleted: how their addresses begin, what they are called.
pub(crate) const PARTS: [(&str, &str, Kind); 3] = [
    ("deployments", "Models", Kind::ModelDeployment),
    ("actors", "Actors", Kind::AsyncActor),
    ("stacks", "Llama Stack", Kind::LlamaStackDistribution),
];

/// The object that an address is about: `/PART/NAMESPACE/NAME/…`.
pub struct Place {
    pub(super) part: &'static str,
    title: &'static str,
    pub(super) namespace: Namespace,
    pub(super) target: Target,
}

impl Place {
    fn page(&self) -> String {
        format!("/{}/{}/{}", self.part, self.namespace, self.target.name)
    }

    /// Consequences of a deletion.
    fn consequence(&self) -> &'static str {
        match self.target.kind {
            Kind::AsyncActor => {
                "The actor stops processing messages from its queue, and the objects created for it are deleted. A workload \
                 with another owner is kept and restored to its original state; a queue that contains messages is kept as well."
            }
            Kind::LlamaStackDistribution => {
                "The server stops, and the objects created for it are deleted, including its storage."
            }
            _ => "The model stops serving, and the objects that its provider created for it are deleted.",
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Place {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Path((part, namespace, name)): Path<(String, String, String)> = Path::from_request_parts(parts, state)
            .await
            .map_err(IntoResponse::into_response)?;
        let Some((part, title, kind)) = PARTS.into_iter().find(|(known, ..)| *known == part) else {
            return Err(refusal::nowhere().await);
        };
        let Of { namespace, name } = Of::parse(namespace, name)
            .map_err(|invalid| refusal::refuse(StatusCode::BAD_REQUEST, &invalid.to_string()))?;
        Ok(Self {
            part,
            title,
            namespace,
            target: Target { kind, name },
        })
    }
}

#[derive(Template)]
#[template(path = "delete.html")]
struct Delete {
    shell: Shell,
    place: Place,
    uid: String,
}

/// Pauses reconciliation.
pub async fn pause(Asker(session): Asker, place: Place) -> Response {
    annotate(&session, &place, Some("true")).await
}

/// Resumes reconciliation.
pub async fn resume(Asker(session): Asker, place: Place) -> Response {
    annotate(&session, &place, None).await
}

async fn annotate(session: &Session, place: &Place, paused: Option<&str>) -> Response {
    let Some(annotation) = place.target.kind.paused_by() else {
        return refusal::nowhere().await;
    };
    let cluster = session.view.cluster();
    let done = cluster
        .annotate(&place.target, &place.namespace, (annotation, paused), MANAGER)
        .await;
    match done {
        Ok(()) => Redirect::to(&place.page()).into_response(),
        Err(error) => refused(&error),
    }
}

/// Asks whether it is meant.
pub async fn ask(Asker(session): Asker, place: Place) -> Response {
    match session.view.cluster().get(&place.target, &place.namespace).await {
        Ok(object) => refusal::html(&Delete {
            shell: Shell::new(&session, place.part, format!("Delete {}", place.target.name)),
            uid: object.uid().unwrap_or_default(),
            place,
        }),
        Err(error) => refused(&error),
    }
}

/// Deletes the one that was shown.
pub async fn delete(Asker(session): Asker, place: Place, Sent(form): Sent) -> Response {
    let Some(uid) = form.get("uid").filter(|uid| !uid.is_empty()) else {
        let text = "The form does not identify an object. Nothing was deleted. Open the page of the object and delete it there.";
        return refusal::refuse(StatusCode::BAD_REQUEST, text);
    };
    let cluster = session.view.cluster();
    match cluster.delete(&place.target, &place.namespace, uid, false).await {
        Ok(()) => Redirect::to(&format!("/{}", place.part)).into_response(),
        Err(error) => refused(&error),
    }
}

/// Page for a failed action.
pub fn refused(error: &Error) -> Response {
    refusal::refuse(status(error), &chain(error))
}

/// The status of an answer that is an error.
pub fn status(error: &Error) -> StatusCode {
    match error {
        Error::NotFound { .. } => StatusCode::NOT_FOUND,
        Error::Name(_) => StatusCode::BAD_REQUEST,
        Error::Forbidden { .. } => StatusCode::FORBIDDEN,
        Error::Unauthorized { .. } => StatusCode::UNAUTHORIZED,
        Error::Other { source, .. } => match source.as_ref() {
            kube::Error::Api(status) => StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_GATEWAY),
            _ => StatusCode::BAD_GATEWAY,
        },
        _ => StatusCode::BAD_GATEWAY,
    }
}
