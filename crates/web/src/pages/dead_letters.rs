//! Dead letters of an AsyncActor: list, content, redrive and deletion, as asya-gateway permits them to the user.

use askama::Template;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect, Response};
use runway_api::{Name, Namespace};
use runway_client::messages::DeadLetter;
use runway_operator::clock;
use serde::Deserialize;

use crate::asya_gateway;
use crate::form::Pairs;
use crate::guard::{Asker, Of, Sent};
use crate::moment::Moment;
use crate::page::{self, Shell};
use crate::refusal;
use crate::sessions::Session;

/// Dead letters in the list.
const SHOWN: u32 = 100;

/// Selected dead letter; without `id`, all of them.
#[derive(Debug, Deserialize)]
pub struct Chosen {
    id: Option<String>,
}

/// Actor of a page.
struct Place {
    namespace: Namespace,
    name: Name,
}

impl Place {
    /// Address of the page with the dead letters.
    fn href(&self) -> String {
        format!("/actors/{}/{}/dead-letters", self.namespace, self.name)
    }
}

struct Row {
    id: Option<String>,
    reason: String,
    age: Option<Moment>,
    bytes: u64,
}

#[derive(Template)]
#[template(path = "letters.html")]
struct Letters {
    shell: Shell,
    place: Place,
    rows: Vec<Row>,
    count: u64,
    /// Reason why they cannot be listed.
    trouble: String,
}

#[derive(Template)]
#[template(path = "letter.html")]
struct Letter {
    shell: Shell,
    place: Place,
    id: String,
    /// The dead letter as YAML.
    text: String,
}

#[derive(Template)]
#[template(path = "letters_delete.html")]
struct Delete {
    shell: Shell,
    place: Place,
    id: Option<String>,
}

/// The list.
pub async fn list(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    let found = asya_gateway::ask(&session.view, asya_gateway::LOOK, async |gateway| {
        gateway.dead_letters(&namespace, &name, SHOWN).await
    })
    .await;
    let (found, trouble) = match found {
        Ok(found) => (Some(found), String::new()),
        Err(failed) => (None, failed.message),
    };
    let now = clock::now();
    let row = |letter: DeadLetter| Row {
        id: letter.id,
        reason: letter.reason.unwrap_or_else(|| "–".to_owned()),
        age: letter.since.map(|since| Moment::new(since, now)),
        bytes: letter.bytes,
    };
    refusal::html(&Letters {
        shell: Shell::new(&session, "actors", format!("Dead letters of {name}")),
        place: Place { namespace, name },
        count: found.as_ref().map_or(0, |found| found.count),
        rows: found.map_or_else(Vec::new, |found| found.items.into_iter().map(row).collect()),
        trouble,
    })
}

/// One of them, with its headers.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of, Query(chosen): Query<Chosen>) -> Response {
    let Some(id) = chosen.id else {
        return unclear();
    };
    let found = asya_gateway::ask(&session.view, asya_gateway::LOOK, async |gateway| {
        gateway.dead_letter(&namespace, &name, &id).await
    })
    .await;
    match found {
        Ok(letter) => refusal::html(&Letter {
            shell: Shell::new(&session, "actors", format!("Dead letter {id}")),
            place: Place { namespace, name },
            text: page::yaml(&letter),
            id,
        }),
        Err(failed) => failed.page(),
    }
}

/// Asks for confirmation of a deletion.
pub async fn confirm(Asker(session): Asker, Of { namespace, name }: Of, Query(chosen): Query<Chosen>) -> Response {
    refusal::html(&Delete {
        shell: Shell::new(&session, "actors", format!("Delete dead letters of {name}")),
        place: Place { namespace, name },
        id: chosen.id,
    })
}

/// Sends them to the queue of the actor again.
pub async fn redrive(Asker(session): Asker, Of { namespace, name }: Of, Sent(form): Sent) -> Response {
    process(&session, &Place { namespace, name }, "redrive", &form).await
}

/// Deletes them.
pub async fn delete(Asker(session): Asker, Of { namespace, name }: Of, Sent(form): Sent) -> Response {
    process(&session, &Place { namespace, name }, "drop", &form).await
}

async fn process(session: &Session, place: &Place, verb: &str, form: &Pairs) -> Response {
    let ids = match (form.get("id"), form.get("all")) {
        (Some(id), _) => Some(vec![id.to_owned()]),
        (None, Some("true")) => None,
        _ => return unclear(),
    };
    let Place { namespace, name } = place;
    let done = asya_gateway::ask(&session.view, asya_gateway::WORK, async |gateway| {
        gateway.process(verb, namespace, name, ids.as_deref()).await
    })
    .await;
    match done {
        Ok(done) if !done.missing.is_empty() => {
            let text = format!(
                "Dead letter {} of {namespace}/{name} not found: it has been redriven or deleted already.",
                done.missing.join(", ")
            );
            refusal::refuse(StatusCode::NOT_FOUND, &text)
        }
        Ok(_) => Redirect::to(&place.href()).into_response(),
        Err(failed) => failed.page(),
    }
}

fn unclear() -> Response {
    let text = "The request does not identify a dead letter. Nothing was changed. Select one on the page of the actor.";
    refusal::refuse(StatusCode::BAD_REQUEST, text)
}
