//! The services of the picker: external processing, and health.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::CONTENT_LENGTH;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use bytes::Bytes;
use http_body::Frame;
use runway_callers::places::Places;
use runway_http::body::size;
use runway_http::pool::Pool;
use runway_http::server::Client;
use runway_http::{Owner, refusal};
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::choice::{self, InFlight};
use super::exchange::{self, Exchange, News, Step, header};
use super::grpc::{self, Broken, Messages, Replies, Status};
use super::messages::{
    HEALTH_CHECK, HeaderMutation, HealthCheckResponse, HttpStatus, ImmediateResponse, NOT_SERVING, PROCESS,
    ProcessingRequest, ProcessingResponse, Reply, SERVING,
};
use crate::paths;
use crate::refused::Refused;
use crate::server::{Api, RECEIVED_WITHIN, Sizes};

/// Longest time without a message about a response, which is the longest time for which a model may think.
const LONGEST_SILENCE: Duration = Duration::from_hours(1);
/// Longest time for which a client may read nothing, and for which a part of a response waits for memory.
const UNREAD: Duration = Duration::from_mins(1);
/// Pause before the next attempt to get memory.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of a message beside the largest body: headers and metadata.
const BESIDE: usize = 128 * 1024;
/// Largest body of a refusal.
const LARGEST_REFUSAL: usize = 64 * 1024;

struct Picker {
    api: Arc<Api>,
    /// Places for requests, by the address of the Gateway.
    places: Places<IpAddr>,
    memory: Pool,
    sizes: Sizes,
}

/// The services, for at most this many requests in flight, of which one Gateway address has at most half.
pub fn router(api: Arc<Api>, sizes: Sizes, largest_requests: usize) -> Router {
    let picker = Picker {
        api,
        places: Places::new(largest_requests, largest_requests.div_ceil(2)),
        memory: grpc::memory(sizes.bodies),
        sizes,
    };
    Router::new()
        .route(PROCESS, post(process))
        .route(HEALTH_CHECK, post(check))
        .fallback(async || Status::unimplemented("no such method").response())
        .with_state(Arc::new(picker))
}

async fn check(State(picker): State<Arc<Picker>>) -> Response {
    let is_ready = picker.api.serving.models.are_known();
    let status = if is_ready { SERVING } else { NOT_SERVING };
    grpc::reply(&HealthCheckResponse { status })
}

async fn process(State(picker): State<Arc<Picker>>, request: Request) -> Response {
    let (replies, frames) = mpsc::channel(1);
    let task = tokio::spawn(async move {
        let client = Client::of(request.extensions());
        let mut exchange = Exchange::new(picker.sizes.body);
        let conversed = Box::pin(picker.converse(client, request.into_body(), &mut exchange, &replies)).await;
        let status = match conversed {
            Ok(()) => Status::OK,
            Err(End::Left) => return,
            Err(End::Status(status)) => status,
            Err(End::Refused(refused)) => {
                picker.api.metrics.refused(refused.reason);
                let reply = immediate(refused, &exchange.asked().path).await;
                if send(&replies, &reply).await.is_err() {
                    return;
                }
                Status::OK
            }
        };
        // The client has left if it fails.
        let _ = timeout(UNREAD, replies.send(Frame::trailers(status.headers()))).await;
    });
    grpc::response(Replies::new(frames, AbortOnDropHandle::new(task)))
}

/// End of a conversation before the end of its request.
enum End {
    Left,
    Status(Status),
    Refused(Refused),
}

impl From<Refused> for End {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl Picker {
    /// Talks about one request, until the client ends it.
    async fn converse(
        &self,
        client: IpAddr,
        body: Body,
        exchange: &mut Exchange,
        replies: &Sender<Frame<Bytes>>,
    ) -> Result<(), End> {
        let too_many = || Refused::busy("the endpoint picker has too many requests in flight; try again");
        let _place = self.places.take(&client).ok_or_else(too_many)?;
        let _counted = self.api.metrics.begin();
        let owner = Owner(client.to_string().into());
        let memory = || self.memory.part(Some(owner.clone()));
        let mut messages = Messages::new(body, self.sizes.body + BESIDE, memory());
        let deadline = Instant::now() + RECEIVED_WITHIN;
        let mut in_flight: Option<InFlight> = None;
        while let Some(message) = self.next(&mut messages, exchange, deadline).await? {
            let Step { replies: passed, news } = exchange.take(message).map_err(|refusal| self.end(refusal))?;
            if let (Some(News::Responded { status, .. }), Some(in_flight)) = (news, &in_flight) {
                in_flight.responded(&self.api, status);
            }
            if matches!(news, Some(News::Ended | News::Responded { ends: true, .. })) {
                in_flight = None;
            }
            for reply in &passed {
                send(replies, reply).await?;
            }
            if news == Some(News::Complete) {
                let (chosen, begun) = choice::choose(&self.api, exchange.asked()).await?;
                in_flight = Some(begun);
                for reply in exchange.chosen(chosen) {
                    send(replies, &reply).await?;
                }
            }
            if exchange.is_answered() {
                messages.use_memory(memory());
            }
        }
        Ok(())
    }

    /// The next message; `None` after the last one.
    async fn next(
        &self,
        messages: &mut Messages,
        exchange: &Exchange,
        deadline: Instant,
    ) -> Result<Option<ProcessingRequest>, End> {
        let (is_answered, begun) = (exchange.is_answered(), Instant::now());
        let until = if is_answered { begun + LONGEST_SILENCE } else { deadline };
        loop {
            match timeout_at(until, messages.next(exchange.kept())).await {
                Ok(Ok(message)) => return Ok(message),
                Ok(Err(Broken::Left)) => return Err(End::Left),
                Ok(Err(Broken::Status(status))) => return Err(End::Status(status)),
                Ok(Err(Broken::Full)) if !is_answered => return Err(self.full().into()),
                // Those of other requests are sent soon.
                Ok(Err(Broken::Full)) if begun.elapsed() < UNREAD => sleep(PAUSE).await,
                Ok(Err(Broken::Full)) => return Err(End::Status(Status::exhausted("too many responses in progress"))),
                Err(_) if is_answered => return Err(End::Status(Status::too_late("no message for an hour"))),
                Err(_) => return Err(Refused::too_slow(RECEIVED_WITHIN).into()),
            }
        }
    }

    fn full(&self) -> Refused {
        let limit = size(self.sizes.bodies);
        Refused::unavailable(format!(
            "too many request bodies are being received: they have {limit} of memory, and one address of a Gateway at most half of what others leave; try again"
        ))
    }

    fn end(&self, refusal: exchange::Refusal) -> End {
        match refusal {
            exchange::Refusal::TooLarge => Refused::too_large(self.sizes.body).into(),
            exchange::Refusal::OutOfOrder => End::Status(Status::invalid("messages are out of order")),
            exchange::Refusal::Mode => {
                let text = "unsupported body mode: set FULL_DUPLEX_STREAMED or BUFFERED in processing_mode of ext_proc";
                End::Status(Status::unimplemented(text))
            }
        }
    }
}

async fn send(replies: &Sender<Frame<Bytes>>, reply: &ProcessingResponse) -> Result<(), End> {
    let sent = timeout(UNREAD, replies.send(Frame::data(grpc::encoded(reply)))).await;
    sent.ok().and_then(Result::ok).ok_or(End::Left)
}

/// A refusal as the response to the client, in the form of the API that the path belongs to.
async fn immediate(refused: Refused, path: &str) -> ProcessingResponse {
    let mut response = refused.into_response();
    if paths::is_anthropic(path) {
        response = refusal::as_anthropic(response);
    }
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    let set = parts
        .headers
        .iter()
        .map(|(name, value)| header(name.as_str(), Bytes::copy_from_slice(value.as_bytes())));
    let response = ImmediateResponse {
        status: Some(HttpStatus {
            code: parts.status.as_u16().into(),
        }),
        headers: Some(HeaderMutation {
            set_headers: set.collect(),
        }),
        body: to_bytes(body, LARGEST_REFUSAL).await.unwrap_or_default(),
        details: "refused_by_endpoint_picker".to_owned(),
    };
    ProcessingResponse {
        reply: Some(Reply::Immediate(response)),
        dynamic_metadata: None,
    }
}
