//! Requests that the built router holds: 10,000 in bounded memory, each with an answer; and the moment at which one is sent.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use kube::{Api, CustomResourceExt as _};
use runway_api::ModelDeployment;
use runway_testbed::free_port;
use runway_testbed::traffic::client::chat;
use runway_testbed::traffic::held::Held;
use runway_testbed::traffic::{Bed, Begun, KEY, Model, NAMESPACE, Router};
use serde_json::json;
use tokio::time::sleep;

const HELD: usize = 10_000;
/// Memory for all of them, beyond that of the router at rest: without optimization, each has about 25 KiB.
const MEMORY_KIB: usize = HELD * 32;

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_held_requests_have_bounded_memory_and_are_answered() -> Result<()> {
    let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
    bed.model(NAMESPACE, "one", "llama", 0).await?;
    let program = Path::new(env!("CARGO_BIN_EXE_kubeairunway-gateway"));
    let limits = ["caller", "model"].map(|of| format!("--largest-requests-of-{of}={HELD}"));
    let router = Router::start(&bed, program, &limits.each_ref().map(String::as_str)).await?;
    let before = router.memory()?.now;
    let held = Held::begin(&router, "llama", HELD).await?;
    let taken = router.memory()?.now.saturating_sub(before);
    println!("{HELD} held requests: {taken} KiB beyond {before} KiB at rest");
    ensure!(taken < MEMORY_KIB, "{taken} KiB");

    // The router has raised the replicas.
    let models: Api<ModelDeployment> = Api::namespaced(bed.admin.clone(), NAMESPACE);
    let generation = models.get("one").await?.metadata.generation;
    let failed = json!({ "phase": "Failed", "message": "no GPU", "observedGeneration": generation });
    bed.status(NAMESPACE, "one", failed).await?;
    held.all_are_answered(503, "no GPU").await
}

/// The status names an engine that has ended. The router tries to connect, and its pauses between two attempts grow.
#[tokio::test(flavor = "multi_thread")]
async fn held_request_is_sent_once_the_status_names_a_running_engine_and_not_after_a_pause() -> Result<()> {
    /// From the request until the middle of a pause: the sixth attempt is after 1.55 seconds, the seventh after 2.55.
    const WITHIN_A_PAUSE: Duration = Duration::from_millis(1700);
    /// Less than the rest of the pause.
    const AT_ONCE: Duration = Duration::from_millis(400);
    /// The machine may be busy.
    const ATTEMPTS: usize = 5;
    let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
    let router = Router::start(&bed, Path::new(env!("CARGO_BIN_EXE_gateway-on-loopback")), &[]).await?;
    let engine = Path::new(env!("CARGO_BIN_EXE_gateway-test-engine"));
    let model = Model::create(&bed, engine, "one", 1, &[]).await?;
    model.awake().await?;
    let mut taken = Vec::new();
    for _ in 0..ATTEMPTS {
        bed.serves(NAMESPACE, "one", free_port()?).await?;
        sleep(Duration::from_millis(200)).await;
        let request = chat(KEY, &json!({ "model": "one", "messages": [] }))?;
        let answered = tokio::spawn(Begun::send(router.address, request));
        sleep(WITHIN_A_PAUSE).await;
        let begun = Instant::now();
        bed.serves(NAMESPACE, "one", model.engine().port()).await?;
        let answer = answered.await??.whole().await?;
        ensure!(answer.status.is_success(), "{answer:?}");
        if begun.elapsed() < AT_ONCE {
            return Ok(());
        }
        taken.push(begun.elapsed());
    }
    bail!("the request waits until the end of the pause: {taken:?}")
}
