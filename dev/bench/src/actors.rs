//! `bench asya --actors N`: requests of the operator while it binds many actors, and none afterwards. The
//! targets have no pods, and queues are left to sidecars: no broker runs here.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use runway_api::async_actor::RUNTIME_INJECTED;
use runway_api::condition::Conditions;
use runway_api::{AsyncActor, labels};
use runway_dev_cluster::{self as cluster, Programs};
use runway_manifests::{self as manifests, Identity};
use runway_testbed::{ControlPlane, Options, crds, eventually};
use serde_json::json;

use super::measure::{RequestCounts, as_number, cpu_of, memory_of, seconds, silent};
use super::mix::names;
use super::stage::CONCURRENCY;

const NAMESPACE: &str = "default";
const OPERATOR: &str = labels::ASYA_MANAGER;
const PATIENCE: Duration = Duration::from_mins(15);
const QUIET: Duration = Duration::from_secs(30);
/// A transport that the operator never connects to.
const TRANSPORTS: &str =
    r#"{"transports":{"rabbitmq":{"type":"rabbitmq","config":{"host":"broker.example","username":"guest"}}}}"#;

/// Binds this many actors, and listens.
pub(super) async fn run(count: usize, unoptimised: bool) -> Result<()> {
    super::step("building the programs");
    let programs = Programs::build(!unoptimised).await?;
    super::step("starting etcd, kube-apiserver and kube-controller-manager");
    let mut control_plane = ControlPlane::start(Options::default()).await?;
    let outcome = measure(&mut control_plane, &programs, count).await;
    control_plane.stop().await?;
    outcome
}

async fn measure(control_plane: &mut ControlPlane, programs: &Programs, count: usize) -> Result<()> {
    let admin = control_plane.admin_client().await?;
    cluster::install(&admin, None, Identity::User).await?;
    for crd in manifests::asya().crds {
        crds::install_crd(&admin, crd).await?;
    }
    start_operator(control_plane, programs)?;
    let before = settled(control_plane).await?;
    super::step(&format!("{count} actors, each with a Deployment of its own"));
    let audit = control_plane.audit().await?;
    let mark = audit.mark().await?;
    create(&admin, count).await?;
    super::step("waiting until all are bound and no requests are sent");
    all_bound(&admin, count).await?;
    let after = settled(control_plane).await?;
    let asked = RequestCounts::by(&[OPERATOR], &audit.since(mark).await?);

    super::step("listening");
    let mark = audit.mark().await?;
    let pid = cluster::pid(control_plane, OPERATOR).context("the operator has ended")?;
    let cpu = cpu_of(pid)?;
    tokio::time::sleep(QUIET).await;
    let cpu = cpu_of(pid)? - cpu;
    let at_rest = RequestCounts::by(&[OPERATOR], &audit.since(mark).await?);

    let rows = [
        ("writes per actor", as_number(asked.writes) / as_number(count)),
        ("reads per actor", as_number(asked.reads) / as_number(count)),
        ("memory without actors, MiB", before),
        ("memory with all actors, MiB", after),
        ("for each actor, KiB", (after - before) * 1024.0 / as_number(count)),
        ("at rest: requests in 30 seconds", as_number(at_rest.besides_watches())),
        ("at rest: CPU, % of a core", cpu * 100.0 / seconds(QUIET)),
    ];
    println!("| {count} AsyncActors, bound to Deployments | |\n|---|--:|");
    for (what, value) in rows {
        println!("| {what} | {value:.2} |");
    }
    Ok(())
}

fn start_operator(control_plane: &mut ControlPlane, programs: &Programs) -> Result<()> {
    let kubeconfig = cluster::kubeconfig(control_plane, OPERATOR, &[])?;
    let transports = control_plane.dir.join("transports.json");
    std::fs::write(&transports, TRANSPORTS)?;
    let transports = transports.display().to_string();
    control_plane.run(
        OPERATOR,
        programs.path(OPERATOR),
        &[
            "--kubeconfig",
            &kubeconfig,
            "--transport-config",
            &transports,
            "--sidecar-image",
            "registry.example/asya-sidecar:1",
            "--disable-queue-management",
            cluster::ALONE[0],
            cluster::ALONE[1],
        ],
    )
}

async fn create(admin: &Client, count: usize) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(admin.clone(), NAMESPACE);
    let actors: Api<AsyncActor> = Api::namespaced(admin.clone(), NAMESPACE);
    stream::iter(names(count).map(Ok::<_, anyhow::Error>))
        .try_for_each_concurrent(CONCURRENCY, async |name| {
            let app = json!({ "app": name });
            let deployment = json!({
                "metadata": { "name": name },
                "spec": { "replicas": 0, "selector": { "matchLabels": app }, "template": {
                    "metadata": { "labels": app },
                    "spec": { "containers": [{ "name": "model", "image": "m:1", "ports": [{ "containerPort": 80 }] }] },
                }},
            });
            let actor = json!({
                "apiVersion": "asya.sh/v1alpha1", "kind": "AsyncActor", "metadata": { "name": name },
                "spec": {
                    "transport": "rabbitmq",
                    "workloadRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": name },
                    "runtime": { "image": "asya-rest-adapter:1", "handler": "adapters.openai.forward" },
                },
            });
            let params = PostParams::default();
            deployments
                .create(&params, &serde_json::from_value(deployment)?)
                .await?;
            actors.create(&params, &serde_json::from_value(actor)?).await?;
            Ok(())
        })
        .await
}

async fn all_bound(admin: &Client, count: usize) -> Result<()> {
    let actors: Api<AsyncActor> = Api::namespaced(admin.clone(), NAMESPACE);
    let is_bound = |actor: &&AsyncActor| {
        let status = actor.status.as_ref();
        status.is_some_and(|status| status.conditions.is_true(RUNTIME_INJECTED))
    };
    eventually(PATIENCE, async || {
        let bound = actors
            .list(&ListParams::default())
            .await?
            .iter()
            .filter(is_bound)
            .count();
        ensure!(bound == count, "{bound} of {count} are bound");
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(())
    })
    .await
}

/// Waits until the operator sends no requests. Returns its memory in MiB.
async fn settled(control_plane: &ControlPlane) -> Result<f64> {
    silent(control_plane, &[OPERATOR], PATIENCE).await?;
    Ok(memory_of(control_plane, OPERATOR)?.0)
}
