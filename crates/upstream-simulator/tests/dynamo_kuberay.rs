//! The upstream simulator as Dynamo and KubeRay against a real API server: each from nothing to ready, failing and gone.

use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{
        ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
        WatchEvent, WatchParams,
    },
};
use runway_testbed::{
    ControlPlane, Options, PATIENCE,
    audit::{self, Count},
    crds, eventually,
};
use runway_upstream_simulator::{self as simulator, Simulator, conversion::ConversionWebhook, dynamo};
use serde_json::{Value, json};

const FAST: Duration = Duration::from_millis(400);
const UPSTREAM: &str = "upstream";

/// One simulator, one cluster, and its CRD is replaced under it as by an upgrade of Dynamo.
#[tokio::test]
async fn dynamo_is_played_in_both_releases() -> Result<()> {
    let (cluster, _simulator) = start(crds::DYNAMO_V1ALPHA1).await?;
    let client = cluster.admin_client().await?;
    play_dynamo(&cluster, "v1alpha1", "services", old_graph).await?;
    // Only here: the garbage collector takes up to 30 s to learn of a version that is added later.
    loses_its_service(&client, "ready-frontend").await?;
    for crd in crds::upstream_crds(&[crds::DYNAMO_V1BETA1])? {
        crds::install_crd(&client, crd).await?;
    }
    play_dynamo(&cluster, "v1beta1", "components", new_graph).await?;
    cluster.stop().await
}

/// An object of the old release is served and written in the new version, by way of the operator's webhook; and once
/// written so, no longer needs it.
#[tokio::test]
async fn dynamo_converts_what_its_old_release_stored() -> Result<()> {
    let (cluster, _simulator) = start(crds::DYNAMO_V1ALPHA1).await?;
    let client = cluster.admin_client().await?;
    let graphs = |version: &str| api(&client, "nvidia.com", version, "DynamoGraphDeployment");
    let successful = |status: &Value| status["state"] == "successful";
    apply(&graphs("v1alpha1"), old_graph("ready", 2)).await?;
    becomes(&graphs("v1alpha1"), "ready", successful).await?;

    let webhook = ConversionWebhook::start(&cluster.pki()).await?;
    for crd in crds::upstream_crds(&[crds::DYNAMO_V1BETA1])? {
        crds::install_crd(&client, webhook.converting(crd)).await?;
    }
    let graphs = graphs("v1beta1");
    let status = becomes(&graphs, "ready", |status| status["components"].is_object()).await?;
    assert_eq!(status["components"]["decode"]["readyReplicas"], 2, "{status}");

    apply(&graphs, new_graph("ready", 3)).await?;
    let graph = graphs.get("ready").await?;
    let components = graph.data["spec"]["components"].as_array().context("components")?;
    assert_eq!(components.len(), 3, "{components:?}");
    let status = becomes(&graphs, "ready", |status| {
        status["components"]["decode"]["readyReplicas"] == 3
    })
    .await?;
    assert!(successful(&status), "{status}");

    drop(webhook);
    graphs.get("ready").await?;
    cluster.stop().await
}

/// The type of a component stays what it was, also of one that was written in the old version.
#[tokio::test]
async fn dynamo_refuses_another_type_of_a_component() -> Result<()> {
    let (cluster, _simulator) = start(crds::DYNAMO_V1ALPHA1).await?;
    let client = cluster.admin_client().await?;
    let graphs = |version: &str| api(&client, "nvidia.com", version, "DynamoGraphDeployment");
    apply(&graphs("v1alpha1"), old_graph("ready", 1)).await?;
    let webhook = ConversionWebhook::start(&cluster.pki()).await?;
    for crd in crds::upstream_crds(&[crds::DYNAMO_V1BETA1])? {
        crds::install_crd(&client, dynamo::with_immutable_types(webhook.converting(crd))).await?;
    }

    let mut graph = new_graph("ready", 1);
    graph["spec"]["components"][1]["type"] = json!("worker");
    is_refused(&graphs("v1beta1"), graph, "type is immutable after it is set").await?;
    let mut graph = old_graph("ready", 1);
    graph["spec"]["services"]["decode"]["componentType"] = json!("planner");
    is_refused(&graphs("v1alpha1"), graph, "componentType is immutable after it is set").await?;
    apply(&graphs("v1beta1"), new_graph("ready", 2)).await?;
    cluster.stop().await
}

/// The new schema may take a moment to be the API server's.
async fn is_refused(objects: &Api<DynamicObject>, object: Value, message: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        let refusal = apply(objects, object.clone()).await.err().context("it is accepted")?;
        ensure!(format!("{refusal:#}").contains(message), "{refusal:#}");
        Ok(())
    })
    .await
}

async fn play_dynamo(
    cluster: &ControlPlane,
    version: &str,
    components: &str,
    graph: impl Fn(&str, u32) -> Value,
) -> Result<()> {
    let client = cluster.admin_client().await?;
    let graphs = api(&client, "nvidia.com", version, "DynamoGraphDeployment");
    let says = |name: &'static str, state: &'static str, reason: &'static str| {
        becomes(&graphs, name, move |status| {
            status["state"] == state && condition(status, "Ready")["reason"] == reason
        })
    };
    let not_ready = match version {
        "v1alpha1" => "some_resources_are_not_ready",
        _ => "pods_not_ready",
    };

    // One graph, request by request.
    let mark = cluster.audit().await?.mark().await?;
    create(&graphs, graph("ready", 1)).await?;
    let status = says("ready", "successful", "all_resources_are_ready").await?;
    let ready = |status: &Value| status[components]["decode"]["readyReplicas"].as_u64();
    assert_eq!(ready(&status), Some(1), "{status}");
    let multinode = &status[components]["prefill"];
    assert_eq!(multinode["availableReplicas"], 1, "{status}");
    assert!(multinode["readyReplicas"].is_null(), "{status}");
    let requests = audit::of_user(&cluster.audit().await?.since(mark).await?, UPSTREAM);
    let counts = audit::by_resource(&requests);
    assert_eq!(counts["dynamographdeployments.nvidia.com"].write, 1, "{counts:?}");
    assert_eq!(
        counts["dynamographdeployments.nvidia.com/status"].write, 3,
        "{counts:?}"
    );
    assert_eq!(counts["services"].write, 1, "{counts:?}");
    has_port_8000(&client, "ready-frontend").await?;

    // Scaling up goes through pending, and what was ready stays so.
    apply(&graphs, graph("ready", 3)).await?;
    let status = says("ready", "pending", not_ready).await?;
    assert_eq!(ready(&status), Some(1), "{status}");
    let status = says("ready", "successful", "all_resources_are_ready").await?;
    assert_eq!(ready(&status), Some(3), "{status}");

    let unlucky = ["stall", "fail", "flap", "secret-missing", "stuck-delete"];
    let created = create_all(&graphs, unlucky.map(|behavior| graph(behavior, 1))).await?;
    says("fail", "failed", "failed_to_reconcile_the_resources").await?;
    became(&graphs, "flap", &created, |status| status["state"] == "successful").await?;
    says("flap", "pending", not_ready).await?;
    says("secret-missing", "pending", not_ready).await?;
    waits_for_its_secret(&client, &format!("{}=secret-missing", simulator::dynamo::GRAPH)).await?;
    says("stuck-delete", "successful", "all_resources_are_ready").await?;
    ensure!(
        graphs.get("stall").await?.data["status"].is_null(),
        "stall says nothing"
    );
    is_silent(cluster).await?;

    for name in unlucky.into_iter().chain(["ready"]) {
        graphs.delete(name, &DeleteParams::default()).await?;
    }
    is_gone(&graphs, "ready").await?;
    ensure!(
        graphs.get_opt("stuck-delete").await?.is_some(),
        "stuck-delete does not go"
    );
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    graphs.patch("stuck-delete", &PatchParams::default(), &free).await?;
    Ok(())
}

#[tokio::test]
async fn kuberay_is_played() -> Result<()> {
    let (cluster, _simulator) = start(crds::KUBERAY_SERVICES).await?;
    let client = cluster.admin_client().await?;
    let services = api(&client, "ray.io", "v1", "RayService");
    let says = |name: &'static str, ready: &'static str, reason: &'static str| {
        becomes(&services, name, move |status| {
            condition(status, "Ready")["status"] == ready && condition(status, "Ready")["reason"] == reason
        })
    };
    let cluster_name = |status: &Value| status["activeServiceStatus"]["rayClusterName"].clone();

    // The first rollout happens on a pending cluster, and is seen nowhere else.
    let mark = cluster.audit().await?.mark().await?;
    create(&services, ray_service("ready", 1, 1, "2.52.0")).await?;
    let status = becomes(&services, "ready", |status| {
        status["pendingServiceStatus"]["applicationStatuses"]["llm"]["status"] == "DEPLOYING"
    })
    .await?;
    assert_eq!(condition(&status, "Ready")["reason"], "Initializing", "{status}");
    assert!(cluster_name(&status).is_null(), "{status}");
    let status = says("ready", "True", "NonZeroServeEndpoints").await?;
    assert_eq!(status["serviceStatus"], "Running", "{status}");
    assert_eq!(
        status["activeServiceStatus"]["applicationStatuses"]["llm"]["status"], "RUNNING",
        "{status}"
    );
    assert!(status["pendingServiceStatus"]["rayClusterName"].is_null(), "{status}");
    let first = cluster_name(&status);
    let requests = audit::of_user(&cluster.audit().await?.since(mark).await?, UPSTREAM);
    let counts = audit::by_resource(&requests);
    assert_eq!(counts["rayservices.ray.io/status"].write, 3, "{counts:?}");
    assert_eq!(counts["services"].write, 1, "{counts:?}");
    assert_eq!(counts["rayservices.ray.io"].write, 0, "no finalizer: {counts:?}");
    has_port_8000(&client, "ready-serve-svc").await?;

    // Workers and replicas are scaled in the cluster that is there.
    apply(&services, ray_service("ready", 3, 1, "2.52.0")).await?;
    let status = becomes(&services, "ready", |status| status["numServeEndpoints"] == 3).await?;
    assert_eq!(cluster_name(&status), first, "{status}");
    apply(&services, ray_service("ready", 3, 3, "2.52.0")).await?;
    for deploying in ["DEPLOYING", "RUNNING"] {
        let status = becomes(&services, "ready", |status| {
            status["activeServiceStatus"]["applicationStatuses"]["llm"]["status"] == deploying
        })
        .await?;
        assert_eq!(condition(&status, "Ready")["status"], "True", "{status}");
        assert_eq!(condition(&status, "UpgradeInProgress")["status"], "False", "{status}");
        assert_eq!(cluster_name(&status), first, "{status}");
    }

    // Another version of Ray needs another cluster, while the first one serves.
    apply(&services, ray_service("ready", 3, 3, "2.53.0")).await?;
    let status = becomes(&services, "ready", |status| {
        condition(status, "UpgradeInProgress")["reason"] == "BothActivePendingClustersExist"
    })
    .await?;
    assert_eq!(condition(&status, "Ready")["status"], "True", "{status}");
    assert_eq!(cluster_name(&status), first, "{status}");
    let status = becomes(&services, "ready", |status| {
        condition(status, "UpgradeInProgress")["reason"] == "NoPendingCluster"
    })
    .await?;
    let second = cluster_name(&status);
    ensure!(
        second.as_str().is_some_and(|name| name.starts_with("ready-2-")),
        "the second cluster is {second}"
    );

    play_unlucky_services(&client, &services).await?;
    is_silent(&cluster).await?;

    for name in ["ready", "stuck-delete"] {
        services.delete(name, &DeleteParams::default()).await?;
    }
    is_gone(&services, "ready").await?;
    ensure!(
        services.get_opt("stuck-delete").await?.is_some(),
        "stuck-delete does not go"
    );
    loses_its_service(&client, "ready-serve-svc").await?;
    cluster.stop().await
}

/// RayServices that do not become ready, each for another reason.
async fn play_unlucky_services(client: &Client, services: &Api<DynamicObject>) -> Result<()> {
    let says = |name: &'static str, ready: &'static str, reason: &'static str| {
        becomes(services, name, move |status| {
            condition(status, "Ready")["status"] == ready && condition(status, "Ready")["reason"] == reason
        })
    };
    let long = "a-name-that-leaves-no-room-for-those-derived-from-it";
    let unlucky = ["stall", "fail", "flap", "secret-missing", "stuck-delete"];
    let created = create_all(services, unlucky.map(|behavior| ray_service(behavior, 1, 1, "2.52.0"))).await?;
    let mut unlabelled = ray_service(long, 1, 1, "2.52.0");
    unlabelled["metadata"]["labels"] = Value::Null;
    create(services, unlabelled).await?;
    let status = becomes(services, "fail", |status| {
        status["pendingServiceStatus"]["applicationStatuses"]["llm"]["status"] == "DEPLOY_FAILED"
    })
    .await?;
    assert_eq!(condition(&status, "Ready")["reason"], "Initializing", "{status}");
    let message = &status["pendingServiceStatus"]["applicationStatuses"]["llm"]["message"];
    ensure!(message.is_string(), "a failure has a message: {status}");
    became(services, "flap", &created, |status| {
        condition(status, "Ready")["reason"] == "NonZeroServeEndpoints"
    })
    .await?;
    let status = says("flap", "False", "ZeroServeEndpoints").await?;
    assert!(status["serviceStatus"].is_null(), "{status}");
    says("secret-missing", "False", "Initializing").await?;
    waits_for_its_secret(client, &format!("{}=secret-missing", simulator::kuberay::ORIGIN)).await?;
    says("stuck-delete", "True", "NonZeroServeEndpoints").await?;
    says(long, "False", "ValidationFailed").await?;
    ensure!(
        services.get("stall").await?.data["status"].is_null(),
        "stall says nothing"
    );
    Ok(())
}

/// Workers of a cluster that is there stay as many as they were; another template builds a second cluster.
#[tokio::test]
async fn kuberay_makes_clusters_and_scales_none() -> Result<()> {
    let crds = [crds::KUBERAY_SERVICES, crds::KUBERAY_CLUSTERS];
    let (cluster, _simulator) = start_with(&crds, true).await?;
    let client = cluster.admin_client().await?;
    let services = api(&client, "ray.io", "v1", "RayService");
    let clusters = api(&client, "ray.io", "v1", "RayCluster");
    let active = |status: &Value| {
        status["activeServiceStatus"]["rayClusterName"]
            .as_str()
            .map(str::to_owned)
    };
    let with_delay = |workers, replicas, ray| {
        let mut service = ray_service("ready", workers, replicas, ray);
        service["spec"]["rayClusterDeletionDelaySeconds"] = json!(1);
        service
    };
    create(&services, with_delay(1, 1, "2.52.0")).await?;
    let status = becomes(&services, "ready", |status| status["numServeEndpoints"] == 1).await?;
    let first = active(&status).context("an active cluster")?;
    let made = clusters.get(&first).await?;
    assert_eq!(made.labels()[simulator::kuberay::ORIGIN], "ready");
    assert_eq!(made.annotations()["ray.io/num-worker-groups"], "1");
    ensure!(made.owner_references().iter().any(|owner| owner.kind == "RayService"));
    let head = Api::<Service>::default_namespaced(client.clone())
        .get("ready-head-svc")
        .await?;
    assert_eq!(head.spec.and_then(|spec| spec.cluster_ip).as_deref(), Some("None"));

    // More workers and more replicas: the applications are deployed again, the cluster stays as it is.
    apply(&services, with_delay(3, 3, "2.52.0")).await?;
    let status = becomes(&services, "ready", |status| {
        status["observedGeneration"] == 2
            && status["activeServiceStatus"]["applicationStatuses"]["llm"]["status"] == "RUNNING"
    })
    .await?;
    assert_eq!(
        (active(&status), &status["numServeEndpoints"]),
        (Some(first.clone()), &json!(1))
    );
    let now = clusters.get(&first).await?;
    assert_eq!(
        now.metadata.generation, made.metadata.generation,
        "the cluster is not updated"
    );

    // Another template: a second cluster beside the first, which goes a while after.
    apply(&services, with_delay(3, 3, "2.53.0")).await?;
    becomes(&services, "ready", |status| {
        condition(status, "UpgradeInProgress")["status"] == "True"
    })
    .await?;
    clusters.get(&first).await?;
    let status = becomes(&services, "ready", |status| status["numServeEndpoints"] == 3).await?;
    assert_ne!(active(&status), Some(first.clone()));
    is_gone(&clusters, &first).await?;

    let mut digit = ray_service("ready", 1, 1, "2.52.0");
    digit["metadata"]["name"] = json!("7b-chat");
    create(&services, digit).await?;
    becomes(&services, "7b-chat", |status| {
        condition(status, "Ready")["reason"] == "ValidationFailed"
    })
    .await?;

    services.delete("ready", &DeleteParams::default()).await?;
    is_gone(&services, "ready").await?;
    eventually(PATIENCE, async || {
        let left = clusters.list(&ListParams::default()).await?.items;
        ensure!(left.is_empty(), "clusters are left: {left:?}");
        Ok(())
    })
    .await?;
    loses_its_service(&client, "ready-head-svc").await?;
    cluster.stop().await
}

async fn start(crd: &str) -> Result<(ControlPlane, Simulator)> {
    start_with(&[crd], false).await
}

async fn start_with(crds: &[&str], workloads: bool) -> Result<(ControlPlane, Simulator)> {
    let crds = crds::upstream_crds(crds)?;
    let cluster = ControlPlane::start(Options {
        crds,
        ..Options::default()
    })
    .await?;
    let config = simulator::Config {
        ready_after: FAST,
        workloads,
        ..simulator::Config::default()
    };
    let simulator = Simulator::start(cluster.client(UPSTREAM, &["system:masters"]).await?, config);
    Ok((cluster, simulator))
}

/// In v1alpha1, as Dynamo's examples have it.
fn old_graph(behavior: &str, replicas: u32) -> Value {
    let container = json!({"mainContainer": {"image": "vllm-runtime:0.7.1"}});
    json!({
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": behavior, "labels": {simulator::LABEL: behavior}},
        "spec": {"backendFramework": "vllm", "services": {
            "Frontend": {"componentType": "frontend", "replicas": 1, "extraPodSpec": container},
            "decode": {
                "componentType": "worker",
                "subComponentType": "decode",
                "replicas": replicas,
                "envFromSecret": "my-token",
                "resources": {"limits": {"gpu": "1"}},
                "extraPodSpec": container,
            },
            "prefill": {
                "componentType": "worker",
                "subComponentType": "prefill",
                "envFromSecret": "my-token",
                "multinode": {"nodeCount": 2},
                "extraPodSpec": container,
            },
        }},
    })
}

/// The same in v1beta1.
fn new_graph(behavior: &str, replicas: u32) -> Value {
    let template = |gpus: &str| {
        json!({"spec": {"containers": [{
            "name": "main",
            "image": "vllm-runtime:1.3.0",
            "envFrom": [{"secretRef": {"name": "my-token"}}],
            "resources": {"limits": {"nvidia.com/gpu": gpus}},
        }]}})
    };
    json!({
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": behavior, "labels": {simulator::LABEL: behavior}},
        "spec": {"backendFramework": "vllm", "components": [
            {"name": "Frontend", "type": "frontend", "podTemplate": template("0")},
            {"name": "decode", "type": "decode", "replicas": replicas, "podTemplate": template("1")},
            {"name": "prefill", "type": "prefill", "multinode": {"nodeCount": 2}, "podTemplate": template("8")},
        ]},
    })
}

fn ray_service(behavior: &str, workers: u32, replicas: u32, ray: &str) -> Value {
    let template = json!({"spec": {"containers": [{
        "name": "ray",
        "image": format!("ray-llm:{ray}"),
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "my-token", "key": "HF_TOKEN"}}}],
    }]}});
    let serve_config = format!(
        "applications:
- name: llm
  import_path: ray.serve.llm:build_openai_app
  route_prefix: /
  args:
    llm_configs:
    - model_loading_config: {{model_id: tiny, model_source: org/tiny}}
      deployment_config: {{num_replicas: {replicas}}}
"
    );
    json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": behavior, "labels": {simulator::LABEL: behavior}},
        "spec": {"serveConfigV2": serve_config, "rayClusterConfig": {
            "rayVersion": ray,
            "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": template},
            "workerGroupSpecs": [{
                "groupName": "gpu",
                "replicas": workers,
                "minReplicas": workers,
                "maxReplicas": workers,
                "rayStartParams": {},
                "template": template,
            }],
        }},
    })
}

fn api(client: &Client, group: &str, version: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    Api::default_namespaced_with(client.clone(), &resource)
}

async fn create(objects: &Api<DynamicObject>, object: Value) -> Result<()> {
    objects
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}

/// Creates several, and returns the resource version before that.
async fn create_all(objects: &Api<DynamicObject>, all: impl IntoIterator<Item = Value>) -> Result<String> {
    let before = objects.list(&ListParams::default()).await?.metadata.resource_version;
    for object in all {
        create(objects, object).await?;
    }
    before.context("a list has a resource version")
}

async fn apply(objects: &Api<DynamicObject>, object: Value) -> Result<()> {
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let params = PatchParams::apply("test").force();
    objects.patch(name, &params, &Patch::Apply(&object)).await?;
    Ok(())
}

fn condition<'a>(status: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

/// The status once it is so.
async fn becomes(objects: &Api<DynamicObject>, name: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(PATIENCE, async || {
        let status = objects.get(name).await?.data["status"].clone();
        ensure!(is_so(&status), "the status of {name} is {status}");
        Ok(status)
    })
    .await
}

/// Waits until the status has been so at any time since a resource version. A request that comes late may not see it any more.
async fn became(objects: &Api<DynamicObject>, name: &str, since: &str, was_so: impl Fn(&Value) -> bool) -> Result<()> {
    let only_this = WatchParams::default().fields(&format!("metadata.name={name}"));
    let seen = async {
        let mut events = pin!(objects.watch(&only_this, since).await?);
        while let Some(event) = events.try_next().await? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) if was_so(&object.data["status"]) => {
                    return Ok(());
                }
                WatchEvent::Error(error) => bail!("the watch of {name} ended: {error:?}"),
                _ => {}
            }
        }
        bail!("the status of {name} was never so until the watch timed out")
    };
    tokio::time::timeout(PATIENCE, seen)
        .await
        .with_context(|| format!("the status of {name} was never so"))?
}

async fn is_silent(cluster: &ControlPlane) -> Result<()> {
    let log = cluster.audit().await?;
    let mark = log.mark().await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let requests = audit::of_user(&log.since(mark).await?, UPSTREAM);
    assert_eq!(
        Count::of(&requests),
        Count::default(),
        "not silent at rest: {requests:?}"
    );
    Ok(())
}

async fn has_port_8000(client: &Client, name: &str) -> Result<()> {
    let service = Api::<Service>::default_namespaced(client.clone()).get(name).await?;
    let ports = service.spec.and_then(|spec| spec.ports).unwrap_or_default();
    ensure!(ports.len() == 1 && ports[0].port == 8000, "its ports are {ports:?}");
    Ok(())
}

async fn loses_its_service(client: &Client, name: &str) -> Result<()> {
    let services: Api<Service> = Api::default_namespaced(client.clone());
    eventually(PATIENCE, async || {
        ensure!(
            services.get_opt(name).await?.is_none(),
            "the service outlives its owner"
        );
        Ok(())
    })
    .await
}

async fn waits_for_its_secret(client: &Client, label: &str) -> Result<()> {
    let list = kube::api::ListParams::default().labels(label);
    let pods = Api::<Pod>::default_namespaced(client.clone()).list(&list).await?;
    let statuses = pods.items.into_iter().filter_map(|pod| pod.status?.container_statuses);
    let waiting = statuses.flatten().find_map(|status| status.state?.waiting);
    let waiting = waiting.with_context(|| format!("no pod of {label} waits"))?;
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerConfigError"));
    assert_eq!(waiting.message.as_deref(), Some("secret \"my-token\" not found"));
    Ok(())
}

async fn is_gone(objects: &Api<DynamicObject>, name: &str) -> Result<()> {
    eventually(PATIENCE, async || {
        ensure!(objects.get_opt(name).await?.is_none(), "{name} is still there");
        Ok(())
    })
    .await
}
