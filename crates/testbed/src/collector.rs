//! A receiver of traces, as a collector receives them: OTLP over HTTP, decoded from protobuf.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode as SpanStatus;
use parking_lot::Mutex;
use prost::Message;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A receiver. Dropping it ends it.
pub struct Collector {
    /// URL for `--otlp-endpoint`.
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
    _server: AbortOnDropHandle<std::io::Result<()>>,
}

/// A span that has ended. IDs are hexadecimal.
#[derive(Clone, Debug)]
pub struct Received {
    /// Service that has sent it.
    pub service: String,
    /// Name of the span.
    pub name: String,
    /// ID of its trace.
    pub trace: String,
    /// Its own ID.
    pub id: String,
    /// ID of the span that it is part of; empty for the first one of a trace.
    pub parent: String,
    /// Its attributes, values as text.
    pub attributes: BTreeMap<String, String>,
    /// Its message, if it has failed.
    pub failure: Option<String>,
    /// Nanoseconds from its start to its end.
    pub nanoseconds: u64,
}

impl Collector {
    /// Starts it on a port of its own.
    pub async fn start() -> Result<Self> {
        let received = Arc::<Mutex<Vec<Received>>>::default();
        let router = Router::new()
            .route("/v1/traces", post(receive))
            .with_state(Arc::clone(&received));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Self {
            url: format!("http://{}", listener.local_addr()?),
            received,
            _server: AbortOnDropHandle::new(tokio::spawn(async move { axum::serve(listener, router).await })),
        })
    }

    /// Spans of a trace so far.
    pub fn of_trace(&self, trace: &str) -> Vec<Received> {
        let all = self.received.lock();
        all.iter().filter(|span| span.trace == trace).cloned().collect()
    }
}

async fn receive(State(received): State<Arc<Mutex<Vec<Received>>>>, body: Bytes) -> Result<(), (StatusCode, String)> {
    let unreadable = |error: prost::DecodeError| (StatusCode::BAD_REQUEST, error.to_string());
    let request = ExportTraceServiceRequest::decode(body).map_err(unreadable)?;
    for resource in request.resource_spans {
        let of_resource = attributes(resource.resource.into_iter().flat_map(|resource| resource.attributes));
        let service = of_resource.get("service.name").cloned().unwrap_or_default();
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        received.lock().extend(spans.map(|span| read(&service, span)));
    }
    Ok(())
}

fn read(service: &str, span: Span) -> Received {
    let status = span.status.unwrap_or_default();
    Received {
        service: service.to_owned(),
        name: span.name,
        trace: hex::encode(span.trace_id),
        id: hex::encode(span.span_id),
        parent: hex::encode(span.parent_span_id),
        attributes: attributes(span.attributes),
        failure: (status.code == SpanStatus::Error as i32).then_some(status.message),
        nanoseconds: span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano),
    }
}

fn attributes(all: impl IntoIterator<Item = KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        Some(any_value::Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    all.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}
