//! The upstream simulator against a real API server: each behavior, its silence, and its end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams},
};
use runway_testbed::{
    ControlPlane, Options, PATIENCE,
    audit::{self, Count},
    crds, eventually,
};
use runway_upstream_simulator::{self as simulator, Simulator};
use serde_json::json;

const FAST: Duration = Duration::from_millis(300);

#[tokio::test]
async fn plays_every_behavior_and_is_silent_at_rest() -> Result<()> {
    let crds = crds::upstream_crds(&[crds::KAITO_WORKSPACES, crds::KAITO_INFERENCE_SETS])?;
    let cluster = ControlPlane::start(Options {
        crds,
        ..Options::default()
    })
    .await?;
    let client = cluster.admin_client().await?;
    let config = simulator::Config {
        ready_after: FAST,
        ..simulator::Config::default()
    };
    let simulator = Simulator::start(cluster.client("kaito", &["system:masters"]).await?, config);

    let workspaces = kaito(&client, "Workspace");
    for behavior in ["ready", "stall", "fail", "flap", "secret-missing", "stuck-delete"] {
        workspaces.create(&PostParams::default(), &workspace(behavior)?).await?;
    }
    kaito(&client, "InferenceSet")
        .create(&PostParams::default(), &inference_set()?)
        .await?;

    becomes(&workspaces, "ready", "Ready", "WorkspaceSucceeded=True").await?;
    becomes(&workspaces, "fail", "NotReady", "WorkspaceSucceeded=False").await?;
    becomes(&workspaces, "flap", "NotReady", "InferenceReady=False").await?;
    becomes(&workspaces, "secret-missing", "Pending", "ResourceReady=True").await?;
    becomes(&workspaces, "stuck-delete", "Ready", "WorkspaceSucceeded=True").await?;
    has_an_endpoint(&client, "ready").await?;
    waits_for_its_secret(&client, "secret-missing-0").await?;
    eventually(PATIENCE, async || {
        let set = kaito(&client, "InferenceSet").get("set").await?;
        let status = &set.data["status"];
        ensure!(
            status["readyReplicas"] == 2 && status["replicas"] == 2,
            "its status is {status}"
        );
        Ok(())
    })
    .await?;
    ensure!(
        workspaces.get("stall").await?.data["status"].is_null(),
        "stall says nothing"
    );

    let log = cluster.audit().await?;
    let mark = log.mark().await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let requests = audit::of_user(&log.since(mark).await?, "kaito");
    assert_eq!(
        Count::of(&requests),
        Count::default(),
        "silent at rest, but asked for {requests:?}"
    );

    for name in ["ready", "stuck-delete"] {
        workspaces.delete(name, &DeleteParams::default()).await?;
    }
    is_gone(&workspaces, "ready").await?;
    ensure!(
        workspaces.get_opt("stuck-delete").await?.is_some(),
        "stuck-delete does not go"
    );
    eventually(PATIENCE, async || {
        let services: Api<Service> = Api::default_namespaced(client.clone());
        ensure!(
            services.get_opt("ready").await?.is_none(),
            "the service outlives its workspace"
        );
        Ok(())
    })
    .await?;

    drop(simulator);
    workspaces.delete("flap", &DeleteParams::default()).await?;
    tokio::time::sleep(FAST).await;
    ensure!(
        workspaces.get_opt("flap").await?.is_some(),
        "with KAITO dead, its finalizer keeps the object"
    );
    cluster.stop().await
}

/// One Workspace to Ready, request by request, by the program that people run.
#[tokio::test]
async fn runs_as_a_process_and_starts_before_its_crds() -> Result<()> {
    let mut cluster = ControlPlane::start(Options::default()).await?;
    let kubeconfig = cluster.kubeconfig("kaito", &["system:masters"])?;
    let kubeconfig = kubeconfig.to_str().context("a path in UTF-8")?;
    let program = env!("CARGO_BIN_EXE_upstream-simulator");
    cluster.run(
        "upstream-simulator",
        program,
        &["--kubeconfig", kubeconfig, "--ready-after", "300ms"],
    )?;

    let client = cluster.admin_client().await?;
    for crd in crds::upstream_crds(&[crds::KAITO_WORKSPACES])? {
        crds::install_crd(&client, crd).await?;
    }
    let log = cluster.audit().await?;
    let mark = log.mark().await?;
    let workspaces = kaito(&client, "Workspace");
    workspaces.create(&PostParams::default(), &workspace("ready")?).await?;
    becomes(&workspaces, "ready", "Ready", "WorkspaceSucceeded=True").await?;

    let requests = audit::of_user(&log.since(mark).await?, "kaito");
    let counts = audit::by_resource(&requests);
    assert_eq!(counts["workspaces.kaito.sh"].write, 1, "its finalizer: {counts:?}");
    assert_eq!(
        counts["workspaces.kaito.sh/status"].write, 3,
        "three stages: {counts:?}"
    );
    assert_eq!(counts["services"].write, 1, "the endpoint: {counts:?}");
    cluster.stop().await
}

fn workspace(behavior: &str) -> Result<DynamicObject> {
    let object = json!({
        "apiVersion": "kaito.sh/v1beta1",
        "kind": "Workspace",
        "metadata": {"name": behavior, "labels": {simulator::LABEL: behavior}},
        "resource": {"labelSelector": {"matchLabels": {"kubernetes.io/os": "linux"}}},
        "inference": {"template": {
            "metadata": {"labels": {"app": behavior}},
            "spec": {"containers": [{
                "name": "model",
                "image": "model:1",
                "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "my-token", "key": "HF_TOKEN"}}}],
            }]},
        }},
    });
    Ok(serde_json::from_value(object)?)
}

fn inference_set() -> Result<DynamicObject> {
    let object = json!({
        "apiVersion": "kaito.sh/v1beta1",
        "kind": "InferenceSet",
        "metadata": {"name": "set"},
        "spec": {
            "replicas": 2,
            "labelSelector": {"matchLabels": {"kubernetes.io/os": "linux"}},
            "template": {"inference": {"preset": {"name": "phi-4-mini-instruct"}}},
        },
    });
    Ok(serde_json::from_value(object)?)
}

async fn becomes(workspaces: &Api<DynamicObject>, name: &str, state: &str, condition: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        let status = workspaces.get(name).await?.data["status"].clone();
        let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
        let says = |c: &serde_json::Value| {
            format!(
                "{}={}",
                c["type"].as_str().unwrap_or_default(),
                c["status"].as_str().unwrap_or_default()
            ) == condition
        };
        ensure!(
            status["state"] == state && conditions.iter().any(says),
            "{name} is not {state} with {condition}: {status}"
        );
        Ok(())
    })
    .await
}

async fn has_an_endpoint(client: &Client, name: &str) -> Result<()> {
    let service = Api::<Service>::default_namespaced(client.clone()).get(name).await?;
    ensure!(
        service
            .owner_references()
            .iter()
            .any(|owner| owner.kind == "Workspace" && owner.name == name)
    );
    let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
    ensure!(ports.len() == 1 && ports[0].port == 80, "its ports are {ports:?}");
    Ok(())
}

async fn waits_for_its_secret(client: &Client, name: &str) -> Result<()> {
    let pod = Api::<Pod>::default_namespaced(client.clone()).get(name).await?;
    let statuses = pod
        .status
        .and_then(|status| status.container_statuses)
        .unwrap_or_default();
    let waiting = statuses
        .into_iter()
        .find_map(|status| status.state?.waiting)
        .context("no container waits")?;
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerConfigError"));
    assert_eq!(waiting.message.as_deref(), Some("secret \"my-token\" not found"));
    Ok(())
}

async fn is_gone(workspaces: &Api<DynamicObject>, name: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        ensure!(workspaces.get_opt(name).await?.is_none(), "{name} is still there");
        Ok(())
    })
    .await
}

fn kaito(client: &Client, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("kaito.sh", "v1beta1", kind));
    Api::default_namespaced_with(client.clone(), &resource)
}
