//! Any bytes as a request to the router, as JSON and as a form: it is refused with a short message, or it names one model. With
//! another name of the model, the rest of the body stays as it was, and the engine reads that name. A stream has its tokens.
//!
//! The input is two parts with a NUL between: the name that the engine knows, and the body.

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use runway_router::paths::Endpoint;
use runway_router::requested::Requested;
use serde_json::Value;

const MAX_MESSAGE: usize = 1024;

pub fn run(data: &[u8]) {
    let [name, body] = crate::parts(data);
    let Some(name) = crate::text(name) else { return };
    let body = Bytes::copy_from_slice(body);
    if let Some(requested) = read("/v1/audio/transcriptions", &body) {
        let renamed = requested.renamed(&body, name, true).whole();
        assert_eq!(renamed.len() + requested.model.len(), body.len() + name.len());
    }
    let Some(requested) = read("/v1/chat/completions", &body) else {
        return;
    };
    let whole = |name: &str, with_usage| requested.renamed(&body, name, with_usage).whole();
    assert_eq!(
        whole(&requested.model, false),
        body,
        "the same name is sent as it was written"
    );
    let renamed: Value = serde_json::from_slice(&whole(name, false)).expect("it was JSON before");
    assert_eq!(renamed["model"], name);
    if let Ok(mut before) = serde_json::from_slice::<Value>(&body) {
        before["model"] = Value::from(name);
        assert_eq!(renamed, before);
    }
    let mut with_usage: Value = serde_json::from_slice(&whole(name, true)).expect("it was JSON before");
    if requested.lacks_usage() {
        assert_eq!(with_usage["stream_options"]["include_usage"], true);
        with_usage["stream_options"] = renamed["stream_options"].clone();
        let mut renamed = renamed;
        renamed["stream_options"] = with_usage["stream_options"].clone();
        assert_eq!(with_usage, renamed);
    } else {
        assert_eq!(with_usage, renamed);
    }
}

fn read(path: &str, body: &Bytes) -> Option<Requested> {
    let content = HeaderValue::from_static("multipart/form-data; boundary=b");
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, content)]);
    let endpoint = Endpoint::at(path).expect("a path of the API");
    match Requested::read(endpoint, &headers, body) {
        Ok(requested) => Some(requested),
        Err(error) => {
            assert!(error.to_string().len() <= MAX_MESSAGE, "{error}");
            None
        }
    }
}
