//! `kubeairunway chat`: requests to the OpenAI endpoint of a model, and its streamed responses. Pure.

use serde::Serialize;
use serde_json::{Value, json};

/// A message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: &'static str,
    /// Text of the message.
    pub content: String,
}

/// Sampling options of a request.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Tokens of the answer at most.
    pub max_tokens: Option<u32>,
    /// Sampling temperature; 0 is deterministic.
    pub temperature: Option<f64>,
}

/// The body of a request for a streamed answer.
pub fn body(model: &str, messages: &[Message], options: &Options) -> Value {
    let mut body = json!({ "model": model, "messages": messages, "stream": true });
    if let Some(max) = options.max_tokens {
        body["max_tokens"] = max.into();
    }
    if let Some(temperature) = options.temperature {
        body["temperature"] = temperature.into();
    }
    body
}

/// The name to ask for: the one that is expected if the server knows it, or else the first that it knows.
pub fn model(expected: Option<&str>, models: &Value) -> Option<String> {
    let served = models["data"].as_array().into_iter().flatten();
    let names: Vec<&str> = served.filter_map(|model| model["id"].as_str()).collect();
    let known = expected.filter(|name| names.contains(name));
    known.or_else(|| names.first().copied()).or(expected).map(str::to_owned)
}

/// A part of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "text", rename_all = "kebab-case")]
pub enum Part {
    /// Words of the answer, or of the model's refusal to answer.
    Text(String),
    /// Words of the reasoning that precedes the answer.
    Reasoning(String),
    /// Name or arguments of a call of a tool.
    ToolCall(String),
    /// Reason why the answer ended early.
    Note(String),
}

/// Parses the data of one event of a streamed answer, or a whole answer.
///
/// # Errors
/// The data is an error of the server, or not JSON.
pub fn parts(data: &str) -> Result<Vec<Part>, String> {
    let value: Value = serde_json::from_str(data).map_err(|_| format!("the server sent invalid JSON: {data}"))?;
    if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
        let message = error["message"].as_str().or_else(|| error.as_str());
        return Err(message.map_or_else(|| error.to_string(), str::to_owned));
    }
    let choice = &value["choices"][0];
    let said = choice.get("delta").unwrap_or_else(|| &choice["message"]);
    let text = |field: &str| said[field].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    // vLLM renamed the field, and some servers send both.
    let reasoning = text("reasoning_content").or_else(|| text("reasoning"));
    let words = [text("content"), text("refusal")];
    let calls = said["tool_calls"].as_array().into_iter().flatten().flat_map(tool_call);
    let parts = reasoning.map(Part::Reasoning).into_iter();
    let parts = parts.chain(words.into_iter().flatten().map(Part::Text));
    let parts = parts.chain(calls.map(Part::ToolCall));
    Ok(parts.chain(early_end(choice).map(Part::Note)).collect())
}

/// The first event of a call has the name; the arguments follow in pieces.
fn tool_call(call: &Value) -> impl Iterator<Item = String> {
    let name = call["function"]["name"].as_str().filter(|name| !name.is_empty());
    let name = name.map(|name| format!("[call of tool {name}] "));
    let arguments = call["function"]["arguments"].as_str().filter(|text| !text.is_empty());
    name.into_iter().chain(arguments.map(str::to_owned))
}

fn early_end(choice: &Value) -> Option<String> {
    match choice["finish_reason"].as_str()? {
        "" | "stop" | "eos_token" | "stop_sequence" | "tool_calls" | "function_call" => None,
        "length" => Some(
            "the answer was cut off: it reached the maximum number of tokens of the request, the server or the model (finish_reason length)"
                .to_owned(),
        ),
        reason => Some(format!("the server ended the answer early (finish_reason {reason})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_parsed_into_parts() {
        let text = |text: &str| Part::Text(text.to_owned());
        let reasoning = |text: &str| Part::Reasoning(text.to_owned());
        let call = |text: &str| Part::ToolCall(text.to_owned());
        let delta = |delta: Value| json!({ "choices": [{ "delta": delta, "finish_reason": null }] });
        let arguments = json!({ "function": { "arguments": "{\"city\": \"Bonn\"}" } });
        for (event, wanted) in [
            (delta(json!({ "role": "assistant", "content": "" })), vec![]),
            (delta(json!({ "content": "Hel" })), vec![text("Hel")]),
            (
                json!({ "choices": [{ "message": { "content": "whole" } }] }),
                vec![text("whole")],
            ),
            (
                delta(json!({ "reasoning_content": "Let", "content": null })),
                vec![reasoning("Let")],
            ),
            (
                delta(json!({ "reasoning": "me", "reasoning_content": "me" })),
                vec![reasoning("me")],
            ),
            (
                delta(json!({ "reasoning": "see.", "content": "Yes" })),
                vec![reasoning("see."), text("Yes")],
            ),
            (delta(json!({ "refusal": "I cannot" })), vec![text("I cannot")]),
            (
                delta(json!({ "tool_calls": [{ "function": { "name": "weather", "arguments": "" } }] })),
                vec![call("[call of tool weather] ")],
            ),
            (
                delta(json!({ "tool_calls": [arguments] })),
                vec![call("{\"city\": \"Bonn\"}")],
            ),
            (
                json!({ "choices": [], "usage": { "total_tokens": 7 }, "error": null }),
                vec![],
            ),
        ] {
            assert_eq!(parts(&event.to_string()), Ok(wanted), "{event}");
        }
    }

    #[test]
    fn early_end_of_an_answer_is_a_note() {
        for (reason, expected) in [
            ("stop", None),
            ("tool_calls", None),
            ("length", Some("cut off")),
            ("content_filter", Some("content_filter")),
        ] {
            let event = json!({ "choices": [{ "delta": {}, "finish_reason": reason }] });
            let found = parts(&event.to_string()).unwrap();
            match (found.as_slice(), expected) {
                ([], None) => {}
                ([Part::Note(note)], Some(expected)) => assert!(note.contains(expected), "{note}"),
                _ => panic!("{reason}: {found:?}"),
            }
        }
    }

    #[test]
    fn errors_of_the_server_are_reported() {
        for (data, message) in [
            (r#"{"error": {"message": "too long"}}"#, "too long"),
            (r#"{"error": "too long"}"#, "too long"),
            ("{", "the server sent invalid JSON: {"),
        ] {
            assert_eq!(parts(data), Err(message.to_owned()));
        }
    }

    #[test]
    fn the_model_is_called_as_the_server_calls_it() {
        let models = json!({ "data": [{ "id": "a" }, { "id": "b" }] });
        assert_eq!(model(Some("b"), &models).as_deref(), Some("b"));
        assert_eq!(model(Some("org-b"), &models).as_deref(), Some("a"));
        assert_eq!(model(Some("b"), &json!({})).as_deref(), Some("b"));
        assert_eq!(model(None, &json!({})), None);
    }
}
