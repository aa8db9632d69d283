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

/// A piece of a streamed answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// More words.
    Text(String),
    /// That was all.
    Done,
    /// The server gave up.
    Failed(String),
    /// A line without text: an empty line, a comment, a role.
    Nothing,
}

/// Parses one line of a stream of server-sent events.
pub fn piece(line: &str) -> Piece {
    let Some(data) = line.trim_end().strip_prefix("data:").map(str::trim_start) else {
        // A server that cannot stream answers in one piece, or with an error.
        return serde_json::from_str(line).map_or(Piece::Nothing, |whole: Value| of_value(&whole));
    };
    if data == "[DONE]" {
        return Piece::Done;
    }
    match serde_json::from_str::<Value>(data) {
        Ok(value) => of_value(&value),
        Err(_) => Piece::Failed(format!("the server sent invalid JSON: {data}")),
    }
}

fn of_value(value: &Value) -> Piece {
    if let Some(error) = value.get("error") {
        let message = error["message"].as_str().or_else(|| error.as_str());
        return Piece::Failed(message.map_or_else(|| error.to_string(), str::to_owned));
    }
    let choice = &value["choices"][0];
    let text = choice["delta"]["content"]
        .as_str()
        .or_else(|| choice["message"]["content"].as_str());
    match text {
        Some(text) if !text.is_empty() => Piece::Text(text.to_owned()),
        _ => Piece::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_line_by_line() {
        let lines = [
            (
                "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}",
                Piece::Nothing,
            ),
            (
                "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}",
                Piece::Text("Hel".to_owned()),
            ),
            (
                "data:{\"choices\":[{\"delta\":{\"content\":\"lo\"}}]}\r",
                Piece::Text("lo".to_owned()),
            ),
            (": keep-alive", Piece::Nothing),
            ("", Piece::Nothing),
            ("data: [DONE]", Piece::Done),
            (
                "data: {\"error\":{\"message\":\"too long\"}}",
                Piece::Failed("too long".to_owned()),
            ),
            ("data: {", Piece::Failed("the server sent invalid JSON: {".to_owned())),
            (
                "{\"choices\":[{\"message\":{\"content\":\"whole\"}}]}",
                Piece::Text("whole".to_owned()),
            ),
        ];
        for (line, wanted) in lines {
            assert_eq!(piece(line), wanted, "{line}");
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
