//! Spans of a request that is passed on. Without a receiver of traces, nothing is recorded.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use runway_operator::audit;
use runway_operator::trace::{Recording, Traces};

use crate::model::Model;
use crate::refused::Refused;

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// A span, until it is dropped.
#[derive(Debug)]
pub struct Span(Option<Recording>);

impl Span {
    /// The span of a request, within the trace of its client.
    pub fn of_request(traces: &Traces, path: &str, headers: &HeaderMap) -> Self {
        if !traces.is_on() {
            return Self(None);
        }
        let of_client = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok());
        let span = traces.request(of_client, format!("POST {path}"));
        if let Some(span) = &span {
            audit::trace_id(span.trace_id());
        }
        Self(span)
    }

    /// A span within this one.
    #[must_use]
    pub fn within(&self, name: &str) -> Self {
        Self(self.0.as_ref().and_then(|span| span.within(name)))
    }

    /// Names the model.
    pub fn model(&mut self, model: &Model) {
        if let Some(span) = &mut self.0 {
            span.names(&model.namespace, &model.name);
        }
    }

    /// Makes the engine's spans part of this one. Without a span, the engine gets the header of the client.
    pub fn forward(&self, headers: &mut HeaderMap) {
        let value = self.0.as_ref().map(|span| HeaderValue::try_from(span.traceparent()));
        if let Some(Ok(value)) = value {
            headers.insert(TRACEPARENT, value);
        }
    }

    /// Sets the status of the response.
    pub fn responded(&mut self, status: StatusCode) {
        if let Some(span) = &mut self.0 {
            span.responded(status.as_u16());
        }
    }

    /// Marks the request as refused.
    pub fn refused(&mut self, refused: &Refused) {
        if let Some(span) = &mut self.0 {
            span.responded(refused.status.as_u16());
            span.failed(refused);
        }
    }
}
