//! Rate of submissions, and memory with many jobs: `cargo test --release --workspace --test rate -- --ignored --nocapture`.

#![allow(clippy::print_stdout, reason = "the figures are the result")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::json;
use tokio::time::{Interval, interval_at};

mod support;
use support::{Gateway, TEAM, World};

/// Clients that submit one job after the other.
const CLIENTS: u32 = 32;
/// Jobs in all: as many as the gateway knows at most.
const JOBS: u32 = 100_000;
/// Jobs a second of the first part, and how many there are of it.
const RATE: u32 = 2000;
const PACED: u32 = 20_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, of minutes"]
async fn rate_of_submissions_and_memory_of_many_jobs() -> Result<()> {
    let world = World::start().await?;
    world.broker.declare(&format!("asya-{TEAM}_a")).await?;
    let shop = world.user("shop", &["a"]).await?;
    let store = world.folder.path().join("jobs.redb");
    let gateway = Gateway::start(&world, &store, &[]).await?;
    // One after the other, not all at once.
    let step = Duration::from_secs(1) / RATE;
    let pace = |client: u32| Some(interval_at((Instant::now() + step * client).into(), step * CLIENTS));
    submit(&gateway, &shop, PACED, pace).await?;
    submit(&gateway, &shop, JOBS - PACED, |_| None).await?;
    println!("{} KiB resident with {JOBS} jobs known", gateway.resident_kib()?);
    Ok(())
}

/// Submits jobs, each client at its pace or as fast as it can, and prints rate, times and CPU.
async fn submit(gateway: &Gateway, token: &str, jobs: u32, pace: impl Fn(u32) -> Option<Interval>) -> Result<()> {
    let (left, started, cpu) = (AtomicU32::new(jobs), Instant::now(), gateway.cpu()?);
    let clients = (0..CLIENTS).map(async |client| {
        let (mut pace, mut times) = (pace(client), Vec::new());
        while left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
            .is_ok()
        {
            if let Some(pace) = &mut pace {
                pace.tick().await;
            }
            let submitted = Instant::now();
            gateway.submit("a", token, &json!({"text": "hello"})).await?;
            times.push(submitted.elapsed());
        }
        Ok::<_, anyhow::Error>(times)
    });
    let mut times: Vec<Duration> = try_join_all(clients).await?.into_iter().flatten().collect();
    let (took, cpu) = (started.elapsed(), gateway.cpu()?.saturating_sub(cpu));
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100];
    println!(
        "{jobs} submissions by {CLIENTS} clients in {took:.1?}: {:.0} a second, p50 {:.1?}, p99 {:.1?}; {:.0} µs of CPU each",
        f64::from(jobs) / took.as_secs_f64(),
        at(50),
        at(99),
        cpu.as_secs_f64() * 1e6 / f64::from(jobs),
    );
    Ok(())
}
