//! Any bytes as a message, any bytes as the runtime's answer: the plan ends, does not panic, sends everything somewhere, and
//! decides the same twice.
//!
//! The first byte says whether the actor is an end actor; then the message, a NUL and the answer.

use std::time::Duration;

use runway_asya_sidecar::plan::{Actor, Admission, Decision, Failures, Outcome, Policy, admit, decide, results};
use runway_asya_sidecar::runtime::frame_length;

pub fn run(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let [body, answer] = crate::parts(rest);
    check(first % 2 == 1, body, &Outcome::Answer(answer.to_vec()));
}

/// Checks what becomes of a message, given how the call of the runtime ended.
pub(crate) fn check(is_end: bool, body: &[u8], outcome: &Outcome) {
    let actor = Actor {
        name: "a".to_owned(),
        happy_end: "happy-end".to_owned(),
        error_end: "error-end".to_owned(),
        is_end,
    };
    let policy = Policy {
        timeout: Duration::from_mins(5),
        max_bytes: 4096,
        max_attempts: 1,
        max_crashes: 1,
        max_deliveries: 20,
        backoff: Duration::from_secs(1),
        max_backoff: Duration::from_secs(30),
    };
    assert_eq!(frame_length(body).is_some(), body.len() >= 4);
    let handle = || match admit(&actor, &policy, body, None, crate::NOW) {
        Admission::Refuse(decision) => decision,
        Admission::Call { envelope, .. } => {
            decide(&actor, &policy, body, envelope.as_deref(), outcome, Failures::default())
        }
    };
    let decision = handle();
    let outgoing = match (&decision, outcome) {
        (Decision::Send(outgoing), _) => outgoing.clone(),
        (Decision::Forward(items), Outcome::Answer(answer)) => results(&actor, body, answer, items).collect(),
        // It is not settled.
        (Decision::Hold { .. }, _) => return,
        _ => panic!("one attempt is allowed, and it is tried again"),
    };
    assert!(is_end || !outgoing.is_empty());
    for message in outgoing {
        if let Some(body) = &message.body {
            // Not as a value: text is passed on as it came, and Python writes surrogates that stand alone.
            serde_json::from_slice::<serde::de::IgnoredAny>(body).expect("JSON");
        }
    }
    assert_eq!(decision, handle());
}
