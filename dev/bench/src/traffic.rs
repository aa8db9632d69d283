//! `bench traffic`: what clients of a model see while the model, its provider and the control plane change.
//!
//! The product is installed as a user installs it: its controllers and its router run in pods of a real node, from our own images.
//! The engine is a real llama-server. KAITO's operator is the upstream simulator, which creates real pods. Clients ask the model
//! all the time, through the router and at the Service of the model, and each change has an end that the user guide promises.

use std::fmt::{self, Write as _};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, ListParams};
use kube::{Api, ResourceExt};
use runway_api::labels;
use runway_dev_cluster::installed::{Installed, NAME, deployment};
use runway_dev_cluster::{self as cluster, SIMULATOR};
use runway_dev_support::{record, step};
use runway_manifests::{NAMESPACE, Release, router};
use runway_testbed::traffic::load::{CLIENTS, Load, Seen, Way};
use runway_testbed::{PATIENCE, crds, eventually, node, tokens};
use serde_json::json;

use super::measure::seconds;

/// Kind of build, and where the results go.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    record: record::Options,
}

/// ServiceAccount of the clients.
const CALLER: &str = "caller";
/// Deployments of the controllers.
const CONTROLLERS: [&str; 3] = [labels::CORE_MANAGER, "direct-provider", "kaito-provider"];
const KAITO: &str = "kaito";
const DIRECT: &str = "direct";
/// An image that no registry has.
const ABSENT: &str = "registry.invalid/engine:1";

/// Requests that may fail during a change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fails {
    /// None.
    None,
    /// Those in flight at a process that ends without draining: at most one of each client.
    InFlight,
    /// Those until pods serve, or until kube-proxy knows that one does not.
    Until,
}

impl Fails {
    fn admits(self, seen: &Seen) -> bool {
        match self {
            Self::None => seen.failed.is_empty(),
            Self::InFlight => seen.failed.len() <= CLIENTS,
            Self::Until => true,
        }
    }
}

impl fmt::Display for Fails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::InFlight => "in flight",
            Self::Until => "until pods serve",
        })
    }
}

/// A change, and what its clients saw.
struct Row {
    provider: &'static str,
    change: &'static str,
    /// Expected and seen failures: through the router, at the Service.
    ways: [(Fails, Seen); 2],
}

pub(super) async fn run(args: &Args) -> Result<()> {
    let upstream = [crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS];
    let mut installed =
        Installed::start("bench traffic", args.record.is_release(), &upstream, &[DIRECT, KAITO]).await?;
    install_router(&installed).await?;
    step(&format!("starting {SIMULATOR}, which plays KAITO"));
    let Installed { node, programs, .. } = &mut installed;
    cluster::start_simulator(node, programs, Duration::from_millis(300), &["--workloads"])?;
    installed.deploy(DIRECT).await?;
    let mut stage = Stage::set(&installed).await?;
    let outcome = stage.changes().await;
    let rows = std::mem::take(&mut stage.rows);
    let text = table(&rows);
    println!("{text}");
    drop(stage);
    installed.node.stop().await?;
    outcome?;
    for row in &rows {
        for (fails, seen) in &row.ways {
            ensure!(
                fails.admits(seen),
                "{}, {}: may fail: {fails}; failed: {:#?}",
                row.provider,
                row.change,
                seen.failed
            );
        }
    }
    args.record
        .write_down(record::PERFORMANCE, "bench traffic --docs", &text)?;
    Ok(())
}

async fn install_router(installed: &Installed) -> Result<()> {
    installed.import(router::NAME).await?;
    // The clients measure HTTP.
    let router = router::router().with_arguments_of(&["--plain-http".to_owned()]);
    for object in router.objects(&Release::default()) {
        cluster::apply(&installed.client(), &object).await?;
    }
    installed.rolled_out(&[router::NAME]).await
}

/// A model that answers, its clients, and what they have seen so far.
struct Stage<'a> {
    installed: &'a Installed,
    load: Load,
    rows: Vec<Row>,
}

impl<'a> Stage<'a> {
    async fn set(installed: &'a Installed) -> Result<Self> {
        installed.kubectl(&["create", "serviceaccount", CALLER]).await?;
        let may = [
            "--clusterrole=kubeairunway-view",
            &format!("--serviceaccount=default:{CALLER}"),
        ];
        let bind = [&["create", "rolebinding", CALLER], may.as_slice()].concat();
        installed.kubectl(&bind).await?;
        let through_router = Way {
            name: "router",
            to: installed.service(NAMESPACE, router::NAME),
            token: tokens::token(&installed.client(), "default", CALLER, &[runway_router::AUDIENCE]).await?,
            model: NAME.to_owned(),
            headers: Vec::new(),
        };
        let load = Load::begin(&[through_router, installed.at_service()]);
        load.is_answered().await?;
        Ok(Self {
            installed,
            load,
            rows: Vec::new(),
        })
    }

    async fn changes(&mut self) -> Result<()> {
        const NONE: [Fails; 2] = [Fails::None; 2];
        self.during(DIRECT, "`engine.args`", NONE, async |stage| {
            stage
                .installed
                .change(json!({"engine": {"args": {"ctx-size": "512"}}}))
                .await
        })
        .await?;
        self.during(DIRECT, "`image`", NONE, async |stage| {
            stage.installed.change(json!({"image": stage.next()})).await
        })
        .await?;
        self.during(DIRECT, "`image`, reverted in the middle", NONE, async |stage| {
            stage
                .installed
                .patch(json!({"image": stage.installed.engine.image.name}))
                .await?;
            eventually(PATIENCE, async || {
                let pods = stage.installed.pods().await?;
                ensure!(pods.len() > 1, "no pod of the new image");
                Ok(())
            })
            .await?;
            stage.installed.change(json!({"image": stage.next()})).await
        })
        .await?;
        self.during(
            DIRECT,
            "`image` that does not exist, then reverted",
            NONE,
            Self::absent_image,
        )
        .await?;
        self.scaled(DIRECT, Fails::None).await?;
        self.during(
            DIRECT,
            "each of 2 pods evicted, one after the other",
            NONE,
            Self::evictions,
        )
        .await?;
        self.control_plane(DIRECT).await?;
        self.during(DIRECT, "router restarted", NONE, async |stage| {
            stage.restart(&[router::NAME]).await
        })
        .await?;
        let refused = [Fails::Until, Fails::None];
        self.during(DIRECT, "a pod of the router killed", refused, async |stage| {
            stage.kill(&[router::NAME], 1).await
        })
        .await?;
        let at_service = [Fails::None, Fails::Until];
        self.during(DIRECT, "migrated to KAITO with `--surge`", at_service, async |stage| {
            stage.migrate(KAITO, &["--surge"]).await
        })
        .await?;
        self.during(KAITO, "migrated to direct with `--surge`", at_service, async |stage| {
            stage.migrate(DIRECT, &["--surge"]).await
        })
        .await?;
        self.during(DIRECT, "migrated to KAITO", at_service, async |stage| {
            stage.migrate(KAITO, &[]).await
        })
        .await?;

        let recreated = [Fails::InFlight, Fails::Until];
        self.during(KAITO, "`engine.args`", recreated, async |stage| {
            stage
                .installed
                .change(json!({"engine": {"args": {"ctx-size": "1024"}}}))
                .await
        })
        .await?;
        self.scaled(KAITO, Fails::InFlight).await?;
        self.control_plane(KAITO).await?;
        self.during(KAITO, "migrated to direct", recreated, async |stage| {
            stage.migrate(DIRECT, &[]).await
        })
        .await
    }

    /// `down` may fail through the router when replicas are removed.
    async fn scaled(&mut self, provider: &'static str, down: Fails) -> Result<()> {
        let at_service = if down == Fails::None { Fails::None } else { Fails::Until };
        for (change, replicas, fails) in [
            ("`scaling.replicas`, 1 to 3", 3, [Fails::None; 2]),
            ("`scaling.replicas`, 3 to 1", 1, [down, at_service]),
        ] {
            self.during(provider, change, fails, async |stage| {
                stage.installed.change(json!({"scaling": {"replicas": replicas}})).await
            })
            .await?;
        }
        Ok(())
    }

    /// Everything of ours but the router ends and starts.
    async fn control_plane(&mut self, provider: &'static str) -> Result<()> {
        let none = [Fails::None; 2];
        self.during(
            provider,
            "all controllers restarted, as in an upgrade",
            none,
            async |stage| stage.restart(&CONTROLLERS).await,
        )
        .await?;
        self.during(provider, "all controllers killed", none, async |stage| {
            stage.kill(&CONTROLLERS, usize::MAX).await
        })
        .await
    }

    /// Adds what clients see from the beginning of a change until all that were asking at its end have been answered.
    async fn during(
        &mut self,
        provider: &'static str,
        change: &'static str,
        fails: [Fails; 2],
        act: impl AsyncFnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        step(&format!("{provider}: {change}"));
        self.load.take();
        act(self).await.with_context(|| format!("{provider}: {change}"))?;
        self.installed.settled().await?;
        self.load.is_answered().await?;
        let mut seen = self.load.take().into_iter().map(|(_, seen)| seen);
        let ways = fails.map(|fails| (fails, seen.next().unwrap_or_default()));
        self.rows.push(Row { provider, change, ways });
        Ok(())
    }

    /// Another image of the same engine.
    fn next(&self) -> &str {
        &self.installed.engine.next.name
    }

    async fn absent_image(&self) -> Result<()> {
        self.installed.patch(json!({"image": ABSENT})).await?;
        eventually(PATIENCE, async || {
            let status = self.installed.models().get(NAME).await?.status.unwrap_or_default();
            let message = status.message.unwrap_or_default();
            ensure!(message.contains(ABSENT), "the image is not named: {message}");
            Ok(())
        })
        .await?;
        self.load.is_answered().await?;
        self.installed.change(json!({"image": self.next()})).await
    }

    /// As a drain does it.
    async fn evictions(&self) -> Result<()> {
        self.installed.change(json!({"scaling": {"replicas": 2}})).await?;
        let pods: Api<Pod> = Api::default_namespaced(self.installed.client());
        for pod in self.installed.pods().await? {
            pods.evict(&pod.name_any(), &EvictParams::default()).await?;
            self.installed.settled().await?;
        }
        self.installed.change(json!({"scaling": {"replicas": 1}})).await
    }

    async fn migrate(&self, to: &str, options: &[&str]) -> Result<()> {
        let migrate = [&["migrate", NAME, "--to", to, "--yes"], options].concat();
        self.installed.kubeairunway(&migrate).await
    }

    async fn restart(&self, names: &[&str]) -> Result<()> {
        for name in names {
            let restart = ["rollout", "restart", "-n", NAMESPACE, &deployment(name)];
            self.installed.kubectl(&restart).await?;
        }
        self.installed.rolled_out(names).await
    }

    /// Kills so many pods of each Deployment with SIGKILL, and waits until they run again.
    async fn kill(&self, names: &[&str], most: usize) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.installed.client(), NAMESPACE);
        let all = pods.list(&ListParams::default()).await?.items;
        for name in names {
            let of_deployment = all.iter().filter(|pod| pod.name_any().starts_with(&format!("{name}-")));
            // A pod of the rollout before may still terminate.
            let running = of_deployment.filter_map(|pod| Some((pod, node::running(pod).ok()?)));
            for (pod, container) in running.take(most) {
                self.installed.node.kill(&container).await?;
                self.installed.restarted(pod).await?;
            }
        }
        Ok(())
    }
}

fn table(rows: &[Row]) -> String {
    let mut text =
        "| provider | change | router: may fail | failed | longest, s | Service: may fail | failed | longest, s |\n\
        |---|---|---|--:|--:|---|--:|--:|\n"
            .to_owned();
    for row in rows {
        let way = |(fails, seen): &(Fails, Seen)| {
            let all = seen.answered + seen.failed.len();
            format!(
                "{fails} | {} of {all} | {:.1}",
                seen.failed.len(),
                seconds(seen.longest)
            )
        };
        let [router, service] = &row.ways;
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} |",
            row.provider,
            row.change,
            way(router),
            way(service)
        );
    }
    text
}
