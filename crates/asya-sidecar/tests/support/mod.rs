//! Helpers of the tests with a real broker.
#![allow(dead_code, unreachable_pub, reason = "each test file uses what it needs")]

use std::path::PathBuf;

use anyhow::{Result, ensure};
use runway_asya_testbed::pipeline::{Actor, ActorPrograms};
pub use runway_testbed::PATIENCE;
use runway_testbed::eventually;

/// The sidecar under test.
pub fn sidecar() -> PathBuf {
    env!("CARGO_BIN_EXE_asya-sidecar").into()
}

/// The echoing runtime.
pub fn runtime(args: &[&str]) -> Vec<String> {
    let program = env!("CARGO_BIN_EXE_asya-echo-runtime");
    std::iter::once(program)
        .chain(args.iter().copied())
        .map(str::to_owned)
        .collect()
}

/// The sidecar under test with a runtime.
pub fn programs(runtime: Vec<String>) -> ActorPrograms {
    ActorPrograms {
        sidecar: sidecar(),
        runtime,
    }
}

/// Starts an actor with this runtime; done when it consumes.
pub async fn consuming(name: &str, runtime: Vec<String>, variables: &[(&str, &str)]) -> Result<Actor> {
    let actor = Actor::start(&programs(runtime), name, variables)?;
    eventually(PATIENCE, async || {
        ensure!(actor.sidecar_log().contains("consuming"), "{}", actor.sidecar_log());
        Ok(())
    })
    .await?;
    Ok(actor)
}
