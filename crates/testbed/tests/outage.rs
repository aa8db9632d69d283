//! An outage of the API server: each process sends one request a second, and continues when it is over.

#![allow(clippy::print_stdout, reason = "the figures are of use when the test passes, too")]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runway_api::labels;
use runway_testbed::{Proxy, free_port, programs};
use serde_json::json;
use support::program::Program;
use support::{Bed, Upstream, gemma};

/// Length of the outage, in seconds.
const OUTAGE: usize = 15;
/// Attempts beyond one a second: all watches of a process lose their connections at once, and try before the first has failed.
const AT_FIRST: usize = 20;

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
    let handled = bed
        .status("gemma", "handled", |status| status.provider.is_some())
        .await?;

    for behind in &programs {
        behind.proxy.fail();
    }
    bed.patch("gemma", json!({ "spec": { "scaling": { "replicas": 3 } } }))
        .await?;
    tokio::time::sleep(Duration::from_secs(OUTAGE as u64)).await;
    for Behind { name, proxy, .. } in &programs {
        let attempts = proxy.refused();
        println!("{name}: {attempts} attempts in {OUTAGE} s");
        ensure!(attempts >= OUTAGE / 2, "{name} made only {attempts} attempts");
        ensure!(attempts <= OUTAGE + AT_FIRST, "{name} made {attempts} attempts");
    }

    let back = Instant::now();
    for behind in &programs {
        behind.proxy.recover();
    }
    let before = handled.metadata.generation.context("no generation")?;
    bed.status("gemma", "handled after the outage", |status| {
        status.observed_generation > Some(before)
    })
    .await?;
    println!("the change was handled {:?} after the outage", back.elapsed());
    Ok(())
}
