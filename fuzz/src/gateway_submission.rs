//! Any request as a submission: it is refused with a message of bounded length, or its message carries the payload unchanged, and is
//! the same twice.
//!
//! The input is the namespace, the actor, a header `NAME: VALUE` in each line, and the body, with a NUL between.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use runway_asya_gateway::job::Id;
use runway_asya_gateway::submission::{Submission, Times, preferred_wait};
use serde_json::Value;

const TIMES: Times = Times {
    usual: Duration::from_hours(1),
    longest: Duration::from_hours(24),
};
const MAX_MESSAGE: usize = 1024;

pub fn run(data: &[u8]) {
    let [namespace, actor, lines, body] = crate::parts(data);
    let (Some(namespace), Some(actor)) = (crate::text(namespace), crate::text(actor)) else {
        return;
    };
    let headers: HeaderMap = lines.split(|byte| *byte == b'\n').filter_map(header).collect();
    let body = Bytes::copy_from_slice(body);
    let _ = preferred_wait(&headers);
    let submission = match Submission::parse(namespace, actor, &headers, &body, TIMES) {
        Ok(submission) => submission,
        Err(error) => {
            assert!(error.to_string().len() <= MAX_MESSAGE, "{error}");
            return;
        }
    };
    assert!(submission.time >= Duration::from_secs(1) && submission.time <= TIMES.longest);
    let job = submission.job("ada", "", 0);
    assert!(job.deadline > 0 && job.route.len() <= 64);
    let message = submission.envelope(Id(7), job.deadline, "gateway");
    assert_eq!(message, submission.envelope(Id(7), job.deadline, "gateway"));
    let envelope: Value = serde_json::from_slice(&message).expect("it is JSON");
    let payload: Value = serde_json::from_slice(&body).expect("it was accepted");
    assert_eq!(envelope["payload"], payload);
    assert_eq!(envelope["id"], Id(7).to_string());
}

fn header(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = HeaderName::from_bytes(&line[..colon]).ok()?;
    Some((name, HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?))
}
