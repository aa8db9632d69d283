//! Decisions about messages, and properties of all messages and responses.
#![allow(clippy::expect_used, clippy::panic, reason = "a test that cannot run should fail")]

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use runway_asya_sidecar::envelope::Envelope;
use runway_asya_sidecar::plan::{
    Actor, Admission, Decision, Destination, Failures, Kind, Outcome, Outgoing, Policy, admit, decide, results,
    undeliverable, undeliverable_item,
};
use serde_json::{Value, json};

fn actor() -> Actor {
    Actor {
        name: "b".to_owned(),
        happy_end: "happy-end".to_owned(),
        error_end: "error-end".to_owned(),
        is_end: false,
    }
}

fn end_actor() -> Actor {
    Actor {
        name: "error-end".to_owned(),
        is_end: true,
        ..actor()
    }
}

fn policy() -> Policy {
    Policy {
        timeout: Duration::from_mins(5),
        max_bytes: 10_000,
        max_attempts: 1,
        max_crashes: 3,
        max_deliveries: 20,
        backoff: Duration::from_secs(1),
        max_backoff: Duration::from_secs(30),
    }
}

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().expect("a time")
}

/// A message for `b`, second of three.
fn message() -> Value {
    json!({
        "id": "42",
        "route": {"actors": ["a", "b", "c"], "current": 1, "metadata": {"job": 7}},
        "headers": {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        "payload": {"text": "hello"},
        "deadline": "2026-01-02T03:05:05Z",
        "later-key": [1, 2],
    })
}

/// The decision for a message and the response of the runtime, with the messages to send made.
fn handled(actor: &Actor, policy: &Policy, body: &[u8], outcome: &Outcome) -> Decision {
    let decision = match admit(actor, policy, body, None, now()) {
        Admission::Refuse(decision) => decision,
        Admission::Call { envelope, .. } => {
            decide(actor, policy, body, envelope.as_deref(), outcome, Failures::default())
        }
    };
    match (decision, outcome) {
        (Decision::Forward(items), Outcome::Answer(answer)) => {
            Decision::Send(results(actor, body, answer, &items).collect())
        }
        (decision, _) => decision,
    }
}

fn answered(message: &Value, answer: &Value) -> Vec<Outgoing> {
    let outcome = Outcome::Answer(answer.to_string().into_bytes());
    sent(handled(&actor(), &policy(), message.to_string().as_bytes(), &outcome))
}

fn refused(body: &[u8]) -> Value {
    let outcome = Outcome::Crashed("the runtime must not be asked".to_owned());
    let outgoing = sent(handled(&actor(), &policy(), body, &outcome));
    assert_eq!(outgoing.len(), 1);
    assert_eq!((&outgoing[0].to, outgoing[0].kind), (&to("error-end"), Kind::ErrorEnd));
    json_of(&outgoing[0])
}

fn sent(decision: Decision) -> Vec<Outgoing> {
    match decision {
        Decision::Send(outgoing) => outgoing,
        _ => panic!("{decision:?}"),
    }
}

fn json_of(outgoing: &Outgoing) -> Value {
    serde_json::from_slice(outgoing.body.as_deref().expect("a body")).expect("JSON")
}

fn to(actor: &str) -> Destination {
    Destination::Actor(actor.to_owned())
}

#[test]
fn one_item_goes_to_the_next_actor_with_all_received_fields() {
    let route = json!({"actors": ["a", "b", "c"], "current": 2});
    let outgoing = answered(&message(), &json!([{"payload": {"n": 1}, "route": route}]));
    assert_eq!((&outgoing[0].to, outgoing[0].kind), (&to("c"), Kind::Routing));
    let mut expected = message();
    expected["payload"] = json!({"n": 1});
    expected["route"]["current"] = 2.into();
    assert_eq!(
        json_of(&outgoing[0]),
        expected,
        "headers, metadata, deadline and unknown keys are kept"
    );
}

#[test]
fn headers_and_metadata_of_the_response_take_precedence() {
    let route = json!({"actors": ["a", "b", "c"], "current": 2, "metadata": {"job": 8}});
    let item = json!({"payload": 1, "route": route, "headers": {"h": 1}, "id": "no", "deadline": "no"});
    let next = json_of(&answered(&message(), &json!([item]))[0]);
    assert_eq!(next["headers"], json!({"h": 1}));
    assert_eq!(next["route"]["metadata"], json!({"job": 8}));
    assert_eq!(
        (&next["id"], &next["deadline"]),
        (&message()["id"], &message()["deadline"])
    );
}

#[test]
fn a_finished_route_goes_to_happy_end() {
    for current in [3, 4, 1000] {
        let route = json!({"actors": ["a", "b", "c"], "current": current});
        let outgoing = answered(&message(), &json!([{"payload": 1, "route": route}]));
        assert_eq!((&outgoing[0].to, outgoing[0].kind), (&to("happy-end"), Kind::HappyEnd));
    }
    let outgoing = answered(&message(), &json!([{"payload": 1, "route": {"actors": null}}]));
    assert_eq!(outgoing[0].to, to("happy-end"), "null is the empty list");
}

#[test]
fn empty_response_sends_the_unchanged_envelope_to_happy_end() {
    let outgoing = answered(&message(), &json!([]));
    assert_eq!(
        outgoing,
        [Outgoing {
            to: to("happy-end"),
            kind: Kind::HappyEnd,
            body: None,
            index: 0
        }]
    );
}

#[test]
fn fan_out_gives_children_ids_and_a_parent() {
    let item = |n| json!({"payload": n, "route": {"actors": ["a", "b", "c"], "current": 2}});
    let outgoing = answered(&message(), &json!([item(0), item(1), item(2)]));
    let ids: Vec<_> = outgoing.iter().map(|message| json_of(message)["id"].clone()).collect();
    assert_eq!(ids, ["42", "42-1", "42-2"]);
    assert!(json_of(&outgoing[0]).get("parent_id").is_none());
    assert_eq!(json_of(&outgoing[2])["parent_id"], "42");
    assert_eq!(json_of(&outgoing[2])["payload"], 2);
}

#[test]
fn first_item_of_a_fan_out_has_the_number_of_items() {
    let item = json!({"payload": 1, "route": {"actors": ["a", "b", "c"], "current": 2}});
    let counted = |request: &Value, items: usize| {
        let outgoing = answered(request, &json!(vec![&item; items]));
        let counted = outgoing.iter().map(|message| {
            let message = json_of(message);
            (message["id"].clone(), message.get("item_count").cloned())
        });
        counted.collect::<Vec<_>>()
    };
    assert_eq!(counted(&message(), 1), [(json!("42"), None)]);
    assert_eq!(
        counted(&message(), 2),
        [(json!("42"), Some(json!(2))), (json!("42-1"), None)]
    );
    // The next actor of item 0 gets ids that its siblings do not have.
    let mut first = message();
    first["item_count"] = json!(2);
    assert_eq!(counted(&first, 1), [(json!("42"), Some(json!(2)))]);
    assert_eq!(
        counted(&first, 3),
        [
            (json!("42"), Some(json!(4))),
            (json!("42-2"), None),
            (json!("42-3"), None)
        ]
    );
    first["item_count"] = json!("many");
    assert_eq!(counted(&first, 2)[0], (json!("42"), Some(json!(2))));
}

#[test]
fn item_that_is_too_large_fails_under_its_own_id() {
    let mut request = message();
    request["reply_to"] = json!("gateway");
    let received = request.to_string();
    let sent = json!({"id": "42-1", "parent_id": "42", "payload": "large", "route": {}}).to_string();
    let error = undeliverable_item(
        &actor(),
        Kind::HappyEnd,
        received.as_bytes(),
        sent.as_bytes(),
        "too large",
    );
    let error = json_of(&error.expect("an error message"));
    assert_eq!((&error["id"], &error["parent_id"]), (&json!("42-1"), &json!("42")));
    assert_eq!(error["payload"]["original_payload"], request["payload"]);
    assert_eq!(error["failed"], true);
}

#[test]
fn caller_gets_null_as_the_result_of_a_handler_that_returns_nothing() {
    let mut request = message();
    assert_eq!(answered(&request, &json!([]))[0].body, None);
    request["reply_to"] = json!("gateway");
    let reply = &answered(&request, &json!([]))[0];
    assert_eq!(reply.to, Destination::Reply("gateway".to_owned()));
    request["payload"] = Value::Null;
    assert_eq!(json_of(reply), request);
}

#[test]
fn error_of_the_handler_goes_to_error_end_with_the_unchanged_payload() {
    let details = json!({"message": "bad", "type": "ValueError", "traceback": "…"});
    let mut request = message().to_string();
    request = request.replace(r#"{"text":"hello"}"#, r#"{"big":12345678901234567890123,"f":1.10}"#);
    let answer = Outcome::Answer(
        json!([{"error": "processing_error", "details": details}])
            .to_string()
            .into(),
    );
    let outgoing = sent(handled(&actor(), &policy(), request.as_bytes(), &answer));
    let text = String::from_utf8(outgoing[0].body.clone().expect("a body")).expect("text");
    assert!(
        text.contains(r#""original_payload":{"big":12345678901234567890123,"f":1.10}"#),
        "{text}"
    );
    let error = json_of(&outgoing[0]);
    assert_eq!(error["payload"]["error"], "processing_error");
    assert_eq!(error["payload"]["details"]["message"], "bad");
    assert_eq!(error["payload"]["details"]["actor"], "b");
    assert_eq!(error["route"], message()["route"]);
    assert_eq!(error["headers"], message()["headers"]);
}

#[test]
fn error_item_prevents_sending_of_other_items() {
    let good = json!({"payload": 1, "route": {"actors": ["a", "b", "c"], "current": 2}});
    let outgoing = answered(&message(), &json!([good, {"error": "processing_error"}]));
    assert_eq!(outgoing.len(), 1);
    assert_eq!(outgoing[0].kind, Kind::ErrorEnd);
}

#[test]
fn malformed_response_is_an_error() {
    for (answer, hint) in [
        ("", "not a JSON array"),
        ("{}", "not a JSON array"),
        ("[1]", "item 0 that is not an object"),
        (r#"[{"payload": 1}]"#, "without a route"),
        (r#"[{"route": {"actors": [], "current": 0}}]"#, "without a payload"),
        (r#"[{"payload": 1, "route": {"actors": "a"}}]"#, "route.actors"),
        (
            r#"[{"payload": 1, "route": {"actors": [], "current": true}}]"#,
            "route.current",
        ),
        (
            r#"[{"payload": 1, "route": {"actors": [], "current": -1}}]"#,
            "route.current",
        ),
        (r#"[{"payload": NaN, "route": {}}]"#, "not a JSON array"),
    ] {
        let outcome = Outcome::Answer(answer.as_bytes().to_vec());
        let outgoing = sent(handled(&actor(), &policy(), message().to_string().as_bytes(), &outcome));
        let error = json_of(&outgoing[0]);
        assert_eq!(error["payload"]["error"], "processing_error", "{answer}");
        let text = error["payload"]["details"]["message"].as_str().expect("a text");
        assert!(text.contains(hint), "{answer}: {text}");
    }
}

/// The code and the details of the error envelope for this response.
fn failure_of(answer: &str) -> (Value, Value) {
    let outcome = Outcome::Answer(answer.as_bytes().to_vec());
    let outgoing = sent(handled(&actor(), &policy(), message().to_string().as_bytes(), &outcome));
    let mut error = json_of(&outgoing[0]);
    (error["payload"]["error"].take(), error["payload"]["details"].take())
}

#[test]
fn error_with_a_lone_surrogate_keeps_its_details() {
    let (code, details) = failure_of(
        r#"[{"error": "odd \udfff", "details": {"message": "a \ud800 b \ud83d\ude00 \\ud800", "type": "ValueError", "traceback": "\udc80", "tries": 3}}]"#,
    );
    assert_eq!(code, r"odd \udfff");
    assert_eq!(details["message"], "a \\ud800 b \u{1f600} \\ud800");
    assert_eq!(
        (&details["type"], &details["traceback"], &details["tries"]),
        (&json!("ValueError"), &json!(r"\udc80"), &json!(3))
    );
}

#[test]
fn details_that_are_no_object_are_the_message_of_an_error() {
    for (details, message) in [
        (r#""out of memory""#, "out of memory"),
        ("[1, 2]", "[1,2]"),
        (r#"{"message": "fine", "large": 1e999}"#, "fine"),
    ] {
        let (code, found) = failure_of(&format!(r#"[{{"error": "odd", "details": {details}}}]"#));
        assert_eq!((code, &found["message"]), (json!("odd"), &json!(message)), "{details}");
    }
    let (_, found) = failure_of(r#"[{"error": "odd", "details": null}]"#);
    assert_eq!(found, json!({"actor": "b", "attempts": 1}));
}

#[test]
fn malformed_messages_go_to_error_end_once() {
    for (body, code, hint) in [
        (&b"not json"[..], "msg_parsing_error", "not a JSON object"),
        (b"\xff\xfe", "msg_parsing_error", "not a JSON object"),
        (b"[1]", "msg_parsing_error", "not a JSON object"),
        (
            br#"{"route": {"actors": ["b"]}, "payload": 1}"#,
            "msg_parsing_error",
            "id is missing",
        ),
        (
            br#"{"id": "", "route": {"actors": ["b"]}}"#,
            "msg_parsing_error",
            "id is empty",
        ),
        (
            br#"{"id": 7, "route": {"actors": ["b"]}}"#,
            "msg_parsing_error",
            "id is not a string",
        ),
        (br#"{"id": "1"}"#, "msg_parsing_error", "route is missing"),
        (
            br#"{"id": "1", "route": {"actors": [1]}}"#,
            "msg_parsing_error",
            "route.actors",
        ),
        (
            br#"{"id": "1", "route": {"actors": ["b"], "current": true}}"#,
            "msg_parsing_error",
            "route.current",
        ),
        (
            br#"{"id": "1", "route": {"actors": ["b"]}, "deadline": "soon"}"#,
            "msg_parsing_error",
            "deadline",
        ),
        (
            br#"{"id": "1", "route": {"actors": ["b"], "current": 1}}"#,
            "route_mismatch",
            "past the end",
        ),
        (br#"{"id": "1", "route": {"actors": ["x"]}}"#, "route_mismatch", "\"x\""),
        (
            br#"{"id": "1", "route": {"actors": ["b"]}, "deadline": "2026-01-02T03:04:05Z"}"#,
            "deadline_exceeded",
            "has passed",
        ),
    ] {
        let error = refused(body);
        let text = error["payload"]["details"]["message"].as_str().expect("a text");
        assert_eq!(error["payload"]["error"], code, "{text}");
        assert!(text.contains(hint), "{text}");
        assert!(!error["id"].as_str().expect("an id").is_empty());
        assert!(!error["route"]["actors"].as_array().expect("a route").is_empty());
    }
    let payload = refused(b"not json")["payload"].take();
    assert_eq!(payload["original_payload"], "not json");
    assert!(payload.get("original_encoding").is_none());
    assert_eq!(
        refused(b"not json")["id"],
        refused(b"not json")["id"],
        "the same for the same message"
    );
}

#[test]
fn bytes_of_a_message_that_is_not_text_arrive_at_error_end() {
    let payload = refused(b"\xff\xfe{}")["payload"].take();
    assert_eq!(payload["original_payload"], "//57fQ==");
    assert_eq!(payload["original_encoding"], "base64");
}

#[test]
fn too_large_message_goes_to_the_dead_letters_and_a_report_to_error_end() {
    let body = vec![b'x'; policy().max_bytes + 1];
    let outgoing = sent(handled(&actor(), &policy(), &body, &Outcome::Crashed(String::new())));
    assert_eq!((&outgoing[0].to, &outgoing[0].body), (&Destination::DeadLetter, &None));
    let error = json_of(&outgoing[1]);
    assert_eq!(error["payload"]["error"], "message_too_large");
    assert!(error["payload"].get("original_payload").is_none());
}

#[test]
fn end_actors_accept_everything_and_send_nothing() {
    for body in [&b"not json"[..], br#"{"id": ""}"#, b"{}"] {
        for answer in ["[{}]", "[]", r#"[{"payload": 1, "route": null}]"#] {
            let taken = handled(&end_actor(), &policy(), body, &Outcome::Answer(answer.into()));
            assert_eq!(taken, Decision::Send(Vec::new()));
        }
        let failed = sent(handled(
            &end_actor(),
            &policy(),
            body,
            &Outcome::Answer(b"nonsense".to_vec()),
        ));
        assert_eq!(failed[0].to, Destination::DeadLetter, "never to itself");
    }
}

#[test]
fn the_deadline_bounds_the_call() {
    let body = message().to_string();
    match admit(&actor(), &policy(), body.as_bytes(), None, now()) {
        Admission::Call { limit, .. } => assert_eq!(limit, Duration::from_mins(1)),
        Admission::Refuse(decision) => panic!("{decision:?}"),
    }
}

#[test]
fn errors_and_crashes_are_retried_up_to_their_limits() {
    let policy = Policy {
        max_attempts: 3,
        ..policy()
    };
    let body = message().to_string();
    let envelope = Envelope::parse(body.as_bytes()).expect("an envelope");
    let attempts = |outcome: &Outcome| {
        let mut failures = Failures::default();
        let mut pauses = Vec::new();
        loop {
            match decide(&actor(), &policy, body.as_bytes(), Some(&envelope), outcome, failures) {
                Decision::Send(outgoing) => return (pauses, json_of(&outgoing[0])),
                Decision::Retry {
                    after,
                    failures: so_far,
                    ..
                } => {
                    failures = so_far;
                    pauses.push(after.as_secs());
                }
                decision => panic!("{decision:?}"),
            }
        }
    };
    let (pauses, error) = attempts(&Outcome::Answer(br#"[{"error": "processing_error"}]"#.to_vec()));
    assert_eq!(pauses, [1, 2]);
    assert_eq!(error["payload"]["details"]["attempts"], 3);
    let (pauses, error) = attempts(&Outcome::Crashed("gone".to_owned()));
    assert_eq!(pauses, [1, 2]);
    assert_eq!(error["payload"]["error"], "runtime_crashed");
    let (pauses, error) = attempts(&Outcome::TimedOut(Duration::from_mins(5)));
    assert!(pauses.is_empty());
    assert_eq!(error["payload"]["error"], "timeout_error");
    assert_eq!(policy.pause(1000), policy.max_backoff);
}

#[test]
fn message_is_held_while_a_service_is_down() {
    let answer = br#"[{"error": "unavailable", "details": {"message": "no database"}}]"#;
    for actor in [actor(), end_actor()] {
        let body = message().to_string();
        let decision = handled(&actor, &policy(), body.as_bytes(), &Outcome::Answer(answer.to_vec()));
        let why = "unavailable: no database".to_owned();
        assert_eq!(decision, Decision::Hold { why });
    }
}

#[test]
fn message_with_too_many_deliveries_is_not_retried() {
    let body = message().to_string();
    for (count, refused) in [(20, false), (21, true)] {
        let admission = admit(&actor(), &policy(), body.as_bytes(), Some(count), now());
        assert_eq!(matches!(admission, Admission::Refuse(_)), refused, "{count}");
    }
}

#[test]
fn undeliverable_message_goes_to_error_end_then_to_the_dead_letters() {
    let source = message().to_string();
    let instead = |kind| undeliverable(&actor(), kind, false, source.as_bytes(), "there is no queue");
    let error = instead(Kind::Routing).expect("error-end");
    assert_eq!(json_of(&error)["payload"]["error"], "routing_error");
    let dead = instead(error.kind).expect("dead letter");
    assert_eq!((&dead.to, &dead.body), (&Destination::DeadLetter, &None));
    assert_eq!(instead(dead.kind), None);
}

/// The message, whose sender waits at a reply queue.
fn with_reply(name: &str) -> Value {
    let mut message = message();
    message["reply_to"] = json!(name);
    message
}

#[test]
fn end_of_a_route_with_a_reply_queue_is_this_queue() {
    let reply = Destination::Reply("gateway".to_owned());
    let first = |answer: &Value| answered(&with_reply("gateway"), answer).remove(0);
    let ended = json!({"actors": ["a", "b"], "current": 2});
    let result = first(&json!([{"payload": 1, "route": ended}]));
    assert_eq!((&result.to, result.kind), (&reply, Kind::HappyEnd));
    assert_eq!(json_of(&result).get("failed"), None);
    assert_eq!(first(&json!([])).to, reply);
    let error = first(&json!([{"error": "processing_error", "details": {"message": "no"}}]));
    assert_eq!((&error.to, error.kind), (&reply, Kind::ErrorEnd));
    assert_eq!(json_of(&error)["failed"], true);
    // In the middle of a route it is only kept.
    let route = json!({"actors": ["a", "b", "c"], "current": 2});
    let next = first(&json!([{"payload": 1, "route": route}]));
    assert_eq!(next.to, to("c"));
    assert_eq!(json_of(&next)["reply_to"], "gateway");
}

#[test]
fn failure_without_its_reply_queue_goes_to_error_end() {
    let body = with_reply("gone").to_string();
    let instead = |kind, no_reply| {
        undeliverable(&actor(), kind, no_reply, body.as_bytes(), "there is no queue").expect("a message")
    };
    assert_eq!(instead(Kind::HappyEnd, false).to, Destination::Reply("gone".to_owned()));
    assert_eq!(instead(Kind::HappyEnd, true).to, to("error-end"));
    let error = instead(Kind::ErrorEnd, true);
    assert_eq!(
        (error.to, error.body.as_deref()),
        (to("error-end"), Some(body.as_bytes()))
    );
    assert_eq!(instead(Kind::ErrorEnd, false).to, Destination::DeadLetter);
}

#[test]
fn reply_queue_of_another_form_is_rejected() {
    for name in ["", "a_b", "../x", "A", &"x".repeat(41)] {
        let error = refused(with_reply(name).to_string().as_bytes());
        assert_eq!(error["payload"]["error"], "msg_parsing_error", "{name:?}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\"\\\\/ é\u{0}]{0,6}".prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("id".to_owned()),
        Just("route".to_owned()),
        Just("actors".to_owned()),
        Just("current".to_owned()),
        Just("payload".to_owned()),
        Just("error".to_owned()),
        Just("deadline".to_owned()),
        Just("reply_to".to_owned()),
        "[a-z\"\\\\]{0,3}"
    ];
    leaf.prop_recursive(4, 24, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Every message is passed to the runtime or sent to a queue, never to the actor's own, and sent messages are envelopes.
    #[test]
    fn no_message_and_no_answer_is_lost_or_loops(body in any_json(), answer in any_json(), is_end: bool) {
        let actor = if is_end { end_actor() } else { actor() };
        let body = body.to_string();
        let outcome = Outcome::Answer(answer.to_string().into_bytes());
        let decision = handled(&actor, &policy(), body.as_bytes(), &outcome);
        let Decision::Send(outgoing) = &decision else { panic!("{decision:?}") };
        prop_assert_eq!(outgoing.is_empty() && !is_end, false);
        for message in outgoing {
            if let Some(bytes) = &message.body {
                let envelope = Envelope::parse(bytes);
                prop_assert!(envelope.is_ok() || message.kind == Kind::ErrorEnd, "{:?}", envelope);
                prop_assert!(serde_json::from_slice::<Value>(bytes).is_ok());
            }
        }
        prop_assert_eq!(&decision, &handled(&actor, &policy(), body.as_bytes(), &outcome));
    }

    /// Bytes that are not JSON.
    #[test]
    fn any_bytes_end_somewhere(body in prop::collection::vec(any::<u8>(), 0..200)) {
        let decision = handled(&actor(), &policy(), &body, &Outcome::Answer(body.clone()));
        let is_sent = matches!(&decision, Decision::Send(outgoing) if !outgoing.is_empty());
        prop_assert!(is_sent);
    }

    /// The text of a payload and unknown keys do not change.
    #[test]
    fn payloads_and_unknown_keys_are_kept(payload in any_json(), extra in any_json(), key in "x[a-z]{1,5}") {
        let mut request = message();
        request[&key] = extra.clone();
        let route = json!({"actors": ["a", "b", "c"], "current": 2});
        let next = json_of(&answered(&request, &json!([{"payload": payload, "route": route}]))[0]);
        prop_assert_eq!(&next["payload"], &payload);
        prop_assert_eq!(&next[&key], &extra);
    }
}
