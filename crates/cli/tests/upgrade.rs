//! Upgrade and rollback with models running: the controllers are processes with the rights of their ServiceAccounts, and what
//! is upstream must not notice.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use runway_api::ModelDeployment;
use runway_api::model_deployment::Phase;
use runway_manifests::NAMESPACE;
use runway_provider::upstream::api_resource;
use runway_provider_kaito::INFERENCE_SET;
use runway_testbed::audit::Request;
use runway_testbed::{ControlPlane, Options, PATIENCE, crds, eventually, programs};
use runway_upstream_simulator::{self as simulator, Simulator};
use serde_json::json;
use tokio::process::{Child, Command};

const MODELS: usize = 200;
/// Programs of the installation. Each holds a Lease with its own name.
const PROGRAMS: [&str; 2] = ["kubeairunway-controller", "kaito-provider"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_models_do_not_notice_an_upgrade_and_the_way_back() -> Result<()> {
    let upstream = crds::upstream_crds(&[crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS])?;
    let cluster = ControlPlane::start(Options {
        crds: upstream,
        ..Options::default()
    })
    .await?;
    let admin = cluster.admin_client().await?;
    let folder = programs::build(false).await?;
    command(&cluster, &["controller", "install", "--yes", "--wait=false"]).await?;
    command(&cluster, &["provider", "install", "kaito", "--yes", "--wait=false"]).await?;
    // Their Service has no endpoints here, so the API server would wait for a timeout at each create.
    let webhooks = async || -> Result<()> {
        Api::<MutatingWebhookConfiguration>::all(admin.clone())
            .delete("kubeairunway-mutating", &DeleteParams::default())
            .await?;
        Api::<ValidatingWebhookConfiguration>::all(admin.clone())
            .delete("kubeairunway-validating", &DeleteParams::default())
            .await?;
        Ok(())
    };
    webhooks().await?;

    let mut running = Vec::new();
    for program in PROGRAMS {
        running.push(start(&cluster, &folder, program, "5")?);
    }
    let simulated = cluster.client("upstream", &["system:masters"]).await?;
    let config = simulator::Config {
        ready_after: Duration::from_millis(200),
        ..simulator::Config::default()
    };
    let _simulator = Simulator::start(simulated, config);
    let models: Api<ModelDeployment> = Api::default_namespaced(admin.clone());
    for number in 0..MODELS {
        models.create(&PostParams::default(), &model(number)?).await?;
    }
    eventually(PATIENCE, async || {
        let all = models.list(&ListParams::default()).await?.items;
        let ready = all
            .iter()
            .filter(|md| md.status.as_ref().is_some_and(|s| s.phase == Some(Phase::Running)))
            .count();
        ensure!(ready == MODELS, "{ready} of {MODELS} run");
        Ok(())
    })
    .await?;
    // What was said of the way to Running settles.
    tokio::time::sleep(Duration::from_secs(6)).await;

    let (upstream, statuses) = (versions(&upstream_of(&admin)).await?, model_versions(&models).await?);
    let log = cluster.audit().await?;
    let mark = log.mark().await?;
    for (tag, duration) in [("v0.2.0", "6"), ("v0.1.0", "5")] {
        command(
            &cluster,
            &["controller", "upgrade", "--image-tag", tag, "--yes", "--wait=false"],
        )
        .await?;
        webhooks().await?;
        // As a Deployment rolls: the next one starts and stands by, then the one before is asked to end.
        for (program, before) in PROGRAMS.into_iter().zip(std::mem::take(&mut running)) {
            let held = holder(&admin, program).await?;
            let next = start(&cluster, &folder, program, duration)?;
            end(before).await?;
            eventually(PATIENCE, async || {
                let now = holder(&admin, program).await?;
                ensure!(now.is_some() && now != held, "{program} is led by {now:?}");
                Ok(())
            })
            .await?;
            running.push(next);
        }
        // A leader plans everything once; then nothing is left to do.
        tokio::time::sleep(Duration::from_secs(8)).await;
    }
    let requests = log.since(mark).await?;
    silent(&requests)?;
    ensure!(
        versions(&upstream_of(&admin)).await? == upstream,
        "an upstream object has changed"
    );
    ensure!(
        model_versions(&models).await? == statuses,
        "a ModelDeployment has changed"
    );
    for process in running {
        end(process).await?;
    }
    Ok(())
}

/// Our controllers have started and read, and written nothing about models.
fn silent(requests: &[Request]) -> Result<()> {
    let ours: Vec<_> = requests
        .iter()
        .filter(|r| r.user.starts_with("system:serviceaccount:kubeairunway-system"))
        .collect();
    ensure!(
        ours.iter().any(|r| r.verb == "list" && r.resource == "inferencesets"),
        "no provider has started again"
    );
    let writes: Vec<_> = ours
        .iter()
        .filter(|r| ["modeldeployments", "workspaces", "inferencesets"].contains(&r.resource.as_str()))
        .filter(|r| !["list", "watch"].contains(&r.verb.as_str()))
        .collect();
    ensure!(
        writes.is_empty(),
        "{} writes, the first: {:?}",
        writes.len(),
        writes.first()
    );
    let refused: Vec<_> = ours.iter().filter(|r| r.code == 403).collect();
    ensure!(refused.is_empty(), "{refused:?}");
    Ok(())
}

fn model(number: usize) -> Result<ModelDeployment> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "kubeairunway.ai/v1alpha1", "kind": "ModelDeployment", "metadata": { "name": format!("m-{number}") },
        "spec": {
            "model": { "id": "google/gemma-3-1b-it-qat-q8_0-gguf" }, "engine": { "type": "llamacpp" },
            "resources": { "memory": "16Gi", "cpu": "8" }, "image": "ghcr.io/sozercan/llama-cpp-runner:latest",
        },
    }))?)
}

fn upstream_of(client: &Client) -> Api<DynamicObject> {
    Api::namespaced_with(client.clone(), "default", &api_resource(INFERENCE_SET, "v1beta1"))
}

/// Resource version and generation of each upstream object, by name.
async fn versions(api: &Api<DynamicObject>) -> Result<BTreeMap<String, (Option<String>, Option<i64>)>> {
    let all = api.list_metadata(&ListParams::default()).await?.items;
    ensure!(all.len() == MODELS, "{} upstream objects", all.len());
    Ok(all
        .into_iter()
        .map(|o| (o.name_any(), (o.resource_version(), o.metadata.generation)))
        .collect())
}

async fn model_versions(api: &Api<ModelDeployment>) -> Result<BTreeMap<String, Option<String>>> {
    let all = api.list_metadata(&ListParams::default()).await?.items;
    Ok(all.into_iter().map(|o| (o.name_any(), o.resource_version())).collect())
}

async fn holder(client: &Client, name: &str) -> Result<Option<String>> {
    let lease = Api::<Lease>::namespaced(client.clone(), NAMESPACE)
        .get_opt(name)
        .await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity))
}

/// A controller as a pod would run it, under the rights that were installed.
fn start(cluster: &ControlPlane, folder: &Path, program: &str, lease_duration: &str) -> Result<Child> {
    let user = format!("system:serviceaccount:{NAMESPACE}:{program}");
    let groups = [
        "system:serviceaccounts".to_owned(),
        format!("system:serviceaccounts:{NAMESPACE}"),
    ];
    let kubeconfig = cluster.kubeconfig(&user, &[&groups[0], &groups[1]])?;
    let mut command = Command::new(folder.join(program));
    command.args([
        "--leader-elect",
        "--lease-duration",
        lease_duration,
        "--admin-address",
        "127.0.0.1:0",
    ]);
    if program == PROGRAMS[0] {
        command.args(["--webhook-address", "127.0.0.1:0"]);
    } else {
        // No pod runs behind the simulator, so no endpoint could answer.
        command.arg("--verify-endpoints=false");
    }
    let log = std::fs::File::create(cluster.dir.join(format!("{program}-{lease_duration}.log")))?;
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .stdin(Stdio::null())
        .stderr(log.try_clone()?)
        .stdout(log)
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start {program}"))
}

/// An orderly end, as the kubelet asks for it.
async fn end(mut process: Child) -> Result<()> {
    let pid = process.id().context("it has ended by itself")?.to_string();
    Command::new("kill").args(["-TERM", &pid]).status().await?;
    let ended = tokio::time::timeout(Duration::from_mins(1), process.wait())
        .await
        .context("it does not end")??;
    ensure!(ended.success(), "it ended with {ended}");
    Ok(())
}

async fn command(cluster: &ControlPlane, args: &[&str]) -> Result<()> {
    let output = Command::new(env!("CARGO_BIN_EXE_kubeairunway"))
        .args(args)
        .arg("--kubeconfig")
        .arg(cluster.admin()?)
        .stdin(Stdio::null())
        .output()
        .await?;
    if !output.status.success() {
        bail!("{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
