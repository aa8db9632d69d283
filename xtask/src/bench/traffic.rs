//! `bench traffic`: what clients of a model see while the model, its provider and the control plane change.
//!
//! The product is installed as a user installs it: its controllers and its router run in pods of a real node, from our own images.
//! The engine is a real llama-server. KAITO's operator is the upstream simulator, which creates real pods. Clients ask the model
//! all the time, through the router and at the Service of the model, and each change has an end that the user guide promises.

use std::fmt::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{EvictParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use runway_api::condition::{self, Conditions};
use runway_api::{ModelDeployment, labels};
use runway_client::manifests::{NAMESPACE, Release, router};
use runway_testbed::engine::{LlamaServer, MODEL};
use runway_testbed::traffic::load::{Address, CLIENTS, Load, Seen, Way};
use runway_testbed::{Node, Options, PATIENCE, crds, eventually, node, tokens};
use serde_json::{Value, json};

use super::measure::seconds;
use super::{report, step};
use crate::cluster::{self, Programs, SIMULATOR};
use crate::demo::{answer, kubectl};

/// Kind of build.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Write the table into docs/performance.md, in place of that of the run before.
    #[arg(long)]
    docs: bool,
    /// Run a development build.
    #[arg(long)]
    unoptimised: bool,
}

/// The model, in namespace `default`.
const NAME: &str = "hello";
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
    step("building the programs");
    let programs = Programs::build(!args.unoptimised).await?;
    let engine = tokio::task::spawn_blocking(|| LlamaServer::prepare("bench traffic")).await??;
    let engine = engine.context("llama-server cannot be had on this machine")?;
    step("starting a control plane and a node");
    let mut node = Node::start(Options::default()).await?;
    node.import_image(&engine.image.archive).await?;
    install(&mut node, &programs).await?;
    let mut stage = Stage::set(&node, &programs, &engine).await?;
    let outcome = stage.changes().await;
    let rows = std::mem::take(&mut stage.rows);
    let text = table(&rows);
    println!("{text}");
    drop(stage);
    node.stop().await?;
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
    if args.docs {
        report::write_down("bench traffic", &text)?;
    }
    Ok(())
}

/// Installs controllers, providers and the router, and starts the simulator that plays KAITO.
async fn install(node: &mut Node, programs: &Programs) -> Result<()> {
    let release = Release::default();
    for name in CONTROLLERS.into_iter().chain([router::NAME]) {
        node.import_program(&release.image(name), &programs.path(name), &[])
            .await?;
    }
    let client = node.admin_client().await?;
    for crd in crds::upstream_crds(&[crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS])? {
        crds::install_crd(&client, crd).await?;
    }
    let admin = node.admin()?;
    kubeairunway(programs, &admin, &["controller", "install", "--yes"]).await?;
    kubeairunway(programs, &admin, &["provider", "install", DIRECT, KAITO, "--yes"]).await?;
    for object in router::router().objects(&release) {
        cluster::apply(&client, &object).await?;
    }
    kubectl(node, &["rollout", "status", "-n", NAMESPACE, &deployment(router::NAME)]).await?;
    step(&format!("starting {SIMULATOR}, which plays KAITO"));
    cluster::start_simulator(node, programs, std::time::Duration::from_millis(300), &["--workloads"])
}

/// A model that answers, its clients, and what they have seen so far.
struct Stage<'a> {
    node: &'a Node,
    client: Client,
    programs: &'a Programs,
    admin: PathBuf,
    image: &'a str,
    next: &'a str,
    load: Load,
    rows: Vec<Row>,
}

impl<'a> Stage<'a> {
    async fn set(node: &'a Node, programs: &'a Programs, engine: &'a LlamaServer) -> Result<Self> {
        let client = node.admin_client().await?;
        let md = json!({
            "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment",
            "metadata": { "name": NAME, "namespace": "default" },
            "spec": {
                "provider": { "name": DIRECT },
                "model": { "source": "custom" },
                "engine": {
                    "type": "llamacpp",
                    // Without model.source huggingface, the image decides where it listens on KAITO.
                    "args": { "model": MODEL, "alias": NAME, "threads": "1", "host": "0.0.0.0", "port": "5000" },
                },
                "image": engine.image.name,
                "resources": { "memory": "256Mi", "cpu": "10m" },
            },
        });
        let md = serde_json::from_value(md)?;
        // Admission answers from the pods, once kube-proxy knows them.
        eventually(PATIENCE, async || cluster::apply(&client, &md).await).await?;
        settled(&client).await?;

        kubectl(node, &["create", "serviceaccount", CALLER]).await?;
        let may = [
            "--clusterrole=kubeairunway-view",
            &format!("--serviceaccount=default:{CALLER}"),
        ];
        kubectl(node, &[&["create", "rolebinding", CALLER], may.as_slice()].concat()).await?;
        let service = |namespace, name: &str| Address::Service {
            client: client.clone(),
            namespace,
            name: name.to_owned(),
            port: 80,
        };
        let through_router = Way {
            name: "router",
            to: service(NAMESPACE, router::NAME),
            token: tokens::token(&client, "default", CALLER, &[]).await?,
            model: NAME.to_owned(),
        };
        let at_service = Way {
            name: "Service",
            to: service("default", NAME),
            token: String::new(),
            model: NAME.to_owned(),
        };
        let load = Load::begin(&[through_router, at_service]);
        load.is_answered().await?;
        Ok(Self {
            node,
            programs,
            admin: node.admin()?,
            image: &engine.image.name,
            next: &engine.next.name,
            load,
            client,
            rows: Vec::new(),
        })
    }

    async fn changes(&mut self) -> Result<()> {
        const NONE: [Fails; 2] = [Fails::None; 2];
        self.during(DIRECT, "`engine.args`", NONE, async |stage| {
            stage.change(json!({"engine": {"args": {"ctx-size": "512"}}})).await
        })
        .await?;
        self.during(DIRECT, "`image`", NONE, async |stage| {
            stage.change(json!({"image": stage.next})).await
        })
        .await?;
        self.during(DIRECT, "`image`, reverted in the middle", NONE, async |stage| {
            stage.patch(json!({"image": stage.image})).await?;
            eventually(PATIENCE, async || {
                let pods = stage.pods().await?;
                ensure!(pods.len() > 1, "no pod of the new image");
                Ok(())
            })
            .await?;
            stage.change(json!({"image": stage.next})).await
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
        self.during(
            DIRECT,
            "migrated to KAITO",
            [Fails::None, Fails::Until],
            async |stage| stage.migrate(KAITO).await,
        )
        .await?;

        let recreated = [Fails::InFlight, Fails::Until];
        self.during(KAITO, "`engine.args`", recreated, async |stage| {
            stage.change(json!({"engine": {"args": {"ctx-size": "1024"}}})).await
        })
        .await?;
        self.scaled(KAITO, Fails::InFlight).await?;
        self.control_plane(KAITO).await?;
        self.during(KAITO, "migrated to direct", recreated, async |stage| {
            stage.migrate(DIRECT).await
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
                stage.change(json!({"scaling": {"replicas": replicas}})).await
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
        settled(&self.client).await?;
        self.load.is_answered().await?;
        let mut seen = self.load.take().into_iter().map(|(_, seen)| seen);
        let ways = fails.map(|fails| (fails, seen.next().unwrap_or_default()));
        self.rows.push(Row { provider, change, ways });
        Ok(())
    }

    async fn patch(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "spec": spec }));
        models(&self.client)
            .patch(NAME, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn change(&self, spec: Value) -> Result<()> {
        self.patch(spec).await?;
        settled(&self.client).await
    }

    async fn absent_image(&self) -> Result<()> {
        self.patch(json!({"image": ABSENT})).await?;
        eventually(PATIENCE, async || {
            let status = models(&self.client).get(NAME).await?.status.unwrap_or_default();
            let message = status.message.unwrap_or_default();
            ensure!(message.contains(ABSENT), "the image is not named: {message}");
            Ok(())
        })
        .await?;
        self.load.is_answered().await?;
        self.change(json!({"image": self.next})).await
    }

    /// As a drain does it.
    async fn evictions(&self) -> Result<()> {
        self.change(json!({"scaling": {"replicas": 2}})).await?;
        let pods: Api<Pod> = Api::default_namespaced(self.client.clone());
        for pod in self.pods().await? {
            pods.evict(&pod.name_any(), &EvictParams::default()).await?;
            settled(&self.client).await?;
        }
        self.change(json!({"scaling": {"replicas": 1}})).await
    }

    async fn pods(&self) -> Result<Vec<Pod>> {
        pods(&self.client).await
    }

    async fn migrate(&self, to: &str) -> Result<()> {
        kubeairunway(self.programs, &self.admin, &["migrate", NAME, "--to", to, "--yes"]).await
    }

    async fn restart(&self, names: &[&str]) -> Result<()> {
        for name in names {
            kubectl(self.node, &["rollout", "restart", "-n", NAMESPACE, &deployment(name)]).await?;
        }
        for name in names {
            kubectl(self.node, &["rollout", "status", "-n", NAMESPACE, &deployment(name)]).await?;
        }
        Ok(())
    }

    /// Kills so many pods of each Deployment with SIGKILL, and waits until they run again.
    async fn kill(&self, names: &[&str], most: usize) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), NAMESPACE);
        let all = pods.list(&ListParams::default()).await?.items;
        for name in names {
            let of_deployment = all.iter().filter(|pod| pod.name_any().starts_with(&format!("{name}-")));
            // A pod of the rollout before may still terminate.
            let running = of_deployment.filter_map(|pod| Some((pod, node::running(pod).ok()?)));
            for (pod, container) in running.take(most) {
                self.node.kill(&container).await?;
                eventually(PATIENCE, async || {
                    let (now, name) = (pods.get(&pod.name_any()).await?, pod.name_any());
                    ensure!(
                        node::restarts(&now) > node::restarts(pod),
                        "{name} has not been restarted"
                    );
                    node::running(&now).map(drop)
                })
                .await?;
            }
        }
        Ok(())
    }
}

/// Waits until the model is Ready in its current generation, and all of its pods serve.
async fn settled(client: &Client) -> Result<()> {
    let models = models(client);
    eventually(PATIENCE, async || {
        let md = models.get(NAME).await?;
        let status = md.status.clone().unwrap_or_default();
        let ready = status.conditions.when_true(condition::READY);
        ensure!(
            ready.is_some_and(|c| c.observed_generation == md.metadata.generation),
            "not ready: {}",
            status.message.unwrap_or_default()
        );
        let pods = pods(client).await?;
        let replicas = md
            .spec
            .scaling
            .as_ref()
            .and_then(|scaling| scaling.replicas)
            .unwrap_or(1);
        let serving = pods.iter().filter(|pod| node::running(pod).is_ok()).count();
        ensure!(
            serving == pods.len() && i32::try_from(serving) == Ok(replicas),
            "{serving} of {} pods serve, {replicas} are desired",
            pods.len()
        );
        Ok(())
    })
    .await
}

fn models(client: &Client) -> Api<ModelDeployment> {
    Api::default_namespaced(client.clone())
}

/// Pods of the model.
async fn pods(client: &Client) -> Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let ours = ListParams::default().labels(&format!("{}={NAME}", labels::DEPLOYMENT));
    Ok(pods.list(&ours).await?.items)
}

fn deployment(name: &str) -> String {
    format!("deployment/{name}")
}

async fn kubeairunway(programs: &Programs, kubeconfig: &Path, args: &[&str]) -> Result<()> {
    println!("\n$ kubeairunway {}", args.join(" "));
    let done = answer::command(programs, kubeconfig, args).status().await?;
    ensure!(done.success(), "kubeairunway {} failed", args.join(" "));
    Ok(())
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
