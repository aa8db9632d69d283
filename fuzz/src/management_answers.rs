//! Any JSON as an answer of RabbitMQ's management API: what is read of it is a number, or a version of bounded length.
//!
//! The input is two parts with a NUL between: the name of a queue, and the answer.

use runway_asya_transport::management::{unacknowledged_in, version_in};

pub fn run(data: &[u8]) {
    let [queue, answer] = crate::parts(data);
    let (Some(queue), Ok(answer)) = (crate::text(queue), serde_json::from_slice(answer)) else {
        return;
    };
    assert_eq!(unacknowledged_in(&answer, queue), unacknowledged_in(&answer, queue));
    if let Some(version) = version_in(&answer) {
        assert!(
            version.len() <= 64 && version.is_ascii() && !version.contains(char::is_control),
            "{version}"
        );
    }
}
