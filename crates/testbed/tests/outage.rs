//! Outages of the API server: each process sends one request a second, and continues when they are over.
//!
//! `RUNWAY_STORM_OUTAGES` is their lengths in seconds; `cargo xtask storm --outages` chooses longer ones.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runway_api::labels;
use runway_product_testbed::program::Program;
use runway_product_testbed::{Bed, Upstream, gemma, report, storm_setting};
use runway_testbed::{Proxy, free_port, programs};
use serde_json::json;

/// Lengths of the outages in the tests, in seconds.
const OUTAGES: &str = "0.1 15";
/// Attempts beyond one a second: all watches of a process lose their connections at once, and try before the first has failed.
const AT_FIRST: u64 = 20;

/// A program, and the proxy between it and the API server.
struct Behind {
    name: &'static str,
    proxy: Proxy,
    _program: Program,
}

impl Behind {
    async fn start(bed: &Bed, folder: &Path, name: &'static str, user: &str, more: &[String]) -> Result<Self> {
        let server: SocketAddr = bed.cluster.server.trim_start_matches("https://").parse()?;
        let proxy = Proxy::start(server).await?;
        let own = bed.cluster.kubeconfig(user, &[])?;
        let text = std::fs::read_to_string(&own)?;
        ensure!(
            text.contains(&bed.cluster.server),
            "the kubeconfig names another server"
        );
        std::fs::write(&own, text.replace(&server.to_string(), &proxy.address().to_string()))?;
        let args = [
            format!("--kubeconfig={}", own.display()),
            format!("--admin-address=127.0.0.1:{}", free_port()?),
        ];
        Ok(Self {
            name,
            _program: Program::start(folder, name, &[&args, more].concat(), &[])?,
            proxy,
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn controllers_try_once_a_second_and_continue_after_an_outage() -> Result<()> {
    let folder = programs::build(false).await?;
    let bed = Bed::start_with(Upstream::Kaito, false).await?;
    let (core, kaito) = (labels::CORE_MANAGER, labels::provider_manager("kaito"));
    let webhook = format!("--webhook-address=127.0.0.1:{}", bed.webhook_port());
    let programs = [
        Behind::start(&bed, &folder, "kubeairunway-controller", core, &[webhook]).await?,
        Behind::start(&bed, &folder, "kaito-provider", &kaito, &[]).await?,
    ];
    bed.create(gemma("gemma")).await?;
    bed.status("gemma", "handled", |status| status.provider.is_some())
        .await?;
    let outages = storm_setting("OUTAGES").unwrap_or_else(|| OUTAGES.to_owned());
    let mut table = "| outage, s | attempts | reconciled after its end, s |\n|--:|---|--:|\n".to_owned();
    for (replicas, length) in (2..).zip(outages.split_whitespace()) {
        let (attempts, after) = outage(&bed, &programs, Duration::from_secs_f64(length.parse()?), replicas)
            .await
            .with_context(|| format!("an outage of {length} s"))?;
        let _ = writeln!(table, "| {length} | {attempts} | {:.1} |", after.as_secs_f64());
    }
    report(&table)
}

/// Disconnects the programs from the API server for this time, and changes the model meanwhile. Returns their attempts, and the time
/// after which the change was reconciled.
async fn outage(bed: &Bed, programs: &[Behind], length: Duration, replicas: u32) -> Result<(String, Duration)> {
    let refused = || programs.iter().map(|behind| behind.proxy.refused() as u64);
    let before: Vec<u64> = refused().collect();
    for behind in programs {
        behind.proxy.fail();
    }
    let changed = bed
        .patch("gemma", json!({ "spec": { "scaling": { "replicas": replicas } } }))
        .await?;
    tokio::time::sleep(length).await;
    let mut attempts = Vec::new();
    let seconds = length.as_secs();
    for ((behind, before), now) in programs.iter().zip(before).zip(refused()) {
        let made = now - before;
        ensure!(
            made >= seconds / 2 && made <= seconds + AT_FIRST,
            "{} made {made} attempts",
            behind.name
        );
        attempts.push(format!("{}: {made}", behind.name));
    }
    let back = Instant::now();
    for behind in programs {
        behind.proxy.recover();
    }
    bed.status("gemma", "reconciled after the outage", |status| {
        status.observed_generation == changed.metadata.generation
    })
    .await?;
    Ok((attempts.join(", "), back.elapsed()))
}
