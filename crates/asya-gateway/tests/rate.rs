//! Rate of submissions, and memory with many jobs: `cargo test --release -p runway-asya-gateway --test rate -- --ignored --nocapture`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::json;

mod support;
use support::{Gateway, TEAM, World};

/// Clients that submit one job after the other.
const CLIENTS: usize = 32;
/// Jobs in all: as many as the gateway knows at most.
const JOBS: u32 = 100_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, of minutes"]
async fn rate_of_submissions_and_memory_of_many_jobs() -> Result<()> {
    let world = World::start().await?;
    world.broker.declare(&format!("asya-{TEAM}_a")).await?;
    let shop = world.user("shop", &["a"], &[]).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &[]).await?;
    let (left, started) = (AtomicU32::new(JOBS), Instant::now());
    let cpu = gateway.cpu()?;
    let clients = (0..CLIENTS).map(async |_| {
        let mut times = Vec::new();
        while left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
        {
            let submitted = Instant::now();
            gateway.submit("a", &shop, &json!({"text": "hello"})).await?;
            times.push(submitted.elapsed());
        }
        Ok::<_, anyhow::Error>(times)
    });
    let mut times: Vec<Duration> = try_join_all(clients).await?.into_iter().flatten().collect();
    let (took, cpu) = (started.elapsed(), gateway.cpu()?.saturating_sub(cpu));
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{JOBS} submissions by {CLIENTS} clients in {took:.1?}: {:.0} a second, p50 {:.1?}, p99 {:.1?}; {:.0} µs of CPU each; {} KiB resident with {JOBS} jobs known",
        f64::from(JOBS) / took.as_secs_f64(),
        at(50),
        at(99),
        cpu.as_secs_f64() * 1e6 / f64::from(JOBS),
        gateway.resident_kib()?
    );
    Ok(())
}
