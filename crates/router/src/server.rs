//! The HTTP API, in the form of OpenAI's.
//!
//! | request | what |
//! |---|---|
//! | `GET /v1/models`, `GET /v1/models/ID` | the models that the caller may use |
//! | `POST /v1/chat/completions`, `/v1/completions`, `/v1/embeddings`, `/v1/responses` | passed on to the engine of the model |

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::Full;
use runway_callers::places::{Place, Places};
use runway_callers::tenant::Tenant;
use runway_http::body::Holding;
use runway_http::{Budget, Form, Owner, Turn};
use runway_operator::audit::{self, Operation};
use runway_operator::trace::Traces;
use serde_json::json;

use crate::engine;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::refused::Refused;
use crate::requested::Requested;
use crate::revocable::Revocable;
use crate::rights::{Rights, Who};
use crate::serving::Serving;
use crate::spans::Span;
use crate::table::{self, Listed};

/// Paths that are passed on to engines.
const PASSED_ON: [&str; 4] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
];
/// Bytes of each body that are always received.
const ALWAYS: usize = 4 * 1024;
/// Longest time for which a client may send a body.
const RECEIVED_WITHIN: Duration = Duration::from_secs(30);

/// Kind of the objects that requests are about.
const KIND: &str = "ModelDeployment";

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
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
    /// Places for requests.
    pub places: Places<Tenant>,
    /// Places for requests to one model, which may hang.
    pub of_models: Places<table::Key>,
    /// Interval at which the right of a caller to a response in progress is checked.
    pub check_rights_every: Duration,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Traces.
    pub traces: Traces,
}

type Result<T = Response> = std::result::Result<T, Refused>;

/// The routes.
pub fn router(api: Arc<Api>, limits: Limits) -> Router {
    let budget = Budget {
        body: limits.body,
        always: ALWAYS,
        received: limits.bodies,
        worked_on: limits.bodies,
        patience: RECEIVED_WITHIN,
        form: Form::OpenAi,
    };
    let passed_on = PASSED_ON
        .into_iter()
        .fold(Router::new(), |router, path| router.route(path, post(pass_on)));
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
    let begun = Instant::now();
    let path = PASSED_ON.into_iter().find(|path| *path == uri.path());
    let mut span = Span::of_request(&api.traces, path.unwrap_or_default(), &headers);
    let mut forwarded = engine::forwarded(&headers);
    drop((uri, headers));
    let passed_on = async {
        let path = path.ok_or_else(Refused::no_route)?;
        let requested = Requested::read(&body)?;
        audit::object(KIND, "", &requested.model);
        turn.end();
        let model = Box::pin(api.choose(&who, &requested.model)).await?;
        audit::object(KIND, &model.namespace, &model.name);
        span.model(&model);
        let place = api.place_at(&model)?;
        let counted = (place, api.metrics.request(&model));
        let connecting = span.within("connect");
        let ready = api.serving.connect(&model).await?;
        drop(connecting);
        let renamed = Full::new(requested.renamed(&body, &ready.name));
        drop(body);
        let at_engine = span.within("engine");
        at_engine.forward(&mut forwarded);
        let request = ready.connection.request(Method::POST, path, forwarded, renamed);
        let answer = Box::pin(ready.connection.send(request)).await;
        let answer =
            answer.map_err(|error| Refused::broken(format!("{error}; the request may have been processed")))?;
        api.metrics
            .responded(&model, &who, answer.status().as_u16(), begun.elapsed());
        if answer.status() == StatusCode::NOT_FOUND {
            api.serving.names.forget(&ready.uid);
        }
        let lost = Arc::clone(&api.rights).lost(who, model, api.check_rights_every);
        Ok((answer, lost, counted, at_engine))
    };
    match passed_on.await {
        Ok((answer, lost, counted, at_engine)) => {
            span.responded(answer.status());
            // Until the last byte.
            let held = (counted, at_engine, span);
            let (parts, body) = answer.into_parts();
            let body = Revocable::new(&parts.headers, body, lost);
            Response::from_parts(parts, Body::new(Holding::new(body, held)))
        }
        Err(refused) => {
            span.refused(&refused);
            api.refusal(refused)
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

    fn models_are_known(&self) -> Result<()> {
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
