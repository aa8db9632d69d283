//! Memory for the bodies of one router, bounded over all requests.
//!
//! A body is read whole before its handler runs. The first part of each is always read, so that large bodies never keep small
//! ones out; what is beyond comes out of one budget, and a request for which nothing is left is refused at once (503, with
//! Retry-After). What is worked on at the same time is bounded by the size of the bodies too: reading a large document takes
//! many times its own size.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::Form;
use crate::body::{TooLarge, size};

/// Memory for the bodies of a router.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Bytes of one body.
    pub body: usize,
    /// Bytes of each body that are always read.
    pub always: usize,
    /// Bytes beyond that, of all bodies that are being read or worked on.
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
            received: Arc::new(Semaphore::new(self.received / UNIT)),
            worked_on: Arc::new(Semaphore::new(self.worked_on / UNIT)),
        };
        router
            .layer(from_fn_with_state(Arc::new(shared), Shared::run))
            .layer(DefaultBodyLimit::disable())
    }

    fn busy(&self, what: &str, limit: usize) -> Response {
        let text = format!("too many {what}: they have {} of memory; try again", size(limit));
        self.form.refusal(StatusCode::SERVICE_UNAVAILABLE, "busy", &text)
    }

    fn too_slow(&self) -> Response {
        let seconds = self.patience.as_secs();
        let text = format!("the body of the request was not sent within {seconds} seconds");
        self.form.refusal(StatusCode::REQUEST_TIMEOUT, "too_slow", &text)
    }

    fn unreadable(&self, error: &axum::Error) -> Response {
        let text = format!("the body cannot be read: {error}");
        self.form.refusal(StatusCode::BAD_REQUEST, "invalid", &text)
    }
}

/// Share of the budget that a request takes, in its extensions. It is given back when the request is answered; a handler that no
/// longer needs the body, and only waits, gives it back before.
#[derive(Clone, Debug)]
pub struct Share(Arc<Mutex<(Option<OwnedSemaphorePermit>, Option<OwnedSemaphorePermit>)>>);

impl Share {
    /// Gives it back.
    pub fn give_back(&self) {
        *self.0.lock() = (None, None);
    }
}

/// A budget, and what is left of it.
struct Shared {
    budget: Budget,
    received: Arc<Semaphore>,
    worked_on: Arc<Semaphore>,
}

/// A body, and what it takes of the budget while it is there.
struct Received {
    bytes: Vec<u8>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Shared {
    async fn run(State(this): State<Arc<Self>>, request: Request, next: Next) -> Response {
        let patience = this.budget.patience;
        let (parts, body) = request.into_parts();
        let Received { bytes, taken } = match timeout(patience, this.receive(body, &parts.headers)).await {
            Ok(Ok(received)) => received,
            Ok(Err(refusal)) => return refusal,
            Err(_) => return this.budget.too_slow(),
        };
        let Ok(Ok(turn)) = timeout(patience, this.turn(bytes.len())).await else {
            return this.budget.busy("requests are being worked on", this.budget.worked_on);
        };
        let share = Share(Arc::new(Mutex::new((taken, Some(turn)))));
        let mut request = Request::from_parts(parts, Body::from(bytes));
        request.extensions_mut().insert(share.clone());
        let response = next.run(request).await;
        share.give_back();
        response
    }

    async fn receive(&self, mut body: Body, headers: &HeaderMap) -> Result<Received, Response> {
        let declared = headers
            .get(header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse().ok());
        // Declared memory is only reserved: what does not come is never touched.
        let mut bytes = Vec::with_capacity(declared.unwrap_or(0).min(self.budget.body));
        let mut taken: Option<OwnedSemaphorePermit> = None;
        while let Some(frame) = body.frame().await {
            let unreadable = |error| self.budget.unreadable(&error);
            let Ok(data) = frame.map_err(unreadable)?.into_data() else {
                continue;
            };
            if bytes.len() + data.len() > self.budget.body {
                let limit = self.budget.body;
                return Err(TooLarge { limit }.refusal(self.budget.form));
            }
            if bytes.capacity() - bytes.len() < data.len() {
                bytes.reserve_exact(STEP.max(data.len()));
            }
            bytes.extend_from_slice(&data);
            let owed = bytes.len().saturating_sub(self.budget.always).div_ceil(UNIT);
            let more = owed.saturating_sub(taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
            if more > 0 {
                let permit =
                    permits(more).and_then(|more| Arc::clone(&self.received).try_acquire_many_owned(more).ok());
                let permit = permit.ok_or_else(|| {
                    self.budget
                        .busy("request bodies are being received", self.budget.received)
                })?;
                match &mut taken {
                    Some(taken) => taken.merge(permit),
                    None => taken = Some(permit),
                }
            }
        }
        Ok(Received { bytes, taken })
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
