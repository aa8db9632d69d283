//! Traces: one per object, from admission to Ready, and one per request of a server. They are sent over OTLP. Without an endpoint
//! nothing is recorded.
//!
//! The trace of an object begins in the mutating webhook, which writes its `traceparent` (W3C Trace Context) into an annotation of the new
//! object; a client with tracing may set its own. Every later write for the object is a span of this trace. Reconciles without a
//! write have no span.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use kube::client::Body;
use kube::core::ObjectMeta;
use kube::{Client, Config};
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue, Value};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use runway_api::labels::TRACE;

/// Time limit for sending the remaining spans at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Arguments for traces.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TraceArgs {
    /// URL of an OTLP receiver for traces (HTTP, protobuf), such as http://collector:4318. Without it, no traces are sent
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
}

/// Reason why traces cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not a URL.
    #[error("--otlp-endpoint '{0}' is not a URL such as http://collector:4318")]
    Endpoint(String),
    /// The client for the endpoint cannot be created.
    #[error("cannot create a client for the OTLP receiver")]
    Client(#[source] Box<kube::Error>),
    /// The exporter rejects the settings.
    #[error("cannot set up the OTLP exporter")]
    Exporter(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Recorder of spans; does nothing without a receiver. Cheap to clone.
#[derive(Clone, Default)]
pub struct Traces(Option<(SdkTracerProvider, SdkTracer)>);

impl fmt::Debug for Traces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Traces").field(&self.0.is_some()).finish()
    }
}

impl Traces {
    /// Starts to send spans as the service `name`.
    ///
    /// # Errors
    ///
    /// The endpoint is not a URL, or the exporter cannot be created.
    pub fn start(name: &str, args: &TraceArgs) -> Result<Self, Error> {
        let Some(endpoint) = args.otlp_endpoint.as_deref().filter(|endpoint| !endpoint.is_empty()) else {
            return Ok(Self::default());
        };
        let url = endpoint.parse().map_err(|_| Error::Endpoint(endpoint.to_owned()))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Sender {
                client: Client::try_from(Config::new(url)).map_err(|error| Error::Client(Box::new(error)))?,
                runtime: tokio::runtime::Handle::current(),
            })
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| Error::Exporter(Box::new(error)))?;
        let provider = SdkTracerProvider::builder()
            .with_resource(Resource::builder().with_service_name(name.to_owned()).build())
            .with_batch_exporter(exporter)
            .build();
        let tracer = provider.tracer("kubeairunway");
        Ok(Self(Some((provider, tracer))))
    }

    /// Whether traces are sent.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A span about an object, within its trace; ends when dropped. `None` without a receiver or a trace.
    pub fn about(&self, object: &ObjectMeta, name: impl Into<String>) -> Option<Recording> {
        let parent = Context::new().with_remote_span_context(parent(object)?);
        self.begin(name.into(), SpanKind::Internal, &parent, None)
            .map(|recording| recording.described(object))
    }

    /// The first span of an object's trace, or a span within the trace that the client has set.
    pub fn admission(&self, object: &ObjectMeta) -> Option<Recording> {
        self.served(parent(object), "admission".to_owned())
            .map(|recording| recording.described(object))
    }

    /// A span of a request: within the trace of its `traceparent`, or the first of another trace.
    pub fn request(&self, traceparent: Option<&str>, name: impl Into<String>) -> Option<Recording> {
        self.served(traceparent.and_then(read), name.into())
    }

    fn served(&self, parent: Option<SpanContext>, name: String) -> Option<Recording> {
        let parent = match parent {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        self.begin(name, SpanKind::Server, &parent, None)
    }

    /// A span from the creation of the object until now.
    pub fn since_creation(&self, object: &ObjectMeta, name: &str) {
        let (Some(parent), Some(created)) = (parent(object), &object.creation_timestamp) else {
            return;
        };
        let parent = Context::new().with_remote_span_context(parent);
        let span = self.begin(name.to_owned(), SpanKind::Internal, &parent, Some(created.0.into()));
        drop(span.map(|recording| recording.described(object)));
    }

    fn begin(&self, name: String, kind: SpanKind, parent: &Context, start: Option<SystemTime>) -> Option<Recording> {
        let (_, tracer) = self.0.as_ref()?;
        let mut builder = tracer.span_builder(name).with_kind(kind);
        if let Some(start) = start {
            builder = builder.with_start_time(start);
        }
        let span = builder.start_with_context(tracer, parent);
        Some(Recording {
            span,
            traces: self.clone(),
        })
    }

    /// Sends the remaining spans. Blocks for a moment.
    pub async fn end(self) {
        let Some((provider, _)) = self.0 else { return };
        let ended = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(SHUTDOWN_GRACE)).await;
        if let Ok(Err(error)) = ended {
            tracing::debug!(%error, "the last spans were not sent");
        }
    }
}

/// A span in progress.
#[derive(Debug)]
pub struct Recording {
    span: Span,
    traces: Traces,
}

impl Recording {
    /// Value of the annotation of child objects, or of the header of requests within this span.
    pub fn traceparent(&self) -> String {
        let context = self.span.span_context();
        format!(
            "00-{}-{}-{:02x}",
            context.trace_id(),
            context.span_id(),
            context.trace_flags().to_u8()
        )
    }

    /// ID of its trace.
    pub fn trace_id(&self) -> String {
        self.span.span_context().trace_id().to_string()
    }

    /// A span within this one.
    pub fn within(&self, name: impl Into<String>) -> Option<Self> {
        let parent = Context::new().with_remote_span_context(self.span.span_context().clone());
        self.traces.begin(name.into(), SpanKind::Client, &parent, None)
    }

    /// Adds an event.
    pub fn event(&mut self, name: &'static str, message: &str) {
        self.span
            .add_event(name, vec![KeyValue::new("message", message.to_owned())]);
    }

    /// Names the object that the span is about.
    pub fn names(&mut self, namespace: &str, name: &str) {
        self.set("k8s.namespace.name", namespace.to_owned());
        self.set("k8s.object.name", name.to_owned());
    }

    /// Sets the status of the response.
    pub fn responded(&mut self, status: u16) {
        self.set("http.response.status_code", i64::from(status));
    }

    /// Marks the span as failed.
    pub fn failed(&mut self, error: &(dyn std::error::Error + 'static)) {
        self.span.set_status(Status::error(crate::telemetry::chain(error)));
    }

    fn described(mut self, object: &ObjectMeta) -> Self {
        let words = [
            ("k8s.namespace.name", &object.namespace),
            ("k8s.object.name", &object.name),
            ("k8s.object.uid", &object.uid),
        ];
        for (key, value) in words {
            if let Some(value) = value {
                self.set(key, value.clone());
            }
        }
        self
    }

    fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        self.span.set_attribute(KeyValue::new(key, value));
    }
}

/// ID of the trace of a `traceparent`.
pub(crate) fn id(traceparent: &str) -> Option<String> {
    Some(read(traceparent)?.trace_id().to_string())
}

/// ID of an object's trace, for logs.
pub fn trace_id(object: &ObjectMeta) -> Option<String> {
    Some(parent(object)?.trace_id().to_string())
}

/// The annotation with this value.
pub fn carried(object: &ObjectMeta) -> Option<BTreeMap<String, String>> {
    let traceparent = annotation(object.annotations.as_ref()?)?;
    Some([(TRACE.to_owned(), traceparent.to_owned())].into())
}

fn parent(object: &ObjectMeta) -> Option<SpanContext> {
    read(annotation(object.annotations.as_ref()?)?)
}

fn annotation(annotations: &BTreeMap<String, String>) -> Option<&str> {
    annotations.get(TRACE).map(String::as_str)
}

/// A `traceparent`, as in <https://www.w3.org/TR/trace-context/#traceparent-header>. Users can write annotations: an invalid
/// value is ignored.
fn read(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |part: &str, digits: usize| part.len() == digits && part.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_hex(version, 2) || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
        true,
        TraceState::NONE,
    );
    context.is_valid().then_some(context)
}

/// Sends with kube's HTTP client, the only one in the process. The exporter's thread has no runtime, so that requests run on
/// ours.
struct Sender {
    client: Client,
    runtime: tokio::runtime::Handle,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let (mut head, body) = request.into_parts();
            // The client adds the host.
            head.uri = "/v1/traces".parse()?;
            let answer = client.send(Request::from_parts(head, Body::from(body))).await?;
            let (head, body) = answer.into_parts();
            let body = axum::body::to_bytes(axum::body::Body::new(body), 64 * 1024).await?;
            Ok::<_, HttpError>(Response::from_parts(head, body))
        });
        sent.await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_valid_traceparent_is_read() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = read(good).unwrap();
        assert_eq!(context.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert!(context.is_sampled());
        for bad in [
            "",
            "00",
            "00-0-0-0",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319é-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        ] {
            assert!(read(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn without_a_receiver_nothing_is_recorded() {
        let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned();
        let object = ObjectMeta {
            annotations: Some(BTreeMap::from([(TRACE.to_owned(), traceparent)])),
            ..ObjectMeta::default()
        };
        let traces = Traces::start("toy", &TraceArgs::default()).unwrap();
        assert!(!traces.is_on() && traces.about(&object, "x").is_none() && traces.admission(&object).is_none());
    }
}
