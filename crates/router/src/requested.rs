//! The part of a request that the router reads: the name of the model. Pure.

use bytes::buf::Chain;
use bytes::{Buf as _, Bytes};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A body with another name of the model. The rest is shared with the body that the client sent.
pub type Renamed = Chain<Chain<Bytes, Bytes>, Bytes>;

/// Longest name of a model, in bytes: refusals repeat it.
const LONGEST: usize = 1024;

/// The model that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Name of the model.
    pub model: String,
    /// First and last byte of the name, with its quotes.
    at: (usize, usize),
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
}

impl Requested {
    /// Reads the name in a body.
    ///
    /// # Errors
    /// The body is not JSON, or names no model, or two.
    pub fn read(body: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Request<'a> {
            #[serde(borrow)]
            model: &'a RawValue,
        }
        // serde reads an array as the fields of a struct, too.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Error::NotAnObject("it does not begin with '{'".to_owned()));
        }
        // serde does not look at the text of fields that it skips.
        let body = str::from_utf8(body).map_err(|error| Error::NotAnObject(error.to_string()))?;
        let request: Request<'_> = serde_json::from_str(body).map_err(|error| Error::NotAnObject(error.to_string()))?;
        let text = request.model.get();
        let model: String = serde_json::from_str(text).map_err(|_| Error::NotAName)?;
        if model.len() > LONGEST {
            return Err(Error::TooLong(model.len()));
        }
        let start = (text.as_ptr() as usize).saturating_sub(body.as_ptr() as usize);
        Ok(Self {
            model,
            at: (start, start + text.len()),
        })
    }

    /// The body with this name of the model.
    pub fn renamed(&self, body: &Bytes, name: &str) -> Renamed {
        let (start, end) = self.at;
        let text = if name == self.model {
            body.slice(start..end)
        } else {
            serde_json::Value::from(name).to_string().into()
        };
        body.slice(..start).chain(text).chain(body.slice(end..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed(body: &'static str, name: &str) -> String {
        let requested = Requested::read(body.as_bytes()).unwrap();
        let mut whole = requested.renamed(&Bytes::from_static(body.as_bytes()), name);
        String::from_utf8(whole.copy_to_bytes(whole.remaining()).to_vec()).unwrap()
    }

    #[test]
    fn only_the_name_of_the_model_changes() {
        let body = r#" {"messages": [{"model": "inner"}], "model" : "a\/b", "x": 1e2} "#;
        assert_eq!(Requested::read(body.as_bytes()).unwrap().model, "a/b");
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
    fn bodies_without_one_name_are_refused() {
        for body in [
            "",
            "{",
            "[]",
            r#"["a"]"#,
            "null",
            "{}",
            r#"{"model":"a","model":"b"}"#,
            "{\"model\":\"\u{0}\"}",
        ] {
            assert!(Requested::read(body.as_bytes()).is_err(), "{body}");
        }
        for body in [r#"{"model":null}"#, r#"{"model":1}"#, r#"{"model":["a"]}"#] {
            assert!(
                matches!(Requested::read(body.as_bytes()), Err(Error::NotAName)),
                "{body}"
            );
        }
        for encoding in [b"{\"model\":\"\xff\"}".as_slice(), b"{\"x\":\"\xff\",\"model\":\"a\"}"] {
            assert!(matches!(Requested::read(encoding), Err(Error::NotAnObject(_))));
        }
        let long = format!(r#"{{"model":"{}"}}"#, "a".repeat(LONGEST + 1));
        let error = Requested::read(long.as_bytes()).unwrap_err();
        assert!(
            matches!(error, Error::TooLong(_)) && error.to_string().len() < 200,
            "{error}"
        );
    }
}
