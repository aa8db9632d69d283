//! Memory for the bodies of one router, bounded over all requests.
//!
//! A body is read whole before its handler runs. The first part of each is always read, so that large bodies never keep small
//! ones out; what is beyond comes out of one budget until the body was dropped, also if it outlives the response. A request for
//! which nothing is left is refused at once (503, with Retry-After). A tenant has at most half of what the others leave
//! ([`Pool`]). What is worked on at the same time is bounded by the size of the bodies too: reading a large document takes many
//! times its own size.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::Form;
use crate::body::{TooLarge, TooSlow, size};
use crate::pool::{Owner, Part, Pool};

/// Memory for the bodies of a router.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of one body.
    pub body: usize,
    /// Bytes of each body that are always read.
    pub always: usize,
    /// Bytes beyond that, of all bodies. Those of one [`Owner`] get at most half of what others leave.
    pub received: usize,
    /// Bytes of bodies that are worked on at once; a larger body is worked on alone.
    pub worked_on: usize,
    /// Longest time for a client to send a body, and for a complete body to wait for its turn.
    pub patience: Duration,
    /// Form of refusals.
    pub form: Form,
}

/// Permits are counted in these, because there are at most 2^32 of them.
const UNIT: usize = 1024;
/// A body whose length is not declared grows by this much.
const STEP: usize = 256 * UNIT;

impl Budget {
    /// The router, within this budget.
    pub fn hold(self, router: Router) -> Router {
        let shared = Shared {
            budget: self,
            received: Pool::new(self.received / UNIT),
            worked_on: Arc::new(Semaphore::new(self.worked_on / UNIT)),
        };
        router
            .route_layer(from_fn_with_state(Arc::new(shared), Shared::run))
            .layer(DefaultBodyLimit::disable())
    }

    fn busy(&self, what: &str, limit: usize, is_shared: bool) -> Response {
        let share = if is_shared {
            ", and one tenant at most half of what others leave"
        } else {
            ""
        };
        let text = format!("too many {what}: they have {} of memory{share}; try again", size(limit));
        self.form.refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", &text)
    }

    fn too_slow(&self) -> Response {
        let too_slow = TooSlow { limit: self.patience };
        self.form
            .refusal(StatusCode::REQUEST_TIMEOUT, "too_slow", &too_slow.to_string())
    }

    fn unreadable(&self, error: &axum::Error) -> Response {
        let text = format!("the body cannot be read: {error}");
        self.form.refusal(StatusCode::BAD_REQUEST, "invalid", &text)
    }
}

/// Turn of a request to be worked on, in its extensions. It ends when the request is answered, or before, when the handler has
/// read the body and only waits.
#[derive(Clone, Debug)]
pub struct Turn(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Turn {
    /// Ends it.
    pub fn end(&self) {
        *self.0.lock() = None;
    }
}

/// A budget, and what is left of it.
struct Shared {
    budget: Budget,
    received: Pool,
    worked_on: Arc<Semaphore>,
}

/// A body, and what it takes of the budget while it is there.
struct Received {
    bytes: Vec<u8>,
    part: Part,
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Shared {
    async fn run(State(this): State<Arc<Self>>, request: Request, next: Next) -> Response {
        let patience = this.budget.patience;
        let (parts, body) = request.into_parts();
        let owner = parts.extensions.get().cloned();
        let body = match timeout(patience, this.receive(body, &parts.headers, owner)).await {
            Ok(Ok(received)) => Bytes::from_owner(received),
            Ok(Err(refusal)) => return refusal,
            Err(_) => return this.budget.too_slow(),
        };
        let Ok(Ok(turn)) = timeout(patience, this.turn(body.len())).await else {
            let limit = this.budget.worked_on;
            return this.budget.busy("requests are being worked on", limit, false);
        };
        let turn = Turn(Arc::new(Mutex::new(Some(turn))));
        let mut request = Request::from_parts(parts, Body::from(body));
        request.extensions_mut().insert(turn.clone());
        let response = next.run(request).await;
        turn.end();
        response
    }

    async fn receive(&self, mut body: Body, headers: &HeaderMap, owner: Option<Owner>) -> Result<Received, Response> {
        let declared = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        let is_shared = owner.is_some();
        let mut received = Received {
            // Declared memory is only reserved: what does not come is never touched.
            bytes: Vec::with_capacity(declared.unwrap_or(0).min(self.budget.body)),
            part: self.received.part(owner),
        };
        while let Some(frame) = body.frame().await {
            let unreadable = |error| self.budget.unreadable(&error);
            let Ok(data) = frame.map_err(unreadable)?.into_data() else {
                continue;
            };
            let Received { bytes, part } = &mut received;
            let length = bytes.len() + data.len();
            if length > self.budget.body {
                let limit = self.budget.body;
                return Err(TooLarge { limit }.refusal(self.budget.form));
            }
            if !part.grow_to(length.saturating_sub(self.budget.always).div_ceil(UNIT)) {
                let limit = self.budget.received;
                return Err(self.budget.busy("request bodies are being received", limit, is_shared));
            }
            if bytes.capacity() < length {
                bytes.reserve_exact(STEP.max(data.len()));
            }
            bytes.extend_from_slice(&data);
        }
        Ok(received)
    }

    /// Waits until a body of this size may be worked on.
    async fn turn(&self, bytes: usize) -> Result<OwnedSemaphorePermit, tokio::sync::AcquireError> {
        let units = bytes.clamp(UNIT, self.budget.worked_on).div_ceil(UNIT);
        let units = permits(units.min(self.budget.worked_on / UNIT)).unwrap_or(1);
        Arc::clone(&self.worked_on).acquire_many_owned(units).await
    }
}

fn permits(units: usize) -> Option<u32> {
    u32::try_from(units).ok()
}
