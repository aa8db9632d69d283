//! A talk with a model through the API server's proxy, as the user. With a script words are shown as they come; without, the
//! whole answer is the next page.

use askama::Template;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, pin_mut};
use runway_api::{ModelDeployment, Phase};
use runway_client::chat::{Message, Options, Part};
use runway_client::endpoint;
use runway_client::talk::{Error, Talk};
use runway_operator::clock;
use runway_operator::telemetry::chain;
use serde::Deserialize;
use serde_json::json;

use super::deployment::{Head, find};
use crate::form::Pairs;
use crate::guard::{Asker, Of, Sent};
use crate::page::Shell;
use crate::refusal;
use crate::sessions::Session;

/// Chat history that the browser keeps.
#[derive(Deserialize)]
struct Said {
    role: String,
    content: String,
}

#[derive(Template)]
#[template(path = "chat.html")]
struct Page {
    shell: Shell,
    head: Head,
    /// Reason why it may not answer.
    note: String,
    can_be_asked: bool,
    talk: Vec<Message>,
    history: String,
    fault: String,
}

/// The page.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    match find(&session, &namespace, &name).await {
        Ok(md) => page(&session, &md, StatusCode::OK, Vec::new(), String::new()),
        Err(response) => response,
    }
}

/// Asks, and answers with what is answered.
pub async fn ask(Asker(session): Asker, Of { namespace, name }: Of, Sent(sent): Sent) -> Response {
    let md = match find(&session, &namespace, &name).await {
        Ok(md) => md,
        Err(response) => return response,
    };
    let bit_by_bit = sent.get("stream") == Some("true");
    let mut messages = messages(&sent);
    let parts = match begin(&session, &md, &messages).await {
        Ok(parts) => parts,
        Err((status, text)) if bit_by_bit => return (status, text).into_response(),
        Err((status, text)) => return page(&session, &md, status, messages, text),
    };
    if bit_by_bit {
        // One line of JSON for each part. What breaks off says so in its last line.
        let lines = parts.map(|part| {
            let line = part.map_or_else(|e| json!({"kind": "fault", "text": chain(&e)}), |part| json!(part));
            Ok::<_, std::convert::Infallible>(format!("{line}\n"))
        });
        let lines = lines.take_until(session.over());
        return ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response();
    }
    pin_mut!(parts);
    let fault = loop {
        match parts.try_next().await {
            Ok(Some(part)) => add(&mut messages, part),
            Ok(None) => break String::new(),
            Err(error) => break chain(&error),
        }
    };
    page(&session, &md, StatusCode::OK, messages, fault)
}

/// Adds a part to the last message, or a message with a role of its own. Only those of user and assistant are sent to the model.
fn add(messages: &mut Vec<Message>, part: Part) {
    let (role, text) = match part {
        Part::Text(text) => ("assistant", text),
        Part::Reasoning(text) | Part::ToolCall(text) => ("aside", text),
        Part::Note(text) => ("note", text),
    };
    match messages.last_mut().filter(|last| last.role == role) {
        Some(last) => last.content.push_str(&text),
        None => messages.push(Message { role, content: text }),
    }
}

async fn begin(
    session: &Session,
    md: &ModelDeployment,
    messages: &[Message],
) -> Result<impl futures::Stream<Item = Result<Part, Error>> + Send + use<>, (StatusCode, String)> {
    let lens = &session.lens;
    let cluster = lens.cluster();
    let access = endpoint::access(md);
    let access = access.ok_or_else(|| (StatusCode::CONFLICT, "no endpoint yet".to_owned()))?;
    let refused = |error: Error| {
        let status = match &error {
            Error::Cluster(error) => super::actions::status(error),
            Error::Refused { .. } | Error::Nameless(_) => StatusCode::BAD_GATEWAY,
        };
        (status, chain(&error))
    };
    let talk = Talk::begin(&cluster, access, None).await.map_err(refused)?;
    talk.answer(messages, &Options::default()).await.map_err(refused)
}

/// Messages of the chat, including the new one.
fn messages(sent: &Pairs) -> Vec<Message> {
    let history: Vec<Said> = sent
        .get("history")
        .and_then(|history| serde_json::from_str(history).ok())
        .unwrap_or_default();
    let now = Said {
        role: "user".to_owned(),
        content: sent.get("message").unwrap_or_default().to_owned(),
    };
    let message = |said: Said| {
        let role = if said.role == "assistant" { "assistant" } else { "user" };
        Message {
            role,
            content: said.content,
        }
    };
    history.into_iter().chain([now]).map(message).collect()
}

fn page(session: &Session, md: &ModelDeployment, status: StatusCode, talk: Vec<Message>, fault: String) -> Response {
    let head = Head::new(md, "chat", clock::now());
    let access = endpoint::access(md);
    let history: Vec<_> = talk
        .iter()
        .filter(|m| ["user", "assistant"].contains(&m.role))
        .collect();
    let note = match &access {
        None => "The model has no endpoint yet and cannot be reached.".to_owned(),
        Some(access) if !access.serves => {
            let phase = md
                .status
                .as_ref()
                .and_then(|s| s.phase)
                .map_or("without status", Phase::as_str);
            format!("The model is {phase} and may not answer.")
        }
        Some(_) => String::new(),
    };
    refusal::status_html(
        status,
        &Page {
            shell: Shell::new(session, "deployments", format!("{}, chat", head.row.name)),
            head,
            note,
            can_be_asked: access.is_some(),
            history: serde_json::to_string(&history).unwrap_or_default(),
            talk,
            fault,
        },
    )
}
