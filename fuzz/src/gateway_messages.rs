//! Any bytes as a result at the reply queue, and as a report of a sidecar: they are read, or are not. Progress is a percentage.
//!
//! The input is an id, a result and a report, with a NUL between.

use bytes::Bytes;
use runway_asya_gateway::job::{Item, Progress};
use runway_asya_gateway::server::Report;
use runway_asya_gateway::submission::Reply;

pub fn run(data: &[u8]) {
    let [id, reply, report] = crate::parts(data);
    check_id(crate::text(id).unwrap_or_default());
    let reply = Bytes::copy_from_slice(reply);
    if let Ok(read) = serde_json::from_slice::<Reply<'_>>(&reply) {
        check_id(&read.id);
        // The payload is stored as a part of the message.
        let payload = reply.slice_ref(read.payload.get().as_bytes());
        assert!(!payload.is_empty() && payload.len() < reply.len());
    }
    if let Ok(report) = serde_json::from_slice::<Report>(report) {
        assert!(Progress::from(report).percent() <= 100);
    }
}

/// An id is written as it was read.
fn check_id(id: &str) {
    if let Some(item) = Item::parse(id) {
        assert_eq!(item.to_string(), id);
    }
}
