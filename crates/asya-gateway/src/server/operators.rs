//! The API for operators: numbers of messages, and dead letters.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use jiff::Timestamp;
use parking_lot::Mutex;
use runway_api::name;
use runway_asya_transport::letters::{DeadLetter, Fate, Numbers, Visit, Visited};
use runway_asya_transport::operate::Broker;
use runway_asya_transport::queues::Queues;
use runway_callers::Caller;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

use super::{Api, Result};
use crate::memory::body;
use crate::refused::Refused;

/// Subresource of the right to see numbers of messages.
const QUEUE: &str = "queue";
/// Subresource of the rights to see, redrive and drop dead letters.
const DLQ: &str = "dlq";
/// Dead letters in a list, unless the request names a number.
const USUAL: usize = 100;
/// Most dead letters in a list, and most that one request processes.
const MOST: usize = 1000;
/// Most dead letters among which one is looked for.
const MOST_SEARCHED: usize = 10_000;
/// Time of a visit to a dead-letter queue.
const VISIT: Duration = Duration::from_secs(20);
/// Longest wait for the visit of another request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest id of a message that is used as the id of its dead letter.
const LONGEST_ID: usize = 128;

/// Access of operators to queues and dead letters.
pub struct Operators {
    broker: Broker,
    /// Largest dead letter that is read, in bytes.
    largest: usize,
    /// One visit at a time: another one would not see the dead letters that the first one has.
    turn: Semaphore,
}

impl Operators {
    /// For the queues of a broker, and dead letters up to this size.
    pub fn new(broker: Broker, largest: usize) -> Self {
        Self {
            broker,
            largest,
            turn: Semaphore::new(1),
        }
    }

    async fn turn(&self) -> Result<SemaphorePermit<'_>> {
        match timeout(PATIENCE, self.turn.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(Refused::unavailable(
                "another request reads dead letters; try again when it has ended",
            )),
        }
    }
}

/// An actor in the path of a request.
struct Actor {
    namespace: String,
    name: String,
    queue: String,
    dead_letters: String,
}

impl Actor {
    fn parse((namespace, name): (String, String)) -> Result<Self> {
        if !name::is_label(&namespace) || !name::is_label(&name) {
            let text = "the path does not name a namespace and an AsyncActor: /queues/NAMESPACE/ACTOR";
            return Err(invalid(text));
        }
        let queues = Queues::new(Some(&namespace), &name);
        Ok(Self {
            queue: queues.of(&name),
            dead_letters: queues.dead_letter,
            namespace,
            name,
        })
    }
}

/// Numbers of an actor. `null` is a number that the broker does not report.
#[derive(Serialize)]
struct Counted {
    namespace: String,
    actor: String,
    queue: String,
    #[serde(flatten)]
    numbers: Numbers,
}

pub(super) async fn numbers(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(path): Path<(String, String)>,
) -> Result {
    let actor = Actor::parse(path)?;
    api.operator(&caller, "get", QUEUE, &actor).await?;
    let numbers = api.operators.broker.numbers(&actor.queue, &actor.dead_letters).await?;
    let counted = Counted {
        namespace: actor.namespace,
        actor: actor.name,
        queue: actor.queue,
        numbers,
    };
    Ok(Json(counted).into_response())
}

/// A dead letter in a list.
#[derive(Serialize)]
struct Listed {
    /// `null` if it is too large to be read.
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    bytes: u64,
}

#[derive(Serialize)]
struct List {
    /// Dead letters in the queue.
    count: u64,
    items: Vec<Listed>,
}

/// A whole dead letter.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    listed: Listed,
    headers: serde_json::Map<String, serde_json::Value>,
    /// The message: JSON, or a string if it is not JSON.
    message: Box<RawValue>,
    /// Encoding of this string, if the message is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoding: Option<&'static str>,
}

impl Listed {
    fn of(letter: &DeadLetter) -> Self {
        let since = letter.since.and_then(|since| i64::try_from(since).ok());
        Self {
            id: id(letter),
            reason: letter.reason.clone(),
            since: since.and_then(|since| Timestamp::from_second(since).ok()),
            bytes: letter.size,
        }
    }
}

impl Whole {
    fn of(letter: &DeadLetter) -> Self {
        let body = letter.body.as_deref().unwrap_or_default();
        let headers = letter.headers.iter();
        let (message, encoding) = match (serde_json::from_slice(body), std::str::from_utf8(body)) {
            (Ok(json), _) => (json, None),
            (Err(_), Ok(text)) => (to_raw_value(text).unwrap_or_default(), None),
            (Err(_), Err(_)) => {
                let encoded = STANDARD.encode(body);
                (to_raw_value(&encoded).unwrap_or_default(), Some("base64"))
            }
        };
        Self {
            listed: Listed::of(letter),
            headers: headers
                .map(|(name, value)| (name.clone(), value.as_str().into()))
                .collect(),
            message,
            encoding,
        }
    }
}

/// Id of a dead letter: that of its message, or if it has none, a hash of its content.
fn id(letter: &DeadLetter) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        id: String,
    }
    let body = letter.body.as_ref()?;
    let named: Option<Named> = serde_json::from_slice(body).ok();
    let is_id = |id: &String| (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic());
    let own = named.map(|named| named.id).filter(is_id);
    Some(own.unwrap_or_else(|| format!("sha256:{}", hex::encode(&Sha256::digest(body)[..16]))))
}

/// The list of dead letters, or with `id` one of them.
pub(super) async fn look(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(path): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Result {
    let actor = Actor::parse(path)?;
    api.operator(&caller, "get", DLQ, &actor).await?;
    let (mut limit, mut wanted) = (USUAL, None);
    for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
        match name.as_ref() {
            "id" => wanted = Some(value.into_owned()),
            "limit" => {
                let number = value.parse().ok().filter(|number| (1..=MOST).contains(number));
                limit = number.ok_or_else(|| invalid(format!("limit: use a number from 1 to {MOST}")))?;
            }
            _ => {
                let name = name::shown(&name);
                return Err(invalid(format!("unknown parameter `{name}`: use limit or id")));
            }
        }
    }
    match wanted {
        Some(wanted) => api.show(&caller, &actor, wanted).await,
        None => api.list(&actor, limit).await,
    }
}

/// Dead letters to process.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Chosen {
    #[serde(default)]
    ids: Vec<String>,
    #[serde(default)]
    all: bool,
}

/// Result of a request that processed dead letters.
#[derive(Serialize)]
struct Done {
    /// Dead letters before.
    count: u64,
    /// Dead letters that were processed.
    processed: u64,
    /// Ids that were not found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

/// Redrives or deletes dead letters: `POST /queues/NAMESPACE/ACTOR/dlq/VERB`.
pub(super) async fn process(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path((namespace, name, verb)): Path<(String, String, String)>,
    body: Bytes,
) -> Result {
    let actor = Actor::parse((namespace, name))?;
    let (right, fate) = match verb.as_str() {
        "redrive" => ("update", Fate::Redrive),
        "drop" => ("delete", Fate::Drop),
        _ => return Err(invalid("dead letters can be processed with /dlq/redrive and /dlq/drop")),
    };
    api.operator(&caller, right, DLQ, &actor).await?;
    api.process(&caller, &actor, &body, fate).await
}

impl Api {
    /// Whether the caller has a right of operators on an actor.
    async fn operator(
        &self,
        caller: &Caller,
        verb: &'static str,
        subresource: &'static str,
        actor: &Actor,
    ) -> Result<()> {
        self.check(caller, verb, subresource, &actor.namespace, &actor.name)
            .await
    }

    async fn list(self: &Arc<Self>, actor: &Actor, limit: usize) -> Result {
        let items: Arc<Mutex<Vec<Listed>>> = Arc::default();
        let seen = Arc::clone(&items);
        let decide = move |letter: &DeadLetter| {
            seen.lock().push(Listed::of(letter));
            Fate::Keep
        };
        let visited = self.visit(actor, limit, decide).await?;
        let items = std::mem::take(&mut *items.lock());
        let count = visited.count;
        Ok(Json(List { count, items }).into_response())
    }

    async fn show(self: &Arc<Self>, caller: &Caller, actor: &Actor, wanted: String) -> Result {
        // The dead letter, and the JSON with it.
        let bytes = 2 * self.operators.largest;
        let taken = self.gateway.memory.take(&caller.tenant, bytes).await;
        let taken = taken.map_err(|error| Refused::unavailable(error.to_string()))?;
        let found: Arc<Mutex<Option<Vec<u8>>>> = Arc::default();
        let shown = Arc::clone(&found);
        let looked_for = wanted.clone();
        let decide = move |letter: &DeadLetter| {
            let mut shown = shown.lock();
            if shown.is_none() && id(letter).as_ref() == Some(&looked_for) {
                *shown = serde_json::to_vec(&Whole::of(letter)).ok();
            }
            Fate::Keep
        };
        self.visit(actor, MOST_SEARCHED, decide).await?;
        let Some(json) = found.lock().take() else {
            let text = format!(
                "dead letter '{wanted:.128}' not found in queue {}: list the dead letters to see their ids",
                actor.dead_letters
            );
            return Err(Refused::new(StatusCode::NOT_FOUND, "not_found", text));
        };
        let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
        Ok((headers, body(json.into(), taken)).into_response())
    }

    /// Redrives or drops the dead letters that a request chooses.
    async fn process(self: &Arc<Self>, caller: &Caller, actor: &Actor, body: &Bytes, fate: Fate) -> Result {
        let chosen: Chosen = serde_json::from_slice(body)
            .map_err(|error| invalid(format!("{error}: send {{\"ids\": [ID, …]}} or {{\"all\": true}}")))?;
        if chosen.all != chosen.ids.is_empty() || chosen.ids.len() > MOST {
            return Err(invalid(format!("name 1 to {MOST} dead letters in `ids`, or set `all`")));
        }
        let missing = Arc::new(Mutex::new(chosen.ids.clone()));
        let found = Arc::clone(&missing);
        let decide = move |letter: &DeadLetter| match id(letter) {
            _ if chosen.all => fate,
            Some(id) if chosen.ids.contains(&id) => {
                found.lock().retain(|missing| *missing != id);
                fate
            }
            _ => Fate::Keep,
        };
        let most = if missing.lock().is_empty() { MOST } else { MOST_SEARCHED };
        let (user, queue) = (&caller.user, &actor.dead_letters);
        tracing::info!(user, queue, ?fate, "processing dead letters");
        let visited = self.visit(actor, most, decide).await?;
        tracing::info!(
            user,
            queue,
            ?fate,
            processed = visited.settled,
            "processed dead letters"
        );
        let missing = std::mem::take(&mut *missing.lock());
        let done = Done {
            count: visited.count,
            processed: visited.settled,
            missing,
        };
        Ok(Json(done).into_response())
    }

    /// Visits the dead letters of an actor. If the client disconnects, the visit continues: a redriven message must be deleted.
    async fn visit(
        self: &Arc<Self>,
        actor: &Actor,
        most: usize,
        decide: impl FnMut(&DeadLetter) -> Fate + Send + 'static,
    ) -> Result<Visited> {
        let visit = Visit {
            queue: actor.queue.clone(),
            dead_letters: actor.dead_letters.clone(),
            most,
            largest: self.operators.largest as u64,
            until: Instant::now() + VISIT,
            decide: Box::new(decide),
        };
        let api = Arc::clone(self);
        let visited = tokio::spawn(async move {
            let _turn = api.operators.turn().await?;
            api.operators.broker.visit(visit).await.map_err(Refused::from)
        });
        let ended = |_| Refused::unavailable("the gateway is shutting down");
        visited.await.map_err(ended)?
    }
}

fn invalid(text: impl Into<String>) -> Refused {
    Refused::new(StatusCode::BAD_REQUEST, "invalid", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dead_letter_is_shown_as_json_text_or_base64() {
        let shown = |body: &'static [u8]| {
            let letter = DeadLetter {
                body: Some(Bytes::from_static(body)),
                size: 1,
                headers: Vec::new(),
                reason: None,
                since: None,
            };
            let whole = serde_json::to_value(Whole::of(&letter)).unwrap();
            (whole["message"].clone(), whole.get("encoding").cloned())
        };
        assert_eq!(shown(b"{\"a\":1}"), (serde_json::json!({"a": 1}), None));
        assert_eq!(shown(b"no json"), ("no json".into(), None));
        assert_eq!(shown(b"\xff\xfe{}"), ("//57fQ==".into(), Some("base64".into())));
    }
}
