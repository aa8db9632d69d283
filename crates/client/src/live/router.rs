//! Requests to the model router.

use http::HeaderName;
use runway_api::choice::Choice;
use serde::Serialize;

use super::proxied::{Error, Proxied, Question};

/// Asks for the choice of the replica, and not for an answer of the engine.
const EXPLAIN: HeaderName = HeaderName::from_static("x-kubeairunway-explain");

/// A chat of one message, with its fields in the order in which clients of OpenAI write them: the router compares texts.
#[derive(Serialize)]
struct Chat<'a> {
    messages: [Message<'a>; 1],
    model: &'a str,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

/// The body of a chat with this prompt.
///
/// # Errors
/// Never for text; the library could refuse other values.
pub fn chat(model: &str, prompt: &str) -> Result<Vec<u8>, serde_json::Error> {
    let message = Message {
        role: "user",
        content: prompt,
    };
    serde_json::to_vec(&Chat {
        messages: [message],
        model,
    })
}

/// The replicas that a chat with this body could go to, as one of the routers sees them.
///
/// # Errors
/// The router cannot be reached, or rejects the request.
pub async fn explain(router: &Proxied<'_>, model: &str, body: Vec<u8>) -> Result<Choice, Error> {
    let headers = [
        (EXPLAIN, "only".to_owned()),
        (http::header::CONTENT_TYPE, "application/json".to_owned()),
    ];
    let question = Question {
        doing: format!("explain the route to model '{model}'"),
        path: "/v1/chat/completions".to_owned(),
        headers: &headers,
        body: Some(body),
    };
    router.ask(question).await.map(|(choice, _)| choice)
}
