//! The league of false Ready: while models go through seeded changes and faults, a sampler compares every 200 ms what Ready says
//! with what the pods serve.
//!
//! | shape | engine | what decides whether a model serves |
//! |---|---|---|
//! | direct | real, on a real node | `/v1/models` of the endpoint lists the name that the current generation gives the model |
//! | KAITO | real, on a real node; the operator is the upstream simulator | the same |
//! | KubeRay, Dynamo | none: the upstream simulator makes the pods, which no node runs | enough pods are ready that have the stamp of the current generation |
//!
//! `RUNWAY_STORM_READY` is the number of changes of each shape; `cargo xtask storm --ready` sets it. A status cannot change before its
//! cause is in the API server, so that a sample is false if the opposite has held for a second.

#![allow(clippy::print_stdout, reason = "the table is of use when the test passes, too")]

mod league;
mod shapes;

use anyhow::{Result, ensure};
use league::League;
use runway_product_testbed::storm_setting;
use runway_testbed::engine::LlamaServer;
use shapes::{OnNode, Simulated};

/// Changes of each shape in the tests.
const CHANGES: u32 = 40;

#[tokio::test(flavor = "multi_thread")]
async fn ready_is_true_only_while_pods_of_the_current_generation_serve() -> Result<()> {
    let changes = match storm_setting("READY") {
        Some(changes) => changes.parse()?,
        None => CHANGES,
    };
    let mut league = League::default();
    Simulated::start().await?.run(changes, &mut league).await?;
    if let Some(llama_server) = LlamaServer::for_node("models that are sampled on a real node").await? {
        OnNode::start(llama_server).await?.run(changes, &mut league).await?;
    }
    runway_product_testbed::report(&league.table())?;
    ensure!(
        league.false_ready() == 0,
        "Ready without a pod that serves:\n{}",
        league.violations()
    );
    Ok(())
}
