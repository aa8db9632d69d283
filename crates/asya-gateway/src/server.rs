//! The HTTP API: for callers, and for the sidecars' reports.
//!
//! | request | what |
//! |---|---|
//! | `POST /v1/NAMESPACE/ACTOR` | submit a job |
//! | `POST /v1/NAMESPACE/ACTOR/chat/completions`, `/completions`, `/embeddings` | submit a job, and answer with its payload |
//! | `GET /jobs/ID`, `GET /jobs/ID/result` | status and result; the payload of the result |
//! | `DELETE /jobs/ID` | cancel |
//! | `GET /queues/NAMESPACE/ACTOR` | numbers of messages |
//! | `GET /queues/NAMESPACE/ACTOR/dlq` | dead letters, or with `?id=ID` one of them |
//! | `POST /queues/NAMESPACE/ACTOR/dlq/redrive`, `/drop` | redrive or delete dead letters |
//! | `POST /envelopes/ID/progress` | on another port: progress from a sidecar |

mod operators;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use runway_callers::{Action, Caller, Callers};
use runway_http::{Budget, Client, Form, Owner, Turn};
use runway_operator::audit::{self, Operation};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::callback::Hosts;
use crate::gateway::Gateway;
use crate::job::{Item, Progress, Step};
use crate::memory::UNREAD;
use crate::metrics::Refusal;
use crate::refused::Refused;
use crate::shown::Shown;
use crate::submission::{Submission, Times, preferred_wait};
use crate::waits::{Wait, Waits};

pub use operators::Operators;

/// API group, resource and subresource of the right to submit jobs: `create` on `asyncactors/messages` in `asya.sh`.
pub const GROUP: &str = "asya.sh";
/// Resource.
pub const RESOURCE: &str = "asyncactors";
/// Subresource.
pub const SUBRESOURCE: &str = "messages";
/// Kind of the objects to which jobs are submitted, for the audit log.
const KIND: &str = "AsyncActor";
/// Kind of a job, for the audit log.
const JOB: &str = "Job";
/// Interval of comments in a stream without news.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Longest stream. A client continues with `GET /jobs/ID`.
const LONGEST_STREAM: Duration = Duration::from_hours(1);

/// Memory for reports of sidecars.
const REPORTS: Budget = Budget {
    body: runway_http::Limits::REPORTS.body,
    always: 2 * 1024,
    received: 4 * 1024 * 1024,
    worked_on: 4 * 1024 * 1024,
    patience: Duration::from_secs(10),
    form: Form::OpenAi,
};

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct RequestLimits {
    /// Bytes of a body.
    pub body: usize,
    /// Memory of all bodies. One tenant has at most half of what others leave.
    pub bodies: usize,
    /// Longest wait of a request.
    pub wait: Duration,
    /// Times of jobs.
    pub times: Times,
}

/// Parts of the API.
pub struct Api {
    /// Jobs.
    pub gateway: Arc<Gateway>,
    /// Identity and rights.
    pub callers: Callers,
    /// Hosts of callbacks.
    pub hosts: Hosts,
    /// Limits.
    pub limits: RequestLimits,
    /// Broker, for operators.
    pub operators: Operators,
    /// Requests that wait.
    pub waits: Waits,
    /// Cancelled at shutdown: waits end.
    pub shutdown: CancellationToken,
}

/// Routes for callers.
pub fn callers(api: Arc<Api>) -> Router {
    let budget = Budget {
        body: api.limits.body,
        always: 16 * 1024,
        received: api.limits.bodies,
        worked_on: api.limits.bodies,
        patience: Duration::from_secs(30),
        form: Form::OpenAi,
    };
    let submit = Router::new()
        .route("/v1/{namespace}/{actor}", post(submit))
        .route("/v1/{namespace}/{actor}/chat/completions", post(complete))
        .route("/v1/{namespace}/{actor}/completions", post(complete))
        .route("/v1/{namespace}/{actor}/embeddings", post(complete))
        .route("/queues/{namespace}/{actor}/dlq/{verb}", post(operators::process));
    let jobs = Router::new()
        .route("/jobs/{id}", get(show).delete(cancel))
        .route("/jobs/{id}/result", get(result))
        .route("/queues/{namespace}/{actor}", get(operators::numbers))
        .route("/queues/{namespace}/{actor}/dlq", get(operators::look));
    // Callers are identified before their bodies take memory.
    budget
        .hold(submit.with_state(Arc::clone(&api)))
        .merge(jobs.with_state(Arc::clone(&api)))
        .route_layer(from_fn_with_state(api, admit))
}

/// Action and object of a request of a caller, for the audit log.
pub fn describe(method: &Method, path: &str) -> Option<Operation> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (action, kind, namespace, name) = match (method.as_str(), parts.as_slice()) {
        ("POST", ["v1", namespace, actor, ..]) => ("submit", KIND, namespace, actor),
        ("DELETE", ["jobs", id]) => ("cancel", JOB, &"", id),
        ("GET", ["jobs", id, "result"]) => ("read-result", JOB, &"", id),
        ("GET", ["queues", namespace, actor, "dlq"]) => ("read-dead-letters", KIND, namespace, actor),
        ("POST", ["queues", namespace, actor, "dlq", "redrive"]) => ("redrive-dead-letters", KIND, namespace, actor),
        ("POST", ["queues", namespace, actor, "dlq", "drop"]) => ("delete-dead-letters", KIND, namespace, actor),
        _ => return None,
    };
    Some(Operation {
        action,
        kind,
        namespace: audit::bounded(namespace),
        name: audit::bounded(name),
    })
}

/// Routes for sidecars. They have no tokens: who knows the id of a job has its message.
pub fn sidecars(gateway: Arc<Gateway>) -> Router {
    let report = Router::new().route("/envelopes/{id}/progress", post(progress));
    REPORTS
        .hold(report.with_state(Arc::clone(&gateway)))
        .route_layer(from_fn_with_state(gateway, admit_report))
        .route("/health", get(async || "ok"))
}

type Result<T = Response> = std::result::Result<T, Refused>;

/// Identifies the caller.
async fn admit(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Result {
    let client = Client::of(request.extensions());
    let caller = api.identify(request.headers(), client).await?;
    request.extensions_mut().insert(Owner((&caller.tenant).into()));
    request.extensions_mut().insert(caller);
    Ok(next.run(request).await)
}

async fn submit(
    State(api): State<Arc<Api>>,
    Path((namespace, actor)): Path<(String, String)>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(turn): Extension<Turn>,
    headers: HeaderMap,
    body: Bytes,
) -> Result {
    // A stream is an answer of its own, so its place is taken before the job is accepted.
    let stream = if is_stream(&headers) {
        Some(api.place(&caller).ok_or_else(Refused::too_many_waits)?)
    } else {
        None
    };
    let item = api.accept(&caller, &namespace, &actor, &headers, body, &turn).await?;
    if let Some(wait) = stream {
        return Ok(api.stream(item, wait));
    }
    let Some(time) = preferred_wait(&headers) else {
        return api.reported(&item, StatusCode::ACCEPTED, None).await;
    };
    let time = time.min(api.limits.wait);
    // A preference: without a place, the answer is that the job is accepted.
    if let Some(_wait) = api.place(&caller) {
        api.wait(&item, time).await?;
    }
    api.reported(&item, StatusCode::ACCEPTED, Some(time)).await
}

/// Requests in the form of OpenAI's API: the payload is the body, the answer is the payload of the result.
async fn complete(
    State(api): State<Arc<Api>>,
    Path((namespace, actor)): Path<(String, String)>,
    Extension(caller): Extension<Arc<Caller>>,
    Extension(turn): Extension<Turn>,
    headers: HeaderMap,
    body: Bytes,
) -> Result {
    #[derive(Deserialize)]
    struct Streamed {
        #[serde(default)]
        stream: Option<bool>,
    }
    let streamed: Option<Streamed> = serde_json::from_slice(&body).ok();
    if streamed.is_some_and(|request| request.stream == Some(true)) {
        let text = "stream: a queue has whole answers only; omit `stream`, or follow the job with Accept: text/event-stream at POST /v1/NAMESPACE/ACTOR";
        return Err(Refused::new(StatusCode::BAD_REQUEST, "stream_not_supported", text));
    }
    let _wait = api.place(&caller).ok_or_else(Refused::too_many_waits)?;
    let item = api.accept(&caller, &namespace, &actor, &headers, body, &turn).await?;
    let time = preferred_wait(&headers).unwrap_or(api.limits.wait).min(api.limits.wait);
    api.wait(&item, time).await?;
    let shown = Shown::of(&api.gateway, &item).await?.ok_or_else(Refused::unknown_job)?;
    if !shown.is_final {
        let text = format!("no result within {time:?}; the job continues: GET /jobs/{}", item.job);
        return Err(Refused::new(StatusCode::GATEWAY_TIMEOUT, "timeout", text));
    }
    payload(shown)
}

async fn show(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result {
    let item = api.item(&caller, &id)?;
    if is_stream(&headers) {
        let wait = api.place(&caller).ok_or_else(Refused::too_many_waits)?;
        return Ok(api.stream(item, wait));
    }
    let time = preferred_wait(&headers).map(|time| time.min(api.limits.wait));
    if let Some(time) = time
        && let Some(_wait) = api.place(&caller)
    {
        api.wait(&item, time).await?;
    }
    api.reported(&item, StatusCode::OK, time).await
}

async fn result(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<String>,
) -> Result {
    let item = api.item(&caller, &id)?;
    let shown = Shown::of(&api.gateway, &item).await?.ok_or_else(Refused::unknown_job)?;
    if !shown.is_final {
        let text =
            "the job has no result yet; ask again, or wait with the header `Prefer: wait=SECONDS` at GET /jobs/ID";
        return Err(Refused::new(StatusCode::CONFLICT, "pending", text));
    }
    payload(shown)
}

async fn cancel(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Arc<Caller>>,
    Path(id): Path<String>,
) -> Result {
    let item = api.item(&caller, &id)?;
    if !item.suffix.is_empty() {
        let text = "a child cannot be cancelled; cancel its job";
        return Err(Refused::new(StatusCode::BAD_REQUEST, "invalid", text));
    }
    api.gateway.cancel(item.job).await?;
    api.reported(&item, StatusCode::OK, None).await
}

/// A report of a sidecar, as the public Asya sends it.
#[derive(Deserialize)]
pub struct Report {
    #[serde(default)]
    actors: Vec<String>,
    #[serde(default)]
    current_actor_idx: u16,
    status: Step,
}

impl From<Report> for Progress {
    fn from(report: Report) -> Self {
        Self {
            current: report.current_actor_idx,
            of: u16::try_from(report.actors.len()).unwrap_or(u16::MAX),
            step: report.status,
        }
    }
}

/// Refuses reports about unknown jobs before their bodies take memory.
async fn admit_report(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    request: Request,
    next: Next,
) -> Result {
    let item = Item::parse(&id).ok_or_else(Refused::unknown_job)?;
    gateway.store.job(item.job)?.ok_or_else(Refused::unknown_job)?;
    Ok(next.run(request).await)
}

async fn progress(
    State(gateway): State<Arc<Gateway>>,
    Path(id): Path<String>,
    Json(report): Json<Report>,
) -> Result<StatusCode> {
    let item = Item::parse(&id).ok_or_else(Refused::unknown_job)?;
    if gateway.report(&item, report.into())? {
        Ok(StatusCode::OK)
    } else {
        Err(Refused::unknown_job())
    }
}

impl Api {
    async fn identify(&self, headers: &HeaderMap, client: IpAddr) -> Result<Arc<Caller>> {
        let identified = self.callers.identify(headers, client).await;
        identified.map_err(|error| self.not_answered(error))
    }

    /// Counts a question about a caller that the API server did not answer with yes.
    fn not_answered(&self, error: runway_callers::Error) -> Refused {
        let refused = Refused::from(error);
        self.gateway.metrics.refused(match refused.status {
            StatusCode::UNAUTHORIZED => Refusal::unauthenticated,
            _ => Refusal::unavailable,
        });
        refused
    }

    /// A place to wait.
    fn place(&self, caller: &Caller) -> Option<Wait> {
        self.waits.begin(&caller.tenant, &self.gateway.metrics)
    }

    /// Accepts a job, if the caller may send messages to every actor of its route. What is left to do is to wait, without the body.
    async fn accept(
        &self,
        caller: &Caller,
        namespace: &str,
        actor: &str,
        headers: &HeaderMap,
        body: Bytes,
        turn: &Turn,
    ) -> Result<Item> {
        let invalid = |message: String| {
            self.gateway.metrics.refused(Refusal::invalid);
            Refused::new(StatusCode::BAD_REQUEST, "invalid", message)
        };
        let submission = Submission::parse(namespace, actor, headers, &body, self.limits.times)
            .map_err(|error| invalid(error.to_string()))?;
        turn.end();
        for actor in &submission.route {
            let checked = self.check(caller, "create", SUBRESOURCE, namespace, actor).await;
            checked.inspect_err(|refused| {
                if refused.status == StatusCode::FORBIDDEN {
                    self.gateway.metrics.refused(Refusal::forbidden);
                }
            })?;
        }
        if let Some(url) = submission.callback {
            self.hosts.check(url).map_err(invalid)?;
        }
        let id = self.gateway.submit(caller, &submission).await?;
        let item = Item::of(id);
        audit::job(&item.to_string());
        Ok(item)
    }

    /// Whether a caller has a right on a subresource of an actor.
    async fn check(
        &self,
        caller: &Caller,
        verb: &'static str,
        subresource: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<()> {
        let action = Action {
            verb,
            group: GROUP,
            resource: RESOURCE,
            subresource,
            namespace,
            name,
        };
        let may = self.callers.may(caller, &action).await;
        if may.map_err(|error| self.not_answered(error))? {
            return Ok(());
        }
        let text = format!(
            "{} cannot {verb} {RESOURCE}/{subresource} of '{name}' in namespace '{namespace}': add a role with the verb {verb} on {RESOURCE}/{subresource} in {GROUP}",
            caller.user
        );
        Err(Refused::new(StatusCode::FORBIDDEN, "forbidden", text))
    }

    /// The item with an id, if it is the caller's. Others do not learn that it exists.
    fn item(&self, caller: &Caller, id: &str) -> Result<Item> {
        let item = Item::parse(id).ok_or_else(Refused::unknown_job)?;
        let job = self.gateway.store.job(item.job)?.ok_or_else(Refused::unknown_job)?;
        if job.user != caller.user || job.uid != caller.uid {
            return Err(Refused::unknown_job());
        }
        Ok(item)
    }

    /// Waits until an item has a result, at most for this time.
    async fn wait(&self, item: &Item, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let mut news = self.gateway.watches.watch(item.job);
        while !self.is_final(item)? {
            tokio::select! {
                changed = timeout_at(end, news.changed()) => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                () = self.shutdown.cancelled() => return Ok(()),
            }
        }
        Ok(())
    }

    fn is_final(&self, item: &Item) -> Result<bool> {
        let Some(job) = self.gateway.store.job(item.job)? else {
            return Ok(true);
        };
        if item.suffix.is_empty() {
            return Ok(job.finished.is_some());
        }
        Ok(self.gateway.store.size(item)? > 0)
    }

    /// The job as JSON. `unfinished` is the status code while it has no result.
    async fn reported(&self, item: &Item, unfinished: StatusCode, waited: Option<Duration>) -> Result {
        let shown = Shown::of(&self.gateway, item).await?.ok_or_else(Refused::unknown_job)?;
        let status = if shown.is_final { StatusCode::OK } else { unfinished };
        let mut response = (status, shown.into_body()).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let mut set = |name: http::HeaderName, value: String| {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        };
        set(LOCATION, format!("/jobs/{item}"));
        if let Some(time) = waited {
            let name = http::HeaderName::from_static("preference-applied");
            set(name, format!("wait={}", time.as_secs()));
        }
        Ok(response)
    }

    /// Events about a job: `update` with the job as JSON at each change, the last with its result.
    fn stream(self: &Arc<Self>, item: Item, wait: Wait) -> Response {
        let (events, sent) = mpsc::channel::<Event>(1);
        let api = Arc::clone(self);
        tokio::spawn(async move {
            let _wait = wait;
            let reported = api.announce(&item, &events);
            tokio::select! {
                _ = timeout(LONGEST_STREAM, reported) => {}
                () = events.closed() => {}
                () = api.shutdown.cancelled() => {}
            }
        });
        let stream = futures::stream::unfold(sent, |mut sent| async move {
            let event = sent.recv().await?;
            Some((Ok::<_, Infallible>(event), sent))
        });
        Sse::new(stream)
            .keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
            .into_response()
    }

    async fn announce(&self, item: &Item, events: &mpsc::Sender<Event>) {
        let mut news = self.gateway.watches.watch(item.job);
        loop {
            let Ok(Some(shown)) = Shown::of(&self.gateway, item).await else {
                return;
            };
            // Only between values of JSON, and not allowed in an event.
            let text = String::from_utf8_lossy(&shown.json).replace('\r', " ");
            let event = Event::default().event("update").data(text);
            // A client that reads nothing loses its stream.
            if !matches!(timeout(UNREAD, events.send(event)).await, Ok(Ok(()))) || shown.is_final {
                return;
            }
            news.changed().await;
        }
    }
}

/// The payload of a result; of a failed job, an error.
fn payload(shown: Shown) -> Result {
    let Some(outcome) = &shown.outcome else {
        return Err(Refused::new(StatusCode::GONE, "cancelled", "the job was cancelled"));
    };
    let status = if outcome.failed {
        StatusCode::BAD_GATEWAY
    } else {
        StatusCode::OK
    };
    if outcome.failed {
        let error: serde_json::Value = serde_json::from_slice(&outcome.payload).unwrap_or_default();
        let code = error["error"].as_str().unwrap_or("failed");
        let message = error["details"]["message"].as_str().unwrap_or("the job failed");
        return Err(Refused::new(status, "job_failed", format!("{code}: {message}")));
    }
    if outcome.payload.is_empty() {
        let text = "the result was dropped: the job has too many children, or results of pending jobs fill the store (--largest-store)";
        return Err(Refused::new(StatusCode::GONE, "result_dropped", text));
    }
    let headers = [(CONTENT_TYPE, "application/json"), (CACHE_CONTROL, "no-store")];
    Ok((status, headers, shown.into_payload()).into_response())
}

fn is_stream(headers: &HeaderMap) -> bool {
    let accepts = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    accepts.is_some_and(|accepts| accepts.contains("text/event-stream"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_act_or_show_payloads_are_in_the_audit_log() {
        let of = |method: Method, path: &str| {
            describe(&method, path).map(|operation| {
                format!(
                    "{} {} {}/{}",
                    operation.action, operation.kind, operation.namespace, operation.name
                )
            })
        };
        for (method, path, operation) in [
            (Method::POST, "/v1/a/b", "submit AsyncActor a/b"),
            (Method::POST, "/v1/a/b/chat/completions", "submit AsyncActor a/b"),
            (Method::DELETE, "/jobs/1", "cancel Job /1"),
            (Method::GET, "/jobs/1/result", "read-result Job /1"),
            (Method::GET, "/queues/a/b/dlq", "read-dead-letters AsyncActor a/b"),
            (
                Method::POST,
                "/queues/a/b/dlq/redrive",
                "redrive-dead-letters AsyncActor a/b",
            ),
            (
                Method::POST,
                "/queues/a/b/dlq/drop",
                "delete-dead-letters AsyncActor a/b",
            ),
        ] {
            assert_eq!(of(method, path).as_deref(), Some(operation), "{path}");
        }
        for path in ["/", "/jobs/1", "/queues/a/b"] {
            assert_eq!(of(Method::GET, path), None, "{path}");
        }
    }
}
