//! One trace from admission to Ready, received as a collector receives it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;
use runway_api::labels::TRACE;
use runway_operator::trace::{TraceArgs, Traces};
use runway_product_testbed::*;
use runway_testbed::{Collector, eventually};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_from_admission_to_ready() -> Result<()> {
    let collector = Collector::start().await?;
    let to = |service: &str| {
        let args = TraceArgs {
            otlp_endpoint: Some(collector.url.clone()),
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
            let spans = collector.of_trace(trace);
            ensure!(spans.iter().any(|span| span.name == "Ready"), "{spans:#?}");
            Ok(spans)
        })
        .await?;
        let has = |service: &str, name: &str| {
            let found = spans.iter().find(|span| span.service == service && span.name == name);
            found.with_context(|| format!("{service} sent no span '{name}': {spans:#?}"))
        };
        has("core", "admission")?;
        has("core", "status: ProviderSelected")?;
        has("kaito", "apply InferenceSet")?;
        ensure!(has("kaito", "Ready")?.nanoseconds > 0);
        // Every parent was received too: the trace is one tree.
        let known: BTreeSet<&str> = spans.iter().map(|span| span.id.as_str()).collect();
        for span in &spans {
            let parent = span.parent.as_str();
            ensure!(
                parent.is_empty() || known.contains(parent) || own.contains(parent),
                "{} has no parent",
                span.name
            );
        }
    }
    Ok(())
}
