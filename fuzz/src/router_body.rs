//! Any bytes as a request to the router: it is refused with a short message, or it names one model. With another name of the model,
//! the rest of the body stays as it was, and the engine reads that name.
//!
//! The input is two parts with a NUL between: the name that the engine knows, and the body.

use bytes::{Buf as _, Bytes};
use runway_router::requested::Requested;
use serde_json::Value;

const MAX_MESSAGE: usize = 1024;

pub fn run(data: &[u8]) {
    let [name, body] = crate::parts(data);
    let Some(name) = crate::text(name) else { return };
    let body = Bytes::copy_from_slice(body);
    let requested = match Requested::read(&body) {
        Ok(requested) => requested,
        Err(error) => {
            assert!(error.to_string().len() <= MAX_MESSAGE, "{error}");
            return;
        }
    };
    assert_eq!(
        whole(&requested, &body, &requested.model),
        body,
        "the same name is sent as it was written"
    );
    let renamed = whole(&requested, &body, name);
    let read: Value = serde_json::from_slice(&renamed).expect("it was JSON before");
    assert_eq!(read["model"], name);
    if let Ok(mut before) = serde_json::from_slice::<Value>(&body) {
        before["model"] = Value::from(name);
        assert_eq!(read, before);
    }
}

fn whole(requested: &Requested, body: &Bytes, name: &str) -> Bytes {
    let mut renamed = requested.renamed(body, name);
    renamed.copy_to_bytes(renamed.remaining())
}
