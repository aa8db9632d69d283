//! Any bytes as the response of an engine, whole or as a stream, in parts of any size: the client gets what the engine sent, without
//! the events that the router requested, and the tokens do not depend on the parts.
//!
//! The first byte is the size of the parts.

use std::sync::{Arc, Mutex};

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use runway_router::metered::{Count, Metered};
use runway_router::usage;
use serde_json::Value;

/// Larger values of `usage` are not kept.
const LARGEST_USAGE: usize = 4096;

pub fn run(data: &[u8]) {
    let Some((size, body)) = data.split_first() else { return };
    let size = usize::from(*size).max(1);
    for content in ["text/event-stream", "application/json"] {
        let (sent, count) = received(content, body, size, false);
        assert_eq!(sent, body);
        assert_eq!(received(content, body, usize::MAX, false), (sent, count));
    }
    let removed = received("text/event-stream", body, size, true);
    assert_eq!(removed, received("text/event-stream", body, usize::MAX, true));
    assert!(removed.0.len() <= body.len());
    let whole = received("application/json", body, size, false).1;
    if let Ok(Value::Object(object)) = serde_json::from_slice(body)
        && !body.contains(&b'\\')
        && body.windows(7).filter(|part| part == b"\"usage\"").count() == 1
        && let Some(value) = object.get("usage").map(Value::to_string)
        && body.len() <= LARGEST_USAGE
    {
        assert_eq!(whole.usage, usage::read(value.as_bytes()));
    }
}

fn received(content: &'static str, body: &[u8], size: usize, added: bool) -> (Vec<u8>, Count) {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content))]);
    let parts: Vec<_> = body
        .chunks(size)
        .map(|part| Ok::<_, String>(Frame::data(Bytes::copy_from_slice(part))))
        .collect();
    let count = Arc::new(Mutex::new(None));
    let metered = Metered::new(&headers, StreamBody::new(futures::stream::iter(parts)), added, {
        let count = Arc::clone(&count);
        move |counted| *count.lock().unwrap() = Some(counted)
    });
    let whole = crate::wait(metered.collect())
        .expect("no part fails")
        .to_bytes()
        .to_vec();
    let count: Count = count.lock().unwrap().take().expect("it is counted at its end");
    // The time of the first part depends on the parts.
    let count = Count {
        first_part: None,
        ..count
    };
    (whole, count)
}
