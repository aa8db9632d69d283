//! The HTTP API, in the form of OpenAI's and Anthropic's.
//!
//! | request | what |
//! |---|---|
//! | `GET /v1/models`, `GET /v1/models/ID` | the models that the caller may use |
//! | `POST` to one of [`paths::ENDPOINTS`] | passed on to the engine of the model |

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use runway_callers::places::{Place, Places};
use runway_callers::tenant::Tenant;
use runway_http::body::Holding;
use runway_http::{Budget, Form, Owner, Turn, refusal};
use runway_operator::audit::{self, Operation, Served, UntilEnd};
use runway_operator::trace::Traces;
use serde_json::json;

use crate::daily::Daily;
use crate::engine::{self, Answer};
use crate::limits::{Admitted, Limits};
use crate::metered::{Count, End, Metered};
use crate::metrics::Metrics;
use crate::model::Model;
use crate::paths::{self, Endpoint};
use crate::refused::Refused;
use crate::requested::Requested;
use crate::revocable::Revocable;
use crate::rights::{Rights, Who};
use crate::serving::{Ready, Serving, Versions, Wanted};
use crate::spans::Span;
use crate::table::{self, Listed};
use crate::usage::Usage;

/// Bytes of each body that are always received.
const ALWAYS: usize = 4 * 1024;
/// Longest time for which a client may send a body.
pub(crate) const RECEIVED_WITHIN: Duration = Duration::from_secs(30);

/// Header with the key of a caller, in Anthropic's API.
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Header of a request that shows the choice of the replica in [`CHOICE`]. With the value [`ONLY`], the response explains the choice,
/// and the request is not sent.
const EXPLAIN: HeaderName = HeaderName::from_static("x-kubeairunway-explain");
/// Value of [`EXPLAIN`].
const ONLY: &str = "only";
/// Header of a response with the choice of the replica.
const CHOICE: HeaderName = HeaderName::from_static("x-kubeairunway-choice");

/// Kind of the objects that requests are about.
const KIND: &str = "ModelDeployment";

/// Sizes of requests.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Bytes of a body.
    pub body: usize,
    /// Memory of all bodies, without the first 4 KiB of each. One tenant has at most half of what others leave.
    pub bodies: usize,
}

/// Parts of the API.
pub struct Api {
    /// Identity and rights.
    pub rights: Arc<Rights>,
    /// Models and engines.
    pub serving: Serving,
    /// Limits of requests and tokens.
    pub limits: Arc<Limits>,
    /// Places for requests.
    pub places: Places<Tenant>,
    /// Places for requests to one model, which may hang.
    pub of_models: Places<table::Key>,
    /// Interval at which the right of a caller to a response in progress is checked.
    pub check_rights_every: Duration,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Use by day.
    pub daily: Arc<Daily>,
    /// Traces.
    pub traces: Traces,
}

type Result<T = Response> = std::result::Result<T, Refused>;

/// The routes.
pub fn router(api: Arc<Api>, sizes: Sizes) -> Router {
    let budget = Budget {
        body: sizes.body,
        always: ALWAYS,
        received: sizes.bodies,
        worked_on: sizes.bodies,
        patience: RECEIVED_WITHIN,
        form: Form::OpenAi,
    };
    let passed_on = paths::ENDPOINTS.into_iter().fold(Router::new(), |router, endpoint| {
        router.route(endpoint.path, post(pass_on))
    });
    let models = Router::new()
        .route("/v1/models", get(list))
        .route("/v1/models/{*id}", get(show))
        .fallback(no_route)
        .method_not_allowed_fallback(no_route);
    let passed_on = passed_on.method_not_allowed_fallback(no_route);
    // Callers are admitted before their bodies take memory.
    budget
        .hold(passed_on.with_state(Arc::clone(&api)))
        .merge(models.with_state(Arc::clone(&api)))
        .layer(from_fn_with_state(api, admit))
        .layer(from_fn(in_form_of_its_api))
}

/// Gives refusals the form of the API that the path belongs to.
async fn in_form_of_its_api(request: Request, next: Next) -> Response {
    let is_anthropic = paths::is_anthropic(request.uri().path());
    let response = next.run(request).await;
    if is_anthropic {
        refusal::as_anthropic(response)
    } else {
        response
    }
}

/// Action and object of a request, for the audit log.
pub fn describe(method: &Method, _: &str) -> Option<Operation> {
    (method == Method::POST).then_some(Operation {
        action: "infer",
        kind: KIND,
        ..Operation::default()
    })
}

/// Identifies the caller, and takes a place for the request until the last byte of its response.
async fn admit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    take_key(&mut parts.headers);
    let admitted = async {
        let who = api.rights.identify(&parts).await?;
        let too_many = || Refused::busy("your tenant has too many requests in flight, or the router has; try again");
        let tenant = who.tenant();
        let place = api.places.take(&tenant).ok_or_else(too_many)?;
        Ok((who, tenant, place))
    };
    // Steps that are over keep no memory while the request is held: each has its own.
    match Box::pin(admitted).await {
        Ok((who, tenant, place)) => {
            let taken = (place, api.metrics.begin());
            parts.extensions.insert(who);
            parts.extensions.insert(Owner((&tenant).into()));
            let response = next.run(Request::from_parts(parts, body)).await;
            response.map(|body| Body::new(Holding::new(body, taken)))
        }
        Err(refused) => api.refusal(refused),
    }
}

/// Anthropic's clients send their key in a header of their own.
fn take_key(headers: &mut HeaderMap) {
    let key = headers
        .remove(X_API_KEY)
        .filter(|_| !headers.contains_key(AUTHORIZATION));
    let bearer = key.and_then(|key| HeaderValue::from_bytes(&[b"Bearer ", key.as_bytes()].concat()).ok());
    if let Some(bearer) = bearer {
        headers.insert(AUTHORIZATION, bearer);
    }
}

async fn list(State(api): State<Arc<Api>>, Extension(who): Extension<Who>) -> Response {
    api.answer(async {
        api.models_are_known()?;
        let models = api.rights.usable(&who, api.serving.models.all()).await?;
        Ok(Json(json!({ "object": "list", "data": api.serving.models.listing(&models) })).into_response())
    })
    .await
}

async fn show(State(api): State<Arc<Api>>, Extension(who): Extension<Who>, Path(id): Path<String>) -> Response {
    api.answer(async {
        let model = api.choose(&who, &id).await?;
        Ok(Json(Listed::new(id, &model)).into_response())
    })
    .await
}

async fn no_route(State(api): State<Arc<Api>>) -> Response {
    api.answer(async { Err(Refused::no_route()) }).await
}

async fn pass_on(
    State(api): State<Arc<Api>>,
    Extension(who): Extension<Who>,
    Extension(turn): Extension<Turn>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    if headers.get(EXPLAIN).is_some_and(|value| value == ONLY) {
        return Box::pin(explain(&api, &who, &uri, &headers, &body)).await;
    }
    let begun = Instant::now();
    let endpoint = Endpoint::at(uri.path());
    let mut span = Span::of_request(&api.traces, endpoint.map_or("", |endpoint| endpoint.path), &headers);
    let forwarded = engine::forwarded(&headers);
    let line = audit::until_end();
    // On the heap once, and not in the future of each layer around it.
    let passed_on = Box::pin(async {
        let endpoint = endpoint.ok_or_else(Refused::no_route)?;
        let requested = Requested::read(endpoint, &headers, &body)?;
        let wants_choice = headers.contains_key(EXPLAIN);
        drop((uri, headers));
        audit::object(KIND, "", &requested.model);
        turn.end();
        let model = Box::pin(api.choose(&who, &requested.model)).await?;
        audit::object(KIND, &model.namespace, &model.name);
        span.model(&model);
        let shows_choice = wants_choice && Box::pin(api.rights.may_see_pods(&who, &model)).await?;
        let admitted = Box::pin(api.limits.admit(&who, &model, requested.estimated_tokens)).await?;
        let place = api.place_at(&model)?;
        let counted = (place, api.metrics.request(&model));
        let outgoing = Outgoing {
            api: &api,
            endpoint,
            model: &model,
            fallback: Box::pin(api.fallback(&who, &model)).await?,
            requested: &requested,
            span: &span,
        };
        let Sent {
            answer,
            by,
            adds_usage,
            at_engine,
            engine_begun,
        } = Box::pin(outgoing.send(forwarded, body)).await?;
        let answer =
            answer.map_err(|error| Refused::broken(format!("{error}; the request may have been processed")))?;
        let answering = by.counted_as(&model);
        api.metrics
            .responded(answering, &who, answer.status().as_u16(), begun.elapsed());
        if answer.status() == StatusCode::NOT_FOUND {
            api.serving.names.forget(&by.uid);
        }
        let decision = answer.body().decision().clone();
        api.metrics.chose(answering, &decision);
        let (mut parts, body) = answer.into_parts();
        if shows_choice {
            let choice = HeaderValue::try_from(decision.to_string()).ok();
            parts.headers.extend(choice.map(|choice| (CHOICE, choice)));
        }
        parts.headers.extend(admitted.headers());
        let settled = Settled {
            api: Arc::clone(&api),
            requested: Arc::clone(&model),
            by: Arc::clone(&by),
            engine_begun,
            header_in: engine_begun.elapsed(),
            admitted,
            line,
            who: who.clone(),
            estimated: requested.estimated_tokens,
            status: parts.status,
        };
        let metered = Metered::new(&parts.headers, body, adds_usage, |count| settled.settle(count));
        if metered.removes_events() {
            parts.headers.remove(CONTENT_LENGTH);
        }
        let lost = Arc::clone(&api.rights).lost(who, model, api.check_rights_every);
        let body = Revocable::new(endpoint.path, &parts.headers, metered, lost);
        Ok((Response::from_parts(parts, body), counted, at_engine))
    });
    match passed_on.await {
        Ok((answer, counted, at_engine)) => {
            span.responded(answer.status());
            // Until the last byte.
            let held = (counted, at_engine, span);
            answer.map(|body| Body::new(Holding::new(body, held)))
        }
        Err(refused) => {
            span.refused(&refused);
            api.refusal(refused)
        }
    }
}

/// The choice of the replica for a request, which is not sent.
async fn explain(api: &Api, who: &Who, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Response {
    api.answer(async {
        let endpoint = Endpoint::at(uri.path()).ok_or_else(Refused::no_route)?;
        let requested = Requested::read(endpoint, headers, body)?;
        let model = api.choose(who, &requested.model).await?;
        if !api.rights.may_see_pods(who, &model).await? {
            return Err(Refused::choice_is_not_shown(&model));
        }
        Ok(Json(api.serving.explain(&model, &requested.prompt)).into_response())
    })
    .await
}

/// A request that was sent to an engine.
struct Sent {
    answer: std::result::Result<Response<Answer>, engine::Error>,
    /// The model that answers.
    by: Arc<Model>,
    /// The request for the tokens of a stream was added.
    adds_usage: bool,
    at_engine: Span,
    engine_begun: Instant,
}

/// A request on its way to the engine of a model.
struct Outgoing<'a> {
    api: &'a Api,
    endpoint: Endpoint,
    model: &'a Model,
    /// Model that gets the request if the other does not serve.
    fallback: Option<Arc<Model>>,
    requested: &'a Requested,
    span: &'a Span,
}

impl Outgoing<'_> {
    /// Sends the request to the model, or to its canary. One that a canary fails is sent to the stable version, too.
    async fn send(&self, forwarded: HeaderMap, body: Bytes) -> Result<Sent> {
        let ready = self.connect(Versions::All).await?;
        let again = ready.model.canary.is_some().then(|| (forwarded.clone(), body.clone()));
        let sent = Box::pin(self.send_to(ready, forwarded, body)).await;
        match again.filter(|_| sent.has_failed()) {
            None => Ok(sent),
            Some((forwarded, body)) => {
                let stable = self.connect(Versions::Stable).await?;
                Ok(Box::pin(self.send_to(stable, forwarded, body)).await)
            }
        }
    }

    async fn connect(&self, versions: Versions) -> Result<Ready> {
        let _connecting = self.span.within("connect");
        let wanted = Wanted {
            model: self.model,
            versions,
            fallback: self.fallback.as_deref(),
        };
        self.api.serving.connect(wanted, &self.requested.prompt).await
    }

    async fn send_to(&self, ready: Ready, mut forwarded: HeaderMap, body: Bytes) -> Sent {
        let adds_usage = self.requested.lacks_usage() && ready.model.reports_usage;
        let renamed = self.requested.renamed(&body, &ready.name, adds_usage);
        drop(body);
        let at_engine = self.span.within("engine");
        at_engine.forward(&mut forwarded);
        let request = ready
            .connection
            .request(Method::POST, self.endpoint.at_engine, forwarded, renamed);
        let engine_begun = Instant::now();
        let answer = Box::pin(ready.connection.send(request)).await;
        let sent = Sent {
            answer,
            by: ready.model,
            adds_usage,
            at_engine,
            engine_begun,
        };
        if sent.has_failed() {
            self.api
                .serving
                .compare(self.model, &sent.by, true, engine_begun.elapsed());
        }
        sent
    }
}

impl Sent {
    fn has_failed(&self) -> bool {
        self.answer
            .as_ref()
            .map_or(true, |answer| answer.status().is_server_error())
    }
}

/// Work at the end of a response.
struct Settled {
    api: Arc<Api>,
    /// The model of the request, and the one that answers.
    requested: Arc<Model>,
    by: Arc<Model>,
    /// Time at which the engine got the request, and until the header of its response.
    engine_begun: Instant,
    header_in: Duration,
    admitted: Admitted,
    line: Option<UntilEnd>,
    who: Who,
    /// Tokens of the prompt, by its length.
    estimated: u64,
    status: StatusCode,
}

impl Settled {
    /// Counts the tokens. Without a report of the engine, an answer that was paid for counts by what is known: the length of its
    /// prompt, and the parts of its response.
    fn settle(self, count: Count) {
        let model = self.by.counted_as(&self.requested);
        let is_estimated = count.usage.is_none() && self.status.is_success();
        let estimate = Usage {
            input: if is_estimated { self.estimated } else { 0 },
            output: count.parts,
        };
        let usage = count.usage.unwrap_or(estimate);
        self.compare(&count);
        self.api.metrics.used(model, &self.who, usage, is_estimated);
        if self.status.is_success() {
            self.api.daily.count(model, &self.who, usage, is_estimated);
        }
        self.admitted.end(usage.input.saturating_add(usage.output));
        if let Some(line) = self.line {
            line.ended(Served {
                end: count.end.as_str(),
                input_tokens: usage.input,
                output_tokens: usage.output,
                estimated: is_estimated,
            });
        }
    }

    /// Compares a canary with its model, by responses that have not failed before: an engine may send the header of a stream long
    /// before its first token.
    fn compare(&self, count: &Count) {
        let first_part = count.first_part.map(|at| at.duration_since(self.engine_begun));
        if let Some(first_part) = first_part {
            self.api
                .metrics
                .first_part(self.by.counted_as(&self.requested), first_part);
        }
        let is_broken = count.end == End::Broken;
        let first = if count.is_stream {
            first_part
        } else {
            Some(self.header_in)
        };
        // A failed status was compared when it arrived.
        if !self.status.is_server_error() && (is_broken || first.is_some()) {
            let serving = &self.api.serving;
            serving.compare(&self.requested, &self.by, is_broken, first.unwrap_or_default());
        }
    }
}

impl Api {
    /// The response to a request; a refusal is counted.
    async fn answer(&self, answered: impl Future<Output = Result>) -> Response {
        answered.await.unwrap_or_else(|refused| self.refusal(refused))
    }

    fn refusal(&self, refused: Refused) -> Response {
        self.metrics.refused(refused.reason);
        refused.into_response()
    }

    pub(crate) fn models_are_known(&self) -> Result<()> {
        let starts = || Refused::unavailable("the router has not listed the models yet; try again");
        self.serving.models.are_known().then_some(()).ok_or_else(starts)
    }

    /// A place for a request to a model.
    pub(crate) fn place_at(&self, model: &Model) -> Result<Place<table::Key>> {
        let place = self.of_models.take(&table::key(model));
        place.ok_or_else(|| {
            let name = model.full_name();
            Refused::busy(format!("model '{name}' has too many requests in flight; try again"))
        })
    }

    /// The model that gets the request of a caller if theirs does not serve, unless they may not use it.
    async fn fallback(&self, who: &Who, model: &Model) -> Result<Option<Arc<Model>>> {
        let other = self
            .limits
            .fallback(who, model)
            .and_then(|key| self.serving.models.get(&key));
        let Some(other) = other.filter(|other| other.uid != model.uid) else {
            return Ok(None);
        };
        Ok(self.rights.usable(who, vec![other]).await?.pop())
    }

    /// The one model that a name means for a caller.
    async fn choose(&self, who: &Who, requested: &str) -> Result<Arc<Model>> {
        self.models_are_known()?;
        let named = self.serving.models.named(requested);
        let usable = self.rights.usable_as(who, requested, named.models.clone()).await?;
        let knew_gone = match named.gone().filter(|_| !usable.is_empty()) {
            Some(gone) => !self.rights.usable(who, vec![Arc::clone(gone)]).await?.is_empty(),
            None => false,
        };
        Ok(table::choose(requested, &usable, &named, knew_gone)?)
    }
}
