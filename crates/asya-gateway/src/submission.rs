//! Submissions: from a request to a job and its message. Pure.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use jiff::Timestamp;
use runway_api::name;
use serde::Serialize;
use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use crate::job::{Id, Job, Key, State};

/// Header with the further actors of the route, separated by commas.
pub const ROUTE: &str = "asya-route";
/// Header with the time that the actors have, such as `90s` or `1h`.
pub const TIMEOUT: &str = "asya-timeout";
/// Header with the URL that gets the result.
pub const CALLBACK: &str = "asya-callback";
/// Header with a key of the caller's choice, under which a repeated submission gets the same job
/// (draft-ietf-httpapi-idempotency-key-header-07).
pub const KEY: &str = "idempotency-key";
/// Most actors of a route.
const LONGEST_ROUTE: usize = 64;
/// Longest URL.
const LONGEST_URL: usize = 2048;
/// Longest idempotency key.
const LONGEST_KEY: usize = 255;

/// Reason for rejecting a submission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(String);

/// Bounds of the time that a caller may give the actors.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// If the caller gives none.
    pub usual: Duration,
    /// Longest.
    pub longest: Duration,
}

/// A submission that can be accepted.
#[derive(Debug)]
pub struct Submission<'a> {
    /// Namespace of the actors.
    pub namespace: &'a str,
    /// Names of the actors, in order.
    pub route: Vec<&'a str>,
    /// Time that the actors have.
    pub time: Duration,
    /// URL that gets the result.
    pub callback: Option<&'a str>,
    /// Idempotency key.
    key: Option<&'a str>,
    /// Headers of the envelope.
    traces: Traces<'a>,
    payload: &'a RawValue,
}

#[derive(Debug, Serialize)]
struct Traces<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tracestate: Option<&'a str>,
}

/// The message, as `docs/reference/asya-protocol.md` section 2 specifies it.
#[derive(Serialize)]
struct Envelope<'a> {
    id: String,
    route: Route<'a>,
    headers: &'a Traces<'a>,
    reply_to: &'a str,
    deadline: Timestamp,
    payload: &'a RawValue,
}

#[derive(Serialize)]
struct Route<'a> {
    actors: &'a [&'a str],
    current: u32,
}

impl<'a> Submission<'a> {
    /// Parses a request. The payload is the whole body.
    ///
    /// # Errors
    /// The part of the request that is invalid, and why.
    pub fn parse(
        namespace: &'a str,
        actor: &'a str,
        headers: &'a HeaderMap,
        body: &'a Bytes,
        times: Times,
    ) -> Result<Self, Invalid> {
        if !name::is_label(namespace) {
            return Err(Invalid(format!(
                "invalid namespace `{}` in the path",
                name::shown(namespace)
            )));
        }
        let mut route = vec![actor];
        if let Some(further) = header(headers, ROUTE)? {
            route.extend(further.split(',').map(str::trim));
        }
        if route.len() > LONGEST_ROUTE {
            return Err(Invalid(format!("{ROUTE}: at most {LONGEST_ROUTE} actors are accepted")));
        }
        if let Some(bad) = route.iter().find(|actor| !name::is_label(actor)) {
            return Err(Invalid(format!(
                "invalid actor `{}`: use the name of an AsyncActor",
                name::shown(bad)
            )));
        }
        let callback = header(headers, CALLBACK)?;
        if callback.is_some_and(|url| url.len() > LONGEST_URL) {
            return Err(Invalid(format!("{CALLBACK}: at most {LONGEST_URL} bytes are accepted")));
        }
        let key = header(headers, KEY)?;
        if key.is_some_and(|key| key.is_empty() || key.len() > LONGEST_KEY) {
            return Err(Invalid(format!("{KEY}: 1 to {LONGEST_KEY} bytes are accepted")));
        }
        let payload = serde_json::from_slice(body).map_err(|error| {
            Invalid(format!(
                "the body is not JSON: {error}; send the payload of the actor as JSON"
            ))
        })?;
        Ok(Self {
            namespace,
            route,
            time: time(headers, times)?,
            callback,
            key,
            traces: Traces {
                traceparent: header(headers, "traceparent").ok().flatten(),
                tracestate: header(headers, "tracestate").ok().flatten(),
            },
            payload,
        })
    }

    /// The job of a user, submitted now.
    pub fn job(&self, user: &str, uid: &str, now: i64) -> Job {
        let time = i64::try_from(self.time.as_millis()).unwrap_or(i64::MAX);
        Job {
            namespace: self.namespace.to_owned(),
            route: self.route.iter().map(ToString::to_string).collect(),
            user: user.to_owned(),
            uid: uid.to_owned(),
            created: now,
            deadline: now.saturating_add(time),
            state: State::Pending,
            finished: None,
            callback: self.callback.map(str::to_owned),
            attempts: 0,
            bytes: 0,
            children: 0,
            items: 1,
            failures: 0,
            key: self.key.map(|key| Key {
                name: serde_json::json!([user, uid, key]).to_string(),
                request: self.hash(),
                is_sent: false,
            }),
        }
    }

    /// Hash of what the actors get, and of who gets it.
    fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for part in [self.namespace, &self.route.join(","), self.payload.get()] {
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        }
        hex::encode(hash.finalize())
    }

    /// The message of the job; its result comes to the reply queue with this name.
    pub fn envelope(&self, id: Id, deadline: i64, reply_to: &str) -> Bytes {
        let envelope = Envelope {
            id: id.to_string(),
            route: Route {
                actors: &self.route,
                current: 0,
            },
            headers: &self.traces,
            reply_to,
            deadline: Timestamp::from_millisecond(deadline).unwrap_or(Timestamp::MAX),
            payload: self.payload,
        };
        // Cannot fail: all keys are strings, and the payload is JSON already.
        serde_json::to_vec(&envelope).unwrap_or_default().into()
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Invalid> {
    let Some(value) = headers.get(name) else {
        return Ok(None);
    };
    let text = value
        .to_str()
        .map_err(|_| Invalid(format!("{name}: use ASCII characters")))?;
    Ok(Some(text.trim()))
}

fn time(headers: &HeaderMap, times: Times) -> Result<Duration, Invalid> {
    let Some(text) = header(headers, TIMEOUT)? else {
        return Ok(times.usual);
    };
    let parsed = text
        .parse()
        .ok()
        .and_then(|time: jiff::SignedDuration| Duration::try_from(time).ok());
    let Some(time) = parsed.filter(|time| *time >= Duration::from_secs(1)) else {
        return Err(Invalid(format!(
            "{TIMEOUT}: `{}` is not a time of at least 1s, such as 90s or 1h",
            name::shown(text)
        )));
    };
    if time > times.longest {
        return Err(Invalid(format!("{TIMEOUT}: at most {:?} are accepted", times.longest)));
    }
    Ok(time)
}

/// Seconds of `Prefer: wait=N` (RFC 7240), if the request has it.
pub fn preferred_wait(headers: &HeaderMap) -> Option<Duration> {
    let values = headers.get_all("prefer").iter().filter_map(|value| value.to_str().ok());
    let preferences = values.flat_map(|value| value.split([',', ';']));
    preferences
        .filter_map(|preference| preference.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("wait"))
        .and_then(|(_, seconds)| seconds.trim().trim_matches('"').parse().ok())
        .map(Duration::from_secs)
}

/// A result that arrived at the reply queue.
#[derive(serde::Deserialize)]
pub struct Reply<'a> {
    /// Id of the job, or of a child.
    #[serde(borrow)]
    pub id: std::borrow::Cow<'a, str>,
    /// Whether the payload is an error.
    #[serde(default)]
    pub failed: bool,
    /// Number of items into which the handlers have split this one, including itself. `None` if they did not.
    #[serde(default)]
    pub item_count: Option<u32>,
    /// Result.
    #[serde(borrow)]
    pub payload: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};
    use serde_json::{Value, json};

    use super::*;

    const TIMES: Times = Times {
        usual: Duration::from_hours(1),
        longest: Duration::from_hours(24),
    };

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
            .collect()
    }

    #[test]
    fn message_carries_the_payload_unchanged() {
        let headers = headers(&[(ROUTE, "b, c"), (TIMEOUT, "90s"), ("traceparent", "00-1-2-01")]);
        let body = Bytes::from(r#"{"n": 12345678901234567890.10, "s": "\u00e9"}"#);
        let submission = Submission::parse("team", "a", &headers, &body, TIMES).unwrap();
        let job = submission.job("ada", "", 1_700_000_000_000);
        assert_eq!((job.deadline - job.created, job.route.len()), (90_000, 3));
        let message = submission.envelope(Id(7), job.deadline, "gateway");
        let text = std::str::from_utf8(&message).unwrap();
        assert!(text.contains(std::str::from_utf8(&body).unwrap()), "{text}");
        let envelope: Value = serde_json::from_slice(&message).unwrap();
        assert_eq!(envelope["id"], Id(7).to_string());
        assert_eq!(envelope["route"], json!({"actors": ["a", "b", "c"], "current": 0}));
        assert_eq!(envelope["headers"], json!({"traceparent": "00-1-2-01"}));
        assert_eq!(envelope["reply_to"], "gateway");
        assert_eq!(envelope["deadline"], "2023-11-14T22:14:50Z");
    }

    #[test]
    fn invalid_submissions_are_rejected_with_their_part() {
        let many = vec!["x"; 64].join(",");
        let cases: &[(&str, &str, HeaderMap, &str, &str)] = &[
            ("Team", "a", headers(&[]), "{}", "namespace"),
            ("a/b", "a", headers(&[]), "{}", "namespace"),
            ("team", "a_b", headers(&[]), "{}", "actor"),
            ("team", "a", headers(&[(ROUTE, "b,,c")]), "{}", "actor"),
            ("team", "a", headers(&[(ROUTE, &many)]), "{}", "at most 64"),
            ("team", "a", headers(&[(TIMEOUT, "0s")]), "{}", "asya-timeout"),
            ("team", "a", headers(&[(TIMEOUT, "25h")]), "{}", "at most"),
            ("team", "a", headers(&[(TIMEOUT, "soon")]), "{}", "asya-timeout"),
            (
                "team",
                "a",
                headers(&[(CALLBACK, &"x".repeat(2049))]),
                "{}",
                "asya-callback",
            ),
            ("team", "a", headers(&[]), "", "not JSON"),
            ("team", "a", headers(&[]), "{} {}", "not JSON"),
            ("team", "a", headers(&[]), "\u{0}", "not JSON"),
        ];
        for (namespace, actor, headers, body, part) in cases {
            let body = Bytes::copy_from_slice(body.as_bytes());
            let error = Submission::parse(namespace, actor, headers, &body, TIMES).unwrap_err();
            assert!(error.to_string().contains(part), "{error}: {part}");
        }
        let body = Bytes::from_static(b"\"\xff\"");
        assert!(Submission::parse("team", "a", &headers(&[]), &body, TIMES).is_err());
    }

    #[test]
    fn key_belongs_to_its_user_and_its_request() {
        let key = |user: &str, uid: &str, key: &str, route: &str, body: &'static str| {
            let headers = headers(&[(KEY, key), (ROUTE, route)]);
            let body = Bytes::from_static(body.as_bytes());
            let submission = Submission::parse("team", "a", &headers, &body, TIMES).unwrap();
            submission.job(user, uid, 0).key.unwrap()
        };
        let first = key("ada", "1", "k", "b", "{}");
        assert_eq!(first, key("ada", "1", "k", "b", "{}"));
        for (user, uid, name) in [
            ("bob", "1", "k"),
            ("ada", "2", "k"),
            ("ada", "1", "k2"),
            ("ada1", "", "k"),
        ] {
            assert_ne!(key(user, uid, name, "b", "{}").name, first.name, "{user} {uid} {name}");
        }
        for (route, body) in [("c", "{}"), ("b", "[]")] {
            let other = key("ada", "1", "k", route, body);
            assert_eq!(other.name, first.name);
            assert_ne!(other.request, first.request, "{route} {body}");
        }
        for bad in ["", &"x".repeat(256)] {
            let headers = headers(&[(KEY, bad)]);
            assert!(Submission::parse("team", "a", &headers, &Bytes::from_static(b"{}"), TIMES).is_err());
        }
    }

    #[test]
    fn preferred_wait_is_read_from_any_preference() {
        let of = |value: &str| preferred_wait(&headers(&[("prefer", value)]));
        assert_eq!(of("wait=10"), Some(Duration::from_secs(10)));
        assert_eq!(of("respond-async, Wait=\"3\""), Some(Duration::from_secs(3)));
        for none in ["respond-async", "wait", "wait=", "wait=-1", "wait=1.5", "waiting=3"] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
