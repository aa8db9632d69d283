//! The built router while processes are killed: requests to models that sleep, and tokens of streams that end early.

use anyhow::{Result, ensure};
use kube::CustomResourceExt as _;
use runway_api::ModelDeployment;
use runway_testbed::traffic::{Bed, Programs, tokens, zero};

const CYCLES: usize = 500;

async fn bed() -> Result<(Bed, Programs)> {
    let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
    let programs = Programs {
        router: env!("CARGO_BIN_EXE_gateway-on-loopback").into(),
        engine: env!("CARGO_BIN_EXE_gateway-test-engine").into(),
    };
    Ok((bed, programs))
}

/// Models sleep, are woken by requests, and sleep again: every request is answered, and none is sent twice.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_to_a_sleeping_model_is_answered_although_processes_are_killed() -> Result<()> {
    let (bed, programs) = bed().await?;
    let options = zero::Options {
        cycles: CYCLES,
        ..zero::Options::default()
    };
    let report = zero::run(&bed, &programs, options, || {}).await?;
    println!("{report:#?}");
    report.check()?;
    ensure!(
        report.wakes >= CYCLES / 2 && report.router_kills > 0 && report.engine_kills > 0,
        "{report:#?}"
    );
    Ok(())
}

/// Clients leave streams, and streams break off at kills of the engine: no token is counted more or less than the engine reported.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_streams_that_end_early_are_counted_once() -> Result<()> {
    let (bed, programs) = bed().await?;
    let report = tokens::run(&bed, &programs, tokens::Options::default(), || {}).await?;
    println!("{report:#?}");
    report.check()?;
    ensure!(
        report.whole > 0 && report.left > 0 && report.broken > 0 && report.kills > 0 && report.reported > 0,
        "{report:#?}"
    );
    Ok(())
}
