//! Streams that clients leave and that break off at kills of the engine: each is counted once, and no token more or less than the
//! engine reported.

use anyhow::{Result, ensure};
use kube::CustomResourceExt as _;
use runway_api::ModelDeployment;
use runway_testbed::traffic::tokens::{self, Options};
use runway_testbed::traffic::{Bed, Programs};

#[tokio::test(flavor = "multi_thread")]
async fn tokens_of_streams_that_end_early_are_counted_once() -> Result<()> {
    let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
    let programs = Programs {
        router: env!("CARGO_BIN_EXE_gateway-on-loopback").into(),
        engine: env!("CARGO_BIN_EXE_gateway-test-engine").into(),
    };
    let report = tokens::run(&bed, &programs, Options::default(), || {}).await?;
    println!("{report:#?}");
    report.check()?;
    ensure!(
        report.whole > 0 && report.left > 0 && report.broken > 0 && report.kills > 0 && report.reported > 0,
        "{report:#?}"
    );
    Ok(())
}
