//! One trace from admission to Ready, received as a collector receives it: OTLP over HTTP, decoded from protobuf.

mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use kube::ResourceExt;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use runway_api::labels::TRACE;
use runway_operator::trace::{TraceArgs, Traces};
use runway_testbed::eventually;
use support::*;

/// Spans, each with the service that sent it.
type Received = Arc<Mutex<Vec<(String, Span)>>>;

/// A receiver on a port of its own.
async fn receiver() -> Result<(String, Received)> {
    let received = Received::default();
    let router = Router::new()
        .route("/v1/traces", post(take_in))
        .with_state(received.clone());
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((url, received))
}

async fn take_in(State(received): State<Received>, body: Bytes) -> Result<(), (StatusCode, String)> {
    let unreadable = |error: prost::DecodeError| (StatusCode::BAD_REQUEST, error.to_string());
    let request = ExportTraceServiceRequest::decode(body).map_err(unreadable)?;
    for resource in request.resource_spans {
        let service = resource
            .resource
            .into_iter()
            .flat_map(|resource| resource.attributes)
            .find(|attribute| attribute.key == "service.name")
            .map(|attribute| format!("{:?}", attribute.value))
            .unwrap_or_default();
        let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
        received
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(spans.map(|span| (service.clone(), span)));
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_from_admission_to_ready() -> Result<()> {
    let (url, received) = receiver().await?;
    let to = |service: &str| {
        let args = TraceArgs {
            otlp_endpoint: Some(url.clone()),
        };
        Traces::start(service, &args)
    };
    let (core_traces, kaito_traces) = (to("core")?, to("kaito")?);
    let bed = Bed::start().await?;
    let core = bed.core_traced(core_traces.clone()).await?;
    let kaito = bed.kaito_traced(kaito_traces.clone()).await?;
    let _simulator = bed.simulator().await?;
    bed.admission_is_up().await?;

    let md = bed.create(gemma("gemma")).await?;
    let traceparent = md.annotations().get(TRACE).context("admission began no trace")?.clone();
    bed.running("gemma").await?;
    // A client that traces brings its own.
    let mut brought = gemma("brought");
    let own = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    brought["metadata"]["annotations"] = serde_json::json!({ TRACE: own });
    let md = bed.create(brought).await?;
    ensure!(md.annotations().get(TRACE).is_some_and(|kept| kept == own));
    bed.running("brought").await?;

    core.stop().await;
    kaito.stop().await;
    core_traces.end().await;
    kaito_traces.end().await;

    for trace in [&traceparent[3..35], &own[3..35]] {
        let spans = eventually(PATIENCE, async || {
            let all = received.lock().unwrap().clone();
            let ours: Vec<_> = all
                .into_iter()
                .filter(|(_, span)| hex::encode(&span.trace_id) == trace)
                .collect();
            ensure!(ours.iter().any(|(_, span)| span.name == "Ready"), "{ours:#?}");
            Ok(ours)
        })
        .await?;
        let has = |service: &str, name: &str| {
            let found = spans
                .iter()
                .find(|(from, span)| from.contains(service) && span.name == name);
            found.with_context(|| format!("{service} sent no span '{name}': {spans:#?}"))
        };
        has("core", "admission")?;
        has("core", "status: ProviderSelected")?;
        has("kaito", "apply InferenceSet")?;
        let (_, ready) = has("kaito", "Ready")?;
        ensure!(ready.start_time_unix_nano < ready.end_time_unix_nano);
        // Every parent was received too: the trace is one tree.
        let known: BTreeSet<String> = spans.iter().map(|(_, span)| hex::encode(&span.span_id)).collect();
        for (_, span) in &spans {
            let parent = hex::encode(&span.parent_span_id);
            ensure!(
                parent.is_empty() || known.contains(&parent) || own.contains(&parent),
                "{} has no parent",
                span.name
            );
        }
    }
    Ok(())
}
