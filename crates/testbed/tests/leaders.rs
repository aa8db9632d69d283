//! Leaders that are killed or stopped, while the clocks of the replicas differ by two hours: another replica takes over.
//! `cargo xtask storm --leaders` does it many times.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use runway_api::labels;
use runway_manifests as manifests;
use runway_product_testbed::program::{Program, ready};
use runway_product_testbed::{Bed, PATIENCE, Upstream, gemma, report, storm_setting};
use runway_testbed::{clocks, eventually, free_port, programs};
use serde_json::json;

/// Programs, whose Leases and users have their names.
const CONTROLLERS: [&str; 5] = [
    labels::CORE_MANAGER,
    "kaito-provider",
    "direct-provider",
    "dynamo-provider",
    "kuberay-provider",
];
/// Ends of each controller's leaders in the tests.
const ENDS: usize = 2;
/// Identities of the replicas, and the hours by which their clocks are ahead.
const REPLICAS: [(&str, i8); 2] = [("ahead", 1), ("behind", -1)];

/// End of a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Kill,
    Stop,
}

/// Time from the end of a leader until another replica holds the Lease.
struct Takeover {
    end: End,
    after: Duration,
}

/// Two replicas of a controller.
struct Controller<'a> {
    bed: &'a Bed,
    name: &'static str,
    folder: &'a Path,
    kubeconfig: PathBuf,
    replicas: Vec<Program>,
}

impl<'a> Controller<'a> {
    async fn start(bed: &'a Bed, folder: &'a Path, name: &'static str) -> Result<Self> {
        let mut controller = Self {
            bed,
            name,
            folder,
            kubeconfig: bed.cluster.kubeconfig(name, &[])?,
            replicas: Vec::new(),
        };
        for replica in 0..REPLICAS.len() {
            let program = controller.replica(replica).await?;
            controller.replicas.push(program);
        }
        Ok(controller)
    }

    /// A replica that has listed what it needs.
    async fn replica(&self, index: usize) -> Result<Program> {
        let (identity, hours) = REPLICAS[index];
        let admin = free_port()?;
        let mut args = vec![
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--admin-address=127.0.0.1:{admin}"),
            format!("--lease-identity={identity}"),
        ];
        if self.name == labels::CORE_MANAGER {
            args.push(format!("--webhook-address=127.0.0.1:{}", free_port()?));
        }
        let program = Program::start(self.folder, self.name, &args, &clocks::shifted(hours))?;
        ready(admin).await?;
        Ok(program)
    }

    /// The replica that holds the Lease.
    async fn leader(&self) -> Result<usize> {
        let leases: Api<Lease> = Api::namespaced(self.bed.admin.clone(), manifests::NAMESPACE);
        let holder = leases.get(self.name).await?.spec.and_then(|spec| spec.holder_identity);
        let holder = holder.unwrap_or_default();
        let leader = REPLICAS.iter().position(|(identity, _)| holder.starts_with(identity));
        leader.with_context(|| format!("no replica of {} leads, but '{holder}'", self.name))
    }

    /// Ends the leader, waits until the other one leads, and starts it again.
    async fn end_leader(&mut self, end: End) -> Result<Takeover> {
        // On a busy machine, a leader may be too slow to renew, and no replica leads for a moment.
        let leader = eventually(PATIENCE, async || self.leader().await).await?;
        let began = Instant::now();
        match end {
            End::Kill => self.replicas[leader].kill()?,
            End::Stop => self.replicas[leader].terminate()?,
        }
        while self.leader().await.ok() != Some(1 - leader) {
            ensure!(
                began.elapsed() < PATIENCE,
                "no other replica of {} leads after {end:?}",
                self.name
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let after = began.elapsed();
        self.replicas[leader] = self.replica(leader).await?;
        Ok(Takeover { end, after })
    }

    async fn end_leaders(&mut self, times: usize) -> Result<Vec<Takeover>> {
        let mut takeovers = Vec::new();
        for number in 0..times {
            let end = if number % 2 == 0 { End::Kill } else { End::Stop };
            takeovers.push(self.end_leader(end).await?);
        }
        Ok(takeovers)
    }
}

/// As Markdown.
fn table(takeovers: &[Takeover]) -> String {
    let mut table =
        "| end of a leader | takeovers | median, s | 99 of 100 within, s | longest, s |\n|---|--:|--:|--:|--:|\n"
            .to_owned();
    for (end, name) in [(End::Kill, "`kill -9`"), (End::Stop, "SIGTERM")] {
        let mut times: Vec<f64> = takeovers
            .iter()
            .filter(|takeover| takeover.end == end)
            .map(|takeover| takeover.after.as_secs_f64())
            .collect();
        times.sort_by(f64::total_cmp);
        let at = |percent: usize| times.get(times.len().saturating_sub(1) * percent / 100).unwrap_or(&0.0);
        let _ = writeln!(
            table,
            "| {name} | {} | {:.2} | {:.2} | {:.2} |",
            times.len(),
            at(50),
            at(99),
            at(100)
        );
    }
    table
}

#[tokio::test(flavor = "multi_thread")]
async fn another_replica_takes_over_although_the_clocks_differ() -> Result<()> {
    if !clocks::can_shift("takeover by replicas whose clocks differ")? {
        return Ok(());
    }
    let all = storm_setting("LEADERS").map(|text| text.parse::<usize>()).transpose()?;
    let chosen = if all.is_some() {
        &CONTROLLERS[..]
    } else {
        &CONTROLLERS[..2]
    };
    let each = all.map_or(ENDS, |all| all.div_ceil(chosen.len()));
    let folder = programs::build(false).await?;
    let bed = Bed::start_with(Upstream::All, false).await?;
    let starts = chosen.iter().map(|name| Controller::start(&bed, &folder, name));
    let mut controllers = try_join_all(starts).await?;
    bed.create(gemma("gemma")).await?;
    bed.status("gemma", "handled", |status| status.provider.is_some())
        .await?;

    let ends = controllers.iter_mut().map(|controller| controller.end_leaders(each));
    let takeovers: Vec<Takeover> = try_join_all(ends).await?.into_iter().flatten().collect();
    let table = table(&takeovers);
    report(&table)?;

    let changed = bed
        .patch("gemma", json!({ "spec": { "scaling": { "replicas": 3 } } }))
        .await?;
    bed.status("gemma", "handled by the last leaders", |status| {
        status.observed_generation == changed.metadata.generation
    })
    .await?;
    Ok(())
}

/// The API server checks the certificate of the webhooks by its own clock, which is right.
#[tokio::test(flavor = "multi_thread")]
async fn webhooks_are_trusted_although_the_clock_of_the_core_is_wrong() -> Result<()> {
    if !clocks::can_shift("webhooks of a core whose clock is wrong")? {
        return Ok(());
    }
    let folder = programs::build(false).await?;
    for hours in [1, -1] {
        let bed = Bed::start().await?;
        let kubeconfig = bed.cluster.kubeconfig(labels::CORE_MANAGER, &[])?;
        let port = bed.webhook_port();
        let args = [
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--admin-address=127.0.0.1:{}", free_port()?),
            format!("--webhook-address=127.0.0.1:{port}"),
            format!("--webhook-url=https://127.0.0.1:{port}"),
        ];
        let _core = Program::start(&folder, labels::CORE_MANAGER, &args, &clocks::shifted(hours))?;
        let admitted = bed.admission_is_up().await;
        admitted.with_context(|| format!("the clock differs by {hours:+} h"))?;
    }
    Ok(())
}
