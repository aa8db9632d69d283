//! Models sleep, are woken by requests, and sleep again, while the built router and the engines are killed: every request is
//! answered, and none is sent twice.

use anyhow::{Result, ensure};
use kube::CustomResourceExt as _;
use runway_api::ModelDeployment;
use runway_testbed::traffic::zero::{self, Options};
use runway_testbed::traffic::{Bed, Programs};

const CYCLES: usize = 500;

#[tokio::test(flavor = "multi_thread")]
async fn every_request_to_a_sleeping_model_is_answered_although_processes_are_killed() -> Result<()> {
    let bed = Bed::start(ModelDeployment::crd(), &runway_router::access()).await?;
    let programs = Programs {
        router: env!("CARGO_BIN_EXE_gateway-on-loopback").into(),
        engine: env!("CARGO_BIN_EXE_gateway-test-engine").into(),
    };
    let options = Options {
        cycles: CYCLES,
        ..Options::default()
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
