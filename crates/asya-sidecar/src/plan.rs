//! Decisions. Pure: from a message and the response of the runtime to the messages to send and the fate of the message.
//!
//! Read [`admit`] (before the call of the runtime), then [`decide`] (after it), then [`undeliverable`] (a message that no
//! queue accepts). Implements `docs/reference/asya-protocol.md` sections 2 and 4.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::envelope::{self, Envelope, Object, Place, Route};
use crate::lenient;

/// The actor of this sidecar.
#[derive(Clone, Debug)]
pub struct Actor {
    /// Name in routes.
    pub name: String,
    /// Actor that gets finished messages.
    pub happy_end: String,
    /// Actor that gets failed messages.
    pub error_end: String,
    /// Whether it is an end actor, which accepts every message and sends none.
    pub is_end: bool,
}

/// Code of an error with which the runtime reports that a service that the handler needs is down.
const UNAVAILABLE: &str = "unavailable";

/// Limits and retries.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Timeout of one call.
    pub timeout: Duration,
    /// Largest message and largest response, in bytes.
    pub max_bytes: usize,
    /// Attempts per message if the handler reports an error. 1 means no retry.
    pub max_attempts: u32,
    /// Attempts per message if the runtime dies during the call.
    pub max_crashes: u32,
    /// Largest number of deliveries, if the broker counts them. 0 means no limit.
    pub max_deliveries: u32,
    /// Pause before the second attempt; it doubles with each further one.
    pub backoff: Duration,
    /// Longest pause.
    pub max_backoff: Duration,
}

impl Policy {
    /// Pause after the `failures`-th failure.
    pub fn pause(&self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.backoff.saturating_mul(doubled).min(self.max_backoff)
    }
}

/// Failed attempts of this delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// Errors of the handler.
    pub errors: u32,
    /// Calls during which the runtime closed the connection.
    pub crashes: u32,
}

/// Decision before the call of the runtime.
#[derive(Debug)]
pub enum Admission<'a> {
    /// Call the runtime with the unchanged bytes. End actors also accept messages that are not envelopes.
    Call {
        /// The parsed message. `None` for end actors.
        envelope: Option<Box<Envelope<'a>>>,
        /// Time at which the call must be finished.
        limit: Duration,
    },
    /// Do not call the runtime.
    Refuse(Decision),
}

/// Result of a call.
#[derive(Debug)]
pub enum Outcome {
    /// Response of the runtime.
    Answer(Vec<u8>),
    /// The connection was closed during the call, for this reason.
    Crashed(String),
    /// No response within this time.
    TimedOut(Duration),
    /// The response exceeds the limit; its size in bytes.
    TooLarge(u64),
}

/// Next step for a message.
#[derive(Debug, PartialEq)]
pub enum Decision {
    /// Send these messages and wait for the confirms, then acknowledge the received one.
    Send(Vec<Outgoing>),
    /// Send one message for each item of the response, wait for the confirms, then acknowledge the received one. The ranges are the
    /// positions of the items in the response; [`results`] builds the messages.
    Forward(Vec<Range<usize>>),
    /// Hold the message and call again later, because a service that the handler needs is down.
    Hold {
        /// Cause, for the log.
        why: String,
    },
    /// Retry.
    Retry {
        /// Pause before the retry.
        after: Duration,
        /// Failures so far.
        failures: Failures,
        /// Cause, for the log.
        why: String,
    },
}

/// Message to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    /// Queue of the receiver.
    pub to: Destination,
    /// Kind of message, for the metrics.
    pub kind: Kind,
    /// Content; `None` means the received message, unchanged.
    pub body: Option<Vec<u8>>,
    /// Number in the id of an item of a fan-out, 0 for the first and for single messages.
    pub index: usize,
}

/// Queue, by purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Queue of this actor.
    Actor(String),
    /// Reply queue with this name.
    Reply(String),
    /// Dead-letter queue of the sidecar's own actor.
    DeadLetter,
}

/// Kind of message. The names are label values of `messages_sent_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// To the next actor.
    Routing,
    /// To happy-end.
    HappyEnd,
    /// To error-end.
    ErrorEnd,
    /// To the dead-letter queue, because error-end could not receive it.
    DeadLetter,
}

/// Failure of a message.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    code: String,
    details: Map<String, Value>,
}

impl Failure {
    fn new(code: &str, message: impl Into<String>) -> Self {
        let mut details = Map::new();
        details.insert("message".to_owned(), Value::String(message.into()));
        Self {
            code: code.to_owned(),
            details,
        }
    }

    /// The failure in one line.
    fn summary(&self) -> String {
        match self.details.get("message").and_then(Value::as_str) {
            Some(message) => format!("{}: {message}", self.code),
            None => self.code.clone(),
        }
    }
}

/// Decides for a message with transport headers that cannot be read, for this reason. They are lost; the message is not.
pub fn unreadable(actor: &Actor, body: &[u8], why: &str) -> Decision {
    fail(actor, body, &Failure::new("invalid_headers", why), 0)
}

/// Decides before the call. `deliveries` is the number of deliveries of the message, if the broker counts them.
pub fn admit<'a>(
    actor: &Actor,
    policy: &Policy,
    body: &'a [u8],
    deliveries: Option<u32>,
    now: Timestamp,
) -> Admission<'a> {
    if body.len() > policy.max_bytes {
        let failure = Failure::new(
            "message_too_large",
            format!(
                "the message has {} bytes, and {} accepts at most {} (ASYA_MAX_FRAME_BYTES); it is in the dead-letter queue",
                body.len(),
                actor.name,
                policy.max_bytes
            ),
        );
        return Admission::Refuse(set_aside(actor, &failure));
    }
    if let Some(count) = deliveries
        && policy.max_deliveries > 0
        && count > policy.max_deliveries
    {
        let failure = Failure::new(
            "too_many_deliveries",
            format!(
                "delivered {count} times without being finished; at most {} are allowed (ASYA_MAX_DELIVERIES)",
                policy.max_deliveries
            ),
        );
        return Admission::Refuse(fail(actor, body, &failure, count));
    }
    if actor.is_end {
        return Admission::Call {
            envelope: None,
            limit: policy.timeout,
        };
    }
    match check(actor, policy, body, now) {
        Ok((envelope, limit)) => Admission::Call {
            envelope: Some(Box::new(envelope)),
            limit,
        },
        Err(failure) => Admission::Refuse(fail(actor, body, &failure, 0)),
    }
}

fn check<'a>(
    actor: &Actor,
    policy: &Policy,
    body: &'a [u8],
    now: Timestamp,
) -> Result<(Envelope<'a>, Duration), Failure> {
    let envelope = Envelope::parse(body).map_err(|error| Failure::new("msg_parsing_error", error.to_string()))?;
    let route = &envelope.route;
    match route.actor() {
        Some(name) if name == actor.name => {}
        Some(name) => {
            let text = format!(
                "route.actors[{}] is {name:?}, and this is {:?}",
                route.current, actor.name
            );
            return Err(Failure::new("route_mismatch", text));
        }
        None => {
            let text = format!(
                "route.current is {}, past the end of route.actors with {} entries",
                route.current,
                route.actors.len()
            );
            return Err(Failure::new("route_mismatch", text));
        }
    }
    let Some(deadline) = envelope.deadline else {
        return Ok((envelope, policy.timeout));
    };
    match Duration::try_from(deadline.duration_since(now)) {
        Ok(left) if !left.is_zero() => Ok((envelope, left.min(policy.timeout))),
        _ => {
            let text = format!("the deadline {deadline} has passed");
            Err(Failure::new("deadline_exceeded", text))
        }
    }
}

/// Decides after the call. `envelope` is the result of [`admit`], `failures` are those before this call.
pub fn decide(
    actor: &Actor,
    policy: &Policy,
    body: &[u8],
    envelope: Option<&Envelope<'_>>,
    outcome: &Outcome,
    mut failures: Failures,
) -> Decision {
    let failure = match outcome {
        Outcome::Answer(answer) => match read_answer(answer, envelope) {
            Ok(_) if envelope.is_none() => return Decision::Send(Vec::new()),
            Ok(items) if items.is_empty() => return Decision::Send(vec![without_items(actor, envelope)]),
            Ok(items) => return Decision::Forward(items),
            Err(failure) if failure.code == UNAVAILABLE => {
                return Decision::Hold { why: failure.summary() };
            }
            Err(failure) => {
                failures.errors += 1;
                failure
            }
        },
        Outcome::Crashed(reason) => {
            failures.crashes += 1;
            Failure::new(
                "runtime_crashed",
                format!("the runtime closed the connection during the call: {reason}"),
            )
        }
        Outcome::TimedOut(limit) => Failure::new(
            "timeout_error",
            format!("no response from the runtime within {limit:?}"),
        ),
        Outcome::TooLarge(length) => Failure::new(
            "processing_error",
            format!(
                "the response has {length} bytes, and at most {} are allowed (ASYA_MAX_FRAME_BYTES)",
                policy.max_bytes
            ),
        ),
    };
    let again = match outcome {
        Outcome::Answer(_) => failures.errors < policy.max_attempts,
        Outcome::Crashed(_) => failures.crashes < policy.max_crashes,
        Outcome::TimedOut(_) | Outcome::TooLarge(_) => false,
    };
    let attempts = failures.errors + failures.crashes;
    if again {
        return Decision::Retry {
            after: policy.pause(attempts),
            failures,
            why: failure.summary(),
        };
    }
    fail(actor, body, &failure, attempts.max(1))
}

/// Decides for a message that cannot be sent, because its queue does not exist or does not accept its size. It goes to error-end
/// with the failure, otherwise unchanged to the dead-letter queue. If its reply queue does not exist (`no_reply`), it goes to
/// error-end.
pub fn undeliverable(actor: &Actor, kind: Kind, no_reply: bool, noted: &[u8], why: &str) -> Option<Outgoing> {
    match kind {
        Kind::Routing | Kind::HappyEnd => {
            let failure = Failure::new("routing_error", why);
            let mut message = error_message(actor, Some(noted), &failure, 1);
            if no_reply {
                message.to = Destination::Actor(actor.error_end.clone());
            }
            Some(message)
        }
        Kind::ErrorEnd if no_reply => Some(Outgoing {
            to: Destination::Actor(actor.error_end.clone()),
            kind,
            body: Some(noted.to_vec()),
            index: 0,
        }),
        Kind::ErrorEnd => Some(dead_letter()),
        Kind::DeadLetter => None,
    }
}

/// Decides for a result, `sent`, that is too large for its queue. It would also be too large in an error envelope, so error-end gets the
/// received message under the id of the result.
pub fn undeliverable_item(actor: &Actor, kind: Kind, received: &[u8], sent: &[u8], why: &str) -> Option<Outgoing> {
    let identified = envelope::identified(received, sent);
    undeliverable(actor, kind, false, identified.as_deref().unwrap_or(received), why)
}

/// Places of the items in a response. Responses of end actors are only checked for errors.
///
/// Parsed items are not kept, because they need more memory than the response.
fn read_answer(answer: &[u8], request: Option<&Envelope<'_>>) -> Result<Vec<Range<usize>>, Failure> {
    let bad = |text: String| Failure::new("processing_error", format!("the runtime's response {text}"));
    let items: Vec<&RawValue> =
        serde_json::from_slice(answer).map_err(|error| bad(format!("is not a JSON array: {error}")))?;
    let mut first_bad = None;
    for (index, raw) in items.iter().enumerate() {
        let item: Object<'_> = serde_json::from_str(raw.get())
            .map_err(|error| bad(format!("has an item {index} that is not an object: {error}")))?;
        if let Some(failure) = reported(&item) {
            return Err(failure);
        }
        if first_bad.is_none() && request.is_some() {
            first_bad = route_of(&item)
                .err()
                .map(|why| bad(format!("has an item {index} {why}")));
        }
    }
    match first_bad {
        Some(failure) => Err(failure),
        None if request.is_none() => Ok(Vec::new()),
        None => Ok(items.iter().map(|raw| place(answer, raw.get())).collect()),
    }
}

/// Place of a part of the response.
fn place(answer: &[u8], part: &str) -> Range<usize> {
    let start = part.as_ptr().addr() - answer.as_ptr().addr();
    start..start + part.len()
}

/// The route of an item that can be sent, or the reason why it cannot.
fn route_of<'a>(item: &Object<'a>) -> Result<Route<'a>, String> {
    let route = match envelope::route(item) {
        Ok(Some(route)) => route,
        Ok(None) => return Err("without a route".to_owned()),
        Err(error) => return Err(format!("with an {error}")),
    };
    match item.get("payload") {
        Some(_) => Ok(route),
        None => Err("without a payload".to_owned()),
    }
}

/// Parses an error item: an object with a non-empty `error`.
fn reported(item: &Object<'_>) -> Option<Failure> {
    let code = match lenient::value(item.get("error")?) {
        Value::Null => return None,
        Value::String(code) if code.is_empty() => return None,
        Value::String(code) => code,
        other => other.to_string(),
    };
    Some(Failure {
        code,
        details: item.get("details").map(lenient::members).unwrap_or_default(),
    })
}

/// Without items the envelope goes to the end of its route: to happy-end unchanged, and to a reply queue with null as its payload, because
/// the receiver would take another one for the result.
fn without_items(actor: &Actor, envelope: Option<&Envelope<'_>>) -> Outgoing {
    let replied = envelope.and_then(|envelope| Some((envelope.reply_to.as_deref()?, envelope)));
    let body = replied.map(|(_, envelope)| {
        let mut message = envelope.object.clone();
        message.set("payload", Cow::Borrowed(RawValue::NULL));
        message.to_bytes()
    });
    Outgoing {
        to: end(&actor.happy_end, replied.map(|(name, _)| name)),
        kind: Kind::HappyEnd,
        body,
        index: 0,
    }
}

/// End of a route: the reply queue of the message, or an end actor.
fn end(actor: &str, reply_to: Option<&str>) -> Destination {
    match reply_to {
        Some(name) => Destination::Reply(name.to_owned()),
        None => Destination::Actor(actor.to_owned()),
    }
}

/// The messages of [`Decision::Forward`]. Each is made when it is needed, because a fan-out of a large message would not fit into
/// memory.
pub fn results<'a>(
    actor: &'a Actor,
    body: &'a [u8],
    answer: &'a [u8],
    items: &'a [Range<usize>],
) -> impl Iterator<Item = Outgoing> + Send + 'a {
    let request = Envelope::parse(body).map_err(|error| error.to_string());
    items.iter().enumerate().map(move |(index, place)| {
        let item = answer.get(place.clone()).unwrap_or_default();
        let made = request.as_ref().map_err(String::clone);
        let place = Place { index, of: items.len() };
        made.and_then(|request| result(actor, request, item, place))
            // Both were valid before.
            .unwrap_or_else(|why| error_message(actor, Some(body), &Failure::new("processing_error", why), 1))
    })
}

/// The message of an item of the response.
fn result(actor: &Actor, request: &Envelope<'_>, item: &[u8], place: Place) -> Result<Outgoing, String> {
    let item = envelope::parse_object(item).map_err(|error| error.to_string())?;
    let route = route_of(&item)?;
    let (to, kind) = match route.actor() {
        Some(name) => (Destination::Actor(name.to_owned()), Kind::Routing),
        None => (end(&actor.happy_end, request.reply_to.as_deref()), Kind::HappyEnd),
    };
    Ok(Outgoing {
        to,
        kind,
        body: Some(envelope::next(request, &item, &route, place)),
        index: place.number(request),
    })
}

/// A failed message of an end actor goes to its dead-letter queue.
fn fail(actor: &Actor, body: &[u8], failure: &Failure, attempts: u32) -> Decision {
    let outgoing = if actor.is_end {
        dead_letter()
    } else {
        error_message(actor, Some(body), failure, attempts)
    };
    Decision::Send(vec![outgoing])
}

/// A message that is too large goes unchanged to the dead-letter queue, and a report goes to error-end.
fn set_aside(actor: &Actor, failure: &Failure) -> Decision {
    let mut outgoing = vec![dead_letter()];
    if !actor.is_end {
        outgoing.push(error_message(actor, None, failure, 0));
    }
    Decision::Send(outgoing)
}

fn dead_letter() -> Outgoing {
    Outgoing {
        to: Destination::DeadLetter,
        kind: Kind::DeadLetter,
        body: None,
        index: 0,
    }
}

#[derive(Serialize)]
struct ErrorPayload<'a> {
    error: &'a str,
    details: &'a Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    original_payload: Option<&'a RawValue>,
    /// Encoding of the payload, if it is a whole message that is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    original_encoding: Option<&'a str>,
}

#[derive(Serialize)]
struct ErrorRoute<'a> {
    actors: [&'a str; 1],
    current: u32,
}

/// The envelope with the failure as its payload. Missing fields get defaults.
fn error_message(actor: &Actor, body: Option<&[u8]>, failure: &Failure, attempts: u32) -> Outgoing {
    let parsed = body.and_then(|body| envelope::parse_object(body).ok());
    let mut message = parsed.clone().unwrap_or_default();
    if !matches!(envelope::text(&message, "id"), Ok(Some(id)) if !id.is_empty()) {
        let id = body.map_or_else(|| made_up_id(failure.summary().as_bytes()), made_up_id);
        message.set("id", envelope::owned(&id));
    }
    if !matches!(envelope::route(&message), Ok(Some(route)) if !route.actors.is_empty()) {
        let route = ErrorRoute {
            actors: [&actor.error_end],
            current: 0,
        };
        message.set("route", envelope::owned(&route));
    }

    let (original, encoding) = match &parsed {
        Some(object) => (object.get("payload").map(Cow::Borrowed), None),
        None => body.map(whole).unzip(),
    };
    let mut details = failure.details.clone();
    details.insert("actor".to_owned(), Value::String(actor.name.clone()));
    details.insert("attempts".to_owned(), attempts.into());
    let payload = ErrorPayload {
        error: &failure.code,
        details: &details,
        original_payload: original.as_deref(),
        original_encoding: encoding.flatten(),
    };
    message.set("payload", envelope::owned(&payload));
    let reply_to = parsed
        .as_ref()
        .and_then(|object| envelope::reply_to(object).ok().flatten());
    if reply_to.is_some() {
        // A reply queue gets results and failures.
        message.set("failed", envelope::owned(&true));
    }
    Outgoing {
        to: end(&actor.error_end, reply_to.as_deref()),
        kind: Kind::ErrorEnd,
        body: Some(message.to_bytes()),
        index: 0,
    }
}

/// A message that is not an envelope, as a JSON string, and the encoding of the string if the message is not text.
fn whole(body: &[u8]) -> (Cow<'_, RawValue>, Option<&'static str>) {
    match std::str::from_utf8(body) {
        Ok(text) => (envelope::owned(text), None),
        Err(_) => (envelope::owned(&STANDARD.encode(body)), Some("base64")),
    }
}

/// Id derived from the message, so that duplicates can be detected.
fn made_up_id(body: &[u8]) -> String {
    let digest = Sha256::digest(body);
    format!("unidentified-{}", hex::encode(&digest[..8]))
}
