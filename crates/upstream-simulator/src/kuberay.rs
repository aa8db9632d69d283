//! Plays KubeRay: RayServices come up on a pending cluster, which then becomes the active one.
//!
//! Sources: ray-project/kuberay `rayservice_controller.go` and `apis/ray/v1/rayservice_types.go`, as of 1.3 and later.
//! As there:
//! - A change of `rayClusterConfig` builds a second cluster while the first one serves, unless it is one that the cluster
//!   hash leaves out: `replicas`, `minReplicas`, `maxReplicas` and `scaleStrategy.workersToDelete` of a worker group,
//!   `upgradeStrategy`, and worker groups added at the end. With `spec.upgradeStrategy.type: None` nothing is built.
//! - A change of `serveConfigV2` updates the applications of the cluster that is there.
//! - While there is a pending cluster, the applications of the active one are not reported.
//! - The applications are read before a changed `serveConfigV2` is submitted, so that the new generation is first observed with
//!   the former state, such as RUNNING or DEPLOY_FAILED (`reconcileServe`).
//! - A failed deployment has its cause in `serveDeploymentStatuses`; the application says no more than which ones failed.
//! - A lost head leaves `Ready` True, and no applications.
//! - `spec.suspend` deletes the cluster in rounds of two seconds, also if it is withdrawn meanwhile (`handleSuspend`, since 1.7).
//! - `Ready` means endpoints, nothing else. An application that fails during the first rollout shows in
//!   `pendingServiceStatus` alone; `Ready` stays False with reason Initializing, and `serviceStatus` empty.
//! - No finalizer on RayServices, before 1.7.
//!
//! Simplified: the pods are objects that no node runs, and what Ray's dashboard would say follows a timeline. A
//! cluster's name ends in `-<count>-<hash>`, so that a test sees how many were built; upstream's end is random.
//!
//! By default a cluster is a name in the status, and the head Service is omitted. With
//! [`Config::workloads`](super::Config::workloads) the objects are those of ray-project/kuberay feeaf72 (after v1.7.0):
//!
//! | behavior | upstream |
//! |---|---|
//! | RayClusters carry the service's labels and annotations, the hash of their spec and the number of worker groups | `rayservice_controller.go`, `constructRayClusterForRayService` |
//! | changed `replicas`, `minReplicas`, `maxReplicas` and `workersToDelete` reach no cluster that is there, so that workers follow them only where Ray's autoscaler is on (issues 2331 and 4568); here the autoscaler reaches at once what the RayService says | `rayservice_controller.go`, `shouldUpdateCluster`; `utils/util.go`, `GenerateHashWithoutReplicasAndWorkersToDelete` |
//! | worker groups added at the end update the cluster in place | `rayservice_controller.go`, `shouldUpdateCluster`, `modifyRayCluster` |
//! | a cluster that was replaced lives on for 60 s, or `rayClusterDeletionDelaySeconds` | `rayservice_controller.go`, `cleanUpRayClusterInstance` |
//! | Services `NAME-head-svc` (headless) and `NAME-serve-svc` are made once a cluster serves, and turn to the next one | `common/service.go`, `BuildHeadServiceForRayService`, `BuildServeServiceForRayService` |
//! | RayServices have a finalizer, since 1.7 | `rayservice_controller.go`, `Reconcile` |
//!
//! In both modes the hash excludes tolerations and scheduling gates, as since 1.6, and names that are not DNS-1035
//! labels or too long are refused (`utils/validation.go`, `ValidateRayServiceMetadata`). Not played: incremental
//! upgrades, the timeout of the initialization, and a head container that declares ports, but none for Serve.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::{
    Api, Client, Resource as _, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::{Map, Value, json};

use super::{
    Config,
    engine::{Role, Simulation, condition, hash, play},
    pods::SimulatedPod,
    timeline::{PodState, Stage},
};

/// The field manager of everything that the simulator writes as KubeRay.
pub const MANAGER: &str = "kuberay-simulator";
/// On the pods of a RayService: its name.
pub const ORIGIN: &str = "ray.io/originated-from-cr-name";
/// On the pods of a cluster, and what the Service selects: the cluster.
pub const CLUSTER: &str = "ray.io/cluster";

const ORIGIN_KIND: &str = "ray.io/originated-from-crd";
const SPEC_HASH: &str = "ray.io/hash-without-replicas-and-workers-to-delete";
/// (`ServiceDefaultRequeueDuration`)
const ROUND: Duration = Duration::from_secs(2);
/// (`RayClusterDeletionDelayDuration`)
const DELETION_DELAY: Duration = Duration::from_mins(1);

/// More than that, and the names derived from it would not fit (`MaxRayServiceNameLength`).
const LONGEST_NAME: usize = 47;
/// The application only says which deployments failed; these say why.
const FAILED: &str = "Failed to update the deployments";
const FAILURE: &str = "The deployment failed to start 3 times in a row: the engine process exited with code 1";
const UNHEALTHY: &str = "The deployments are UNHEALTHY: the health check of a replica failed 3 times";

/// Plays KubeRay's controller for RayServices while their CRD is there.
pub(super) async fn run(client: Client, config: Config) {
    let services = Role {
        crd: "rayservices.ray.io",
        manager: MANAGER,
        finalizer: config.workloads.then_some("ray.io/rayservice-finalizer"),
        owns: Vec::new(),
    };
    play(client, config, services, service).await;
}

async fn service(object: Arc<DynamicObject>, simulation: Arc<Simulation>) -> kube::Result<Action> {
    if simulation.guard_deletion(&object).await? {
        return Ok(Action::await_change());
    }
    if suspend(&object, &simulation).await? {
        return Ok(Action::requeue(ROUND));
    }
    let clusters = Clusters::of(&object).following(&object);
    let serve_config = object.data["spec"]["serveConfigV2"].as_str().unwrap_or_default();
    let undertaking = format!("{} {}", clusters.current(), hash(serve_config));
    let (stage, next) = simulation.stage(&object, &undertaking, has_result(&object));
    let Some(stage) = stage else {
        return Ok(next);
    };
    if let Some(message) = name_problem(&object.name_any()) {
        simulation.set_status(&object, refusal(&object, &message)).await?;
        return Ok(Action::await_change());
    }

    let applications = applications(serve_config);
    // Nothing is deployed from a configuration that cannot be read.
    let stage = if applications.is_empty() { Stage::Pending } else { stage };
    let serving = clusters.at(stage);
    if let Some(active) = serving.active.as_ref().filter(|_| serving != clusters) {
        serve_on(&object, active, &simulation).await?;
    }
    let (workers, look_again) = if simulation.config.workloads {
        (
            keep_cluster(&object, serving.current(), &simulation).await?,
            remove_others(&object, &serving, &simulation).await?,
        )
    } else {
        (workers(&object.data["spec"]["rayClusterConfig"]), None)
    };
    keep_pods(&object, &serving, stage, &simulation).await?;
    let status = service_status(&object, &serving, &applications, stage, workers);
    simulation.set_status_with_time(&object, status).await?;
    // With a stage to come, the next reconcile asks for the other again.
    Ok(match look_again {
        Some(after) if next == Action::await_change() => Action::requeue(after),
        _ => next,
    })
}

/// Makes or updates the RayCluster, and returns how many workers it has.
async fn keep_cluster(service: &DynamicObject, name: &str, simulation: &Simulation) -> kube::Result<u64> {
    let config = &service.data["spec"]["rayClusterConfig"];
    let groups = config["workerGroupSpecs"].as_array().map_or(0, Vec::len);
    let api = ray_clusters(service, simulation);
    let mut manifest = json!({
        "metadata": {
            "labels": with(service.labels(), &[(ORIGIN, &service.name_any()), (ORIGIN_KIND, "RayService")]),
            "annotations": with(service.annotations(), &[
                (SPEC_HASH, &cluster_hash(config, groups)),
                ("ray.io/num-worker-groups", &groups.to_string()),
            ]),
        },
        "spec": config,
    });
    let Some(cluster) = api.get_opt(name).await? else {
        manifest["apiVersion"] = json!("ray.io/v1");
        manifest["kind"] = json!("RayCluster");
        manifest["metadata"]["name"] = json!(name);
        manifest["metadata"]["ownerReferences"] = json!([service.controller_owner_ref(&simulation.kind)]);
        let manifest = serde_json::from_value(manifest).map_err(kube::Error::SerdeError)?;
        api.create(&simulation.post_params(), &manifest).await?;
        return Ok(workers(config));
    };
    let made_from = cluster.annotations().get(SPEC_HASH).cloned().unwrap_or_default();
    let has_new_groups = made_from != cluster_hash(config, groups) && is_made_from(&made_from, config);
    if has_new_groups {
        let patch = Patch::Merge(manifest);
        api.patch(name, &PatchParams::default(), &patch).await?;
    }
    let is_followed = has_new_groups || config["enableInTreeAutoscaling"] == true;
    Ok(workers(if is_followed { config } else { &cluster.data["spec"] }))
}

/// Deletes clusters that were replaced, some time after. Returns when to look again.
async fn remove_others(
    service: &DynamicObject,
    clusters: &Clusters,
    simulation: &Simulation,
) -> kube::Result<Option<Duration>> {
    let delay = service.data["spec"]["rayClusterDeletionDelaySeconds"].as_u64();
    let delay = delay.map_or(DELETION_DELAY, Duration::from_secs);
    let api = ray_clusters(service, simulation);
    let of_service = ListParams::default().labels(&format!("{ORIGIN}={}", service.name_any()));
    let mut look_again = None;
    for cluster in api.list(&of_service).await? {
        let name = cluster.name_any();
        let is_used = [&clusters.active, &clusters.pending].contains(&&Some(name.clone()));
        if is_used || cluster.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let left = delay.saturating_sub(simulation.age(&cluster, "replaced"));
        if left.is_zero() {
            api.delete(&name, &DeleteParams::background()).await?;
        } else {
            look_again = Some(left);
        }
    }
    Ok(look_again)
}

fn ray_clusters(service: &DynamicObject, simulation: &Simulation) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("ray.io", "v1", "RayCluster"));
    let namespace = service.namespace().unwrap_or_default();
    Api::namespaced_with(simulation.client.clone(), &namespace, &kind)
}

fn with(all: &BTreeMap<String, String>, more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let more = more.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    all.clone().into_iter().chain(more).collect()
}

/// The endpoint that KubeRay makes once there is a cluster that serves, and turns to each one that takes over.
async fn serve_on(object: &DynamicObject, cluster: &str, simulation: &Simulation) -> kube::Result<()> {
    let name = format!("{}-serve-svc", object.name_any());
    let selector = json!({CLUSTER: cluster, "ray.io/serve": "true"});
    let port = json!({"name": "serve", "protocol": "TCP", "port": 8000, "targetPort": 8000});
    simulation.apply_service(object, &name, selector, port).await?;
    if simulation.config.workloads {
        simulation
            .apply_any_service(object, head_service(object, cluster))
            .await?;
    }
    Ok(())
}

fn head_service(service: &DynamicObject, cluster: &str) -> Value {
    let name = service.name_any();
    let ports = [
        ("client", 10001),
        ("dashboard", 8265),
        ("gcs-server", 6379),
        ("metrics", 8080),
        ("serve", 8000),
    ];
    let ports = ports.map(|(name, port)| json!({"name": name, "port": port, "appProtocol": "tcp"}));
    json!({
        "metadata": {
            "name": format!("{name}-head-svc"),
            "labels": {
                ORIGIN: name,
                ORIGIN_KIND: "RayService",
                "ray.io/node-type": "head",
                "ray.io/identifier": format!("{name}-head"),
            },
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {
                CLUSTER: cluster,
                "ray.io/node-type": "head",
                "ray.io/identifier": format!("{cluster}-head"),
                "app.kubernetes.io/name": "kuberay",
                "app.kubernetes.io/created-by": "kuberay-operator",
            },
            "ports": ports,
        },
    })
}

/// Head and workers of every cluster, as they are once Ray runs on them. A cluster that was replaced keeps its pods until it is
/// deleted.
async fn keep_pods(
    service: &DynamicObject,
    clusters: &Clusters,
    stage: Stage,
    simulation: &Simulation,
) -> kube::Result<()> {
    let behavior = simulation.behavior(service);
    let mut pods = Vec::new();
    for cluster in clusters.active.iter().chain(&clusters.pending) {
        let is_current = cluster == clusters.current();
        let stage = if is_current { stage } else { Stage::Ready };
        let has_run = is_current && clusters.pending.is_none() && stage == Stage::Pending;
        let condition = if has_run {
            Some(PodState::Ready)
        } else {
            PodState::at(behavior, stage)
        };
        if let Some(condition) = condition {
            pods.extend(pods_of(service, cluster, condition, stage == Stage::Headless));
        }
    }
    simulation.keep_pods(service, pods).await
}

fn pods_of(service: &DynamicObject, cluster: &str, state: PodState, is_headless: bool) -> Vec<SimulatedPod> {
    let name = service.name_any();
    let config = &service.data["spec"]["rayClusterConfig"];
    let common = [(ORIGIN, name.as_str()), (ORIGIN_KIND, "RayService"), (CLUSTER, cluster)];
    let pod = |suffix: &str, template: &Value, more: [(&str, &str); 2], state| {
        let labels: Vec<_> = common.into_iter().chain(more).collect();
        SimulatedPod::new(format!("{cluster}-{suffix}"), template, &labels, state)
    };
    // The head loads no model.
    let of_head = if state == PodState::Starting {
        state
    } else {
        PodState::Ready
    };
    let head = [("ray.io/group", "headgroup"), ("ray.io/node-type", "head")];
    let head = (!is_headless).then(|| pod("head", &config["headGroupSpec"]["template"], head, of_head));
    let groups = config["workerGroupSpecs"].as_array().into_iter().flatten();
    let workers = groups.flat_map(|group| {
        let group_name = group["groupName"].as_str().unwrap_or("workers");
        let labels = [("ray.io/group", group_name), ("ray.io/node-type", "worker")];
        (0..group_workers(group))
            .map(|number| {
                pod(
                    &format!("{group_name}-worker-{number}"),
                    &group["template"],
                    labels,
                    state,
                )
            })
            .collect::<Vec<_>>()
    });
    head.into_iter().chain(workers).collect()
}

/// Plays `spec.suspend`, in rounds: first the pods go, then the service is suspended. Once begun, it is completed even if the field
/// is withdrawn (`handleSuspend`). Whether nothing else is to be done.
async fn suspend(service: &DynamicObject, simulation: &Simulation) -> kube::Result<bool> {
    let is = |kind: &str| {
        let mut conditions = service.data["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    let is_asked = service.data["spec"]["suspend"] == true;
    let status = |suspending: bool, suspended: bool| {
        let reason = if suspending {
            "SuspendInProgress"
        } else {
            "SuspendComplete"
        };
        let message = if suspending {
            "RayService is suspending."
        } else {
            "RayService is suspended."
        };
        let mut status = json!({
            "observedGeneration": service.metadata.generation,
            "serviceStatus": null,
            "numServeEndpoints": null,
            "activeServiceStatus": {"rayClusterStatus": {"head": {}}},
            "pendingServiceStatus": {"rayClusterStatus": {"head": {}}},
        });
        status["conditions"] = json!([
            condition(service, "Suspending", suspending, reason, message),
            condition(service, "Suspended", suspended, reason, message),
            condition(service, "Ready", false, reason, message),
            condition(service, "UpgradeInProgress", false, reason, message),
        ]);
        status
    };
    if is("Suspending") {
        simulation.keep_pods(service, Vec::new()).await?;
        simulation.set_status_with_time(service, status(false, true)).await?;
        return Ok(true);
    }
    if is_asked && !is("Suspended") {
        simulation.set_status_with_time(service, status(true, false)).await?;
    }
    Ok(is_asked)
}

/// Whether the status reports a final state for the current spec.
fn has_result(service: &DynamicObject) -> bool {
    let status = &service.data["status"];
    let is_pending = !status["pendingServiceStatus"]["rayClusterName"].is_null();
    let current = if is_pending {
        &status["pendingServiceStatus"]
    } else {
        &status["activeServiceStatus"]
    };
    let applications = current["applicationStatuses"].as_object();
    status["observedGeneration"] == json!(service.metadata.generation)
        && applications.is_some_and(|applications| {
            applications
                .values()
                .all(|application| !matches!(application["status"].as_str(), Some("NOT_STARTED" | "DEPLOYING")))
        })
}

/// The clusters of a RayService, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Clusters {
    active: Option<String>,
    pending: Option<String>,
}

impl Clusters {
    /// Those that there are.
    fn of(service: &DynamicObject) -> Self {
        let name = |which: &str| {
            let name = service.data["status"][which]["rayClusterName"].as_str();
            name.filter(|name| !name.is_empty()).map(str::to_owned)
        };
        Self {
            active: name("activeServiceStatus"),
            pending: name("pendingServiceStatus"),
        }
    }

    /// Those that there must be for the spec: with a new pending one if the current one is not made from it.
    fn following(self, service: &DynamicObject) -> Self {
        let spec = &service.data["spec"];
        let config = &spec["rayClusterConfig"];
        let current = self.current();
        let may_build = current.is_empty() || spec["upgradeStrategy"]["type"] != "None";
        if is_made_from(current, config) || !may_build {
            return self;
        }
        let groups = config["workerGroupSpecs"].as_array().map_or(0, Vec::len);
        let number = number(current) + 1;
        let pending = format!("{}-{number}-{}", service.name_any(), cluster_hash(config, groups));
        Self {
            pending: Some(pending),
            ..self
        }
    }

    /// A pending cluster whose applications run takes over.
    fn at(&self, stage: Stage) -> Self {
        match stage {
            Stage::Ready | Stage::Unready | Stage::Crashing | Stage::Headless if self.pending.is_some() => Self {
                active: self.pending.clone(),
                pending: None,
            },
            _ => self.clone(),
        }
    }

    /// The one that the spec is about.
    fn current(&self) -> &str {
        self.pending.as_deref().or(self.active.as_deref()).unwrap_or_default()
    }
}

/// Number of clusters built up to this one.
fn number(cluster: &str) -> u32 {
    let number = cluster.rsplit('-').nth(1);
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Worker groups added at the end do not count.
fn is_made_from(cluster: &str, config: &Value) -> bool {
    let groups = config["workerGroupSpecs"].as_array().map_or(0, Vec::len);
    (0..=groups).any(|first| cluster.rsplit('-').next() == Some(&cluster_hash(config, first)))
}

/// Of all that a cluster cannot take over in place, with the first worker groups alone.
fn cluster_hash(config: &Value, groups: usize) -> String {
    let mut config = config.clone();
    if let Some(fields) = config.as_object_mut() {
        fields.remove("upgradeStrategy");
    }
    if config["headGroupSpec"].is_object() {
        mute(&mut config["headGroupSpec"]["template"]);
    }
    if let Some(all) = config["workerGroupSpecs"].as_array_mut() {
        all.truncate(groups);
        for group in all.iter_mut() {
            mute(&mut group["template"]);
        }
        for group in all.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["replicas", "minReplicas", "maxReplicas", "scaleStrategy"] {
                // The one field of scaleStrategy is workersToDelete.
                group.remove(field);
            }
        }
    }
    hash(&config.to_string())
}

/// Fields that other writers may add to a pod template.
fn mute(template: &mut Value) {
    if let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) {
        pod.remove("tolerations");
        pod.remove("schedulingGates");
    }
}

/// By name, with the names of their deployments. Empty if the configuration cannot be read.
fn applications(serve_config: &str) -> Vec<(String, Vec<String>)> {
    let config: Value = serde_saphyr::from_str(serve_config).unwrap_or_default();
    let applications = config["applications"].as_array().into_iter().flatten();
    applications
        .map(|application| {
            let name = application["name"].as_str().unwrap_or("default").to_owned();
            (name, deployments(application))
        })
        .collect()
}

/// Those that are named, else the one for the model of each LLM configuration.
fn deployments(application: &Value) -> Vec<String> {
    let named = application["deployments"].as_array().into_iter().flatten();
    let named = named
        .filter_map(|deployment| deployment["name"].as_str())
        .map(str::to_owned);
    let arguments = &application["args"];
    let configs = arguments["llm_configs"].as_array().into_iter().flatten();
    let configs = configs.chain([&arguments["prefill_config"], &arguments["decode_config"]]);
    let models = configs.filter_map(|config| config["model_loading_config"]["model_id"].as_str());
    named
        .chain(models.map(|model| format!("LLMServer:{}", model.replace('/', "--"))))
        .collect()
}

fn service_status(
    service: &DynamicObject,
    clusters: &Clusters,
    applications: &[(String, Vec<String>)],
    stage: Stage,
    workers: u64,
) -> Value {
    let before = service.data["status"]["numServeEndpoints"].as_u64().unwrap_or(0);
    let endpoints = match (clusters, stage) {
        (Clusters { active: None, .. }, _) | (_, Stage::Unready) => 0,
        // The active one continues, also with a config that does not start.
        (Clusters { pending: Some(_), .. }, _) | (_, Stage::Pending | Stage::Loading | Stage::Failed) => before,
        _ => workers.max(1),
    };
    let is_ready = endpoints > 0;

    let cluster_status = |name: &Option<String>, applications: Value| match name {
        None => json!({"rayClusterStatus": {"head": {}}}),
        Some(name) => {
            let ready = if stage == Stage::Pending { 0 } else { workers };
            let mut status = json!({"rayClusterName": name, "rayClusterStatus": {
                "head": {},
                "desiredWorkerReplicas": workers,
                "readyWorkerReplicas": ready,
                "availableWorkerReplicas": ready,
            }});
            if !applications.is_null() {
                status["applicationStatuses"] = applications;
            }
            status
        }
    };
    // The applications are read before a changed config is submitted to a cluster that serves.
    let is_behind = stage == Stage::Pending && before > 0 && clusters.pending.is_none();
    let reported = match stage {
        Stage::Headless => json!({}),
        Stage::Pending if is_behind => service.data["status"]["activeServiceStatus"]["applicationStatuses"].clone(),
        stage => application_statuses(applications, stage),
    };
    let (of_active, of_pending) = if clusters.pending.is_some() {
        (Value::Null, reported)
    } else {
        (reported, Value::Null)
    };
    json!({
        "observedGeneration": service.metadata.generation,
        "serviceStatus": if is_ready { json!("Running") } else { Value::Null },
        "numServeEndpoints": if is_ready { json!(endpoints) } else { Value::Null },
        "activeServiceStatus": cluster_status(&clusters.active, of_active),
        "pendingServiceStatus": cluster_status(&clusters.pending, of_pending),
        "conditions": [
            ready_condition(service, clusters, is_ready),
            upgrade_condition(service, clusters),
        ],
    })
}

fn ready_condition(service: &DynamicObject, clusters: &Clusters, is_ready: bool) -> Value {
    let (reason, message) = match (is_ready, &clusters.active) {
        (true, _) => ("NonZeroServeEndpoints", "Number of serve endpoints is greater than 0"),
        (false, Some(_)) => ("ZeroServeEndpoints", "Number of serve endpoints dropped to 0"),
        (false, None) => ("Initializing", "RayService is initializing"),
    };
    condition(service, "Ready", is_ready, reason, message)
}

fn upgrade_condition(service: &DynamicObject, clusters: &Clusters) -> Value {
    let (is_upgrading, reason, message) = match (&clusters.active, &clusters.pending) {
        (Some(_), Some(_)) => (
            true,
            "BothActivePendingClustersExist",
            "Both active and pending Ray clusters exist",
        ),
        (Some(_), None) => (
            false,
            "NoPendingCluster",
            "Active Ray cluster exists and no pending Ray cluster",
        ),
        (None, _) => (false, "Initializing", "RayService is initializing"),
    };
    condition(service, "UpgradeInProgress", is_upgrading, reason, message)
}

/// Reason why KubeRay rejects the name.
fn name_problem(name: &str) -> Option<String> {
    let prefix = "The RayService metadata is invalid: RayService name should be";
    let starts_with_letter = name.starts_with(|c: char| c.is_ascii_lowercase());
    if name.len() > LONGEST_NAME {
        Some(format!("{prefix} no more than {LONGEST_NAME} characters"))
    } else if !starts_with_letter || name.contains('.') {
        Some(format!(
            "{prefix} a valid DNS1035 label: [a DNS-1035 label must start with an alphabetic character]"
        ))
    } else {
        None
    }
}

/// Terminal: KubeRay looks at it again only when it changes.
fn refusal(service: &DynamicObject, message: &str) -> Value {
    json!({"conditions": [condition(service, "Ready", false, "ValidationFailed", message)]})
}

fn workers(config: &Value) -> u64 {
    let groups = config["workerGroupSpecs"].as_array().into_iter().flatten();
    groups.map(group_workers).sum()
}

fn group_workers(group: &Value) -> u64 {
    group["replicas"].as_u64().unwrap_or(0) * group["numOfHosts"].as_u64().unwrap_or(1)
}

fn application_statuses(applications: &[(String, Vec<String>)], stage: Stage) -> Value {
    let (status, message, of_deployments) = match stage {
        Stage::Pending => ("NOT_STARTED", "", "UPDATING"),
        Stage::Loading => ("DEPLOYING", "", "UPDATING"),
        Stage::Ready | Stage::Crashing | Stage::Headless => ("RUNNING", "", "HEALTHY"),
        Stage::Unready => ("UNHEALTHY", UNHEALTHY, "UNHEALTHY"),
        Stage::Failed => ("DEPLOY_FAILED", FAILED, "DEPLOY_FAILED"),
    };
    let with_message = |mut status: Value, message: &str| {
        if !message.is_empty() {
            status["message"] = json!(message);
        }
        status
    };
    let of_deployment = if stage == Stage::Failed { FAILURE } else { message };
    let statuses = applications.iter().map(|(name, deployments)| {
        let mut application = with_message(json!({"status": status}), message);
        // Before that, Ray knows the application by name alone.
        if stage != Stage::Pending {
            let deployments = deployments.iter();
            let deployments = deployments.map(|name| {
                let status = with_message(json!({"status": of_deployments}), of_deployment);
                (name.clone(), status)
            });
            application["serveDeploymentStatuses"] = deployments.collect::<Map<_, _>>().into();
        }
        (name.clone(), application)
    });
    statuses.collect::<Map<_, _>>().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(config: &Value, status: &Value) -> DynamicObject {
        serde_json::from_value(json!({
            "metadata": {"name": "s", "generation": 1},
            "spec": {"rayClusterConfig": config},
            "status": status,
        }))
        .unwrap()
    }

    fn config() -> Value {
        json!({"rayVersion": "2.52.0", "workerGroupSpecs": [{"groupName": "gpu", "replicas": 1, "template": {"spec": {}}}]})
    }

    fn first() -> Clusters {
        Clusters::default().following(&service(&config(), &Value::Null))
    }

    fn after(change: impl FnOnce(&mut Value)) -> Clusters {
        let mut changed = config();
        change(&mut changed);
        first().at(Stage::Ready).following(&service(&changed, &Value::Null))
    }

    #[test]
    fn the_first_cluster_is_pending_until_it_serves() {
        let first = first();
        assert_eq!((number(first.current()), &first.active), (1, &None));
        assert_eq!(first.at(Stage::Failed), first);
        assert_eq!(first.at(Stage::Ready).active, first.pending);
    }

    #[test]
    fn fields_outside_the_hash_build_no_second_cluster() {
        let active = first().at(Stage::Ready);
        let group = |config: &mut Value, field: &str, value: Value| config["workerGroupSpecs"][0][field] = value;
        assert_eq!(after(|_| {}), active);
        assert_eq!(after(|c| group(c, "replicas", json!(3))), active);
        assert_eq!(after(|c| group(c, "minReplicas", json!(3))), active);
        assert_eq!(after(|c| group(c, "maxReplicas", json!(3))), active);
        assert_eq!(
            after(|c| group(c, "scaleStrategy", json!({"workersToDelete": ["a"]}))),
            active
        );
        assert_eq!(
            after(|c| c["workerGroupSpecs"][0]["template"]["spec"] = json!({"tolerations": [{"key": "a"}]})),
            active
        );
        assert_eq!(after(|c| c["upgradeStrategy"] = json!({"type": "Recreate"})), active);
        assert_eq!(
            after(|c| c["workerGroupSpecs"] = json!([c["workerGroupSpecs"][0], {"groupName": "more"}])),
            active
        );
    }

    #[test]
    fn anything_else_builds_a_second_cluster_beside_the_first() {
        let active = first().at(Stage::Ready).active;
        for clusters in [
            after(|c| c["rayVersion"] = json!("2.53.0")),
            after(|c| c["workerGroupSpecs"][0]["numOfHosts"] = json!(2)),
            after(|c| c["workerGroupSpecs"] = json!([])),
        ] {
            assert_eq!((number(clusters.current()), &clusters.active), (2, &active));
            assert!(clusters.pending.is_some());
        }
    }

    #[test]
    fn an_unreadable_configuration_deploys_nothing() {
        assert!(applications("applications: [").is_empty());
        let text = "applications:\n- args: {llm_configs: [{model_loading_config: {model_id: a/b}}]}\n";
        assert_eq!(
            applications(text),
            [("default".to_owned(), vec!["LLMServer:a--b".to_owned()])]
        );
    }
}
