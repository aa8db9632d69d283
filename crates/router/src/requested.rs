//! The parts of a request that the router reads: the name of the model, the prompt, and whether the response is a stream. Pure.

use std::ops::Range;

use axum::http::HeaderMap;
use bytes::Bytes;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::body::Body;
use crate::form;
use crate::paths::{Content, Endpoint};
use crate::prompt::Prompt;

/// Longest name of a model, in bytes: refusals repeat it.
const LONGEST: usize = 1024;
/// Bytes of a prompt for each token, about, where no engine reports tokens.
const BYTES_OF_TOKEN: usize = 4;

/// A request, as far as the router reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Name of the model.
    pub model: String,
    /// Beginnings of the prompt.
    pub prompt: Prompt,
    /// Tokens of the prompt, by its length.
    pub estimated_tokens: u64,
    /// Place of the name, with its quotes in JSON.
    at: Range<usize>,
    is_json: bool,
    /// Place of `stream_options`, and what it becomes so that the engine reports tokens. `None` if it reports them anyway.
    with_usage: Option<(Range<usize>, Bytes)>,
}

/// Reason why a body cannot be routed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not an object of JSON.
    #[error("the body is not a JSON object with the field `model`: {0}")]
    NotAnObject(String),
    /// The name of the model is not a string.
    #[error("the field `model` is not the name of a model: set it to an id of GET /v1/models")]
    NotAName,
    /// The name of the model is longer than any.
    #[error(
        "the field `model` has {0} bytes, and no model has a name of more than {LONGEST}: set it to an id of GET /v1/models"
    )]
    TooLong(usize),
    /// It is not a form with a name of a model.
    #[error(transparent)]
    Form(#[from] form::Error),
}

/// The fields of JSON that are read.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: &'a RawValue,
    stream: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "with_null")]
    stream_options: Option<&'a RawValue>,
    tools: Option<&'a RawValue>,
    system: Option<&'a RawValue>,
    instructions: Option<&'a RawValue>,
    messages: Option<&'a RawValue>,
    prompt: Option<&'a RawValue>,
    input: Option<&'a RawValue>,
}

/// A field that is `null` is there, too.
fn with_null<'de, D: Deserializer<'de>>(field: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(field).map(Some)
}

impl Requested {
    /// Reads a body.
    ///
    /// # Errors
    /// The body has not the content of the endpoint, or names no model, or two.
    pub fn read(endpoint: Endpoint, headers: &HeaderMap, body: &[u8]) -> Result<Self, Error> {
        match endpoint.content {
            Content::Json => Self::read_json(body, endpoint.has_stream_options),
            Content::Form => Self::read_form(body, form::boundary(headers)?),
        }
    }

    fn read_json(body: &[u8], has_stream_options: bool) -> Result<Self, Error> {
        let invalid = |error: String| Error::NotAnObject(error);
        // serde reads an array as the fields of a struct, too.
        let start = body.len() - body.trim_ascii_start().len();
        if body.get(start) != Some(&b'{') {
            return Err(invalid("it does not begin with '{'".to_owned()));
        }
        // serde does not look at the text of fields that it skips.
        let body = str::from_utf8(body).map_err(|error| invalid(error.to_string()))?;
        let fields: Fields<'_> = serde_json::from_str(body).map_err(|error| invalid(error.to_string()))?;
        let model: String = serde_json::from_str(fields.model.get()).map_err(|_| Error::NotAName)?;
        check_length(model.len())?;
        let place = |value: &RawValue| {
            let start = (value.get().as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
            start..start + value.get().len()
        };
        let is_stream = fields.stream.is_some_and(|stream| stream.get() == "true");
        let with_usage = (is_stream && has_stream_options).then(|| match fields.stream_options {
            None => Some((
                start + 1..start + 1,
                Bytes::from_static(b"\"stream_options\":{\"include_usage\":true},"),
            )),
            Some(options) => Some((place(options), including_usage(options)?)),
        });
        // In the order in which the templates of chats use them.
        let prompt = [
            fields.tools,
            fields.system,
            fields.instructions,
            fields.messages,
            fields.prompt,
            fields.input,
        ];
        let prompt = prompt.into_iter().flatten().map(|part| part.get().as_bytes());
        Ok(Self {
            prompt: Prompt::of(&model, prompt.clone()),
            estimated_tokens: tokens(prompt.map(<[u8]>::len).sum()),
            model,
            at: place(fields.model),
            is_json: true,
            with_usage: with_usage.flatten(),
        })
    }

    fn read_form(body: &[u8], boundary: &str) -> Result<Self, Error> {
        let at = form::model(body, boundary)?;
        check_length(at.len())?;
        let model = str::from_utf8(&body[at.clone()]).map_err(|_| Error::NotAName)?;
        Ok(Self {
            model: model.to_owned(),
            prompt: Prompt::default(),
            estimated_tokens: 0,
            at,
            is_json: false,
            with_usage: None,
        })
    }

    /// Whether the engine reports the tokens of the stream only if it is requested in addition.
    pub fn lacks_usage(&self) -> bool {
        self.with_usage.is_some()
    }

    /// The body with this name of the model, and with the request for tokens if it `lacks_usage`. The rest is shared with the body
    /// that the client sent.
    pub fn renamed(&self, body: &Bytes, name: &str, requests_usage: bool) -> Body {
        let text = if name == self.model {
            body.slice(self.at.clone())
        } else if self.is_json {
            Value::from(name).to_string().into()
        } else {
            name.to_owned().into()
        };
        let mut edits = vec![(self.at.clone(), text)];
        edits.extend(self.with_usage.clone().filter(|_| requests_usage));
        edits.sort_by_key(|(place, _)| place.start);
        let mut parts = Vec::with_capacity(2 * edits.len() + 1);
        let mut end = 0;
        for (place, text) in edits {
            parts.extend([body.slice(end..place.start), text]);
            end = place.end;
        }
        parts.push(body.slice(end..));
        Body::new(parts)
    }
}

fn check_length(length: usize) -> Result<(), Error> {
    if length > LONGEST {
        return Err(Error::TooLong(length));
    }
    Ok(())
}

/// Options of a stream with the tokens. `None` if they have them, or are nothing that an engine accepts.
fn including_usage(options: &RawValue) -> Option<Bytes> {
    const FIELD: &str = "include_usage";
    let options: Option<Map<String, Value>> = serde_json::from_str(options.get()).ok()?;
    let mut options = options.unwrap_or_default();
    if options.get(FIELD) == Some(&Value::Bool(true)) {
        return None;
    }
    options.insert(FIELD.to_owned(), Value::Bool(true));
    Some(Value::Object(options).to_string().into())
}

fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(BYTES_OF_TOKEN)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use axum::http::header::CONTENT_TYPE;

    use super::*;

    fn read(body: &str) -> Result<Requested, Error> {
        Requested::read_json(body.as_bytes(), true)
    }

    fn renamed_with(body: &'static str, name: &str, requests_usage: bool) -> String {
        let whole = read(body)
            .unwrap()
            .renamed(&Bytes::from_static(body.as_bytes()), name, requests_usage);
        String::from_utf8(whole.whole().to_vec()).unwrap()
    }

    fn renamed(body: &'static str, name: &str) -> String {
        renamed_with(body, name, false)
    }

    #[test]
    fn only_the_name_of_the_model_changes() {
        let body = r#" {"messages": [{"model": "inner"}], "model" : "a\/b", "x": 1e2} "#;
        assert_eq!(read(body).unwrap().model, "a/b");
        let expected = r#" {"messages": [{"model": "inner"}], "model" : "it\"s", "x": 1e2} "#;
        assert_eq!(renamed(body, "it\"s"), expected);
        assert_eq!(
            renamed(body, "a/b"),
            body,
            "the same name is sent as the client wrote it"
        );
    }

    #[test]
    fn key_is_found_however_it_is_written() {
        assert_eq!(renamed(r#"{"mod\u0065l":"a"}"#, "b"), r#"{"mod\u0065l":"b"}"#);
    }

    #[test]
    fn stream_requests_its_tokens_unless_it_has_them() {
        for (body, expected) in [
            (
                r#" {"model":"a","stream":true}"#,
                r#" {"stream_options":{"include_usage":true},"model":"b","stream":true}"#,
            ),
            (
                r#"{"stream_options":null,"stream": true,"model":"a"}"#,
                r#"{"stream_options":{"include_usage":true},"stream": true,"model":"b"}"#,
            ),
            (
                r#"{"model":"a","stream":true,"stream_options":{"include_usage":false,"x":1}}"#,
                r#"{"model":"b","stream":true,"stream_options":{"include_usage":true,"x":1}}"#,
            ),
        ] {
            assert!(read(body).unwrap().lacks_usage(), "{body}");
            assert_eq!(renamed_with(body, "b", true), expected);
            assert_eq!(renamed_with(body, "a", false), body);
        }
        for body in [
            r#"{"model":"a","stream":true,"stream_options":{"include_usage":true}}"#,
            r#"{"model":"a","stream":true,"stream_options":7}"#,
            r#"{"model":"a","stream":false}"#,
            r#"{"model":"a"}"#,
        ] {
            assert!(!read(body).unwrap().lacks_usage(), "{body}");
            assert_eq!(renamed_with(body, "a", true), body);
        }
    }

    #[test]
    fn prompt_is_that_of_every_api() {
        let text = "x".repeat(600);
        for body in [
            format!(r#"{{"model":"a","messages":["{text}"]}}"#),
            format!(r#"{{"model":"a","prompt":"{text}"}}"#),
            format!(r#"{{"model":"a","system":"","input":"{text}"}}"#),
        ] {
            let requested = read(&body).unwrap();
            assert_eq!(requested.prompt.blocks().len(), 2, "{body}");
            assert!((150..153).contains(&requested.estimated_tokens));
        }
    }

    #[test]
    fn model_of_a_form_is_renamed() {
        let endpoint = Endpoint::at("/v1/audio/transcriptions").unwrap();
        let content = HeaderValue::from_static("multipart/form-data; boundary=b");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content)]);
        let form =
            |model: &str| format!("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\n{model}\r\n--b--\r\n");
        let body = Bytes::from(form("whisper"));
        let requested = Requested::read(endpoint, &headers, &body).unwrap();
        assert_eq!(requested.model, "whisper");
        assert_eq!(requested.renamed(&body, "it\"s", true).whole(), form("it\"s"));
        let long = Bytes::from(form(&"a".repeat(LONGEST + 1)));
        assert!(matches!(
            Requested::read(endpoint, &headers, &long),
            Err(Error::TooLong(_))
        ));
        assert!(matches!(
            Requested::read(endpoint, &HeaderMap::new(), &body),
            Err(Error::Form(_))
        ));
    }

    #[test]
    fn bodies_without_one_name_are_refused() {
        for body in [
            "",
            "{",
            "[]",
            r#"["a"]"#,
            "null",
            "{}",
            r#"{"model":"a","model":"b"}"#,
            r#"{"model":"a","stream":true,"stream":false}"#,
            "{\"model\":\"\u{0}\"}",
        ] {
            assert!(read(body).is_err(), "{body}");
        }
        for body in [r#"{"model":null}"#, r#"{"model":1}"#, r#"{"model":["a"]}"#] {
            assert!(matches!(read(body), Err(Error::NotAName)), "{body}");
        }
        for encoding in [b"{\"model\":\"\xff\"}".as_slice(), b"{\"x\":\"\xff\",\"model\":\"a\"}"] {
            assert!(matches!(
                Requested::read_json(encoding, true),
                Err(Error::NotAnObject(_))
            ));
        }
        let long = format!(r#"{{"model":"{}"}}"#, "a".repeat(LONGEST + 1));
        let error = read(&long).unwrap_err();
        assert!(
            matches!(error, Error::TooLong(_)) && error.to_string().len() < 200,
            "{error}"
        );
    }
}
