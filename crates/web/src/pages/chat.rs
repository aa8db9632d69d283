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

use super::deployment::{Head, find, served_name};
use crate::form::Pairs;
use crate::guard::{Asker, Of, Sent};
use crate::page::Shell;
use crate::refusal;
use crate::sessions::Session;

/// Role of the instruction that precedes a chat.
const SYSTEM: &str = "system";
/// Highest temperature that servers accept.
const MAX_TEMPERATURE: f64 = 2.0;

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
    accepts_questions: bool,
    /// Name of the model in requests.
    served: String,
    /// Instruction for the model that precedes the chat.
    system: String,
    temperature: String,
    talk: Vec<Message>,
    history: String,
    fault: String,
}

/// The page.
pub async fn show(Asker(session): Asker, Of { namespace, name }: Of) -> Response {
    match find(&session, &namespace, &name).await {
        Ok(md) => page(
            &session,
            &md,
            StatusCode::OK,
            &Pairs::default(),
            Vec::new(),
            String::new(),
        ),
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
    let begun = match temperature(&sent) {
        Ok(options) => begin(&session, &md, &messages, &options).await,
        Err(text) => Err((StatusCode::UNPROCESSABLE_ENTITY, text)),
    };
    let parts = match begun {
        Ok(parts) => parts,
        Err((status, text)) if bit_by_bit => return (status, text).into_response(),
        Err((status, text)) => return page(&session, &md, status, &sent, messages, text),
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
    page(&session, &md, StatusCode::OK, &sent, messages, fault)
}

/// Sampling options of the form.
fn temperature(sent: &Pairs) -> Result<Options, String> {
    let text = sent.get("temperature").unwrap_or_default().trim();
    let range = 0.0..=MAX_TEMPERATURE;
    let parsed = text.parse::<f64>().ok().filter(|number| range.contains(number));
    if parsed.is_none() && !text.is_empty() {
        return Err(format!(
            "invalid temperature '{text}': use a number from 0 to {MAX_TEMPERATURE}"
        ));
    }
    Ok(Options {
        temperature: parsed,
        ..Options::default()
    })
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
    options: &Options,
) -> Result<impl futures::Stream<Item = Result<Part, Error>> + Send + use<>, (StatusCode, String)> {
    let view = &session.view;
    let cluster = view.cluster();
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
    talk.answer(messages, options).await.map_err(refused)
}

/// Messages of the chat, including the system prompt and the new one.
fn messages(sent: &Pairs) -> Vec<Message> {
    let system = sent.get("system").unwrap_or_default().trim();
    let system = (!system.is_empty()).then(|| Message {
        role: SYSTEM,
        content: system.to_owned(),
    });
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
    let chat = history.into_iter().chain([now]).map(message);
    system.into_iter().chain(chat).collect()
}

fn page(
    session: &Session,
    md: &ModelDeployment,
    status: StatusCode,
    sent: &Pairs,
    mut talk: Vec<Message>,
    fault: String,
) -> Response {
    talk.retain(|message| message.role != SYSTEM);
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
            served: served_name(md),
            system: sent.get("system").unwrap_or_default().to_owned(),
            temperature: sent.get("temperature").unwrap_or_default().to_owned(),
            accepts_questions: access.is_some(),
            history: serde_json::to_string(&history).unwrap_or_default(),
            talk,
            fault,
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_prompt_comes_first_and_temperature_is_checked() {
        let sent = Pairs::parse(b"system=Be+brief&message=Hi&history=[]&temperature=0.5");
        let roles: Vec<&str> = messages(&sent).iter().map(|message| message.role).collect();
        assert_eq!(roles, [SYSTEM, "user"]);
        assert_eq!(temperature(&sent).unwrap().temperature, Some(0.5));
        assert_eq!(messages(&Pairs::parse(b"system=+&message=Hi")).len(), 1);
        for (text, wanted) in [
            ("", Ok(None)),
            ("0", Ok(Some(0.0))),
            ("3", Err(())),
            ("x", Err(())),
            ("NaN", Err(())),
        ] {
            let found = temperature(&Pairs::parse(format!("temperature={text}").as_bytes()));
            assert_eq!(found.map(|options| options.temperature).map_err(drop), wanted, "{text}");
        }
    }
}
